"""Three stateless servers behind nginx against one, and one against the default: `python -m benchmarks.server_workers`.

The default has its rows in SQLite and all else in a folder. One stateless server has its rows in PostgreSQL, its large
files and git data in a plain S3 store in a process of its own; three of them have roots of their own, behind nginx as
docs/hub.md has it. Each Hub has nine repositories with three releases, and gets the same requests: what a download asks
for, pages of repositories, and a commit in twenty. Hubs take turns within a round, in the other order in the next; the
one stateless server is there twice, so that the ratio of the two says what the machine makes of it. A figure is
processor time of a request (of servers, of nginx and PostgreSQL beside them; not of clients and the store), and
requests a second by the clock, which three servers gain by only where processors are free. With `--before`, another
checkout serves a default Hub as well. Prints JSON; exit code 1 where a default is slower than 0.9 of the one before.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import write
from benchmarks.server_attack import Client
from benchmarks.server_scale import descendants, processor_seconds
from tests.nginx import LACKING  # type: ignore[import-not-found]
from tests.plain_store import PlainStore  # type: ignore[import-not-found]
from tests.postgresql_server import PostgresqlServer, missing  # type: ignore[import-not-found]
from tests.running_hub import RunningHub, start_hub  # type: ignore[import-not-found]
from tests.several_servers import SeveralServers  # type: ignore[import-not-found]

REPOSITORIES, FILES, CLIENTS = 9, 8, 6
GOAL = 0.9
LIMITS = {"max_requests_per_minute": 0, "max_bad_tokens_per_minute": 0}
ASKED = (
    "/kernels/{name}/resolve/v2/build/torch-cpu/file{file}.py",
    "/kernels/{name}/resolve/main/README.md",
    "/api/kernels/{name}/refs",
    "/api/kernels/{name}/release-log",
    "/api/kernels/{name}/tree/v1?recursive=true",
    "/api/kernels/{name}/revision/v2",
    "/kernels/{name}",
)
"""What is read of a repository, in turn."""
_COMMIT_EVERY = 20
_ACCOUNT = """
import sys
from pathlib import Path
from kernels_hub.server.hub import Hub
with Hub(Path(sys.argv[1])) as hub:
    hub.accounts.add_user("ada")
    print(hub.accounts.new_token("ada", "write")[0])
"""


class System:
    """A Hub that is measured: its servers, its clients and what they took."""

    def __init__(self, hub: RunningHub, token: str, others: list[int]) -> None:
        self.hub = hub
        self.others = others
        self._token = token
        self._numbers = iter(range(10**9))
        self._guard = threading.Lock()
        for number in range(REPOSITORIES):
            self._publish(f"ada/k{number}")

    def _publish(self, name: str) -> None:
        client = Client(self.hub, self._token)
        client.json("/api/repos/create", {"type": "kernel", "name": name.partition("/")[2]})
        for release in range(3):
            files = {f"build/torch-cpu/file{file}.py": f"# {release} {file}\n" * 200 for file in range(FILES)}
            card = "---\nlicense: mit\n---\n# A kernel\n\n" + "Some words of a card.\n\n" * 20
            self._commit(client, name, {"README.md": card, **files})
            client.json(f"/api/kernels/{name}/tag/main", {"tag": f"v{release}"})

    def _commit(self, client: Client, name: str, files: dict[str, str]) -> None:
        lines: list[dict[str, Any]] = [{"key": "header", "value": {"summary": "a commit", "description": ""}}]
        for path, text in files.items():
            content = base64.b64encode(text.encode()).decode()
            lines.append({"key": "file", "value": {"path": path, "content": content, "encoding": "base64"}})
        body = "\n".join(map(json.dumps, lines))
        status, answer = client.ask("POST", f"/api/kernels/{name}/commit/main", body)
        if status != 200:
            raise RuntimeError(f"a commit: {status} {answer[:300]!r}")

    def serve(self, count: int) -> dict[str, float]:
        """Answer so many requests, of several clients: what each took in milliseconds, and how many a second."""
        clients = [
            Client(self.hub, self._token) for _ in range(CLIENTS)
        ]  # the server ends connections that wait
        servers = [self.hub.process.pid, *self.others]
        every = [pid for server in servers for pid in descendants(server)]
        beside = [
            pid
            for pid in descendants(os.getpid())
            if pid not in every and _name(pid) in ("nginx", "postgres")
        ]
        before = processor_seconds(every), processor_seconds(beside)
        began = time.perf_counter()
        with ThreadPoolExecutor(CLIENTS) as threads:
            for done in [threads.submit(self._ask, client, count // CLIENTS) for client in clients]:
                done.result()
        took = time.perf_counter() - began
        beside = [pid for pid in beside if Path(f"/proc/{pid}").exists()]
        return {
            "servers ms": (processor_seconds(every) - before[0]) / count * 1e3,
            "beside ms": (processor_seconds(beside) - before[1]) / count * 1e3,
            "a second": count / took,
        }

    def _ask(self, client: Client, count: int) -> None:
        for _ in range(count):
            with self._guard:
                number = next(self._numbers)
            name = f"ada/k{number % REPOSITORIES}"
            if number % _COMMIT_EVERY == 0:
                self._commit(client, name, {f"notes/{number % 50}.md": f"note {number}\n"})
            else:
                client.times(ASKED[number % len(ASKED)].format(name=name, file=number % FILES), 1)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _default(root: Path, checkout: Path | None) -> tuple[RunningHub, str]:
    """A server of SQLite and a folder, of this checkout or another, and a token."""
    paths = os.pathsep.join([str(checkout or Path.cwd()), os.environ.get("PYTHONPATH", "")])
    env = {
        "PYTHONPATH": paths,
        "PYTHONSAFEPATH": "1",  # not what is in the folder that this runs in
        # An older server knows no options of what came later, not even as None.
        "KERNELS_HUB_SERVE_OPTIONS": json.dumps({"workers": 1, "limits": LIMITS, "access_log": False}),
    }
    hub = RunningHub(root, env=env)
    made = subprocess.run(
        [sys.executable, "-c", _ACCOUNT, str(root)],
        env={**os.environ, **env},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return hub, made.stdout.strip()


@contextmanager
def systems(folder: Path, before: Path | None) -> Iterator[dict[str, System]]:
    """Label -> a Hub."""
    with ExitStack() as stack:
        server = stack.enter_context(PostgresqlServer(memory="128MB"))
        store = stack.enter_context(PlainStore())
        found = {}
        checkouts = {"default": None} if before is None else {"default": None, "default before": before}
        for label, checkout in checkouts.items():
            hub, token = _default(folder / label.replace(" ", "-"), checkout)
            stack.callback(hub.kill)
            found[label] = System(hub, token, [])
        for label in ("one", "one again", "three"):
            name = label.replace(" ", "-")
            options = {"database": server.new_database(), "objects": store.address(name)}
            if label == "three":
                hub = SeveralServers(folder / name, limits=LIMITS, access_log=False, **options)
            else:
                hub = start_hub(folder / name, limits=LIMITS, access_log=False, **options)
            stack.callback(hub.kill)
            others = [other.process.pid for other in getattr(hub, "_others", [])]
            found[label] = System(hub, hub.token("ada"), others)
        yield found


def measure(folder: Path, before: Path | None, rounds: int, count: int) -> dict[str, Any]:
    """Every figure: medians over rounds of what a request takes, and of ratios within rounds."""
    taken: dict[str, list[dict[str, float]]] = {}
    with systems(folder, before) as every:
        for system in every.values():
            system.serve(count // 2)
        for number in range(rounds):
            turns = list(every.items())
            for label, system in turns if number % 2 == 0 else reversed(turns):
                taken.setdefault(label, []).append(system.serve(count))
    kinds = ("servers ms", "beside ms", "a second")
    figures = {
        label: {kind: round(statistics.median(row[kind] for row in rows), 2) for kind in kinds}
        for label, rows in taken.items()
    }

    def ratios(this: str, other: str) -> dict[str, float]:
        pairs = list(zip(taken[this], taken[other], strict=True))
        whole = [sum(row[kind] for kind in kinds[:2]) for row, _ in pairs]
        of_other = [sum(row[kind] for kind in kinds[:2]) for _, row in pairs]
        return {
            "speed by processor time": _median(o / t for t, o in zip(whole, of_other, strict=True)),
            "of servers alone": _median(b["servers ms"] / a["servers ms"] for a, b in pairs),
            "by the clock": _median(a["a second"] / b["a second"] for a, b in pairs),
        }

    compared = {
        "three / one": ("three", "one"),
        "one / default": ("one", "default"),
        "one again / one": ("one again", "one"),
    }
    if before is not None:
        compared["default / default before"] = ("default", "default before")
    return {
        "requests a round": count,
        "rounds": rounds,
        "load": round(os.getloadavg()[0], 1),
        "a request": figures,
        "ratios": {label: ratios(*pair) for label, pair in compared.items()},
    }


def _median(values: Iterator[float]) -> float:
    return round(statistics.median(values), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", type=Path, help="another checkout, whose default Hub is measured beside")
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--requests", type=int, default=300, help="of each Hub in a round")
    parser.add_argument("--write", action="store_true", help="keep the figures under benchmarks/results/")
    options = parser.parse_args()
    if lacking := missing() or LACKING:
        parser.error(lacking)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), options.before, options.rounds, options.requests)
    print(json.dumps(found, indent=2))
    if options.write:
        write("hub-server-workers", found)
    slower = found["ratios"].get("default / default before", {}).get("speed by processor time", 1.0)
    if slower < GOAL:
        sys.exit(1)


if __name__ == "__main__":
    main()
