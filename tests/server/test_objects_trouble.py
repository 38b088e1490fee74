"""A store of large files that answers late, twice, wrongly or not at all, or refuses: nothing is half done."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from huggingface_hub import HfApi, constants

from kernels_hub.errors import KernelsHubError
from kernels_hub.server.hub import Hub
from kernels_hub.server.maintenance import check, collect_garbage
from tests.object_store import BUCKET, OPTION, store
from tests.running_hub import RunningHub, start_hub
from tests.server.lfs_client import PART, Lfs, Trouble, oid_of

LIMITS = {"large_from_bytes": 64 * 1024, "part_bytes": PART}
KEY = f"/{BUCKET}/trouble"


@pytest.fixture(scope="module")
def trouble() -> Iterator[Trouble]:
    with Trouble(store().endpoint) as trouble:
        yield trouble


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory, trouble: Trouble) -> Iterator[RunningHub]:
    """A Hub whose store is behind trouble; an answer may take two seconds."""
    address = f"s3://{BUCKET}/trouble?endpoint={trouble.endpoint}&timeout=2"
    root = tmp_path_factory.mktemp("trouble") / "root"
    with start_hub(root, limits=LIMITS, objects=address) as running:
        yield running


@pytest.fixture
def lfs(hub: RunningHub, trouble: Trouble, request: pytest.FixtureRequest) -> Iterator[Lfs]:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name).strip("-")[:60]
    yield Lfs(hub, hub.token("ada"), f"ada/{name}").create()
    trouble.well()


def becomes_ready(hub: RunningHub, status: int) -> httpx.Response:
    """What /ready answers once it has this status: the store is asked once a second."""
    end = time.monotonic() + 60
    while True:
        answer = httpx.get(hub.endpoint + "/ready", timeout=60)
        if answer.status_code == status or time.monotonic() > end:
            return answer
        time.sleep(0.1)


REFUSED = {
    "drop": (503, "5"),
    "500": (503, "5"),
    "503 SlowDown": (503, "5"),
    "403 InvalidAccessKeyId": (502, "60"),
    "403 AccessDenied": (502, "60"),
    "404 NoSuchBucket": (502, "60"),
}


EXHAUSTIVE = pytest.mark.exhaustive


@pytest.mark.parametrize(
    "what",
    [what if what == "403 InvalidAccessKeyId" else pytest.param(what, marks=EXHAUSTIVE) for what in REFUSED],
)
def test_a_store_that_does_not_serve(hub: RunningHub, lfs: Lfs, trouble: Trouble, what: str):
    kept, content = os.urandom(70_000), os.urandom(70_000)
    assert lfs.upload(kept).status_code == 200 and lfs.commit("kept", kept).status_code == 200
    actions = lfs.actions(content)
    assert httpx.put(actions["upload"]["href"], content=content).status_code == 200
    trouble.rule = lambda method, path, query: what
    for answer in (
        lfs.batch(os.urandom(70_000)),
        lfs.end(actions, content),
        becomes_ready(hub, REFUSED[what][0]),
    ):
        assert (answer.status_code, answer.headers["retry-after"]) == REFUSED[what], answer.text
        assert "127.0.0.1" not in answer.text and "InvalidAccessKeyId" not in answer.text
    assert not lfs.has(content) and lfs.commit("new", content).status_code == 400
    # Everything else goes on: what is small, and where large files are.
    assert httpx.get(hub.endpoint + "/health").status_code == 200
    head = httpx.head(lfs.url("kept"), headers=lfs.headers)
    assert head.status_code == 200 and head.headers["x-linked-size"] == "70000"
    assert lfs.get("kept", follow=False).status_code == 302
    assert lfs.get(".gitattributes").status_code in (200, 404)
    trouble.well()
    assert becomes_ready(hub, 200).text == "ok\n"
    # The same call, once the store is well, ends the upload.
    assert lfs.end(actions, content).status_code == 200 and lfs.commit("new", content).status_code == 200
    assert lfs.get("new").content == content and lfs.get("kept").content == kept
    assert not store().keys("trouble/incoming/")


@pytest.mark.exhaustive
@pytest.mark.parametrize("what", ["500", "drop", "lost", "twice", "late"])
def test_a_step_that_fails_once_and_is_done_again(lfs: Lfs, trouble: Trouble, what: str):
    """Each request of an upload in turn fails once, after the store has done it ("lost"), or is done twice."""
    steps = ("POST", "GET", "PUT", "HEAD", "DELETE") if what != "late" else ("PUT",)
    for method in steps:
        content = os.urandom(70_000)
        actions = lfs.actions(content)
        assert httpx.put(actions["upload"]["href"], content=content).status_code == 200
        trouble.times(1, what, lambda verb, path, query, method=method: verb == method)
        answer = lfs.end(actions, content)
        trouble.well()
        if answer.status_code != 200:
            assert answer.status_code == 503 and not lfs.has(content), (method, answer.text)
            assert lfs.end(actions, content).status_code == 200, method
        assert lfs.has(content) and lfs.commit(method, content).status_code == 200
        assert lfs.get(method).content == content


@pytest.mark.parametrize("what", ["other", "short"])
def test_content_that_is_read_back_wrong(lfs: Lfs, trouble: Trouble, what: str):
    content = os.urandom(70_000)
    actions = lfs.actions(content)
    assert httpx.put(actions["upload"]["href"], content=content).status_code == 200
    trouble.rule = lambda method, path, query: what if method == "GET" and "uploadId" not in query else None
    answer = lfs.end(actions, content)
    assert answer.status_code == (400 if what == "other" else 503), answer.text
    assert not lfs.has(content)
    trouble.well()
    assert lfs.upload(content).status_code == 200 and lfs.commit("big", content).status_code == 200
    assert lfs.get("big").content == content


def test_a_download_that_breaks_goes_on_where_it_ended(
    hub: RunningHub, lfs: Lfs, trouble: Trouble, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 50_000)
    content = os.urandom(400_000)
    assert lfs.upload(content).status_code == 200 and lfs.commit("big", content).status_code == 200
    trouble.times(1, "short", lambda method, path, query: method == "GET" and "X-Amz-Signature" in query)
    trouble.ranges.clear()
    found = HfApi(hub.endpoint, token=lfs.token).hf_hub_download(lfs.repository, "big", repo_type="kernel")
    assert Path(found).read_bytes() == content
    assert trouble.ranges == [None, "bytes=200000-"]


@pytest.mark.exhaustive
def test_what_passes_through_the_hub(tmp_path: Path, trouble: Trouble):
    """`direct=no`: uploads are spooled and put, downloads are streamed, and both say so when the store does not."""
    address = f"s3://{BUCKET}/inside?endpoint={trouble.endpoint}&timeout=2&direct=no"
    with start_hub(tmp_path / "root", limits=LIMITS, objects=address) as running:
        lfs = Lfs(running, running.token("ada"), "ada/inside").create()
        content = os.urandom(PART + 70_000)
        assert "/lfs/" in lfs.actions(content)["upload"]["href"]
        assert lfs.upload(content).status_code == 200 and lfs.commit("big", content).status_code == 200
        answer = lfs.get("big", follow=False)
        assert answer.status_code == 200 and answer.content == content
        part = lfs.get("big", follow=False, Range="bytes=70000-70009")
        assert (part.status_code, part.content) == (206, content[70_000:70_010])
        trouble.rule = lambda method, path, query: "drop"
        assert lfs.get("big").status_code == 503
        other = os.urandom(70_000)
        assert lfs.upload(other).status_code == 503 and not lfs.has(other)
        trouble.rule = lambda method, path, query: "other" if method == "GET" else None
        assert lfs.upload(other).status_code == 503 and not lfs.has(other), "what is read back differs"
        trouble.rule = lambda method, path, query: "short" if method == "GET" else None
        with pytest.raises(httpx.RemoteProtocolError):
            lfs.get("big")
        trouble.well()
        assert lfs.upload(other).status_code == 200
        with running.administer() as opened:
            assert check(opened) == []
    assert not store().keys("inside/incoming/")


@pytest.mark.exhaustive
def test_a_server_starts_without_its_store(tmp_path: Path):
    address = store().address("absent", timeout="1")
    content = os.urandom(70_000)
    with start_hub(tmp_path / "root", objects=address, limits=LIMITS) as running:
        lfs = Lfs(running, running.token("ada"), "ada/k").create()
        assert lfs.upload(content).status_code == 200 and lfs.commit("big", content).status_code == 200
    with Trouble(store().endpoint) as trouble:
        trouble.rule = lambda method, path, query: "drop"
        behind = address.replace(store().endpoint, trouble.endpoint)
        with start_hub(tmp_path / "root", objects=behind, limits=LIMITS) as running:
            assert httpx.get(running.endpoint + "/ready", timeout=60).status_code == 503
            lfs.hub = running
            assert lfs.get("big", follow=False).status_code == 302
            with running.administer() as opened:
                for upkeep in (check, collect_garbage):
                    with pytest.raises(Exception, match="does not answer"):
                        upkeep(opened)
            trouble.well()
            assert becomes_ready(running, 200).text == "ok\n"
            assert lfs.get("big").content == content
            with running.administer() as opened:
                assert check(opened) == []


@pytest.mark.git_folder
def test_a_bucket_that_is_missing_or_refused(tmp_path: Path):
    with pytest.raises(Exception, match="refuses this server"):
        Hub(tmp_path / "one", create=True, objects=store().address("p", bucket="no-such-bucket"))
    with Trouble(store().endpoint) as trouble:
        trouble.rule = lambda method, path, query: "403 SignatureDoesNotMatch"
        with pytest.raises(Exception, match="refuses this server"):
            Hub(tmp_path / "two", create=True, objects=f"s3://{BUCKET}/p?endpoint={trouble.endpoint}")
    # Nothing was bound: the roots are as any new one.
    for name in ("one", "two"):
        with Hub(tmp_path / name) as hub:
            assert hub.layout.objects() is None


def test_only_the_configured_endpoint_is_spoken_to(tmp_path: Path):
    """A store that points elsewhere is not followed."""
    with Trouble(store().endpoint) as elsewhere, Trouble(store().endpoint) as trouble:
        with start_hub(
            tmp_path / "root",
            limits=LIMITS,
            objects=f"s3://{BUCKET}/ssrf?endpoint={trouble.endpoint}&timeout=2",
        ) as running:
            lfs = Lfs(running, running.token("ada"), "ada/k").create()
            trouble.moved_to = elsewhere.endpoint
            for answer in (lfs.batch(os.urandom(70_000)), httpx.get(running.endpoint + "/ready", timeout=60)):
                assert answer.status_code in (502, 503)
        assert elsewhere.seen == []


@pytest.mark.git_folder
def test_a_root_says_where_its_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(OPTION, raising=False)  # which says it for the root
    mine, root = store().address("mine"), tmp_path / "root"
    with Hub(root, create=True, objects=mine) as hub:
        assert hub.layout.objects() == mine
    with pytest.raises(KernelsHubError, match=r"say which: --objects 's3://hub-tests/mine\?endpoint="):
        Hub(root)
    with pytest.raises(KernelsHubError, match="in s3://hub-tests/mine, not in s3://hub-tests/other"):
        Hub(root, objects=store().address("other"))
    # How the store is reached may change; which it is, it says itself.
    with Hub(root, objects=mine + "&direct=no&timeout=5") as hub:
        hub.large_files.objects.confirm()
    with pytest.raises(KernelsHubError, match="belongs to another Hub"):
        Hub(tmp_path / "second", create=True, objects=mine)
    with Hub(tmp_path / "files", create=True) as files:
        files.accounts.add_user("ada")
        repo = files.changes.create("kernel", "ada", "k", private=False, author="ada")
        path = files.layout.temporary()
        path.write_bytes(b"x" * 5000)
        files.large_files.adopt(repo, path, oid_of(b"x" * 5000), 5000)
    for create in (True, False):
        with pytest.raises(KernelsHubError, match="keeps its large files in its own folders"):
            Hub(tmp_path / "files", create=create, objects=store().address("third"))


@pytest.mark.git_folder
def test_a_version_that_knows_no_stores_refuses_the_root(tmp_path: Path):
    """Earlier versions compare FORMAT with one text."""
    with Hub(tmp_path / "root", create=True, objects=store().address("format")) as hub:
        assert (hub.layout.root / "FORMAT").read_text() != "kernels-hub root 1\n"
        hub.layout.keep_objects(None)
        assert (hub.layout.root / "FORMAT").read_text() == "kernels-hub root 1\n"


def test_keys_are_never_what_a_client_says(hub: RunningHub, lfs: Lfs, trouble: Trouble):
    trouble.seen.clear()
    content = os.urandom(70_000)
    assert lfs.upload(content).status_code == 200
    for method, path, _ in trouble.seen:
        assert path.startswith(KEY) or (method, path) == ("GET", f"/{BUCKET}"), "other keys are not touched"
    for oid in ("../../etc", "0" * 63, "0" * 64 + "/x", "", "%2e%2e"):
        answer = httpx.put(f"{hub.endpoint}/lfs/{'0' * 32}/{oid}?x=1", content=b"")
        assert answer.status_code in (400, 403, 404, 405), oid
