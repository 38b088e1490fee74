"""kill -9 of a Hub while it is written to, and writers that race: `python -m benchmarks.server_storm`.

A round: start the server, let three writers commit, upload, tag and make repositories in a loop, kill
all its processes at a random moment, start it again, and compare what it holds with what it had
acknowledged; then `git fsck --strict` of every repository, by the git binary, and the Hub's own check.
With --postgresql the rows are in a PostgreSQL of its own, which is killed and started again in the middle of every
round, before the Hub is killed too.
With --stateless two servers with roots of their own serve one Hub, with its git data in an object store (moto's server,
behind a front that breaks connections) and the PostgreSQL; in every round a server, the database and the store are
killed and started again in some order, while writers write to both servers; then all are killed.
The race: eight writers commit on one parent at once; one must win, and nothing else may change.
Prints JSON; exit code 1 when anything was lost, torn or wrong.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.harness import write
from kernels_hub.server.hub import Hub
from kernels_hub.server.maintenance import check, collect_garbage, strays
from tests import object_store  # type: ignore[import-not-found]
from tests.git_folder import bare  # type: ignore[import-not-found]
from tests.postgresql_server import PostgresqlServer  # type: ignore[import-not-found]
from tests.running_hub import RunningHub, start_hub  # type: ignore[import-not-found]
from tests.store_front import StoreFront  # type: ignore[import-not-found]

WRITERS = 3
LIMITS = {"large_from_bytes": 1024, "max_requests_per_minute": 0}


@dataclass
class Acknowledged:
    """What the server said it had done."""

    files: dict[tuple[str, str], bytes] = field(default_factory=dict)
    """Content by repository and path, on main."""
    commits: list[tuple[str, str]] = field(default_factory=list)
    tags: list[tuple[str, str, str]] = field(default_factory=list)
    repositories: list[str] = field(default_factory=list)


class Writer(threading.Thread):
    """One client that changes things until the server is gone."""

    def __init__(
        self, hub: RunningHub, number: int, done: Acknowledged, prefix: str, *, token: str | None = None
    ) -> None:
        super().__init__(daemon=True)
        self._number, self._done, self._prefix = number, done, prefix
        self.token = token or hub.token("writer")
        self._endpoint = hub.endpoint
        self.problems: list[str] = []
        self.longest = 0.0
        """Seconds of the answer that took longest."""

    def run(self) -> None:
        headers = {"Authorization": f"Bearer {self.token}"}
        with (
            contextlib.suppress(httpx.TransportError),
            httpx.Client(base_url=self._endpoint, headers=headers, timeout=120) as client,
        ):
            count = 0
            while True:
                count += 1
                self._change(client, f"{self._prefix}-{self._number}-{count}", count)

    def _change(self, client: httpx.Client, name: str, count: int) -> None:
        repository = "writer/shared"
        if self._number % WRITERS == 2 and count % 3 == 0:
            repository = f"writer/{name}"
            body = {"name": name, "type": "kernel"}
            if self._ok(client.post("/api/repos/create", json=body)):
                self._done.repositories.append(repository)
        content = os.urandom(random.choice((10, 500, 3000, 300_000)))
        large = len(content) > LIMITS["large_from_bytes"]
        if large and not self._upload(client, repository, content):
            return
        operation = _large(name, content) if large else _file(name, content)
        answer = client.post(f"/api/kernels/{repository}/commit/main", content=_lines(name, operation))
        if self._ok(answer):
            commit = answer.json()["commitOid"]
            self._done.commits.append((repository, commit))
            self._done.files[repository, name] = content
            if count % 4 == 0:
                tag = {"tag": name, "message": name if count % 8 else ""}
                if self._ok(client.post(f"/api/kernels/{repository}/tag/{commit}", json=tag)):
                    self._done.tags.append((repository, name, commit))

    def _upload(self, client: httpx.Client, repository: str, content: bytes) -> bool:
        item = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content)}
        batch = client.post(
            f"/kernels/{repository}.git/info/lfs/objects/batch",
            json={"operation": "upload", "objects": [item]},
        )
        if not self._ok(batch):
            return False
        actions = batch.json()["objects"][0]["actions"]
        # No token: the address is its own credential, and may be an object store's.
        sent = httpx.put(actions["upload"]["href"], content=content, timeout=client.timeout)
        return self._ok(sent) and self._ok(client.post(actions["verify"]["href"], json=item))

    def _ok(self, answer: httpx.Response) -> bool:
        self.longest = max(self.longest, answer.elapsed.total_seconds())
        if answer.status_code != 200:
            self.problems.append(f"{answer.request.url.path}: {answer.status_code} {answer.text[:200]}")
        return answer.status_code == 200


def _file(path: str, content: bytes) -> dict[str, Any]:
    value = {"path": path, "content": base64.b64encode(content).decode(), "encoding": "base64"}
    return {"key": "file", "value": value}


def _large(path: str, content: bytes) -> dict[str, Any]:
    oid = hashlib.sha256(content).hexdigest()
    return {"key": "lfsFile", "value": {"path": path, "algo": "sha256", "oid": oid, "size": len(content)}}


def _lines(summary: str, *operations: dict[str, Any], parent: str | None = None) -> bytes:
    header = {"key": "header", "value": {"summary": summary, "parentCommit": parent}}
    return b"".join(json.dumps(line).encode() + b"\n" for line in (header, *operations))


def _head(client: httpx.Client, repository: str) -> str:
    return str(client.get(f"/api/kernels/{repository}").json()["sha"])


def verify(hub: RunningHub, done: Acknowledged) -> list[str]:
    """What a restarted server has lost, or holds torn."""
    problems: list[str] = []
    with httpx.Client(
        base_url=hub.endpoint, headers={"Authorization": f"Bearer {hub.token('writer')}"}
    ) as client:
        problems += [
            f"repository {repository} is lost"
            for repository in ("writer/shared", *done.repositories)
            if client.get(f"/api/kernels/{repository}").status_code != 200
        ]
        for (repository, path), content in done.files.items():
            answer = client.get(f"/kernels/{repository}/resolve/main/{path}", follow_redirects=True)
            if answer.content != content:
                problems.append(f"{repository}/{path} is lost or differs ({answer.status_code})")
        for repository, tag, commit in done.tags:
            answer = client.get(f"/api/kernels/{repository}/revision/{tag}")
            if answer.json().get("sha") != commit:
                problems.append(f"tag {tag} of {repository} is lost")
    with hub.administer() as opened:
        problems += [f"the Hub's own check: {problem}" for problem in check(opened)]
        homes = {repository.full_name: bare(opened, repository) for repository in opened.repositories.all()}
        history = {name: _git(home, "rev-list", "main").split() for name, home in homes.items()}
        problems += [
            f"commit {commit} of {repository} is not in main"
            for repository, commit in done.commits
            if commit not in history.get(repository, ())
        ]
        for name, home in homes.items():
            said = _git(home, "fsck", "--strict", "--full", "--no-dangling")
            if said.strip():
                problems.append(f"git fsck of {name}: {said.strip()[:300]}")
    return problems


def _git(home: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(home), *arguments], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else f"exit code {done.returncode} {done.stdout}{done.stderr}"


def unexpected(problems: Sequence[str], done: Acknowledged) -> list[str]:
    """What writers heard beside refusals of a Hub whose database is away, and what follows from those.

    What was refused may have happened all the same: then its name is taken. Or not: then it is not found.
    """
    there = re.compile("|".join(rf"{re.escape(name)}[./]" for name in ("writer/shared", *done.repositories)))
    refused = (": 503 ", ": 409 ")
    return [
        one
        for one in problems
        if not (any(status in one for status in refused) or (": 404 " in one and not there.search(one)))
    ]


def storm(
    root: Path,
    rounds: int,
    *,
    workers: int,
    seed: int,
    least: int = 1,
    database: PostgresqlServer | None = None,
) -> dict[str, Any]:
    """`rounds` times: write, kill, restart, compare. All rounds on one root.

    least: commits of a round that are acknowledged before the kill, however slow the machine is.
    database: has the rows, and is killed and started again in each round.
    """
    address = None if database is None else database.new_database()
    chance, done, problems = random.Random(seed), Acknowledged(), []
    restarts = []
    for number in range(rounds):
        hub = start_hub(root, workers=workers, limits=LIMITS, database=address)
        if number == 0:
            _create(hub, "shared")
        writers = [Writer(hub, n, done, f"r{number}") for n in range(WRITERS)]
        for writer in writers:
            writer.start()
        before, end = len(done.commits), time.monotonic() + 60
        time.sleep(chance.uniform(0.2, 1.2))
        wanted = before + least
        while (
            len(done.commits) < wanted
            and any(writer.is_alive() for writer in writers)
            and time.monotonic() < end
        ):
            time.sleep(0.02)
        if database is not None:
            database.kill()
            database.start()
            time.sleep(chance.uniform(0.0, 1.0))
        hub.kill()
        for writer in writers:
            writer.join()
            heard = writer.problems if database is None else unexpected(writer.problems, done)
            problems += [f"round {number}: {problem}" for problem in heard]
        began = time.perf_counter()
        with start_hub(root, workers=workers, limits=LIMITS) as again:
            restarts.append(time.perf_counter() - began)
            problems += [f"round {number}: {problem}" for problem in verify(again, done)]
    return {
        "rounds": rounds,
        "workers": workers,
        "seed": seed,
        "commits acknowledged": len(done.commits),
        "files compared": len(done.files),
        "tags acknowledged": len(done.tags),
        "repositories made": len(done.repositories),
        "slowest restart s": round(max(restarts), 2),
        "problems": problems,
    }


def stateless_storm(root: Path, rounds: int, *, seed: int, least: int = 1) -> dict[str, Any]:
    """`rounds` times: two servers, which share no folder, are written to, while whatever they need dies and comes back.

    root: a folder for the roots of both. least: as in `storm`.
    """
    chance, done, problems = random.Random(seed), Acknowledged(), list[str]()
    with PostgresqlServer() as database, StoreFront(object_store.store().endpoint) as front:
        prefix = f"storm{seed}-{hashlib.sha256(str(root).encode()).hexdigest()[:8]}"
        address = object_store.Store(front.endpoint).address(prefix, timeout="5")
        options: dict[str, Any] = {"limits": LIMITS, "objects": address, "database": database.new_database()}
        for number in range(rounds):
            hubs = [start_hub(root / name, **options) for name in ("one", "two")]
            if number == 0:
                _create(hubs[0], "shared")
            writers = _Writers(hubs, done, f"s{number}")
            before, end = len(done.commits), time.monotonic() + 60
            deaths = ["database", "store", "server"]
            chance.shuffle(deaths)
            for which in deaths:
                writers.go_on()
                time.sleep(chance.uniform(0.1, 0.6))
                if which == "database":
                    database.kill()
                    time.sleep(chance.uniform(0.0, 0.3))
                    database.start()
                elif which == "store":
                    front.kill()
                    time.sleep(chance.uniform(0.0, 0.5))
                    front.start()
                else:
                    dead = chance.randrange(2)
                    hubs[dead].kill()
                    hubs[dead] = start_hub(root / ("one", "two")[dead], **options)
            while len(done.commits) < before + least and time.monotonic() < end:
                writers.go_on()
                time.sleep(0.05)
            for hub in chance.sample(hubs, 2):
                hub.kill()
            problems += [f"round {number}: {problem}" for problem in unexpected(writers.problems(), done)]
            # One server is there again alone, then the other, with a root that has nothing.
            shutil.rmtree(root / "two")
            for name in ("one", "two"):
                with start_hub(root / name, **options) as again:
                    problems += [f"round {number}, {name}: {problem}" for problem in verify(again, done)]
        with Hub(root / "one", **options | {"limits": None}) as hub:
            collect_garbage(hub, prune=True, grace=0)
            problems += [f"after gc: {problem}" for problem in (*check(hub), *strays(hub))]
    return {
        "rounds": rounds,
        "servers": 2,
        "seed": seed,
        "commits acknowledged": len(done.commits),
        "files compared": len(done.files),
        "tags acknowledged": len(done.tags),
        "repositories made": len(done.repositories),
        "problems": problems,
    }


class _Writers:
    """Writers on several servers; those that heard their server die are replaced."""

    def __init__(self, hubs: list[RunningHub], done: Acknowledged, prefix: str) -> None:
        self._hubs, self._done, self._prefix = hubs, done, prefix
        self._all: list[Writer] = []
        self._alive: list[Writer] = []

    def go_on(self) -> None:
        """Have as many at work as there should be."""
        self._alive = [writer for writer in self._alive if writer.is_alive()]
        while len(self._alive) < WRITERS:
            number = len(self._all)
            hub = self._hubs[number % len(self._hubs)]
            writer = Writer(hub, number, self._done, self._prefix, token=self._token())
            writer.start()
            self._all.append(writer)
            self._alive.append(writer)

    def _token(self) -> str:
        return self._hubs[0].token("writer") if not self._all else self._all[0].token

    def problems(self) -> list[str]:
        """What they heard, once all have ended."""
        for writer in self._all:
            writer.join()
        return [problem for writer in self._all for problem in writer.problems]


def race(root: Path, *, workers: int, writers: int = 8) -> dict[str, Any]:
    """Writers that commit on one parent at once."""
    problems: list[str] = []
    with start_hub(root, workers=workers) as hub:
        _create(hub, "raced")
        headers = {"Authorization": f"Bearer {hub.token('writer')}"}
        with httpx.Client(base_url=hub.endpoint, headers=headers) as client:
            parent = _head(client, "writer/raced")
        start, statuses = threading.Barrier(writers), {}

        def commit(number: int) -> None:
            with httpx.Client(base_url=hub.endpoint, headers=headers) as client:
                client.get("/health")
                body = _lines(str(number), _file(f"of-{number}", b"x"), parent=parent)
                start.wait()
                answer = client.post("/api/kernels/writer/raced/commit/main", content=body)
                statuses[number] = answer.status_code

        threads = [threading.Thread(target=commit, args=(number,)) for number in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        won = [number for number, status in statuses.items() if status == 200]
        if sorted(statuses.values()) != [200] + [412] * (writers - 1):
            problems.append(f"expected one 200 and {writers - 1} times 412, got {sorted(statuses.values())}")
        with httpx.Client(base_url=hub.endpoint, headers=headers) as client:
            history = [item["id"] for item in client.get("/api/kernels/writer/raced/commits/main").json()]
            files = [item["path"] for item in client.get("/api/kernels/writer/raced/tree/main").json()]
        if len(history) != 2 or history[1] != parent:
            problems.append(f"the history is {history}, expected one commit on {parent}")
        if files != [".gitattributes", *(f"of-{number}" for number in won)]:
            problems.append(f"the files are {files}, expected those of the winner")
        problems += verify(hub, Acknowledged())
    return {
        "writers": writers,
        "workers": workers,
        "statuses": sorted(statuses.values()),
        "problems": problems,
    }


def _create(hub: RunningHub, name: str) -> None:
    headers = {"Authorization": f"Bearer {hub.token('writer')}"}
    for each in {name, "shared"}:
        body = {"name": each, "type": "kernel"}
        httpx.post(f"{hub.endpoint}/api/repos/create", json=body, headers=headers)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--races", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument(
        "--postgresql", action="store_true", help="rows in a PostgreSQL that is killed as well"
    )
    parser.add_argument(
        "--stateless",
        action="store_true",
        help="two servers on PostgreSQL and an object store, killed as well",
    )
    parser.add_argument("--write", action="store_true", help="keep the figures under benchmarks/results/")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        if options.stateless:
            found = stateless_storm(Path(folder), options.rounds, seed=options.seed)
        else:
            database = stack.enter_context(PostgresqlServer()) if options.postgresql else None
            found = storm(
                Path(folder) / "storm",
                options.rounds,
                workers=options.workers,
                seed=options.seed,
                database=database,
            )
        races = range(0 if options.stateless else options.races)
        result: dict[str, Any] = {
            "storm": found,
            "races": [race(Path(folder) / f"race{number}", workers=options.workers) for number in races],
        }
    print(json.dumps(result, indent=2))
    if options.write:
        write("hub-server-storm-stateless" if options.stateless else "hub-server-storm", result)
    if result["storm"]["problems"] or any(found["problems"] for found in result["races"]):
        sys.exit(1)


if __name__ == "__main__":
    main()
