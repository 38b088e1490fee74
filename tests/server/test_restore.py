"""Backups are restored by the commands that docs/hub.md prints, each as it stands there but for its addresses."""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kernels_hub.cli import main
from kernels_hub.server.hub import Hub
from kernels_hub.server.maintenance import check
from kernels_hub.server.repositories import Repository
from tests.hub_databases import needs_postgresql
from tests.postgresql_server import PostgresqlServer
from tests.server.release_cases import commit, kinds, new, release

PAGE = (Path(__file__).parents[2] / "docs" / "hub.md").read_text(encoding="utf-8")
LARGE = b"large" * 1000
pytestmark = needs_postgresql


def printed(section: str) -> list[str]:
    """The commands of the paragraph about backups in a section."""
    text = PAGE.partition(f"\n### {section}\n")[2].partition("\n### ")[0]
    (block,) = re.findall(r"\*\*Backup and restore\.\*\*.*?\n\n((?:    [^\n]+\n)+)", text, re.DOTALL)
    return [line.strip() for line in block.splitlines()]


def filled(hub: Hub) -> Repository:
    hub.accounts.add_user("ada")
    repository = new(hub)
    commit(hub, repository, "a", "1")
    release(hub, repository, "v1.0.0")
    path = hub.layout.temporary()
    path.write_bytes(LARGE)
    hub.large_files.adopt(repository, path, hashlib.sha256(LARGE).hexdigest(), len(LARGE))
    return repository


def assert_same(hub: Hub, repository: Repository) -> None:
    assert check(hub) == [] and kinds(hub) == [("release", "v1.0.0")]
    entries = hub.store.listing(repository, hub.store.resolve(repository, "v1.0.0")).entries
    assert hub.store.blob(repository, entries["a"].oid) == b"1"
    assert hub.large_files.size(repository, hashlib.sha256(LARGE).hexdigest()) == len(LARGE)


@pytest.fixture
def walk(tmp_path: Path, postgresql: PostgresqlServer, objects: str) -> Callable[[list[str]], dict[str, str]]:
    """Runs commands; gives what each of their paths and addresses stood for."""

    def run(commands: list[str]) -> dict[str, str]:
        stands: dict[str, str] = {}
        for command in commands:
            words = shlex.split(command)
            if words[0] == "createdb":
                stands[f"postgresql://hub@db.example/{words[-1]}"] = postgresql.new_database()
                continue
            for word in words:
                if word.startswith("/"):
                    stands.setdefault(word, str(tmp_path / word.replace("/", "_")))
                elif word.startswith("s3://models/"):
                    new = "-restored?" if word.startswith("s3://models/restored?") else "?"
                    stands.setdefault(word, objects.replace("?", new))
            words = [stands.get(word, word) for word in words]
            if words[0] == "cp":
                shutil.copytree(words[-2], words[-1])
            elif words[1] == "hub":
                with pytest.raises(SystemExit) as ended:
                    main(words[1:])
                assert not ended.value.code, command
            else:
                assert words[1:3] == ["serve", "--root"] and command == commands[-1]
        return stands

    return run


@pytest.mark.git_folder
def test_rows_in_postgresql(tmp_path: Path, database: str, walk: Callable[[list[str]], dict[str, str]]):
    commands = printed("Rows in PostgreSQL")
    assert len(commands) == 5
    with Hub(tmp_path / "_srv_hub", create=True, database=database) as hub:
        repository = filled(hub)
    stands = walk(commands)
    with Hub(Path(stands["/srv/hub-restored"])) as hub:
        assert hub.database.name != database and hub.database.name in stands.values()
        assert_same(hub, repository)


def test_servers_without_a_shared_folder(
    tmp_path: Path, database: str, objects: str, walk: Callable[[list[str]], dict[str, str]]
):
    commands = printed("Servers without a shared folder")
    assert len(commands) == 6
    with Hub(tmp_path / "_var_lib_hub", create=True, database=database, objects=objects) as hub:
        repository = filled(hub)
    stands = walk(commands)
    (store,) = (there for word, there in stands.items() if word.startswith("s3://models/restored?"))
    (rows,) = (there for word, there in stands.items() if word.startswith("postgresql://"))
    with (
        Hub(Path(stands["/srv/hub-restored"]), objects=store) as hub,
        Hub(tmp_path / "joined", create=True, database=rows, objects=store) as joined,
        Hub(tmp_path / "_var_lib_hub", objects=objects) as before,
    ):
        commit(before, repository, "later", "1")
        for one in (hub, joined):
            assert one.git.has_several_roots
            assert_same(one, repository)
        assert_same(before, repository)
