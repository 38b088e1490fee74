"""Real servers with roots of their own on one Hub: clients meet one Hub at each, and a storm loses nothing."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from huggingface_hub import CommitOperationAdd, HfApi

from benchmarks.server_storm import Acknowledged, stateless_storm, verify
from kernels_hub.server.xet.spool import spool_of
from tests.hub_databases import needs_postgresql
from tests.object_store import BUCKET, store
from tests.running_hub import RunningHub, start_hub
from tests.server.release_cases import commit
from tests.server.test_xet_upload import ONE, Session, whole_file
from tests.server.xet_encode import Shard

pytestmark = needs_postgresql


@pytest.fixture
def servers(tmp_path: Path, database: str, objects: str) -> Iterator[tuple[RunningHub, RunningHub]]:
    limits = {"large_from_bytes": 64 * 1024}
    with start_hub(tmp_path / "one", database=database, objects=objects, limits=limits) as one:
        one.token("ada")
        with start_hub(tmp_path / "two", database=database, objects=objects, limits=limits) as two:
            yield one, two


def test_clients_meet_one_hub_at_every_server(servers: tuple[RunningHub, RunningHub], tmp_path: Path):
    one, two = servers
    token = one.token("ada")
    here, there = HfApi(one.endpoint, token=token), HfApi(two.endpoint, token=token)
    here.create_repo("ada/k", repo_type="kernel")
    large = hashlib.sha512(b"large").digest() * 4000
    (tmp_path / "large.bin").write_bytes(large)
    with pytest.warns(DeprecationWarning, match="content="):
        there.create_commit(
            "ada/k",
            [CommitOperationAdd("small", b"1"), CommitOperationAdd("large.bin", tmp_path / "large.bin")],
            commit_message="both",
            repo_type="kernel",
        )
    for api, name in ((here, "a"), (there, "b")):
        path = api.hf_hub_download("ada/k", "large.bin", repo_type="kernel", cache_dir=tmp_path / name)
        assert Path(path).read_bytes() == large
    here.create_tag("ada/k", tag="v1.0.0", repo_type="kernel")
    assert [tag.name for tag in there.list_repo_refs("ada/k", repo_type="kernel").tags] == ["v1.0.0"]
    two.kill()
    assert here.list_repo_files("ada/k", repo_type="kernel") == [".gitattributes", "large.bin", "small"]


def batch_of(hub: RunningHub, item: dict[str, Any], headers: dict[str, str]) -> Any:
    """What a Hub answers to a client that is going to send a file."""
    given = {"operation": "upload", "transfers": ["basic", "multipart"], "objects": [item]}
    address = f"{hub.endpoint}/kernels/ada/k.git/info/lfs/objects/batch"
    return httpx.post(address, json=given, headers=headers).raise_for_status().json()


def test_an_upload_may_begin_at_one_server_and_end_at_another(servers: tuple[RunningHub, RunningHub]):
    one, two = servers
    headers = {"Authorization": f"Bearer {one.token('ada')}"}
    HfApi(one.endpoint, token=one.token("ada")).create_repo("ada/k", repo_type="kernel")
    content = b"large" * 50_000
    item = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content)}
    actions = batch_of(one, item, headers)["objects"][0]["actions"]
    httpx.put(actions["upload"]["href"], content=content).raise_for_status()
    end = actions["verify"]["href"].replace(one.endpoint, two.endpoint)
    httpx.post(end, json=item, headers=headers).raise_for_status()


def test_a_xet_upload_may_be_spread_over_servers(servers: tuple[RunningHub, RunningHub], prefix: str):
    one, two = servers
    token = one.token("ada")
    HfApi(one.endpoint, token=token).create_repo("ada/m")
    session = Session(one, "ada/m", token)
    assert session.xorb(ONE).status_code == 200
    assert len(store().keys(f"{prefix}/xet/")) == 1
    elsewhere = session.address.replace(one.endpoint, two.endpoint)
    assert session.shard(Shard([whole_file(ONE)]).body, address=elsewhere).status_code == 200
    with one.administer() as hub:
        (repo,) = hub.repositories.all()
        (entry,) = hub.large_files.objects.entries(repo.id)
        assert hub.large_files.sha256(repo, entry.oid) == entry.oid
        assert spool_of(hub).sweep() == 0, "clients take what they sent for known, for hours"
        later = replace(spool_of(hub), clock=lambda: time.time() + 5 * 3600)
        assert later.sweep() > 0 and store().keys(f"{prefix}/xet/") == []


def test_large_files_go_through_the_hub_in_one_body(tmp_path: Path, database: str, objects: str):
    """Without direct uploads: the parts of a file would be spread over the roots."""
    limits = {"large_from_bytes": 1000, "part_bytes": 10_000}
    through = objects + "&direct=no"
    with start_hub(tmp_path / "one", database=database, objects=through, limits=limits) as hub:
        headers = {"Authorization": f"Bearer {hub.token('ada')}"}
        HfApi(hub.endpoint, token=hub.token("ada")).create_repo("ada/k", repo_type="kernel")
        content = b"large" * 10_000
        item = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content)}
        batch = batch_of(hub, item, headers)
        assert batch["transfer"] == "basic"
        actions = batch["objects"][0]["actions"]
        httpx.put(actions["upload"]["href"], content=content).raise_for_status()
        httpx.post(actions["verify"]["href"], json=item, headers=headers).raise_for_status()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_storm_over_two_servers_the_database_and_the_store(tmp_path: Path):
    found = stateless_storm(tmp_path, 1, seed=3, least=5)
    assert found["problems"] == []
    assert found["commits acknowledged"] >= 5


@pytest.mark.exhaustive
def test_what_a_storm_loses_is_found(servers: tuple[RunningHub, RunningHub], prefix: str):
    one, two = servers
    done = Acknowledged()
    done.repositories.append("ada/never-made")
    with one.administer() as hub:
        hub.accounts.add_user("writer")
        repo = hub.changes.create("kernel", "writer", "shared", private=False, author="writer")
        head = commit(hub, repo, "a", "1")
        done.commits.append(("writer/shared", head))
        done.files["writer/shared", "a"] = b"1"
        assert any("never-made is lost" in problem for problem in verify(one, done))
        done.repositories.clear()
        assert verify(two, done) == []
        store().client().delete_object(Bucket=BUCKET, Key=store().keys(f"{prefix}/git/")[-1])
    assert any("is missing in the object store" in problem for problem in verify(two, done))
