"""A Hub with its rows in PostgreSQL: what its address, an outage, a kill and an older copy do to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from benchmarks.server_storm import LIMITS, Acknowledged, storm, unexpected
from kernels_hub.cli import main
from kernels_hub.errors import KernelsHubError
from kernels_hub.server.database import DatabaseError, RowConflictError, UnavailableError
from kernels_hub.server.database.address import checked, without_password
from kernels_hub.server.database.connections import MOST
from kernels_hub.server.hub import Hub
from kernels_hub.server.maintenance import check
from kernels_hub.server.refusal import Refusal
from kernels_hub.server.release_check import restore_refs
from kernels_hub.server.sweep import sweep
from tests import hub_databases
from tests.hub_databases import needs_postgresql
from tests.postgresql_server import PostgresqlServer
from tests.running_hub import RunningHub, start_hub
from tests.server.release_cases import commit, log, new, release, tags
from tests.server.test_commands import serving


@pytest.fixture
def hub(tmp_path: Path, database: str) -> Iterator[Hub]:
    with Hub(tmp_path / "root", create=True, database=database) as hub:
        hub.accounts.add_user("ada")
        yield hub


# -- addresses ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address, shown",
    [
        ("postgresql://hub@db:5432/kernels", "postgresql://hub@db:5432/kernels"),
        ("postgresql://hub:secret@db:5432/kernels", "postgresql://hub@db:5432/kernels"),
        ("postgresql://hub:se:cr@et@db/k", "postgresql://hub@db/k"),
        ("postgresql://:secret@db/k", "postgresql://@db/k"),
        ("postgresql:///k?host=/run/pg&password=secret", "postgresql:///k?host=/run/pg"),
        ("postgresql://db/k?PASSWORD=secret", "postgresql://db/k"),
        ("postgresql://a:secret@h1:1,h2:2/k?sslpassword=secret&sslmode=require", "postgresql://a@h1:1,h2:2/k?sslmode=require"),
        ("postgres://hub:secret@db", "postgres://hub@db"),
        ("postgresql://hub:secret@db?connect_timeout=3", "postgresql://hub@db?connect_timeout=3"),
    ],
)  # fmt: skip
def test_an_address_is_shown_without_its_password(address: str, shown: str):
    assert without_password(address) == shown == without_password(shown)
    assert checked(address) == address and "secret" not in shown


@pytest.mark.parametrize(
    "address", ["", "hub.sqlite", "mysql://u:secret@h/d", "postgresql:/h", "host=h password=secret", "postgresql://h/a\nb"]
)  # fmt: skip
def test_what_is_no_address_is_refused(address: str):
    with pytest.raises(
        KernelsHubError, match="is not the address of a database; expected postgresql://"
    ) as told:
        checked(address)
    assert "secret" not in str(told.value)


def test_without_psycopg_the_extra_is_named(tmp_path: Path):
    script = (
        "import sys, pathlib; sys.modules['psycopg'] = None\n"
        "from kernels_hub.server.hub import Hub\n"
        "Hub(pathlib.Path(sys.argv[1]), create=True).close()\n"
        "Hub(pathlib.Path(sys.argv[2]), create=True, database='postgresql://h/d')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "one"), str(tmp_path / "two")],
        capture_output=True,
        text=True,
    )
    assert "needs psycopg; pip install 'kernels-hub[postgresql]' brings it" in done.stderr
    assert (tmp_path / "one" / "hub.sqlite").is_file() and not (tmp_path / "two" / "FORMAT").exists()


# -- which root belongs to which database -----------------------------------------------------------------


@needs_postgresql
def test_a_root_remembers_its_database_and_no_password(tmp_path: Path, database: str):
    with_password = database.replace("hub@", "hub:s3cret@")
    with Hub(tmp_path / "root", create=True, database=with_password) as hub:
        hub.accounts.add_user("Ada")
        assert hub.database.name == database
    with Hub(tmp_path / "root") as again:
        assert again.accounts.find("ADA") is not None and check(again) == []
    assert not (tmp_path / "root" / "hub.sqlite").exists()
    files = [path for path in (tmp_path / "root").rglob("*") if path.is_file()]
    assert files and all(b"s3cret" not in path.read_bytes() for path in files)
    assert (tmp_path / "root" / "FORMAT").read_text() != "kernels-hub root 1\n", "older versions refuse it"


@needs_postgresql
@pytest.mark.git_folder
def test_rows_are_those_of_one_root(tmp_path: Path, postgresql: PostgresqlServer, hub: Hub, database: str):
    with pytest.raises(KernelsHubError, match="has the rows of another root"):
        Hub(tmp_path / "other", create=True, database=database)
    assert not (tmp_path / "other" / "FORMAT").exists(), "the next try may name another database"
    with hub_databases.rows_in(hub_databases.SQLITE):
        Hub(tmp_path / "plain", create=True).close()
    with pytest.raises(KernelsHubError, match=r"has its rows in hub\.sqlite, not in .*hub migrate --to"):
        Hub(tmp_path / "plain", database=database)
    foreign = postgresql.new_database()
    postgresql.execute("CREATE TABLE accounts (id int)", foreign.rpartition("/")[2])
    with pytest.raises(KernelsHubError, match="is not empty: it has a table accounts"):
        Hub(tmp_path / "third", create=True, database=foreign)
    postgresql.drop(foreign)


@needs_postgresql
@pytest.mark.git_folder
def test_a_database_that_comes_back_empty_or_not_at_all(
    tmp_path: Path, postgresql: PostgresqlServer, hub: Hub
):
    new(hub)
    root, name = hub.layout.root, hub.layout.address.read_text()
    hub.close()
    empty = postgresql.new_database()
    with pytest.raises(KernelsHubError, match="has no rows of a Hub, and .* has repositories"):
        Hub(root, database=empty)
    assert (
        postgresql.execute("SELECT 1 FROM pg_tables WHERE schemaname = 'public'", empty.rpartition("/")[2])
        == []
    )
    postgresql.drop(empty)
    with pytest.raises(KernelsHubError, match="cannot be used: .*PGPASSWORD"):
        Hub(root, database="postgresql://hub:secret@127.0.0.1:1/none")
    hub.layout.address.unlink()
    with pytest.raises(KernelsHubError, match="which says where the rows of this root are"):
        Hub(root)
    hub.layout.address.write_text(name)
    with Hub(root) as again:
        assert len(again.repositories.all()) == 1


# -- transactions -----------------------------------------------------------------------------------------


@needs_postgresql
def test_transactions_come_one_after_the_other(hub: Hub):
    """Each reads, waits and writes: with the rows of another in between, additions would be lost."""
    hub.database.change("INSERT INTO upgrades VALUES ('n0')")
    others = [Hub(hub.layout.root) for _ in range(2)]
    failed: list[BaseException] = []

    def add(own: Hub) -> None:
        try:
            for _ in range(15):
                with own.database.transaction(), own.database.transaction():
                    row = own.database.row("SELECT name FROM upgrades WHERE name LIKE 'n%'")
                    assert row is not None
                    own.database.change(
                        "UPDATE upgrades SET name = ? WHERE name = ?",
                        f"n{int(row['name'][1:]) + 1}",
                        row["name"],
                    )
        except BaseException as error:  # noqa: BLE001 -- raised again below
            failed.append(error)

    threads = [threading.Thread(target=add, args=(own,)) for own in (hub, *others) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for other in others:
        other.close()
    assert not failed
    assert hub.database.row("SELECT name FROM upgrades WHERE name LIKE 'n%'") == {"name": "n90"}


@needs_postgresql
def test_a_transaction_that_fails_or_loses_its_connection_changes_nothing(
    hub: Hub, postgresql: PostgresqlServer, database: str
):
    rows = hub.database

    def add(name: str) -> None:
        rows.change("INSERT INTO upgrades VALUES (?)", name)

    def add_and_fail(error: type[Exception] | None) -> None:
        with rows.transaction():
            add("x")
            if error is not None:
                raise error
            with suppress(RowConflictError):
                add("x")

    with pytest.raises(ZeroDivisionError):
        add_and_fail(ZeroDivisionError)
    with pytest.raises(DatabaseError, match="nothing was changed"):
        add_and_fail(None)

    def add_to_a_lost_one(caught: type[BaseException]) -> None:
        with rows.transaction():
            add("x")
            postgresql.execute(
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'kernels-hub' "
                f"AND datname = '{database.rpartition('/')[2]}'"
            )
            for _ in range(2):
                with suppress(caught):
                    add("y")

    for caught in (ZeroDivisionError, UnavailableError):  # the second goes on all the same
        with pytest.raises(UnavailableError):
            add_to_a_lost_one(caught)
    assert rows.row("SELECT 1 FROM upgrades WHERE name IN ('x', 'y')") is None
    with rows.transaction():
        add("z")
    assert rows.row("SELECT name FROM upgrades WHERE name = 'z'") == {"name": "z"}


@needs_postgresql
def test_many_threads_share_few_connections(hub: Hub, postgresql: PostgresqlServer, database: str):
    name = database.rpartition("/")[2]
    open_ones = f"SELECT COUNT(*) FROM pg_stat_activity WHERE datname = '{name}'"
    with ThreadPoolExecutor(40) as pool:
        found = list(pool.map(lambda _: hub.database.row("SELECT pg_sleep(0.02)"), range(120)))
        assert len(found) == 120
    ((most,),) = postgresql.execute(open_ones)
    assert 1 < int(str(most)) <= MOST
    hub.close()
    end = time.monotonic() + 30
    while postgresql.execute(open_ones) != [(0,)] and time.monotonic() < end:
        time.sleep(0.02)
    assert postgresql.execute(open_ones) == [(0,)]


@needs_postgresql
def test_whoever_waits_too_long_for_a_transaction_is_told_so(hub: Hub, database: str):
    with Hub(hub.layout.root, database=f"{database}?options=-c%20lock_timeout%3D200ms") as other:
        with hub.database.transaction():
            assert other.accounts.find("ada") is not None, "who reads does not wait"
            with pytest.raises(UnavailableError, match="lock timeout"):
                other.accounts.add_user("eve")
        other.accounts.add_user("eve")


@needs_postgresql
def test_text_that_postgresql_cannot_hold_finds_nothing_and_is_written_all_the_same(hub: Hub):
    assert (
        hub.accounts.find("a\0") is None
        and hub.database.rows("SELECT 1 FROM search WHERE name = ?", "\0") == []
    )
    hub.audit.record("x", "a\0b%s%%?")
    assert hub.audit.problems() == [] and hub.audit.records()[-1].subject == "a\0b%s%%?"


# -- outages, over HTTP -------------------------------------------------------------------------------------


@pytest.fixture
def own(postgresql: PostgresqlServer) -> Iterator[PostgresqlServer]:
    """The PostgreSQL, which this test may kill: whatever happens, the next ones find it running."""
    try:
        yield postgresql
    finally:
        postgresql.start()


@contextmanager
def writing(running: RunningHub) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {running.token('writer')}"}
    with httpx.Client(base_url=running.endpoint, headers=headers, timeout=60) as client:
        made(client, "shared").raise_for_status()
        yield client


def made(client: httpx.Client, name: str) -> httpx.Response:
    return client.post("/api/repos/create", json={"name": name, "type": "kernel"})


def assert_refused(answer: httpx.Response) -> None:
    assert answer.status_code == 503 and int(answer.headers["retry-after"]) > 0, answer.text
    assert answer.json()["error"] == "The server's database does not answer now; try again"


@needs_postgresql
def test_requests_are_refused_while_the_database_is_gone_and_answered_when_it_is_back(
    tmp_path: Path, own: PostgresqlServer
):
    with start_hub(tmp_path / "root", workers=2, limits=LIMITS, database=own.new_database()) as running:
        with writing(running) as client:
            for turn in range(2):
                own.kill()
                assert_refused(client.get("/api/kernels/writer/shared"))
                assert_refused(made(client, f"lost{turn}"))
                assert_refused(client.get("/health"))
                own.start()
                for number in range(6):  # of either process
                    assert client.get("/api/kernels/writer/shared").status_code == 200
                    assert made(client, f"made{turn}-{number}").status_code == 200
        assert "Traceback" not in running.output() and "does not answer: " in running.output()
    with Hub(tmp_path / "root") as hub:
        assert len(hub.repositories.all()) == 13
        sweep(hub)
        assert check(hub) == []


@pytest.mark.exhaustive
@needs_postgresql
def test_workers_that_start_while_the_database_is_gone_wait_for_it(tmp_path: Path, own: PostgresqlServer):
    with start_hub(tmp_path / "root", workers=2, limits=LIMITS, database=own.new_database()) as running:
        with writing(running) as client:
            own.kill()
            for worker in _children(running.process.pid):
                os.kill(worker, signal.SIGKILL)
            end = time.monotonic() + 60
            while "a worker waits for its database: " not in running.output() and time.monotonic() < end:
                time.sleep(0.1)
            own.start()
            assert client.get("/api/kernels/writer/shared", timeout=60).status_code == 200
        assert "a worker waits for its database: " in running.output()
        assert "Traceback" not in running.output()


def _children(parent: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


@needs_postgresql
@pytest.mark.parametrize("trouble", ["read-only", "full"])
def test_a_database_that_takes_no_writes_is_read_all_the_same(
    tmp_path: Path, postgresql: PostgresqlServer, database: str, trouble: str
):
    name = database.rpartition("/")[2]
    with (
        start_hub(tmp_path / "root", limits=LIMITS, database=database) as running,
        writing(running) as client,
    ):
        if trouble == "read-only":
            postgresql.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
            postgresql.execute(
                f"SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = '{name}'"
            )
        else:
            postgresql.execute(
                "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS "
                "$$BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END$$",
                name,
            )
            for table in ("repositories", "release_log"):
                postgresql.execute(
                    f"CREATE TRIGGER no_room BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION no_room()",
                    name,
                )
        if trouble == "read-only":
            assert_refused(made(client, "more"))
        else:  # as where the disk of hub.sqlite is
            answer = made(client, "more")
            assert (
                answer.status_code == 507
                and "database is full; nothing was changed, tell" in answer.json()["error"]
            )
        head = client.get("/api/kernels/writer/shared")
        assert head.status_code == 200
        answer = client.post(f"/api/kernels/writer/shared/tag/{head.json()['sha']}", json={"tag": "v1.0.0"})
        assert answer.status_code == (507 if trouble == "full" else 503)
        if trouble == "read-only":
            postgresql.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
            postgresql.execute(
                f"SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = '{name}'"
            )
        else:
            postgresql.execute("DROP FUNCTION no_room CASCADE", name)
        assert made(client, "more").status_code == 200
        assert client.get("/api/kernels/writer/shared/refs").json()["tags"] == []
    with Hub(tmp_path / "root") as hub:
        sweep(hub)
        assert check(hub) == []


@needs_postgresql
def test_nothing_acknowledged_is_lost_by_a_kill_of_the_database(tmp_path: Path, own: PostgresqlServer):
    found = storm(tmp_path / "root", 1, workers=2, seed=3, database=own)
    assert found["problems"] == [] and found["commits acknowledged"] > 0


@needs_postgresql
@pytest.mark.exhaustive
@pytest.mark.slow
def test_nothing_acknowledged_is_lost_by_twenty_kills_of_the_database(tmp_path: Path, own: PostgresqlServer):
    found = storm(tmp_path / "root", 20, workers=2, seed=4, database=own)
    assert found["problems"] == [] and found["tags acknowledged"] and found["repositories made"]


def test_what_a_storm_may_not_do_is_found():
    done = Acknowledged(repositories=["writer/a-1"])
    expected = ["/api/repos/create: 503 x", "/api/kernels/writer/a-12/commit/main: 404 x", "/x: 409 x"]
    losses = [
        "/api/kernels/writer/a-1/commit/main: 404 x",
        "/kernels/writer/shared.git/info: 404 x",
        "/x: 500 x",
    ]
    assert unexpected(expected + losses, done) == losses


# -- what fsck sees -----------------------------------------------------------------------------------------

DAMAGE: dict[str, tuple[str, str]] = {
    "a guard that is off": (
        "ALTER TABLE release_log DISABLE TRIGGER release_log_kept",
        "the trigger release_log_kept is gone or off",
    ),
    "a row without what it refers to": (
        "SET session_replication_role = replica; DELETE FROM accounts WHERE name = 'ada'",
        "1 rows of repositories name a row of accounts that is not there",
    ),
    "a log with a gap": (
        "SET session_replication_role = replica; DELETE FROM audit_log WHERE number = 0",
        "audit log: record 0 does not follow",
    ),
}


@needs_postgresql
@pytest.mark.parametrize("damage", DAMAGE)
def test_fsck_finds(hub: Hub, postgresql: PostgresqlServer, database: str, damage: str):
    statement, found = DAMAGE[damage]
    hub.accounts.add_user("eve")
    new(hub)
    assert check(hub) == []
    postgresql.execute(statement, database.rpartition("/")[2])
    assert any(found in problem for problem in check(hub))


@needs_postgresql
@pytest.mark.git_folder
def test_a_database_that_comes_back_older_than_its_repositories(
    tmp_path: Path, postgresql: PostgresqlServer, hub: Hub, database: str
):
    """Entries that clients have seen must not get others in their place: the next release waits for an administrator."""
    repo = new(hub)
    release(hub, repo, "v1.0.0", "1")
    hub.close()
    old = postgresql.new_database()
    postgresql.execute(f"DROP DATABASE {old.rpartition('/')[2]}")
    postgresql.execute(f"CREATE DATABASE {old.rpartition('/')[2]} TEMPLATE {database.rpartition('/')[2]}")
    with Hub(tmp_path / "root") as newer:
        release(newer, repo, "v1.1.0", "2")
        later = newer.changes.create("kernel", "ada", "later", private=False, author="ada")
    with Hub(tmp_path / "root", database=old) as older:
        assert any(later.id in line and "orphans/" in line for line in sweep(older))
        assert any("v1.1.0" in problem and "no release" in problem for problem in check(older))
        commit(older, repo, "README.md", "3")
        with pytest.raises(Refusal, match=r"does not have v1\.1\.0") as refused:
            release(older, repo, "v1.2.0", "4")
        assert refused.value.status == 409 and len(log(older)) == 1
        restore_refs(older, repo, {})
        assert check(older) == [] and list(tags(older, repo)) == ["v1.0.0"]
        release(older, repo, "v1.2.0", "4")
    postgresql.drop(old)


# -- the commands -------------------------------------------------------------------------------------------


@needs_postgresql
@pytest.mark.git_folder
def test_the_commands_take_an_address_and_show_no_password(
    tmp_path: Path, database: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    with_password = database.replace("hub@", "hub:s3cret@")
    monkeypatch.delenv("KERNELS_HUB_DATABASE", raising=False)
    root = str(tmp_path / "root")
    for arguments in (
        ["--database", with_password, "user", "add", "ada"],
        ["token", "new", "ada", "--role", "read"],
    ):
        with pytest.raises(SystemExit) as done:
            main(["hub", *arguments, "--root", root])
        assert not done.value.code
    assert not (tmp_path / "root" / "hub.sqlite").exists()
    token = capfd.readouterr().out.split()[-1]
    with serving(tmp_path / "root", "--database", with_password) as endpoint:
        answer = httpx.get(
            f"{endpoint}/api/whoami-v2", headers={"Authorization": f"Bearer {token}"}, timeout=60
        )
        assert answer.json()["name"] == "ada"
        answer = httpx.get(f"{endpoint}/health")
        assert answer.status_code == 200
    for arguments in (
        ["user", "list"],
        ["--database", with_password.replace(database.rpartition("/")[2], "none"), "user", "list"],
    ):
        with pytest.raises(SystemExit) as done:
            main(["hub", *arguments, "--root", root])
    told = capfd.readouterr()
    assert done.value.code and "cannot be used" in told.err and "ada" in told.out
    assert "s3cret" not in told.out + told.err
