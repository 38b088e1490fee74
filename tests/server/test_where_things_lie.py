"""The table of docs/hub.md that says where everything lies is whole: of roots, of the object store and of rows."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from kernels_hub.server.git.rows import TABLES
from kernels_hub.server.hub import Hub
from kernels_hub.server.layout import RootPaths
from kernels_hub.server.maintenance import collect_garbage
from kernels_hub.server.repositories import Repository
from tests.hub_databases import needs_postgresql
from tests.object_store import store
from tests.server.release_cases import commit, new, release

PAGE = (Path(__file__).parents[2] / "docs" / "hub.md").read_text(encoding="utf-8")
PASSING = {"hub.sqlite-wal", "hub.sqlite-shm"}
"""What SQLite has beside a database while it is open."""

LATER = {
    *("database", "id", "xet", "migration", "moving"),
    *("database.begun", "git.begun", "mirror.lock", "objects.gate", "objects.lock"),
}
"""What a root has once there is something for it to say, or to hold."""


def table() -> list[tuple[str, str, str]]:
    """What, where by default, where else."""
    section = PAGE.partition("### Where everything lies\n")[2].partition("\n### ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    assert rows[1] == ["---"] * 3
    return [(what.strip(), here.strip(), there.strip()) for what, here, there in rows[2:]]


def named(column: int) -> set[str]:
    """The names in backticks of a column."""
    return {name for row in table() for name in re.findall(r"`([^`]+)`", row[column])}


def filled(hub: Hub) -> Repository:
    hub.accounts.add_user("ada")
    repository = new(hub)
    commit(hub, repository, "a", "1")
    release(hub, repository, "v1.0.0")
    path, content = hub.layout.temporary(), b"large"
    path.write_bytes(content)
    hub.large_files.adopt(repository, path, hashlib.sha256(content).hexdigest(), len(content))
    collect_garbage(hub)
    return repository


def test_every_path_of_a_root_is_named(tmp_path: Path):
    layout = RootPaths(tmp_path)
    paths = {path.relative_to(layout.root) for path in vars(layout).values() if isinstance(path, Path)}
    known = {name.partition("/")[0] for name in named(1)} | {"cache"}
    assert "cache" in named(2)
    assert {str(path) for path in paths} - {"."} <= known


@pytest.mark.git_folder
@pytest.mark.sqlite
def test_the_default_is_below_the_root(tmp_path: Path):
    with Hub(tmp_path / "root", create=True) as hub:
        repository = filled(hub)
        there = {path.name for path in hub.layout.root.iterdir()} - PASSING
        here = named(1)
        assert there <= {name.partition("/")[0] for name in here}
        for name in here:
            path = hub.layout.root / name.replace("<id>", repository.id)
            assert path.exists() or name in LATER, name


@needs_postgresql
def test_without_a_folder_all_is_in_rows_and_the_store(
    tmp_path: Path, database: str, objects: str, prefix: str
):
    with Hub(tmp_path / "root", create=True, database=database, objects=objects) as hub:
        repository = filled(hub)
        there = {path.name for path in hub.layout.root.iterdir()}
        assert there <= {name.partition("/")[0] for name in named(1) | named(2)}
        assert not any(hub.layout.repositories.iterdir())
        tables = {name for name in named(2) if re.fullmatch(r"(git|hub)_\w+", name)}
        assert tables == {*TABLES, "hub_root"} and all(hub.database.has(name) for name in tables)
    patterns = [
        re.sub(r"<[^>]+>", "[^/]+", name.replace("<prefix>", re.escape(prefix)))
        for name in named(2)
        if name.startswith("<prefix>")
    ]
    keys = store().keys(f"{prefix}/")
    assert len(keys) >= 3 and any(repository.id in key for key in keys)
    assert [key for key in keys if not any(re.fullmatch(pattern, key) for pattern in patterns)] == []
