"""A Hub of one's own under attack: what everybody else notices of it: `python -m benchmarks.server_attack`.

Beside each attack one client asks for `/health` and for a file, a request every few milliseconds, and the median
of its times is compared with one before. The attacks: 1,000 connections that stall (from one address, and from a
hundred); 16 clients that send YAML cards, each as expensive as the limits allow, again and again; eight commits
of 150 MB at a time; and a search among 10,000 repositories, one after another and five at a time. Everything is
on 127.0.0.1, with bounded time and load. Prints JSON; exit code 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import json
import os
import random
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.harness import write
from benchmarks.server import peak_mib
from kernels_hub.server.access import Caller
from kernels_hub.server.commit import AddFile, CommitRequest
from kernels_hub.server.hub import Hub
from kernels_hub.server.packs import BLOB, git_object
from kernels_hub.server.search import Wanted
from tests.running_hub import RunningHub, start_hub  # type: ignore[import-not-found]

GOALS = {
    "stalled, 100 addresses: GET median ms": 10.0,
    "stalled, 1 address: GET median ms": 10.0,
    "stalled: left after the timeout": 1,
    "16 hostile cards: GET median ms": 20.0,
    "search, 10,000 repositories: median ms": 10.0,
    "8 commits of 150 MB: memory growth MiB": 200.0,
}
STALLED = 1000
HEADER_SECONDS = 5.0
LIMITS = {"header_seconds": HEADER_SECONDS, "max_requests_per_minute": 0, "max_bad_tokens_per_minute": 0}


class Client:
    """One connection that asks again and again."""

    def __init__(self, hub: RunningHub, token: str | None = None) -> None:
        address = urlsplit(hub.endpoint)
        self._connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        """Status and body of an answer."""
        self._connection.request(method, path, body, {**self._headers, **headers})
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def json(self, path: str, document: object) -> None:
        """POST of a document that must be taken."""
        status, body = self.ask("POST", path, json.dumps(document), **{"Content-Type": "application/json"})
        if status != 200:
            raise RuntimeError(f"{path}: {status} {body[:300]!r}")

    def times(self, path: str, count: int, pause: float = 0.0) -> list[float]:
        """Milliseconds of each of `count` GETs that were answered with 200."""
        found = []
        for _ in range(count):
            start = time.perf_counter()
            status, _body = self.ask("GET", path)
            found.append((time.perf_counter() - start) * 1e3)
            if status != 200:
                raise RuntimeError(f"{path}: {status}")
            time.sleep(pause)
        return found


def median(times: list[float]) -> float:
    """The median, rounded."""
    return round(statistics.median(times), 2)


@contextlib.contextmanager
def stalled(hub: RunningHub, addresses: int) -> Iterator[list[socket.socket]]:
    """Connections that begin a request and never go on."""
    at = urlsplit(hub.endpoint)
    with contextlib.ExitStack() as stack:
        found = []
        for number in range(STALLED):
            source = f"127.1.{number % addresses}.1" if addresses > 1 else "127.0.0.1"
            connection = stack.enter_context(
                socket.create_connection((str(at.hostname), at.port), 10, source_address=(source, 0))
            )
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x")
            found.append(connection)
        yield found


def still_open(connections: list[socket.socket]) -> int:
    """How many the server has not closed."""
    count = 0
    for connection in connections:
        connection.setblocking(False)
        try:
            while connection.recv(4096):
                pass
        except BlockingIOError:
            count += 1
        except OSError:
            pass
    return count


def stall(hub: RunningHub, path: str) -> dict[str, Any]:
    """Times beside stalled connections, and how many are left after the timeout."""
    client, found, left = Client(hub), {}, 0
    found["before: GET median ms"] = median(client.times(path, 300))
    for addresses, label in ((100, "100 addresses"), (1, "1 address")):
        with stalled(hub, addresses) as connections:
            opened = time.monotonic()
            found[f"stalled, {label}: open at first"] = still_open(connections)
            found[f"stalled, {label}: GET median ms"] = median(client.times(path, 300))
            time.sleep(max(0.0, HEADER_SECONDS + 2.5 - (time.monotonic() - opened)))
            left += still_open(connections)
    found["stalled: left after the timeout"] = left
    return found


def expensive_card(number: int) -> str:
    """A card that the limits just allow, of other bytes each time."""
    rows = "\n".join(f"k{row}: &a{row} {{b: {number}}}" for row in range(990))
    return f"---\n{rows}\n---\n"


def cards(hub: RunningHub, path: str, seconds: float) -> dict[str, Any]:
    """Times beside 16 clients that have cards checked."""
    ending, counts = threading.Event(), []

    def attack(seed: int) -> None:
        client, count = Client(hub), 0
        while not ending.is_set():
            body = json.dumps({"content": expensive_card(seed * 10**6 + count)})
            client.ask("POST", "/api/validate-yaml", body, **{"Content-Type": "application/json"})
            count += 1
        counts.append(count)

    threads = [threading.Thread(target=attack, args=(seed,)) for seed in range(16)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    client, times, end = Client(hub), [], time.monotonic() + seconds
    while time.monotonic() < end:
        times += client.times(path, 10, pause=0.01)
    ending.set()
    for thread in threads:
        thread.join()
    return {
        "16 hostile cards: GET median ms": median(times),
        "16 hostile cards: cards a second": round(sum(counts) / seconds),
    }


def large_commits(hub: RunningHub, token: str, path: str) -> dict[str, Any]:
    """Memory, and times, beside eight commits of 150 MB at a time."""
    content = base64.b64encode(os.urandom(750_000)).decode()
    lines = [json.dumps({"key": "header", "value": {"summary": "large"}}).encode()]
    lines += [
        json.dumps(
            {
                "key": "file",
                "value": {"path": f"f{n}", "content": content[:-8] + f"{n:08d}", "encoding": "base64"},
            }
        ).encode()
        for n in range(150)
    ]
    body = b"\n".join(lines) + b"\n"
    before = peak_mib(hub.process.pid)

    def commit(number: int) -> int:
        client = Client(hub, token)
        client.json("/api/repos/create", {"name": f"large{number}"})
        return client.ask("POST", f"/api/models/ada/large{number}/commit/main", body)[0]

    times: list[float] = []
    with ThreadPoolExecutor(8) as pool:
        start = time.perf_counter()
        answers = [pool.submit(commit, number) for number in range(8)]
        client = Client(hub)
        while not all(answer.done() for answer in answers):
            times += client.times(path, 5, pause=0.02)
        took = time.perf_counter() - start
    if {answer.result() for answer in answers} != {200}:
        raise RuntimeError("a commit was refused")
    return {
        "8 commits of 150 MB: seconds": round(took, 1),
        "8 commits of 150 MB: memory growth MiB": round(peak_mib(hub.process.pid) - before, 1),
        "8 commits of 150 MB: GET median ms": median(times),
        "8 commits of 150 MB: GET longest ms": round(max(times), 1),
    }


def fill(root: Path, count: int, database: str | None = None) -> None:
    """A root with many repositories: rows, in SQLite or a database, and as their content that of a few real ones."""
    with Hub(root, create=True, database=database) as hub:
        hub.accounts.add_user("ada")
        hub.accounts.add_organisation("acme", "ada")
        real = hub.changes.create("kernel", "acme", "real", private=False, author="ada")
        toml = '[kernel]\nsummary = "Fast activations"\nlayers = ["SiluAndMul", "RMSNorm"]\nlicense = "mit"\n'
        file = AddFile("kernel.toml", git_object(BLOB, toml.encode()))
        hub.changes.commit(real, "main", CommitRequest("m", None, (file,)), "ada")
        hub.search.shown(Caller(), Wanted(), 0, 10)
        document = hub.database.row("SELECT document FROM search WHERE repository = ?", real.id)
        assert document is not None
        chance = random.Random(1)
        with hub.database.transaction():
            for number in range(count - 1):
                identifier, private = f"{number:032x}", int(number % 10 == 0)
                hub.database.change(
                    "INSERT INTO repositories VALUES (?, 'kernel', 'acme', ?, ?, '', ?)",
                    *(identifier, f"repo-{number}", private, chance.random()),
                )
                words = f"kernels for layer{number} on every device, with silu, mul and norms layer{number}"
                hub.database.change(
                    "UPDATE search SET stale = 0, words = ?, document = ? WHERE repository = ?",
                    *(words, document["document"], identifier),
                )


def search(hub: RunningHub) -> dict[str, Any]:
    """Times of searches: a word that one repository has, one that all have, one that none has; pages and API."""
    paths = {
        "one of them": "/?q=layer4711", "all of them": "/?q=silu", "none of them": "/?q=absent",
        "two letters": "/?q=la", "API, by name": "/api/kernels?search=repo-4711",
        "API, all": "/api/kernels?search=repo&limit=100",
    }  # fmt: skip
    client, found, every = Client(hub), {}, []
    for label, path in paths.items():
        client.times(path, 5)
        times = client.times(path, 60)
        every += times
        found[f"search, {label}: median ms"] = median(times)
    found["search, 10,000 repositories: median ms"] = median(every)

    def many(number: int) -> list[float]:
        return Client(hub).times(list(paths.values())[number % len(paths)], 40)

    with ThreadPoolExecutor(5) as pool:
        start = time.perf_counter()
        parallel = [t for times in pool.map(many, range(5)) for t in times]
        found["search, 5 at a time: a second"] = round(len(parallel) / (time.perf_counter() - start))
    return found


def measure(folder: Path, repositories: int, seconds: float, only: str) -> dict[str, Any]:
    """Every figure."""
    found: dict[str, Any] = {"load before": round(os.getloadavg()[0], 2), "cores": os.cpu_count()}
    parts: list[tuple[str, Callable[[RunningHub, str, str], dict[str, Any]]]] = [
        ("stall", lambda hub, _token, path: stall(hub, path)),
        ("cards", lambda hub, _token, path: cards(hub, path, seconds)),
        ("commits", large_commits),
    ]
    for name, part in parts:
        if only and name != only:
            continue
        with start_hub(folder / name, limits=LIMITS, access_log=False) as hub:
            token = hub.token("ada")
            Client(hub, token).json("/api/repos/create", {"name": "r"})
            found |= part(hub, token, "/ada/r/resolve/main/.gitattributes")
    if only in ("", "search"):
        fill(folder / "many", repositories)
        with start_hub(folder / "many", limits=LIMITS, access_log=False) as hub:
            found |= search(hub)
    found["load after"] = round(os.getloadavg()[0], 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repositories", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long cards are sent")
    parser.add_argument("--only", choices=["stall", "cards", "commits", "search"], default="")
    parser.add_argument("--write", action="store_true", help="keep the figures under benchmarks/results/")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), options.repositories, options.seconds, options.only)
    missed = [name for name, goal in GOALS.items() if found.get(name, 0) >= goal]
    result = {"figures": found, "goals": GOALS, "missed": missed}
    print(json.dumps(result, indent=2))
    if options.write:
        write("hub-server-attack", result)
    if missed:
        sys.exit(1)


if __name__ == "__main__":
    main()
