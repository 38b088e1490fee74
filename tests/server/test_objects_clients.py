"""Large files in an S3 store, as clients see it: uploads to presigned addresses, downloads by redirect, Xet."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from huggingface_hub import HfApi

from tests.object_store import store
from tests.running_hub import RunningHub, start_hub
from tests.server.lfs_client import PART, Lfs, oid_of
from tests.server.test_xet_upload import LFS_FILES, run_client

# huggingface_hub's own
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    """Two processes; files from 64 KiB on are large, parts have 5 MiB."""
    limits = {"large_from_bytes": 64 * 1024, "part_bytes": PART}
    root = tmp_path_factory.mktemp("objects") / "root"
    with start_hub(root, workers=2, limits=limits, objects=store().address("clients")) as running:
        running.organisation("acme", "ada")
        with running.administer() as opened:
            opened.accounts.add_user("eve")
        yield running


@pytest.fixture
def lfs(hub: RunningHub, request: pytest.FixtureRequest) -> Lfs:
    """A repository of the test's own."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name).strip("-")[:60]
    return Lfs(hub, hub.token("ada"), f"acme/{name}").create()


@pytest.mark.parametrize("size", [100_000, 2 * PART + 17], ids=["single", "in parts"])
def test_unmodified_clients(hub: RunningHub, lfs: Lfs, size: int):
    api = HfApi(hub.endpoint, token=lfs.token)
    content, before = os.urandom(size), len(hub.requests())
    api.upload_file(
        path_or_fileobj=content, path_in_repo="d/big.bin", repo_id=lfs.repository, repo_type="kernel"
    )
    requests = [request for request in hub.requests()[before:] if request.path.startswith("/lfs/")]
    assert [(r.method, r.path.rsplit("/", 1)[1], r.status) for r in requests] == [("POST", "stored", 200)]
    found = api.hf_hub_download(lfs.repository, "d/big.bin", repo_type="kernel")
    assert Path(found).read_bytes() == content
    (info,) = api.get_paths_info(lfs.repository, ["d/big.bin"], repo_type="kernel")
    assert (info.size, info.lfs.sha256) == (size, oid_of(content))
    # What is there is not sent again, and under another name it is the same object.
    before = len(hub.requests())
    api.upload_file(path_or_fileobj=content, path_in_repo="again", repo_id=lfs.repository, repo_type="kernel")
    assert not [r for r in hub.requests()[before:] if r.path.startswith("/lfs/")]
    keys = [key for key in store().keys("clients/") if oid_of(content) in key]
    assert len(keys) == 1 and store().keys("clients/incoming/") == [] == store().uploads("clients/")


def test_each_entry_of_a_batch_has_an_upload_of_its_own(lfs: Lfs):
    """Also of one content: clients send both at the same time, and the first to end would end the other's."""
    content = os.urandom(2 * PART + 3)
    answer = lfs.batch(content, content)
    first, second = (entry["actions"] for entry in answer.json()["objects"])
    assert first["upload"]["href"] != second["upload"]["href"]
    etags = [
        [
            httpx.put(actions["upload"]["header"][str(number)], content=piece, timeout=60).headers["etag"]
            for number, piece in enumerate((content[:PART], content[PART : 2 * PART], content[2 * PART :]), 1)
        ]
        for actions in (first, second)
    ]
    for actions, parts in ((first, etags[0]), (second, etags[1])):
        assert lfs.end(actions, content, parts).status_code == 200
    assert lfs.commit("one", content).status_code == 200


def test_what_a_redirect_says(lfs: Lfs):
    content = os.urandom(70_000)
    assert lfs.upload(content).status_code == 200 and lfs.commit("d/ü b.bin", content).status_code == 200
    head = httpx.head(lfs.url("d/%C3%BC%20b.bin"), headers=lfs.headers)
    assert head.status_code == 200 and head.headers["content-length"] == "70000"
    for answer in (head, lfs.get("d/%C3%BC%20b.bin", follow=False)):
        assert answer.headers["x-linked-size"] == "70000"
        assert answer.headers["x-linked-etag"] == answer.headers["etag"] == f'"{oid_of(content)}"'
        assert len(answer.headers["x-repo-commit"]) == 40
    assert (
        answer.status_code == 302 and answer.headers["cache-control"] == "no-store" and answer.content == b""
    )
    address = urlsplit(answer.headers["location"])
    query = parse_qs(address.query)
    assert f"{address.scheme}://{address.netloc}" == store().endpoint
    assert query["X-Amz-Expires"] == ["300"] and query["X-Amz-SignedHeaders"] == ["host"]
    loaded = httpx.get(answer.headers["location"], headers={"Range": "bytes=5-9"})
    assert (loaded.status_code, loaded.content) == (206, content[5:10])
    assert loaded.headers["content-type"] == "application/octet-stream"
    assert loaded.headers["content-disposition"] == "attachment; filename*=UTF-8''%C3%BC%20b.bin"
    assert lfs.get("d/%C3%BC%20b.bin", **{"If-None-Match": answer.headers["etag"]}).status_code == 304
    beyond = lfs.get("d/%C3%BC%20b.bin", follow=False, Range="bytes=70000-")
    assert beyond.status_code == 416 and beyond.headers["content-range"] == "bytes */70000"


def test_access_is_checked_before_a_redirect(hub: RunningHub):
    mine = Lfs(hub, hub.token("ada"), "acme/hidden").create(private=True)
    content = os.urandom(70_000)
    assert mine.upload(content).status_code == 200 and mine.commit("big", content).status_code == 200
    assert "response-cache-control=private" in mine.get("big", follow=False).headers["location"]
    for token in ("", hub.token("eve")):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        answer = httpx.get(mine.url("big"), headers=headers)
        assert answer.status_code in (401, 404) and "location" not in answer.headers
    # Whoever knows the hash has nothing: not the content, and no commit that names it.
    other = Lfs(hub, hub.token("eve"), "eve/guess").create()
    assert other.commit("mine", content).status_code == 400
    actions = other.actions(content)
    assert actions["upload"], "it is asked for the content, as if nobody had it"
    assert other.end(actions, content).status_code == 400 and not other.has(content)
    query = urlsplit(actions["verify"]["href"]).query
    with hub.administer() as opened:
        theirs = opened.repositories.find("kernel", "acme", "hidden")
    crossed = f"{hub.endpoint}/lfs/{theirs.id}/{oid_of(content)}/stored?{query}"
    assert httpx.post(crossed, json={"oid": oid_of(content)}).status_code == 403


def test_an_upload_needs_a_token_that_may_write_to_its_end(hub: RunningHub, lfs: Lfs):
    content = os.urandom(70_000)
    with hub.administer() as opened:
        secret, token = opened.accounts.new_token("ada", "write")
    brief = Lfs(hub, secret, lfs.repository)
    actions = brief.actions(content)
    assert httpx.put(actions["upload"]["href"], content=content).status_code == 200
    with hub.administer() as opened:
        opened.accounts.remove_token(token.id)
    assert brief.end(actions, content).status_code == 403 and not lfs.has(content)


@pytest.mark.exhaustive
def test_what_was_sent_is_checked(lfs: Lfs):
    content = os.urandom(2 * PART + 100)
    small = content[:100_000]
    changed = bytes([small[0] ^ 1]) + small[1:]
    answer = lfs.upload(small, sent=changed)
    assert answer.status_code == 400 and "SHA-256 differs" in answer.json()["error"]
    for sent in (small[:-1], small + b"x"):
        answer = lfs.upload(small, sent=sent)
        # A store that checks signatures, as moto does not, refuses the part: its size is signed.
        assert answer.status_code == 403 or "not uploaded, or not to its end" in answer.json()["error"]
    answer = lfs.upload(content, sent=content[:-1] + b"\0\1")
    assert answer.status_code in (400, 403), "the last part has another size"
    answer = lfs.upload(content, sent=bytes([content[0] ^ 1]) + content[1:])
    assert answer.status_code == 400 and "SHA-256 differs" in answer.json()["error"]
    assert not lfs.has(small) and not lfs.has(content)
    with lfs.hub.administer() as opened:
        found = opened.repositories.find("kernel", *lfs.repository.split("/"))
        assert list(opened.large_files.objects.entries(found.id)) == [], "nothing came under a final key"
    actions = lfs.actions(content)
    header = actions["upload"]["header"]
    tags = [
        httpx.put(header[str(i + 1)], content=content[i * PART : (i + 1) * PART]).headers["etag"]
        for i in range(3)
    ]
    for wrong in (tags[:2], [*tags, tags[0]], [tags[1], tags[0], tags[2]], []):
        assert lfs.end(actions, content, wrong).status_code == 400
    assert lfs.end(actions, content, tags).status_code == 200 and lfs.has(content)
    assert lfs.end(actions, content, tags).status_code == 200, "asked again, it is answered as before"


def test_nothing_that_a_client_holds_writes_to_a_file_that_is_there(lfs: Lfs):
    content = os.urandom(100_000)
    actions = lfs.actions(content)
    href = actions["upload"]["href"]
    assert httpx.put(href, content=content).status_code == 200
    assert lfs.end(actions, content).status_code == 200 and lfs.commit("big", content).status_code == 200
    assert "/incoming/" in href and oid_of(content) not in href
    assert httpx.put(href, content=os.urandom(100_000)).status_code >= 400, "the upload is over"
    assert lfs.get("big").content == content and lfs.end(actions, content).status_code == 200
    assert lfs.actions(content) == {}


@pytest.mark.exhaustive
def test_a_client_without_parts_and_an_empty_batch(lfs: Lfs):
    content = os.urandom(PART + 100)
    answer = lfs.batch(content, content, transfers=["basic"]).json()
    assert answer["transfer"] == "basic" and len(answer["objects"]) == 2
    actions = answer["objects"][0]["actions"]
    assert "header" not in actions["upload"]
    assert httpx.put(actions["upload"]["href"], content=content).status_code == 200
    assert lfs.end(actions, content).status_code == 200 and lfs.has(content)
    assert lfs.batch().json()["objects"] == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("xet", ["", "1"], ids=["xet", "without xet"])
def test_folders_with_and_without_xet(hub: RunningHub, tmp_path: Path, xet: str):
    name = f"acme/folder{xet}"
    if not xet:
        pytest.importorskip("hf_xet", reason="needs hf_xet")
    result = run_client(hub, tmp_path, "model", name, **({"HF_HUB_DISABLE_XET": xet} if xet else {}))
    assert result["lfs"] == LFS_FILES
    with hub.administer() as opened:
        found = opened.repositories.find("model", *name.split("/"))
        assert {e.oid for e in opened.large_files.objects.entries(found.id)} == set(
            opened.large_files.rows(found)
        )


def test_no_credential_is_logged(hub: RunningHub, lfs: Lfs):
    content = os.urandom(70_000)
    assert lfs.upload(content).status_code == 200 and lfs.commit("big", content).status_code == 200
    assert lfs.get("big").content == content
    log = hub.output("resolve/main/big")
    for secret in ("X-Amz", "Signature", "uploadId", os.environ["AWS_SECRET_ACCESS_KEY"], "signature="):
        assert secret not in log


def test_threads_that_use_a_store_first_at_the_same_time() -> None:
    """boto3's modules import each other in a circle, which one thread at a time can go round."""
    code = """
        import threading, time
        from kernels_hub.server.objects.address import S3Address
        from kernels_hub.server.objects.answers import answering
        from kernels_hub.server.objects.connection import connect
        address, begin, failed = S3Address.parse("s3://bucket/p?endpoint=http://127.0.0.1:9"), threading.Barrier(8), []
        def work(number):
            begin.wait()
            time.sleep(number % 4 * 0.02)
            try:
                if number % 2:
                    connect(address, address.endpoint)
                with answering("a test"):
                    pass
            except Exception as error:
                failed.append(repr(error))
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed, failed
    """
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **keys},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
