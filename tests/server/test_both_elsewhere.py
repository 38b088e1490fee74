"""A root with its rows in PostgreSQL and its large files in an object store: made so, moved there and back, copied."""

from __future__ import annotations

import hashlib
from contextlib import closing
from pathlib import Path

import pytest

from kernels_hub.cli import main
from kernels_hub.errors import KernelsHubError
from kernels_hub.server.git.migration import give_up, migrate
from kernels_hub.server.hub import Hub
from kernels_hub.server.layout import FORMAT, marker_text
from kernels_hub.server.maintenance import backup, check
from kernels_hub.server.refusal import Refusal
from kernels_hub.server.repositories import Repository
from tests import hub_databases
from tests.hub_databases import needs_postgresql
from tests.object_store import stored
from tests.server.test_objects_upkeep import commit, upload

pytestmark = needs_postgresql
CONTENT = b"large" * 1000


def fill(hub: Hub) -> Repository:
    hub.accounts.add_user("ada")
    repo = hub.changes.create("kernel", "ada", "k", private=False, author="ada")
    commit(hub, repo, "f", upload(hub, repo, CONTENT), len(CONTENT))
    return repo


def assert_whole(root: Path, objects: str | None, *, postgresql: bool, git: bool = False) -> None:
    with Hub(root, objects=objects) as hub:
        assert hub.database.name.startswith("postgresql://") == postgresql
        (repo,) = hub.repositories.all()
        assert stored(hub, repo, hashlib.sha256(CONTENT).hexdigest()) == CONTENT
        assert check(hub) == []
    assert (root / "FORMAT").read_text() == marker_text(rows=postgresql, objects=objects, git=git)


def migrated(root: Path, to: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["hub", "migrate", "--root", str(root), "--to", to])
    assert not ended.value.code


@pytest.mark.git_folder
def test_a_root_is_made_with_both(tmp_path: Path, database: str, objects: str):
    root = tmp_path / "root"
    with Hub(root, create=True, database=database, objects=objects) as hub:
        fill(hub)
    assert_whole(root, objects, postgresql=True, git=True)
    with pytest.raises(KernelsHubError, match="--objects"), Hub(root):
        pass


@pytest.mark.git_folder
@pytest.mark.parametrize("rows_first", [True, False])
def test_there_and_back(tmp_path: Path, database: str, objects: str, rows_first: bool):
    root = tmp_path / "root"
    with hub_databases.rows_in(hub_databases.SQLITE), Hub(root, create=True) as hub:
        fill(hub)
    first, second = (database, objects) if rows_first else (objects, database)
    migrated(root, first)
    assert_whole(root, None if rows_first else objects, postgresql=rows_first)
    migrated(root, second)
    assert_whole(root, objects, postgresql=True)
    (root / "hub.sqlite").rename(tmp_path / "old.sqlite")
    migrated(root, "sqlite" if rows_first else "files")
    migrated(root, "files" if rows_first else "sqlite")
    assert_whole(root, None, postgresql=False)
    assert (root / "FORMAT").read_text() == FORMAT


@pytest.mark.git_folder
def test_git_data_goes_to_no_other_store_than_large_files(tmp_path: Path, database: str, objects: str):
    root, new = tmp_path / "root", objects.replace("?", "-new?")
    with hub_databases.rows_in(hub_databases.SQLITE), Hub(root, create=True) as hub:
        fill(hub)
    migrated(root, database)
    migrated(root, objects)
    migrated(root, new)  # the old store goes on to say that it is of this root
    for forget in (False, True):
        with pytest.raises(KernelsHubError, match="its git data goes there, not to"):
            give_up(root, objects=objects) if forget else migrate(root, "store", objects=objects)
    assert_whole(root, new, postgresql=True)
    assert migrate(root, "store", objects=new + "&timeout=30").repositories == 1, (
        "the same place, by other means"
    )
    assert_whole(root, new, postgresql=True, git=True)
    with pytest.raises(KernelsHubError, match="its git data goes there, not to"):
        migrate(root, "folder", objects=objects)
    assert_whole(root, new, postgresql=True, git=True)


@pytest.mark.parametrize("large_files", [True, False])
def test_a_backup_is_served_without_the_database(
    tmp_path: Path, database: str, objects: str, large_files: bool
):
    root, copy = tmp_path / "root", tmp_path / "copy"
    with Hub(root, create=True, database=database, objects=objects) as hub:
        fill(hub)
        backup(hub, copy, large_files=large_files)
    assert_whole(copy, None if large_files else objects, postgresql=False)


@pytest.mark.git_folder
def test_rows_are_not_moved_while_a_hub_that_does_not_follow_is_open_nor_objects_from_elsewhere(
    tmp_path: Path,
    database: str,
    objects: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("kernels_hub.server.migration.SECONDS", 0.1)
    root = tmp_path / "root"
    with Hub(root, create=True, database=database):
        pass
    with closing(Hub(root, create=True, objects=objects)) as hub:
        fill(hub)
        for to, more in (("sqlite", ()), ("sqlite", ("--from", objects)), ("mysql://a/b", ())):
            with pytest.raises(SystemExit) as ended:
                main(["hub", "migrate", "--root", str(root), "--to", to, *more])
            assert ended.value.code == 1
    said = capsys.readouterr().err
    assert "is open: by a server that cannot" in said and "--from is of large files" in said
    assert "is not the address of a database" in said
    assert_whole(root, objects, postgresql=True)


@pytest.mark.parametrize(
    "wrong", [{"database": "mysql://a/b"}, {"objects": "nonsense"}, {"objects": "s3://bucket?x=1"}]
)
def test_what_is_no_address_makes_no_root(tmp_path: Path, wrong: dict[str, str]):
    with pytest.raises(KernelsHubError), Hub(tmp_path / "root", create=True, **wrong):
        pass
    assert not (tmp_path / "root").exists()


def test_another_format_is_refused(tmp_path: Path, objects: str):
    root = tmp_path / "root"
    with hub_databases.rows_in(hub_databases.SQLITE), Hub(root, create=True):
        pass
    for text in (
        "kernels-hub root 2\n",
        "kernels-hub root 3\nrows database\n",
        "kernels-hub root 3\nobjects s3://bucket/prefix\ngit store\n",
        "kernels-hub root 4\nrows database\n",
        marker_text(objects=objects) + "more\n",
    ):
        (root / "FORMAT").write_text(text)
        with pytest.raises((KernelsHubError, Refusal), match="root of another format"), Hub(root):
            pass
