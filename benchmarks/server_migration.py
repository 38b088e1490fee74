"""A Hub that moves past one machine and back while clients write: `python -m benchmarks.server_migration`.

A root with many large files is served by two workers; three writers commit, upload, tag and make repositories in a
loop. Meanwhile its rows move to a PostgreSQL, its objects to a plain S3 store in a process of its own, and its git data
to both, and all of it back; after the objects have moved the server is started again, as the command asks for. When
servers have let the rows go, all tables of both databases are compared by digest; at each end everything that was
acknowledged has to be there, and the Hub's own check and `git fsck` find nothing. Prints JSON; exit code 1 when
anything was lost or wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.harness import write
from benchmarks.server_storm import LIMITS, WRITERS, Acknowledged, Writer, unexpected, verify
from kernels_hub.server.database.online_copy import OnlineCopy
from kernels_hub.server.database.transfer import TABLES, digest
from kernels_hub.server.hub import Hub
from kernels_hub.server.migration import migrate as migrate_rows
from kernels_hub.server.objects.files import FileObjects
from tests import object_store  # type: ignore[import-not-found]
from tests.plain_store import PlainStore  # type: ignore[import-not-found]
from tests.postgresql_server import PostgresqlServer  # type: ignore[import-not-found]
from tests.running_hub import RunningHub, start_hub  # type: ignore[import-not-found]

REPOSITORIES = 20
_WRITE_SECONDS = 2.0


def fill(root: Path, count: int) -> None:
    """A root whose repositories have `count` large files."""
    with Hub(root, create=True) as hub:
        hub.accounts.add_user("writer")
        every = [
            hub.changes.create("kernel", "writer", f"full{number}", private=False, author="writer")
            for number in range(REPOSITORIES)
        ]
        files, rows = FileObjects(hub.layout), []
        for number in range(count):
            content = f"object {number}\n".encode() * 100
            identifier, oid = every[number % REPOSITORIES].id, hashlib.sha256(content).hexdigest()
            path = files.path(identifier, oid)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            rows.append((identifier, oid, len(content), time.time()))
        with hub.database.transaction():
            hub.database.insert("objects", ("repository", "oid", "size", "touched"), rows)


class Moving:
    """One root, what serves it and writes to it, and what was found."""

    def __init__(self, root: Path) -> None:
        self.root, self.done = root, Acknowledged()
        self.problems: list[str] = []
        self.steps: dict[str, Any] = {}
        self.objects: str | None = None

    def while_written(self, label: str, move: Callable[[RunningHub], dict[str, Any]]) -> None:
        """Move something while writers write, before, meanwhile and afterwards; then compare all they were told."""
        hub = start_hub(self.root, workers=2, limits=LIMITS, objects=self.objects, access_log=False)
        if not self.done.repositories:
            with hub.administer() as opened:
                opened.changes.create("kernel", "writer", "shared", private=False, author="writer")
            self.done.repositories.append("writer/shared")
        writers = [Writer(hub, number, self.done, label.replace(" ", "-")) for number in range(WRITERS)]
        for writer in writers:
            writer.start()
        self._wait(len(self.done.commits) + 3)
        began, before = time.perf_counter(), len(self.done.commits)
        try:
            found = move(hub)
            found["seconds"] = round(time.perf_counter() - began, 1)
            found["commits meanwhile"] = len(self.done.commits) - before
            if not label.startswith(
                "objects"
            ):  # whose servers refuse large files until they are started again
                self._wait(len(self.done.commits) + 3)
            time.sleep(_WRITE_SECONDS)
        finally:
            hub.kill()
        for writer in writers:
            writer.join()
            self.problems += [f"{label}: {problem}" for problem in unexpected(writer.problems, self.done)]
        found["longest answer s"] = round(max(writer.longest for writer in writers), 1)
        self.steps[label] = found

    def _wait(self, commits: int) -> None:
        end = time.monotonic() + 600
        while len(self.done.commits) < commits:
            if time.monotonic() > end:
                self.problems.append("nothing was acknowledged any more")
                return
            time.sleep(0.05)

    def rows(self, to: str) -> Callable[[RunningHub], dict[str, Any]]:
        """Moves the rows."""

        def move(_: RunningHub) -> dict[str, Any]:
            compared, check = [], OnlineCopy.check_counts

            def all_of_it(copy: OnlineCopy) -> None:
                source, target = copy._source, copy._target
                with source.snapshot(), target.snapshot():
                    compared.append(all(digest(source, table) == digest(target, table) for table in TABLES))
                check(copy)

            with mock.patch.object(OnlineCopy, "check_counts", all_of_it):
                moved = migrate_rows(self.root, to)
            if compared != [True]:
                self.problems.append(f"rows to {to}: digests differ")
            return {
                "rows": sum(table.rows for table in moved.tables),
                "changes brought": moved.changes,
                "changes while requests waited": moved.in_the_last,
                "requests waited s, with the comparison": moved.waited,
            }

        return move

    def large_files(self, to: str) -> Callable[[RunningHub], dict[str, Any]]:
        """Moves the large files, each compared by SHA-256."""

        def move(_: RunningHub) -> dict[str, Any]:
            moved = self._command("--to", to)
            self.objects = None if to == "files" else to
            return {"objects": moved["copied"], "while uploads waited": moved["in_the_last"]}

        return move

    def git(self, to: str) -> Callable[[RunningHub], dict[str, Any]]:
        """Moves the git data, each pack compared by SHA-256."""

        def move(_: RunningHub) -> dict[str, Any]:
            moved = self._command("--git", to)
            return {
                "repositories": moved["repositories"],
                "packs": moved["packs"],
                "repositories brought again": moved["changed"],
                "repositories while requests waited": moved["in_the_last"],
                "requests waited s": moved["waited"],
            }

        return move

    def _command(self, *arguments: str) -> Any:
        """The real command in a process of its own, which shares no interpreter with writers."""
        command = [
            sys.executable,
            "-c",
            "from kernels_hub.cli import main; main()",
            "hub",
            "migrate",
            "--json",
        ]
        done = subprocess.run(
            [*command, "--root", str(self.root), *arguments], stdout=subprocess.PIPE, check=True, text=True
        )
        return json.loads(done.stdout)

    def compare(self, label: str) -> None:
        """Look for everything that was acknowledged."""
        with start_hub(self.root, limits=LIMITS, objects=self.objects) as hub:
            self.problems += [f"{label}: {problem}" for problem in verify(hub, self.done)]


def measure(root: Path, count: int, address: str, store: object_store.Store | None) -> dict[str, Any]:
    """Every figure, and what is wrong. store: where objects go; None to leave them below the root."""
    began = time.perf_counter()
    fill(root, count)
    moving = Moving(root)
    filled = round(time.perf_counter() - began, 1)
    moving.while_written("rows there", moving.rows(address))
    if store is not None:
        bucket = store.address(f"migration-{root.parent.name}")
        moving.while_written("objects there", moving.large_files(bucket))
        moving.while_written("git there", moving.git("store"))
    moving.compare("there")
    (root / "hub.sqlite").rename(root.parent / "old.sqlite")
    if store is not None:
        moving.while_written("git back", moving.git("folder"))
        moving.while_written("objects back", moving.large_files("files"))
    moving.while_written("rows back", moving.rows("sqlite"))
    moving.compare("back")
    return {
        "objects before": count,
        "filled in s": filled,
        "moves": moving.steps,
        "commits acknowledged": len(moving.done.commits),
        "files compared": len(moving.done.files),
        "tags acknowledged": len(moving.done.tags),
        "repositories made": len(moving.done.repositories),
        "problems": moving.problems,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--objects", type=int, default=10_000)
    parser.add_argument(
        "--rows", action="store_true", help="move rows alone, and leave large files below the root"
    )
    parser.add_argument(
        "--moto",
        action="store_true",
        help="objects go to moto's server, in this process, not to a plain store",
    )
    parser.add_argument("--write", action="store_true", help="keep the figures under benchmarks/results/")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = stack.enter_context(PostgresqlServer())
        address = database.new_database()
        store = None
        if not options.rows:
            store = object_store.store() if options.moto else stack.enter_context(PlainStore())
        result = measure(folder / "root", options.objects, address, store)
    print(json.dumps(result, indent=2))
    if options.write:
        write("hub-server-migration", result)
    if result["problems"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
