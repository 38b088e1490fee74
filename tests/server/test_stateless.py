"""Servers with roots of their own on one Hub: git data in an object store and a PostgreSQL database, no folder shared."""

from __future__ import annotations

import hashlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from kernels_hub.cli import main
from kernels_hub.errors import KernelsHubError
from kernels_hub.server.commit import AddFile, CommitRequest
from kernels_hub.server.git.migration import Goal, migrate
from kernels_hub.server.git.pack_bucket import PackBucket
from kernels_hub.server.git.rows import GitRows
from kernels_hub.server.git.stored import StoredGit
from kernels_hub.server.hub import Hub
from kernels_hub.server.layout import RootPaths, marker_text
from kernels_hub.server.limits import Limits
from kernels_hub.server.maintenance import backup, check, collect_garbage, strays
from kernels_hub.server.objects.store import Sent, new_upload
from kernels_hub.server.packs import BLOB, git_object
from kernels_hub.server.refs import BRANCHES, Ref
from kernels_hub.server.refusal import Refusal
from kernels_hub.server.repositories import Repository
from kernels_hub.server.sweep import sweep
from tests import hub_databases
from tests.combinations import all_but
from tests.hub_databases import needs_postgresql
from tests.object_store import BUCKET, store
from tests.postgresql_server import PostgresqlServer
from tests.server.release_cases import commit, kinds, new, release, tags

pytestmark = needs_postgresql
Open = Callable[..., Hub]


@pytest.fixture
def opened(tmp_path: Path, database: str, objects: str) -> Iterator[Open]:
    """Opens the Hub by a root of a name, which is made where it is new."""
    with ExitStack() as stack:

        def open_root(name: str, **options: object) -> Hub:
            return stack.enter_context(
                Hub(tmp_path / name, create=True, database=database, objects=objects, **options)
            )

        yield open_root


@pytest.fixture
def one(opened: Open) -> Hub:
    hub = opened("one")
    hub.accounts.add_user("ada")
    return hub


@pytest.fixture
def two(one: Hub, opened: Open) -> Hub:
    return opened("two")


def files(hub: Hub, repo: Repository, revision: str = "main") -> dict[str, bytes]:
    listing = hub.store.listing(repo, hub.store.resolve(repo, revision))
    return {entry.path: hub.store.blob(repo, entry.oid) for entry in listing.files()}


def packs_of(prefix: str) -> list[str]:
    return store().keys(f"{prefix}/git/")


# -- two roots are one Hub ------------------------------------------------------------------------------


def test_a_new_root_joins_the_hub(one: Hub, two: Hub, objects: str):
    assert one.git.has_several_roots and two.git.has_several_roots
    assert (two.layout.root / "FORMAT").read_text() == marker_text(rows=True, objects=objects, git=True)
    assert two.layout.secret() == one.layout.secret() and two.layout.identity() == one.layout.identity()
    assert list(two.layout.repositories.iterdir()) == []


def test_what_one_root_writes_the_other_reads_at_once(one: Hub, two: Hub):
    repo = new(one)
    first = commit(one, repo, "a", "1")
    assert files(two, repo)["a"] == b"1" and two.store.resolve(repo, first) == first
    commit(two, repo, "b", "2")
    assert (files(one, repo)["a"], files(one, repo)["b"]) == (b"1", b"2")
    release(two, repo, "v1.0.0")
    assert tags(one, repo) == tags(two, repo) and kinds(one) == [("release", "v1.0.0")]
    assert check(one) == check(two) == [] and strays(one) == []
    one.store.delete(repo)
    with pytest.raises(Refusal) as found:
        two.store.resolve(repo, "main")
    assert found.value.status == 404


def test_commits_of_many_threads_on_both_roots_are_all_there(one: Hub, two: Hub):
    repo, errors = new(one), list[Exception]()

    def work(hub: Hub, number: int) -> None:
        try:
            for step in range(5):
                commit(hub, repo, f"{number}-{step}", str(step))
        except Exception as error:  # noqa: BLE001 -- shown below
            errors.append(error)

    threads = [threading.Thread(target=work, args=((one, two)[n % 2], n)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(files(one, repo)) == 31 and files(one, repo) == files(two, repo)
    history, _ = one.store.history(repo, one.store.resolve(repo, "main"), 100)
    assert len(history) == 31


def test_of_commits_on_one_parent_one_wins(one: Hub, two: Hub):
    repo = new(one)
    head, start, outcomes = one.store.resolve(repo, "main"), threading.Barrier(6), list[str | int]()

    def work(hub: Hub, number: int) -> None:
        operation = AddFile(f"of-{number}", git_object(BLOB, b"x"))
        start.wait()
        try:
            outcomes.append(
                hub.changes.commit(repo, "main", CommitRequest("m", head, (operation,)), "ada").oid
            )
        except Refusal as refusal:
            outcomes.append(refusal.status)

    threads = [threading.Thread(target=work, args=((one, two)[n % 2], n)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count(412) == 5 and one.store.resolve(repo, "main") in outcomes


def test_a_change_of_what_somebody_changed_meanwhile_is_refused(one: Hub, two: Hub, prefix: str):
    """As by a server whose lock the database let go, since it took it for dead."""
    repo = new(one)
    head = one.store.resolve(repo, "main")
    late = git_object(BLOB, b"late")
    with one.git.locked(repo.id):
        content = one.store.content(repo)
        assert content.refs.all()[BRANCHES + "main"] == Ref(head)
        two.git.inner.rows.replace(repo.id, two.git.inner.rows.snapshot(repo.id).version)  # type: ignore[attr-defined]
        content.packs.write([late])
        with pytest.raises(Refusal, match="Another server has changed") as found:
            content.refs.change({BRANCHES + "other": Ref(head)})
    assert found.value.status == 503
    assert set(one.store.content(repo).refs.all()) == {BRANCHES + "main"}
    assert one.store.content(repo).packs.kind(late.oid) is None, (
        "no worker shows what never became the repository's"
    )
    assert check(one) == [] and len(strays(one)) == 1


def test_many_repositories_are_changed_at_once(one: Hub, monkeypatch: pytest.MonkeyPatch):
    """More than are kept open: none is closed under whoever works on it."""
    monkeypatch.setattr("kernels_hub.server.git.open_repositories.MOST_OPEN", 2)
    repos, errors = [new(one, f"k{number}") for number in range(5)], list[Exception]()

    def work(repo: Repository) -> None:
        try:
            for step in range(4):
                commit(one, repo, f"f{step}", str(step))
        except Exception as error:  # noqa: BLE001 -- shown below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(repo,)) for repo in repos]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and all(len(files(one, repo)) == 5 for repo in repos)


def test_an_answer_of_the_store_that_was_cut_off_is_no_answer(one: Hub, monkeypatch: pytest.MonkeyPatch):
    """boto3 takes an empty body, of a connection that broke after the headers, for an answer that says nothing."""
    repo = new(one)
    store_of = one.git.inner.bucket.store  # type: ignore[attr-defined]

    def cut(*_: object, **__: object) -> dict[str, object]:
        return {}

    monkeypatch.setattr(store_of.client, "create_multipart_upload", cut)
    monkeypatch.setattr(store_of.client, "list_objects_v2", cut)
    monkeypatch.setattr(store_of.client, "list_parts", cut)
    sent = Sent(repo.id, "0" * 64, new_upload(), "upload", (5,), None)
    for ask in (
        lambda: store_of.transfers._join(sent, "incoming"),
        lambda: store_of.transfers.begin(repo.id, [(new_upload(), (5,))], 60),
        lambda: list(one.git.inner.bucket.entries(repo.id)),  # type: ignore[attr-defined]
        lambda: check(one),
    ):
        with pytest.raises(Refusal) as found:
            ask()
        assert found.value.status == 503


def test_names_are_given_once(one: Hub, two: Hub, prefix: str):
    new(one)
    before = packs_of(prefix)
    with pytest.raises(Refusal, match="already created"):
        new(two)
    assert packs_of(prefix) == before and strays(one) == []


# -- crashes, garbage, damage ---------------------------------------------------------------------------


class DiedError(BaseException):
    """The process is gone."""


def crash_at_transaction(hub: Hub, change: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a change whose process dies after the pack was stored, before its rows are."""

    def dies(*_: object, **__: object) -> None:
        raise DiedError

    with monkeypatch.context() as patch:
        patch.setattr(GitRows, "replace", dies)
        patch.setattr(GitRows, "insert", dies)
        with pytest.raises(DiedError):
            change()


def test_a_crash_before_the_rows_leaves_garbage_alone(
    one: Hub, two: Hub, prefix: str, monkeypatch: pytest.MonkeyPatch
):
    repo = new(one)
    head = commit(one, repo, "a", "1")
    release(one, repo, "v1.0.0")
    before, log = packs_of(prefix), kinds(one)
    crash_at_transaction(one, lambda: commit(one, repo, "b", "2"), monkeypatch)
    crash_at_transaction(one, lambda: one.changes.create_tag(repo, "v1.1.0", head, "m", "ada"), monkeypatch)
    crash_at_transaction(one, lambda: new(one, "other"), monkeypatch)
    for hub in (one, two):
        assert hub.store.resolve(repo, "main") == head and set(tags(hub, repo)) == {"v1.0.0"}
        assert kinds(hub) == log and check(hub) == []
    assert len(packs_of(prefix)) == len(before) + 3 and len(strays(two)) == 3
    assert sweep(two) == []
    collect_garbage(two)
    assert len(strays(two)) == 3, "they may be of a server that is at work"
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 25 * 3600)
    assert len(collect_garbage(two).swept) == 4, "two that crashes left, and two that were joined"
    assert len(strays(two)) == 1
    assert len(collect_garbage(two, prune=True).swept) == 1 and strays(two) == []
    assert files(one, repo)["a"] == b"1" and check(one) == []


def test_packs_are_joined_under_readers(one: Hub, two: Hub, prefix: str, monkeypatch: pytest.MonkeyPatch):
    repo = new(one)
    for number in range(30):
        commit((one, two)[number % 2], repo, f"f{number}", str(number))
        assert len(files(one, repo)) == number + 2
    assert len(two.store.content(repo).packs.kept()) < 30
    two.store.content(repo).packs.read_stored(two.store.resolve(repo, "main"))
    collect_garbage(one)
    assert len(one.store.content(repo).packs.kept()) == 1
    assert len(packs_of(prefix)) > 30, "those that were joined stay for a day"
    assert len(files(two, repo)) == 31 and check(two) == [] and strays(two) == []
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 25 * 3600)
    collect_garbage(two)
    assert len(packs_of(prefix)) == 1 and len(files(one, repo)) == 31 and check(one) == []


def test_a_database_that_is_restored_finds_its_packs(one: Hub, opened: Open):
    repo = new(one)
    for number in range(3):
        commit(one, repo, f"f{number}", str(number))
    tables = ("git_versions", "git_refs", "git_packs")
    before = {
        table: [tuple(row.values()) for row in one.database.rows(f"SELECT * FROM {table}")]
        for table in tables
    }  # type: ignore[attr-defined]
    collect_garbage(one)
    late = commit(one, repo, "late", "1")
    with one.database.transaction():
        for table, rows in before.items():
            one.database.change(f"DELETE FROM {table}")
            for row in rows:
                one.database.change(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", *row)
    fresh = opened("fresh")
    for hub in (one, fresh):
        assert set(files(hub, repo)) == {".gitattributes", "f0", "f1", "f2"} and check(hub) == []
    assert fresh.store.content(repo).packs.kind(late) is None
    commit(one, repo, "after", "1")
    assert "after" in files(fresh, repo)


def test_a_database_that_comes_back_empty_makes_no_empty_hub(
    one: Hub, tmp_path: Path, objects: str, postgresql: PostgresqlServer
):
    """Whose servers would answer 404, and remove what no row names."""
    new(one)
    one.close()
    empty = postgresql.new_database()
    for root, says in (
        ("one", "has no rows of a Hub, and .*one has served one"),
        ("fresh", "belongs to another"),
    ):
        with (
            pytest.raises(KernelsHubError, match=says),
            Hub(tmp_path / root, create=True, database=empty, objects=objects),
        ):
            pass
        tables = postgresql.execute(
            "SELECT 1 FROM pg_tables WHERE schemaname = 'public'", empty.rpartition("/")[2]
        )
        assert root == "fresh" or tables == []
    postgresql.drop(empty)


def test_what_is_pruned_is_gone_everywhere(one: Hub, two: Hub):
    repo = new(one)
    one.changes.create_branch(repo, "side", None)
    dropped = commit(one, repo, "x", "1", branch="side")
    assert two.store.resolve(repo, dropped) == dropped
    one.changes.delete_branch(repo, "side")
    collect_garbage(one, prune=True)
    for hub in (one, two):
        hub.git.inner.places.objects.drop([(repo.id, dropped)])  # type: ignore[attr-defined]
        with pytest.raises(Refusal):
            hub.store.resolve(repo, dropped)


def flip(prefix: str, key: str) -> None:
    content = bytearray(store().client().get_object(Bucket=BUCKET, Key=key)["Body"].read())
    content[len(content) // 2] ^= 0x55
    store().client().put_object(Bucket=BUCKET, Key=key, Body=bytes(content))


DAMAGE: dict[str, tuple[Callable[[str, str], object], str]] = {
    "gone": (lambda prefix, key: store().client().delete_object(Bucket=BUCKET, Key=key), "is missing in the"),
    "other content": (flip, "has other content in the object store"),
    "cut off": (
        lambda prefix, key: store().client().put_object(Bucket=BUCKET, Key=key, Body=b"PACK"),
        "has 4 bytes",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_fsck_finds_damage_in_the_store(one: Hub, opened: Open, prefix: str, damage: str):
    repo = new(one)
    commit(one, repo, "a", "1")
    change, words = DAMAGE[damage]
    change(prefix, packs_of(prefix)[-1])
    assert any(words in problem for problem in check(one)), "though its local copy is whole"
    fresh = opened("fresh")
    assert any(words in problem for problem in check(fresh))
    with pytest.raises((Refusal, KeyError)):
        files(fresh, repo)


def test_fsck_loses_no_pack_that_is_written_meanwhile(one: Hub, two: Hub, monkeypatch: pytest.MonkeyPatch):
    """Of packs and rows, those that another root adds after the store was listed are not missing there."""
    repo, listed = new(one), PackBucket.entries
    commit(one, repo, "README.md", "1")
    written: list[str] = []

    def entries(self: PackBucket, repository: str) -> object:
        found = list(listed(self, repository))
        commit(two, repo, "README.md", f"{len(written)} more")
        written.append(repository)
        return found

    monkeypatch.setattr(PackBucket, "entries", entries)
    assert check(one) == [] and written


def test_a_damaged_local_copy_is_fetched_again(one: Hub, opened: Open, tmp_path: Path):
    repo = new(one)
    commit(one, repo, "a", "1")
    with closing(opened("two")) as two:
        assert files(two, repo)["a"] == b"1"
    for path in (tmp_path / "two" / "cache").rglob("*.pack"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    two = opened("two")
    assert files(two, repo)["a"] == b"1"
    shutil.rmtree(tmp_path / "two" / "cache")  # also while it is open
    commit(one, repo, "b", "2")
    assert files(two, repo)["b"] == b"2" and check(two) == []


def test_local_copies_are_bounded(one: Hub, opened: Open, tmp_path: Path):
    repos = [new(one, f"k{number}") for number in range(6)]
    for number, repo in enumerate(repos):
        commit(one, repo, "a", hashlib.sha512(str(number).encode()).hexdigest() * 500)
    two = opened("two", limits=Limits(git_cache_bytes=8000))
    for repo in (*repos, *repos):
        assert "a" in files(two, repo)
    cached = sum(path.stat().st_size for path in (tmp_path / "two" / "cache").rglob("*.pack"))
    assert 0 < cached < 8000 + 4000


# -- backup, migration ----------------------------------------------------------------------------------


def fill(hub: Hub) -> Repository:
    repo = new(hub)
    for number in range(4):
        commit(hub, repo, f"f{number}", str(number))
    hub.changes.create_tag(repo, "v1.0.0", "main", "annotated", "ada")
    hub.changes.create_branch(repo, "v1", None)
    return repo


def test_a_backup_is_a_root_without_database_and_store(one: Hub, tmp_path: Path):
    repo = fill(one)
    backup(one, tmp_path / "copy")
    with Hub(tmp_path / "copy") as copy:
        assert check(copy) == [] and files(copy, repo) == files(one, repo)
        assert copy.store.content(repo).refs.all() == one.store.content(repo).refs.all()
        assert kinds(copy) == kinds(one)


def test_git_data_is_moved_there_and_back(
    tmp_path: Path, database: str, objects: str, prefix: str, monkeypatch: pytest.MonkeyPatch
):
    root = tmp_path / "one"
    with hub_databases.rows_in(hub_databases.SQLITE), Hub(root, create=True) as hub:
        hub.accounts.add_user("ada")
        repo = fill(hub)
        before, refs = files(hub, repo), hub.store.content(repo).refs.all()
    refused(root, "--git", "store", says="first")
    moved(root, "--to", database)
    moved(root, "--to", objects)
    moved(root, "--git", "store")
    assert (root / "FORMAT").read_text() == marker_text(rows=True, objects=objects, git=True)
    shutil.rmtree(root / "repositories" / repo.id)
    with (
        Hub(root, objects=objects) as one,
        Hub(tmp_path / "two", create=True, database=database, objects=objects) as two,
    ):
        for hub in (one, two):
            assert files(hub, repo) == before and hub.store.content(repo).refs.all() == refs
            assert check(hub) == [] and kinds(hub) == [("release", "v1.0.0")]
        monkeypatch.setattr("kernels_hub.server.migration.SECONDS", 0.1)
        refused(root, "--git", "folder", says="is open")
        refused(root, "--to", "sqlite", says="forget it with --give-up")
        moved(root, "--give-up")
        refused(
            root, "--to", objects.replace("/g", "/other"), says="Move it to this root first", source=objects
        )
    refused(root, "--git", "store", says="is there already")
    refused(root, "--to", "sqlite", says="--git folder")
    with Hub(tmp_path / "two", objects=objects) as two:  # a server of another root, which was not stopped
        moved(root, "--git", "folder")
        for change in (lambda: commit(two, repo, "late", "1"), lambda: new(two, "late")):
            with pytest.raises(Refusal, match="is being moved") as found:
                change()
            assert found.value.status == 503
        with pytest.raises(Refusal, match="is being moved"):
            files(two, repo)
    with (
        pytest.raises(KernelsHubError, match="the folder of another root"),
        Hub(tmp_path / "two", objects=objects),
    ):
        pass
    with Hub(root, objects=objects) as hub:
        assert files(hub, repo) == before and hub.store.content(repo).refs.all() == refs
        assert check(hub) == [] and hub.layout.root == root.resolve()
        assert (hub.layout.repository(repo.id) / "git" / "packed-refs").is_file()
        commit(hub, repo, "more", "1")
    moved(root, "--git", "store")
    with Hub(tmp_path / "two", objects=objects) as two:
        assert files(two, repo) == {**before, "more": b"1"}


@pytest.mark.parametrize("to", all_but(["store", "folder"], "folder"))
def test_a_migration_that_died_at_any_step_is_run_again(
    opened: Open, tmp_path: Path, objects: str, to: Goal, monkeypatch: pytest.MonkeyPatch
):
    with closing(opened("one")) as hub:
        hub.accounts.add_user("ada")
        repos = [new(hub, f"k{number}") for number in range(2)]
        commit(hub, repos[0], "a", "1")
        before = [files(hub, repo) for repo in repos]
    root = tmp_path / "one"
    if to == "store":
        migrate(root, "folder")
    died, said = 0, ""
    while True:
        with monkeypatch.context() as patch:
            _die_after(died, patch)
            try:
                done = migrate(root, to)
                break
            except DiedError:
                died += 1
            except KernelsHubError as error:
                done, said = None, str(error)
                break
        with Hub(root, objects=objects) as hub:  # whatever died, servers serve, and clients write
            commit(hub, repos[1], f"f{died}", str(died))
            before[1][f"f{died}"] = str(died).encode()
            assert [files(hub, repo) for repo in repos] == before
    assert died >= 6, "note, settle, each repository, the end of it, FORMAT, settle"
    assert done.repositories == 2 if done else "there already" in said, (
        "where a server has done the last step"
    )
    with Hub(root, objects=objects) as hub:
        assert hub.git.has_several_roots == (to == "store")
        assert [files(hub, repo) for repo in repos] == before and check(hub) == []
        assert not hub.layout.git_begun.exists()


def _die_after(steps: int, patch: pytest.MonkeyPatch) -> None:
    """After so many steps, a migration does nothing any more, not even in its `finally`s."""
    from kernels_hub.server.git.migration import _Migration

    left = steps

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def step(*arguments: object, **options: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                raise DiedError
            return real(*arguments, **options)

        return step

    for name in ("_note", "_settle", "_send", "_bring", "_end", "_drop_deleted"):
        patch.setattr(_Migration, name, counted(getattr(_Migration, name)))
    patch.setattr(RootPaths, "mark", counted(RootPaths.mark))
    patch.setattr(StoredGit, "close", counted(StoredGit.close))


def test_a_move_of_git_data_that_is_given_up_leaves_nothing(
    opened: Open, tmp_path: Path, objects: str, monkeypatch: pytest.MonkeyPatch
):
    root = tmp_path / "one"
    with closing(opened("one")) as hub:
        hub.accounts.add_user("ada")
        repo = new(hub, "k")
    monkeypatch.setattr("kernels_hub.server.migration.SECONDS", 0.0)
    for place in ("folder", "store"):
        with Hub(root, objects=objects) as hub:
            refused(root, "--git", place, says="is open")
            assert (root / "git.begun").read_text() == f"{place}\n"
        moved(root, "--give-up")
        assert not (root / "git.begun").exists()
        with Hub(root, objects=objects) as hub:
            commit(hub, repo, place, "1")
            assert hub.git.has_several_roots == (place == "folder")
        if place == "folder":
            moved(root, "--git", place)
    with Hub(root, objects=objects) as hub:
        assert set(files(hub, repo)) >= {"folder", "store"} and check(hub) == []
        assert hub.database.rows("SELECT * FROM git_versions") == []


def moved(root: Path, *arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["hub", "migrate", "--root", str(root), *arguments])
    assert not ended.value.code


def refused(root: Path, *arguments: str, says: str, source: str | None = None) -> None:
    more = () if source is None else ("--from", source)
    import contextlib
    import io

    said = io.StringIO()
    with contextlib.redirect_stderr(said), pytest.raises(SystemExit) as ended:
        main(["hub", "migrate", "--root", str(root), *arguments, *more])
    assert ended.value.code == 1 and says in " ".join(said.getvalue().split())


# -- whose root, whose store ----------------------------------------------------------------------------


@pytest.mark.git_folder
def test_a_root_of_another_place_is_refused(one: Hub, tmp_path: Path, database: str, objects: str):
    for options, says in (
        ({"database": database}, "say where with --objects"),
        ({"database": database, "objects": objects.replace("/g", "/other")}, "check --objects"),
    ):
        with pytest.raises(KernelsHubError, match=says), Hub(tmp_path / "other", create=True, **options):
            pass
        assert not (tmp_path / "other" / "FORMAT").exists()
    (tmp_path / "one" / "FORMAT").write_text(marker_text(rows=True, objects=objects))
    with pytest.raises(KernelsHubError, match="older copy of a root"), Hub(tmp_path / "one", objects=objects):
        pass
