"""Servers that the tests of this folder share: one of two processes, one with tight limits."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import HfApi, constants

from tests import hub_databases
from tests.object_store import BUCKET, store
from tests.postgresql_server import PostgresqlServer
from tests.running_hub import RunningHub, start_hub

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches of huggingface_hub in the test's own folder, large files through LFS."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    """Two processes; files from 64 KiB on are large, parts have 1 MiB."""
    limits = {"large_from_bytes": 64 * 1024, "part_bytes": 1 << 20}
    with start_hub(tmp_path_factory.mktemp("server") / "root", workers=2, limits=limits) as running:
        running.organisation("acme", "ada", trusted=True)
        running.organisation("plain", "ada")
        with running.administer() as hub:
            hub.accounts.add_user("rita")
            hub.accounts.set_member("acme", "rita", "read")
            hub.accounts.add_user("will")
            hub.accounts.set_member("acme", "will", "write")
        yield running


@pytest.fixture(scope="session")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    """One process that allows little."""
    limits = {
        "max_json_bytes": 20_000,
        "max_inline_bytes": 10_000,
        "max_commit_bytes": 60_000,
        "max_operations": 20,
        "max_folder_deletions": 2,
        "max_files": 18,
        "max_file_bytes": 200_000,
        "max_repository_bytes": 300_000,
        "max_account_repositories": 2,
        "large_from_bytes": 8_000,
        "max_requests_per_minute": 600,
    }
    with start_hub(tmp_path_factory.mktemp("strict") / "root", limits=limits) as running:
        yield running


@pytest.fixture(scope="session", params=[1, 2], ids=["1 worker", "2 workers"])
def each(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    """One process, then two."""
    if request.param == 2:
        yield request.getfixturevalue("server")
        return
    limits = {"large_from_bytes": 64 * 1024, "part_bytes": 1 << 20}
    with start_hub(tmp_path_factory.mktemp("single") / "root", limits=limits) as running:
        running.organisation("acme", "ada", trusted=True)
        yield running


@pytest.fixture
def ada(server: RunningHub) -> HfApi:
    """The admin of acme."""
    return HfApi(server.endpoint, token=server.token("ada"))


@pytest.fixture
def new_repo(ada: HfApi) -> Callable[..., str]:
    """Makes a kernel repository of acme under a name of its own."""

    def make(**options: object) -> str:
        name = f"acme/repo{next(_numbers)}"
        ada.create_repo(name, repo_type="kernel", **options)
        return name

    return make


@pytest.fixture
def objects(tmp_path: Path) -> str:
    """The address of a place of its own in the object store."""
    return store().address("g" + hashlib.sha256(str(tmp_path).encode()).hexdigest()[:16])


@pytest.fixture
def prefix(objects: str) -> str:
    """What the keys of that place begin with."""
    return objects.partition(f"{BUCKET}/")[2].partition("?")[0]


@pytest.fixture
def postgresql() -> PostgresqlServer:
    """The PostgreSQL server of this process."""
    return hub_databases.server()


@pytest.fixture
def database(postgresql: PostgresqlServer) -> Iterator[str]:
    """The address of a new PostgreSQL database."""
    address = postgresql.new_database()
    yield address
    postgresql.drop(address)
