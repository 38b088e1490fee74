"""Rows that move to another database while servers run and clients write: nothing is lost, and nobody is told no."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from kernels_hub.errors import KernelsHubError
from kernels_hub.server.database import UnavailableError, movable
from kernels_hub.server.database.change_log import ChangeLog
from kernels_hub.server.database.movable import MovableDatabase
from kernels_hub.server.database.online_copy import OnlineCopy
from kernels_hub.server.database.postgresql import PostgresqlDatabase
from kernels_hub.server.database.schema import CORE
from kernels_hub.server.database.seam import Database
from kernels_hub.server.database.sqlite import SqliteDatabase
from kernels_hub.server.database.transfer import TABLES, digest
from kernels_hub.server.git.migration import migrate as migrate_git
from kernels_hub.server.hub import SCHEMAS, Hub
from kernels_hub.server.maintenance import backup, check
from kernels_hub.server.migration import SQLITE, give_up, migrate
from tests import hub_databases
from tests.hub_databases import needs_postgresql
from tests.plain_store import PlainStore
from tests.running_hub import RunningHub, start_hub
from tests.server.test_commands import COMMAND

pytestmark = needs_postgresql


def made(database: Database) -> Database:
    if isinstance(database, PostgresqlDatabase):
        database.make()
    for schema in SCHEMAS:
        database.add(schema)
    return database


def digests(database: Database) -> dict[str, object]:
    with database.snapshot():
        return {table: digest(database, table) for table in TABLES}


def repository(database: Database, identifier: str, name: str, space: str = "ada") -> None:
    database.change(
        "INSERT INTO repositories VALUES (?, 'kernel', ?, ?, 0, '', 1.5)", identifier, space, name
    )


# What is written after a step -> statements, each of which once broke some order of bringing rows. Each has rows of its
# own, whose names end in its number, `{n}`: so one move has them all, at the steps that each would have alone.
CHANGES: dict[str, tuple[tuple[object, ...], ...]] = {
    "names that go round": (
        ("UPDATE repositories SET name = 'x{n}' WHERE id = 'r1{n}'",),
        ("UPDATE repositories SET name = 'k1{n}' WHERE id = 'r2{n}'",),
        ("UPDATE repositories SET name = 'k2{n}' WHERE id = 'r1{n}'",),
    ),
    "another takes the name of one that is gone": (
        ("DELETE FROM repositories WHERE id = 'r1{n}'",),
        ("INSERT INTO repositories VALUES ('a0{n}', 'kernel', 'ada{n}', 'K1{n}', 1, '', 2.5)",),
        ("INSERT INTO objects VALUES ('a0{n}', 'o', 1, 0.0)",),
    ),
    "from an account that goes to one that comes": (
        ("INSERT INTO accounts VALUES ('zoe{n}', 'user', 0, 1.0)",),
        ("UPDATE repositories SET namespace = 'zoe{n}' WHERE namespace = 'ada{n}'",),
        ("DELETE FROM accounts WHERE name = 'ada{n}'",),
    ),
    "gone and there again": (
        ("DELETE FROM accounts WHERE name = 'bob{n}'",),
        ("INSERT INTO accounts VALUES ('Bob{n}', 'user', 1, 2.0)",),
        ("INSERT INTO tokens VALUES ('t2{n}', ?, 'bob{n}', 'read', NULL, 1.0, NULL)", b"\x01\\x"),
        ("INSERT INTO sessions VALUES (?, 't2{n}', 3.0)", b"\xff\x00"),
    ),
    "text that is no plain text": (
        ("INSERT INTO downloads VALUES ('r1{n}', 3, '\\x00 \"ü'',', 4)",),
        ("UPDATE search SET words = 'änders \\ %' WHERE repository = 'r2{n}'",),
        ("DELETE FROM sessions WHERE token = 't1{n}'",),
    ),
    "a mirrored one that comes back": (
        ("UPDATE mirrored SET origin_id = 'gone' WHERE repository = 'r1{n}'",),
        ("UPDATE mirrored SET origin_id = 'origin1{n}' WHERE repository = 'r2{n}'",),
        ("INSERT INTO release_log VALUES ('kernel/ada{n}/k1{n}', 2, '{{}}', 'h', 'o')",),
    ),
}


@pytest.fixture(params=["to postgresql", "to sqlite"])
def databases(
    request: pytest.FixtureRequest, database: str, tmp_path: Path
) -> Iterator[tuple[Database, Database]]:
    """A source, and an empty target."""
    there, here = made(PostgresqlDatabase(database)), made(SqliteDatabase(tmp_path / "hub.sqlite"))
    source, target = (here, there) if request.param == "to postgresql" else (there, here)
    with closing(there), closing(here):
        yield source, target


def fill(source: Database, n: object = "") -> None:
    """Some rows, whose names end in `n`."""
    for name in ("ada", "bob"):
        source.change("INSERT INTO accounts VALUES (?, 'user', 0, 1.0)", f"{name}{n}")
    secret = str(n).encode()
    source.change(
        "INSERT INTO tokens VALUES (?, ?, ?, 'write', NULL, 1.0, NULL)",
        *(f"t1{n}", b"\x00\xff" + secret, f"bob{n}"),
    )
    source.change("INSERT INTO sessions VALUES (?, ?, 2.5)", b"\xfe" + secret, f"t1{n}")
    for number in (1, 2):
        repository(source, f"r{number}{n}", f"k{number}{n}", f"ada{n}")
        source.change("INSERT INTO objects VALUES (?, 'o', 1, 0.5)", f"r{number}{n}")
        source.change(
            "INSERT INTO mirrored VALUES (?, ?, '', 0.0, '')", f"r{number}{n}", f"origin{number}{n}"
        )
    source.change("INSERT INTO release_log VALUES (?, 1, '{}', 'h', 'o')", f"kernel/ada{n}/k1{n}")


def test_whatever_changes_at_whatever_step(
    databases: tuple[Database, Database], monkeypatch: pytest.MonkeyPatch
):
    source, target = databases
    for n in range(len(CHANGES)):
        fill(source, n)
    # A step copies one row of each.
    monkeypatch.setattr("kernels_hub.server.database.online_copy._ROWS", len(CHANGES))
    copy = OnlineCopy(source, target, ChangeLog(source), (CORE, *SCHEMAS))
    ChangeLog(source).begin("move", copy.tables)
    copy.begin("move")
    # A statement of each every few steps: rows are changed before, while and after their table is copied.
    statements = itertools.zip_longest(*CHANGES.values())

    def write() -> bool:
        now = next(statements, ())
        for n, statement in enumerate(now):
            if statement is not None:
                text, *values = statement
                source.change(str(text).format(n=n), *values)
        return bool(now)

    going, number = True, 0
    while going or number % 4:
        number += 1
        if number % 4 == 0:
            write()
        going = copy.step()
    compared = {item.table: item for item in copy.compare()}
    while write():
        pass
    assert compared == digests(source) or copy.catch_up()
    copy.check_counts()
    assert digests(target) == digests(source)
    copy.end()
    assert set(source.tables()) == set(target.tables()) == set(TABLES)
    assert not any(database.has(table) for database in databases for table in ("row_move", "row_changes"))
    source.change("INSERT INTO accounts VALUES ('later', 'user', 0, 1.0)")


def test_a_step_that_died_is_brought_once_more_and_a_wrong_row_is_noticed(databases, monkeypatch):
    source, target = databases
    fill(source)
    log = ChangeLog(source)
    copy = OnlineCopy(source, target, log, (CORE, *SCHEMAS))
    log.begin("move", copy.tables)
    copy.begin("move")
    with monkeypatch.context() as patch:
        patch.setattr(log, "forget", lambda _: None)  # as a process that was killed before
        source.change("UPDATE accounts SET trusted = 1")
        while copy.step():
            pass
        source.change("DELETE FROM sessions")
        copy.catch_up()
    with source.snapshot():
        assert log.pending()[1] == {"accounts": [("ada",), ("bob",)], "sessions": [(b"\xfe",)]}
    assert copy.catch_up() == 3 and copy.catch_up() == 0
    copy.compare()
    with target.transaction():
        target.change("UPDATE accounts SET trusted = 2 WHERE name = 'ada'")
    with pytest.raises(KernelsHubError, match=r"accounts has 2 rows .* or other ones; nothing was changed"):
        copy.compare()
    repository(target, "stray", "stray")
    with pytest.raises(KernelsHubError, match="repositories has 3 rows"):
        copy.check_counts()


# -- servers


@contextmanager
def _gets(hub: RunningHub, path: str) -> Iterator[list[int]]:
    """Asks again and again; every status."""
    found: list[int] = []
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            try:
                with urllib.request.urlopen(hub.endpoint + path, timeout=30) as answer:
                    found.append(answer.status)
            except urllib.error.HTTPError as error:
                found.append(error.code)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


class _Publishers:
    """Threads that make repositories and commit to them, one request after the other; what was acknowledged."""

    def __init__(self, hub: RunningHub, count: int, *, pause: float = 0.0) -> None:
        """pause: seconds between two repositories of a thread."""
        self._pause = pause
        self._endpoint, self._token = hub.endpoint, hub.token("ada")
        self.made: list[str] = []
        self.commits: dict[str, int] = {}
        self.wrong: list[str] = []
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def _post(self, path: str, body: bytes, kind: str) -> int:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        request = urllib.request.Request(self._endpoint + path, body, headers)
        while True:
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return answer.status
            except urllib.error.HTTPError as error:
                if error.code != 503 or not error.headers["Retry-After"]:
                    return error.code

    def _write(self, thread: int) -> None:
        for number in itertools.count():
            name = f"w{thread}-{number}"
            if self._ended.is_set():
                return
            made = self._post(
                "/api/repos/create", json.dumps({"name": name, "type": "kernel"}).encode(), "application/json"
            )
            lines = (
                {"key": "header", "value": {"summary": "m"}},
                {"key": "file", "value": {"path": "f.txt", "content": name}},
            )
            committed = self._post(
                f"/api/kernels/ada/{name}/commit/main",
                "\n".join(map(json.dumps, lines)).encode(),
                "application/x-ndjson",
            )
            # Sent again after a 503, a repository may be there already.
            if made not in (200, 409) or committed != 200:
                self.wrong.append(f"{name}: {made} {committed}")
            self.made.append(name)
            time.sleep(self._pause)

    def stop(self) -> list[str]:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        assert self.wrong == []
        return self.made


def children(pid: int) -> list[int]:
    """The processes that a process started, as the system lists them."""
    found = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(item) for item in " ".join(found).split()]


def content(hub: RunningHub, name: str) -> str:
    request = urllib.request.Request(f"{hub.endpoint}/kernels/ada/{name}/resolve/main/f.txt")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(answer.read().decode())


def _make_root(root: Path, *, objects: int) -> None:
    """A Hub below SQLite with a repository that has so many objects."""
    with hub_databases.rows_in(hub_databases.SQLITE), Hub(root, create=True) as hub:
        hub.accounts.add_user("ada")
        repo = hub.changes.create("kernel", "ada", "many", private=False, author="ada")
        with hub.database.transaction():
            rows = ((repo.id, f"{number:064x}", 1, 4e9) for number in range(objects))
            hub.database.insert("objects", ("repository", "oid", "size", "touched"), rows)


def test_both_ways_while_clients_write(tmp_path: Path, database: str):
    root = tmp_path / "root"
    _make_root(root, objects=1000)
    with hub_databases.rows_in(hub_databases.SQLITE), start_hub(root, workers=2) as running:
        writers = _Publishers(running, 2)
        with _gets(running, "/api/kernels?limit=5") as statuses:
            for to in (database, SQLITE):
                before = len(writers.made)
                while len(writers.made) < before + 3:
                    time.sleep(0.02)
                done = migrate(root, to)
                assert done.waited < 20 and {item.table for item in done.tables} == set(TABLES)
                assert next(item.rows for item in done.tables if item.table == "objects") == 1000
                if to == database:
                    (root / "hub.sqlite").rename(tmp_path / "old.sqlite")
            before = len(writers.made)
            while len(writers.made) < before + 3:
                time.sleep(0.02)
        written = writers.stop()
        assert set(statuses) == {200}, "who reads waits, and hears nothing of it"
        assert {name: content(running, name) for name in written} == {name: name for name in written}
        with running.administer() as hub:
            assert hub.database.name == "hub.sqlite"
            hub.database.change("DELETE FROM objects")
            assert check(hub) == [] and len(hub.repositories.all()) == len(written) + 1
        assert "this server stays" not in running.output()


@pytest.fixture
def plain_objects() -> Iterator[str]:
    """The address of a place in a store in a process of its own: here, threads of clients have the interpreter."""
    with PlainStore() as store:
        yield store.address("git")


@pytest.mark.exhaustive
@pytest.mark.git_folder
def test_git_data_both_ways_while_clients_write(tmp_path: Path, database: str, plain_objects: str):
    root = tmp_path / "root"
    with start_hub(root, workers=2, database=database, objects=plain_objects) as running:
        writers = _Publishers(running, 1, pause=0.2)
        with _gets(running, "/api/kernels/ada/w0-0") as statuses:
            for to in ("folder", "store"):
                before = len(writers.made)
                while len(writers.made) < before + 3:
                    time.sleep(0.02)
                done = migrate_git(root, to)
                assert done.waited < 20 and done.repositories >= before
                assert (root / "FORMAT").read_text().endswith("git store\n") == (to == "store")
            before = len(writers.made)
            while len(writers.made) < before + 3:
                time.sleep(0.02)
        written = writers.stop()
        first = statuses.index(200)
        assert set(statuses[:first]) <= {401} and set(statuses[first:]) == {200}, "who reads waits"
        assert {name: content(running, name) for name in written} == {name: name for name in written}
        with running.administer() as hub:
            assert hub.git.has_several_roots and len(hub.repositories.all()) == len(written)
            assert check(hub) == []
        assert "this server stays" not in running.output()


@pytest.mark.git_folder
@pytest.mark.exhaustive
def test_git_data_killed_again_and_again_while_clients_write(
    tmp_path: Path, database: str, plain_objects: str
):
    root = tmp_path / "root"
    with start_hub(root, workers=2, database=database, objects=plain_objects) as running:
        writers = _Publishers(running, 1, pause=0.2)
        for to in ("folder", "store"):
            _killed_again_and_again([*COMMAND, "hub", "migrate", "--json", "--root", str(root), "--git", to])
            assert (root / "FORMAT").read_text().endswith("git store\n") == (to == "store")
        written = writers.stop()
        assert {name: content(running, name) for name in written} == {name: name for name in written}
        with running.administer() as hub:
            assert check(hub) == []


def _killed_again_and_again(command: list[str]) -> None:
    """Run a command, kill -9 it after ever longer, until it has come to its end."""
    for count in itertools.count(1):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            _, said = process.communicate(timeout=0.5 * count)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            continue
        assert process.returncode == 0 or "already" in said, said
        return


def test_a_server_that_cannot_reach_the_target_stays(tmp_path: Path, database: str):
    root = tmp_path / "root"
    with hub_databases.rows_in(hub_databases.SQLITE):
        with start_hub(root, env={"PGPORT": "1", "PGCONNECT_TIMEOUT": "2"}) as running:
            running.token("ada")
            # Of the address here the port comes from the environment, which the server has another of.
            port = database.rpartition(":")[2].partition("/")[0]
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("PGPORT", port)
                with pytest.raises(KernelsHubError, match="a server that cannot go along"):
                    migrate(root, database.replace(f":{port}", ""), seconds=1)
            assert "and this server stays: " in running.output("and this server stays: ")
            running.organisation("acme", "ada")
        with start_hub(root) as running:
            done = migrate(root, database)
            assert done.known, "it goes on where it was"
            running.organisation("zeta", "ada")
    with Hub(root) as hub:
        assert hub.database.name == database
        assert all(hub.accounts.find(name) for name in ("acme", "zeta", "ada"))


@pytest.mark.exhaustive
@pytest.mark.git_folder
def test_workers_that_are_started_later_find_the_rows(tmp_path: Path, database: str):
    root = tmp_path / "root"
    with start_hub(root, workers=2, database=database) as running:
        running.token("ada")
        migrate(root, SQLITE)
        for worker in children(running.process.pid):
            os.kill(worker, signal.SIGKILL)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with suppress(OSError), urllib.request.urlopen(running.endpoint + "/health", timeout=5) as answer:
                assert answer.status == 200
                break
        else:
            raise AssertionError(running.output())
        running.organisation("acme", "ada")


@pytest.mark.exhaustive
def test_killed_again_and_again_while_clients_write(tmp_path: Path, database: str):
    root = tmp_path / "root"
    _make_root(root, objects=20_000)
    for to in (database, SQLITE):
        with hub_databases.rows_in(hub_databases.SQLITE), start_hub(root, workers=2) as running:
            writers = _Publishers(running, 1)
            command = [*COMMAND, "hub", "migrate", "--json", "--root", str(root), "--to", to]
            _killed_again_and_again(command)
            written = writers.stop()
            assert {name: content(running, name) for name in written} == {name: name for name in written}
        if to == database:
            (root / "hub.sqlite").rename(tmp_path / "old.sqlite")
    with Hub(root) as hub:
        hub.database.change("DELETE FROM objects")
        assert check(hub) == [] and hub.database.name == "hub.sqlite"


def test_a_move_that_is_given_up_leaves_nothing(tmp_path: Path, database: str):
    root = tmp_path / "root"
    with hub_databases.rows_in(hub_databases.SQLITE), Hub(root, create=True) as hub:
        hub.accounts.add_user("ada")
        with pytest.raises(KernelsHubError, match="is open"):
            migrate(root, database, seconds=0)
        assert hub.database.has("row_changes") and "row_changes" not in hub.database.tables()
        hub.accounts.add_user("bob")
        backup(hub, tmp_path / "copy")
    with Hub(tmp_path / "copy") as copy:
        assert not copy.database.has("row_changes") and copy.accounts.find("bob") is not None
        copy.accounts.add_user("eve")
    give_up(root)
    with Hub(root) as hub:
        assert not hub.database.has("row_changes") and not (root / "database.begun").exists()
        hub.accounts.add_user("eve")


def test_who_waits_too_long_hears_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(movable, "_WAIT_SECONDS", 0.05)
    database = MovableDatabase(SqliteDatabase(tmp_path / "one.sqlite"))
    told: list[str] = []

    def ask() -> None:
        try:
            database.row("SELECT 1")
        except UnavailableError as error:
            told.append(str(error))

    with database.transaction(), database.exchanged(0.01) as exchange:
        assert exchange is None, "a transaction is at work"
    other = SqliteDatabase(tmp_path / "two.sqlite")
    other.change("INSERT INTO accounts VALUES ('ada', 'user', 0, 1.0)")
    with database.exchanged(1) as exchange:
        assert exchange is not None
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        exchange(other)
    assert told == ["its rows are being moved to another database"]
    assert database.row("SELECT name FROM accounts") is not None
    with pytest.raises(AssertionError, match="hold `staying`"):
        database.in_order("search_stale")
    with database.staying():
        assert "search_stale" in database.in_order("search_stale")
    database.close()
