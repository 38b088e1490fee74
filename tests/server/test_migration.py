"""Rows that move to another database: all of them, or none."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from kernels_hub.cli import main
from kernels_hub.errors import KernelsHubError
from kernels_hub.server import migration
from kernels_hub.server.access import Caller
from kernels_hub.server.database.online_copy import OnlineCopy
from kernels_hub.server.database.seam import Database
from kernels_hub.server.database.sqlite import SqliteDatabase
from kernels_hub.server.database.transfer import TABLES, digest
from kernels_hub.server.hub import Hub
from kernels_hub.server.layout import RootPaths
from kernels_hub.server.maintenance import backup, check
from kernels_hub.server.migration import SQLITE, migrate
from kernels_hub.server.search import Wanted
from tests import hub_databases
from tests.hub_databases import needs_postgresql
from tests.postgresql_server import PostgresqlServer
from tests.running_hub import start_hub
from tests.server.release_cases import commit, new, release

pytestmark = needs_postgresql


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with a row at least in every table, in SQLite."""
    root = tmp_path / "root"
    with hub_databases.rows_in(hub_databases.SQLITE), Hub(root, create=True) as hub:
        hub.accounts.add_user("ada")
        hub.accounts.add_organisation("Acme", "ada", trusted=True)
        secret, token = hub.accounts.new_token("ada", "write", repository="ada/k", expires=4e9 + 0.1)
        hub.sessions.begin(token)
        repo = new(hub)
        metadata = '{"backend": {"type": "cpu"}, "license": "MIT", "kernels-hub": {"layers": ["Norm"], "summary": "a\\u0000ü%s?"}}'
        commit(hub, repo, "build/torch-cpu/metadata.json", metadata)
        release(hub, repo, "v1.0.0", "1")
        release(hub, repo, "v1.1.0", "2")
        commit(hub, repo, "yanked.json", '{"1.0.0": "wrong"}')
        hub.repositories.set_gated(
            hub.changes.create("model", "acme", "m", private=True, author="ada"), "manual"
        )
        hub.repositories.grant(repo, "ada", "accepted")
        content = b"large" * 1000
        path = hub.layout.temporary()
        path.write_bytes(content)
        hub.large_files.adopt(repo, path, hashlib.sha256(content).hexdigest(), len(content))
        hub.downloads.add(repo.id, "build/torch-cpu/__init__.py", {})
        hub.downloads.flush()
        hub.search.shown(Caller(), Wanted(), 0, 10)
        hub.database.change("INSERT INTO pending_refs VALUES (?, '{}')", repo.id)
        hub.database.change("INSERT INTO unlogged VALUES (?)", hub.repositories.all("model")[0].id)
    return root


def digests(database: Database) -> dict[str, object]:
    with database.snapshot():
        return {table: digest(database, table) for table in TABLES}


def of_root(root: Path) -> dict[str, object]:
    with Hub(root) as hub:
        return digests(hub.database)


def test_every_table_is_copied_and_has_a_row_here(root: Path, database: str):
    with Hub(root) as hub:
        hub.database.change("INSERT INTO mirror VALUES ('https://hub.example.org', 'a,b', 1.5, 0.5, 'away')")
        hub.database.change("INSERT INTO mirrored SELECT id, id, 'seen', 0.0, '' FROM repositories")
        hub.database.change("INSERT INTO git_place VALUES (1, 'folder', 's3://b/p', 'id', ?)", b"key")
        hub.database.change("INSERT INTO git_versions SELECT id, 'version' FROM repositories")
        hub.database.change(
            "INSERT INTO git_refs SELECT id, 'refs/heads/main', 'oid', NULL FROM repositories"
        )
        hub.database.change("INSERT INTO git_packs SELECT id, 'name', 1, 2 FROM repositories")
        hub.database.change("INSERT INTO git_dropped SELECT id, 'name', 1.5 FROM repositories")
        assert set(hub.database.tables()) == set(TABLES)
        assert [table for table in TABLES if hub.database.row(f"SELECT 1 FROM {table}") is None] == []
    copied = migrate(root, database).tables
    with Hub(root) as hub:
        assert hub.database.name == database and set(hub.database.tables()) == set(TABLES)
        assert [item.table for item in copied] == list(TABLES) and all(item.rows for item in copied)


def test_there_and_back_again_the_rows_are_the_same(root: Path, database: str):
    before = of_root(root)
    done = migrate(root, database)
    assert {item.table: item for item in done.tables} == before == of_root(root)
    assert (done.known, done.changes, done.in_the_last) == (False, 0, 0)
    source = SqliteDatabase(root / "hub.sqlite")
    assert digests(source) == before, "the source stays as it was"
    assert not source.has("row_changes") and not source.rows(
        "SELECT 1 FROM sqlite_master WHERE name LIKE 'row#_%' ESCAPE '#'"
    )
    source.close()
    with Hub(root) as hub:
        hub.accounts.add_user("later")
        repo = hub.repositories.find("kernel", "ADA", "K")
        assert repo is not None and hub.search.shown(Caller(), Wanted(facets={"layer": "nORM"}), 0, 10).rows
        release(hub, repo, "v1.2.0", "3")
        later = digests(hub.database)
    with pytest.raises(KernelsHubError, match=r"hub\.sqlite is there already"):
        migrate(root, SQLITE)
    (root / "hub.sqlite").unlink()
    migrate(root, SQLITE)
    assert of_root(root) == later != before
    assert not (root / "database").exists() and not list(root.glob("hub.sqlite?*"))
    with Hub(root) as hub:
        assert (
            hub.accounts.find("LATER") is not None and hub.database.name == "hub.sqlite" and check(hub) == []
        )
        release(hub, hub.repositories.all("kernel")[0], "v1.3.0", "4")
        assert check(hub) == []


def test_a_target_that_is_not_empty_is_refused(
    root: Path, database: str, postgresql: PostgresqlServer, tmp_path: Path
):
    with Hub(tmp_path / "other", create=True, database=database) as other:
        other.accounts.add_user("eve")
    before = of_root(root)
    with pytest.raises(KernelsHubError, match="is not empty"):
        migrate(root, database)
    assert of_root(root) == before
    with Hub(tmp_path / "other") as other:
        assert other.accounts.find("eve") is not None
    with pytest.raises(KernelsHubError, match=r"are in hub\.sqlite already"):
        migrate(root, SQLITE)


def test_who_does_not_follow_keeps_the_rows_where_they_are(root: Path, database: str):
    before, marker = of_root(root), (root / "FORMAT").read_text()
    with Hub(root) as open_elsewhere:
        with pytest.raises(KernelsHubError, match="is open: by a server that cannot go along"):
            migrate(root, database, seconds=0.2)
        open_elsewhere.accounts.add_user("meanwhile")
        again = digests(open_elsewhere.database)
    assert (root / "FORMAT").read_text() == marker and not (root / "moving").exists()
    descriptor = migration.try_lock(root / "using")  # the end of another migration
    assert descriptor is not None
    try:
        with pytest.raises(KernelsHubError, match="are being moved to another database"):
            migrate(root, database)
        with pytest.raises(KernelsHubError, match="are being moved to another database"):
            Hub(root)
    finally:
        os.close(descriptor)
    done = migrate(root, database)
    assert done.known and {item.table: item for item in done.tables} == again == of_root(root) != before


def test_of_two_migrations_at_once_one_is_done(root: Path, database: str):
    before, found = of_root(root), list[object]()

    def run() -> None:
        try:
            found.append(migrate(root, database))
        except KernelsHubError as error:
            found.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([one for one in found if isinstance(one, migration.Moved)]) == 1, found
    assert of_root(root) == before


class Died(BaseException):
    """The process is gone."""


STEPS = {
    "while rows are copied": (OnlineCopy, "step"),
    "while rows are compared": (OnlineCopy, "compare"),
    "while requests wait": (OnlineCopy, "check_counts"),
    "before it is said where they are": (RootPaths, "write_address"),
    "before it counts": (RootPaths, "write_marker"),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("to", ["postgresql", "sqlite"])
def test_a_migration_that_dies_is_run_again(
    root: Path, database: str, step: str, to: str, monkeypatch: pytest.MonkeyPatch
):
    goal = database
    if to == "sqlite":
        migrate(root, database)
        (root / "hub.sqlite").unlink()
        goal = SQLITE
    before, format_before = of_root(root), (root / "FORMAT").read_text()
    owner, name = STEPS[step]
    real: Callable[..., object] = getattr(owner, name)

    def dies(*arguments: object, **options: object) -> object:
        if not options.get("begun"):
            raise Died
        return real(*arguments, **options)

    with monkeypatch.context() as patch, suppress(Died):
        patch.setattr(owner, name, dies)
        migrate(root, goal)
    if not (
        to == "sqlite" and step == "before it is said where they are"
    ):  # of which there is nothing to say
        assert (root / "FORMAT").read_text() == format_before and of_root(root) == before
        if to == "sqlite" and (root / "hub.sqlite").exists():
            (root / "hub.sqlite").unlink()  # as it is told to
        done = migrate(root, goal)
        assert {item.table: item for item in done.tables} == before
        assert done.known == (owner is OnlineCopy)
    assert of_root(root) == before and not (root / "database.begun").exists()


def test_what_arrives_otherwise_is_refused(root: Path, database: str, monkeypatch: pytest.MonkeyPatch):
    from kernels_hub.server.database.postgresql import PostgresqlDatabase

    put, before = PostgresqlDatabase.put, of_root(root)

    def short(self, table, columns, values, **options):
        rows = list(values)
        put(self, table, columns, rows[:-1] if table == "release_log" else rows, **options)

    with monkeypatch.context() as patch:
        patch.setattr(PostgresqlDatabase, "put", short)
        with pytest.raises(
            KernelsHubError, match="release_log has 2 rows in .* and 3 in hub.sqlite.*nothing was changed"
        ):
            migrate(root, database)
    assert of_root(root) == before
    done = migrate(root, database)
    assert len(done.tables) == len(TABLES) and not done.known, "begun anew"


def test_a_database_that_ends_in_the_middle_leaves_the_source(
    root: Path, database: str, postgresql: PostgresqlServer, monkeypatch
):
    before, real = of_root(root), OnlineCopy._next

    def ended(copy: OnlineCopy, progress: object) -> object:
        postgresql.execute(
            f"SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = '{database.rpartition('/')[2]}'"
        )
        return real(copy, progress)

    with monkeypatch.context() as patch:
        patch.setattr(OnlineCopy, "_next", ended)
        with pytest.raises(KernelsHubError, match=r"could not be moved: .*hub\.sqlite still has them"):
            migrate(root, database)
    assert of_root(root) == before
    migrate(root, database)
    assert of_root(root) == before


def test_a_backup_of_rows_in_postgresql_is_served_and_goes_back_into_postgresql(
    root: Path, database: str, postgresql: PostgresqlServer, tmp_path: Path
):
    migrate(root, database)
    with Hub(root) as hub:
        hub.database.change("DELETE FROM pending_refs")
        before = digests(hub.database)
        backup(hub, tmp_path / "copy")
        hub.accounts.add_user("later")
    with Hub(tmp_path / "copy") as copy:
        assert (
            copy.database.name == "hub.sqlite" and check(copy) == [] and copy.accounts.find("later") is None
        )
        # What a backup completes: releases that are older than their log, and descriptions.
        kept = [name for name in TABLES if name not in ("unlogged", "search")]
        now = digests(copy.database)
        assert [now[name] for name in kept] == [before[name] for name in kept]
    restored = postgresql.new_database()
    migrate(tmp_path / "copy", restored)
    with start_hub(tmp_path / "copy") as running, running.administer() as hub:
        assert hub.database.name == restored and check(hub) == []
        release(hub, hub.repositories.all("kernel")[0], "v2.0.0", "5")
    postgresql.drop(restored)


def test_the_command(
    root: Path, database: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as done:
            main(["hub", *arguments, "--root", str(root)])
        found = capsys.readouterr()
        assert "s3cret" not in found.out + found.err
        return int(done.value.code or 0), found.out + found.err

    with_password = database.replace("hub@", "hub:s3cret@")
    code, text = run("migrate", "--to", with_password)
    assert code == 0 and "release_log" in text and f"are in {database} from now on" in text
    code, text = run("user", "list")
    assert code == 0 and "ada" in text
    code, text = run("fsck", "--quick")
    assert "problems" in text
    code, text = run("migrate", "--to", "mysql://u:s3cret@h/d")
    assert code == 1 and "is not the address of a database" in text
    monkeypatch.setenv("KERNELS_HUB_DATABASE", with_password)
    assert run("user", "add", "eve")[0] == 0
    monkeypatch.setenv("KERNELS_HUB_DATABASE", "postgresql://hub:s3cret@127.0.0.1:1/none")
    code, text = run("user", "list")
    assert code == 1 and "postgresql://hub@127.0.0.1:1/none cannot be used" in text
    monkeypatch.delenv("KERNELS_HUB_DATABASE")
    (root / "hub.sqlite").unlink()
    assert run("migrate", "--to", "sqlite")[0] == 0
    code, text = run("user", "list")
    assert code == 0 and "eve" in text
