"""A Hub with very many repositories and releases: `python -m benchmarks.server_scale --database postgresql`.

Rows of 100,000 repositories with ten releases, five facets and a day's downloads each are generated; forty of the
repositories are real (git data, cards, releases), and what is asked about a single one is asked of those. One worker
answers one client on 127.0.0.1: pages of the list by number and by the links to them, searches for words that one,
some, many, all or none have, filters and orders, the API's lists, `resolve` and cards. The goal is about the processor
time of a request at the median (the worker's and, with PostgreSQL, its server's); that on the clock stands beside it,
which other work on the machine stretches, and the worker's memory. Prints JSON; exit code 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx

from benchmarks.harness import write
from benchmarks.server import peak_mib
from benchmarks.server_attack import Client
from kernels_hub.server.commit import AddFile, CommitRequest
from kernels_hub.server.database import Database
from kernels_hub.server.facets import tokens_of
from kernels_hub.server.hub import Hub
from kernels_hub.server.packs import BLOB, git_object
from tests.postgresql_server import PostgresqlServer, missing  # type: ignore[import-not-found]
from tests.running_hub import start_hub  # type: ignore[import-not-found]

RELEASES = 10
REAL = 40
PUBLISHERS = 200
LIMITS = {"max_requests_per_minute": 0, "max_bad_tokens_per_minute": 0}
LISTS = {
    "first page": "/",
    "page 50": "/?page=50",
    "updated": "/?sort=updated",
    "most downloaded": "/?sort=downloads",
    "by name": "/?sort=name",
    "word of one": "/?q=layer4711",
    "word of 1 in 100": "/?q=hundredth",
    "word of 1 in 10": "/?q=tenth",
    "word of all": "/?q=silu",
    "word of none": "/?q=absent",
    "word of 1 in 10, by date": "/?q=tenth&sort=updated",
    "word of 1 in 10, page 50": "/?q=tenth&page=50",
    "two letters": "/?q=la",
    "two letters and device": "/?q=la&device=cuda",
    "two letters that none has": "/?q=zz",
    "two letters that none has, and device": "/?q=zz&device=cuda",
    "two words": "/?q=tenth+layer47",
    "device": "/?device=cuda",
    "device, by downloads": "/?device=cuda&sort=downloads",
    "device, by date": "/?device=cuda&sort=updated",
    "device, page 50": "/?device=cuda&page=50",
    "device by downloads, page 50": "/?device=cuda&sort=downloads&page=50",
    "licence": "/?licence=mit",
    "platform": "/?platform=any",
    "layer": "/?layer=Layer1",
    "layer, by downloads": "/?layer=Layer1&sort=downloads",
    "rare layer": "/?layer=Rare7",
    "device and licence": "/?device=cuda&licence=mit",
    "device and licence, page 50": "/?device=cuda&licence=mit&page=50",
    "device and layer": "/?device=cuda&layer=Layer1",
    "two that exclude each other": "/?device=cuda&platform=any",
    "device and publisher": "/?device=cuda&publisher=org17",
    "word and device": "/?q=tenth&device=cuda",
    "publisher": "/?publisher=org17",
    "word and publisher": "/?q=silu&publisher=org17",
    "API, all": "/api/kernels?limit=30",
    "API, by name": "/api/kernels?search=repo-4711",
    "API, author": "/api/kernels?author=org17&limit=30",
}
"""Label -> what is asked of all repositories."""
LINKS = {
    "page 50 by its link": "/?page=49",
    "by downloads, page 50 by its link": "/?sort=downloads&page=49",
    "word of 1 in 10 by date, page 50 by its link": "/?q=tenth&sort=updated&page=49",
    "word of 1 in 10 by name, page 50 by its link": "/?q=tenth&sort=name&page=49",
    "device and licence, page 50 by its link": "/?device=cuda&licence=mit&page=49",
}
"""Label -> the page whose link to the next one is asked for, as readers and robots come to it."""
SINGLE = {
    "resolve": "/kernels/{name}/resolve/v0.4.0/kernel.toml",
    "resolve, main": "/kernels/{name}/resolve/main/README.md",
    "API, info": "/api/kernels/{name}",
    "API, refs": "/api/kernels/{name}/refs",
    "release log": "/api/kernels/{name}/release-log",
    "card": "/kernels/{name}",
    "versions page": "/kernels/{name}/versions",
}
"""Label -> what is asked of one; `{name}` is another each time."""


def goal(repositories: int) -> float:
    """Milliseconds that a request may take of processors."""
    return 10.0 if repositories <= 10_000 else 20.0


def fill(root: Path, count: int, database: str | None) -> list[str]:
    """A root with `count` repositories; the names of the real ones."""
    with Hub(root, create=True, database=database) as hub:
        hub.accounts.add_user("ada")
        for number in range(PUBLISHERS):
            hub.accounts.add_organisation(f"org{number}", "ada")
        names = [_real(hub, number) for number in range(min(REAL, count))]
        while hub.search.refresh():
            pass
        _generate(hub.database, count - len(names))
        return names


def _real(hub: Hub, number: int) -> str:
    repository = hub.changes.create(
        "kernel", f"org{number % PUBLISHERS}", f"real{number}", private=False, author="ada"
    )
    for release in range(RELEASES):
        version = f"0.{release}.0"
        toml = f'[kernel]\nsummary = "Fast activations {version}"\nlayers = ["SiluAndMul"]\nlicense = "mit"\n'
        metadata = {"backend": {"type": "cpu"}, "license": "MIT", "kernels-hub": {"layers": ["SiluAndMul"]}}
        files = {
            "kernel.toml": toml,
            "README.md": f"---\nlicense: mit\n---\n# Real {number}\n\n" + "Some words of a card.\n\n" * 40,
            "build/torch-cpu/metadata.json": json.dumps(metadata),
            "build/torch-cpu/__init__.py": f"version = {version!r}\n",
        }
        operations = tuple(AddFile(path, git_object(BLOB, text.encode())) for path, text in files.items())
        hub.changes.commit(repository, "main", CommitRequest("m", None, operations), "ada")
        hub.changes.create_tag(repository, f"v{version}", "main", None, "ada")
    return f"{repository.namespace}/{repository.name}"


def facets_of(number: int) -> dict[str, list[str]]:
    """Kind -> values of a generated repository."""
    return {
        "device": [("cpu", "cuda", "rocm", "metal")[number % 4]],
        "layer": [f"Layer{number % 50}", f"Rare{number % 5000}"],
        "platform": [("any", "linux x86_64")[number % 2]],
        "licence": [("mit", "apache-2.0", "bsd-3-clause")[number % 3]],
    }


def _generate(database: Database, count: int) -> None:
    """Rows of repositories without content, and their releases."""
    chance = random.Random(1)
    described = database.row("SELECT document FROM search LIMIT 1")
    assert described is not None
    document, day = str(described["document"]), int(time.time()) // 86400
    identifiers = [f"{number:032x}" for number in range(count)]
    created = [
        1e8 * chance.random() for _ in identifiers
    ]  # before the real ones, and out of the order of ids

    def repositories() -> Iterator[tuple[object, ...]]:
        for number, identifier in enumerate(identifiers):
            private = int(number % 10 == 0)
            space = f"org{number % PUBLISHERS}"
            yield identifier, "kernel", space, f"repo-{number}", private, "", created[number]

    def described_rows() -> Iterator[tuple[object, ...]]:
        for number, identifier in enumerate(identifiers):
            words = [f"kernels for layer{number} on every device, with silu, mul and norms"]
            words += ["tenth"] * (number % 10 == 3) + ["hundredth"] * (number % 100 == 7)
            space = f"org{number % PUBLISHERS}"
            names = space, f"{space}/repo-{number}", int(number % 10 == 0), ""
            yield (
                identifier,
                "kernel",
                *names,
                created[number],
                0,
                " ".join(words),
                document,
                tokens_of(facets_of(number)),
            )

    def ranks() -> Iterator[tuple[object, ...]]:
        for number, identifier in enumerate(identifiers):
            yield identifier, created[number], f"2026-{1 + number % 12:02}", 1 + number % 97

    def facets() -> Iterator[tuple[object, ...]]:
        for number, identifier in enumerate(identifiers):
            yield from (
                (identifier, kind, value) for kind, found in facets_of(number).items() for value in found
            )

    def releases() -> Iterator[tuple[object, ...]]:
        for number, identifier in enumerate(identifiers):
            for release in range(RELEASES):
                entry = json.dumps({"tag": f"v0.{release}.0", "number": release, "repository": identifier})
                yield f"kernel/org{number % PUBLISHERS}/repo-{number}", release, entry, "0" * 64, "0" * 40

    with database.transaction():
        columns = ("id", "type", "namespace", "name", "private", "gated", "created")
        database.insert("repositories", columns, repositories())
        database.insert("facets", ("repository", "kind", "value"), facets())
        database.insert("release_log", ("chain", "number", "document", "hash", "oid"), releases())
        database.insert(
            "downloads",
            ("repository", "day", "variant", "count"),
            (
                (identifier, day, "torch-cpu", 1 + number % 97)
                for number, identifier in enumerate(identifiers)
            ),
        )
        # What the triggers made of the names, described.
        for table in ("search", "ranks"):
            database.change(
                f"DELETE FROM {table} WHERE repository IN "  # noqa: S608 -- one of the two above
                "(SELECT id FROM repositories WHERE created < 2e8)"
            )
        texts = ("stale", "words", "document", "tokens")
        database.insert("search", ("repository", *columns[1:], *texts), described_rows())
        database.insert("ranks", ("repository", "created", "updated", "downloads"), ranks())


def following(endpoint: str, path: str) -> str:
    """The link to the page that follows one."""
    found = re.search(r'rel="next" href="([^"]+)"', httpx.get(endpoint + path, timeout=60).text)
    assert found is not None, f"{path} is the last page"
    return html.unescape(found[1])


def processor_seconds(pids: list[int]) -> float:
    """What processes took of processors so far."""
    found = 0.0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def scheduled_ms(pids: list[int]) -> float:
    """Milliseconds that the threads of processes were on a processor so far, to the nanosecond."""
    found = 0
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with suppress(OSError):
                found += int(thread.read_text().split()[0])
    return found / 1e6


def descendants(pid: int) -> list[int]:
    """A process and those below it."""
    parents: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        parents.setdefault(parent, []).append(int(status.parent.name))
    found = [pid]
    for known in found:
        found += parents.get(known, [])
    return found


def measure(
    folder: Path, count: int, database: str | None, server: PostgresqlServer | None, rounds: int
) -> dict[str, Any]:
    """Every figure."""
    began = time.perf_counter()
    names = fill(folder / "root", count, database)
    if server is not None:  # as autovacuum does within minutes
        server.execute("VACUUM ANALYZE", str(database).rpartition("/")[2])
    found: dict[str, Any] = {
        "repositories": count,
        "releases": count * RELEASES,
        "generated in s": round(time.perf_counter() - began),
        "load before": round(os.getloadavg()[0], 2),
    }
    if database is None:
        found["hub.sqlite MiB"] = round((folder / "root" / "hub.sqlite").stat().st_size / 2**20)
    with start_hub(folder / "root", limits=LIMITS, access_log=False, database=database) as hub:
        client = Client(hub)
        found["worker MiB, started"] = round(peak_mib(hub.process.pid))
        medians = {}
        linked = {label: following(hub.endpoint, path) for label, path in LINKS.items()}
        for label, path in {**LISTS, **linked, **SINGLE}.items():
            paths = [path.replace("{name}", name) for name in names] if "{name}" in path else [path]
            for warm in paths[:3]:
                client.times(warm, 2)
            pids = [*descendants(hub.process.pid), *(descendants(server.pid) if server else ())]
            times, taken = [], []
            for number in range(rounds):
                before = scheduled_ms(pids)
                times += client.times(paths[number % len(paths)], 1)
                taken.append(scheduled_ms(pids) - before)
            medians[label] = {
                "median ms": round(statistics.median(times), 2),
                "processor ms": round(statistics.median(taken), 2),
            }
        found["asked"] = medians
        found["worker MiB, largest"] = round(peak_mib(hub.process.pid))
    found["load after"] = round(os.getloadavg()[0], 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repositories", type=int, default=100_000)
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--rounds", type=int, default=40, help="requests of each kind")
    parser.add_argument("--write", action="store_true", help="keep the figures under benchmarks/results/")
    options = parser.parse_args()
    if options.database == "postgresql" and (lacking := missing()):
        parser.error(lacking)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = (
            stack.enter_context(PostgresqlServer(memory="128MB"))
            if options.database == "postgresql"
            else None
        )
        address = server.new_database() if server else None
        found = measure(folder, options.repositories, address, server, options.rounds)
    most = goal(options.repositories)
    missed = [label for label, row in found["asked"].items() if row["processor ms"] >= most]
    result = {"figures": found, "goal ms": most, "missed": missed}
    print(json.dumps(result, indent=2))
    if options.write:
        write(f"hub-server-scale-{options.database}-{options.repositories}", result)
    if missed:
        sys.exit(1)


if __name__ == "__main__":
    main()
