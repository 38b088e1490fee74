"""Uploads by hf_xet to a running Hub: an unmodified client, and everything that is not one."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from kernels_hub.server.hub import Hub
from kernels_hub.server.signing import UploadXet
from kernels_hub.server.sweep import sweep
from kernels_hub.server.xet.hashing import hash_to_hex
from kernels_hub.server.xet.shard import SHARD_LIMIT
from tests.running_hub import RunningHub, start_hub
from tests.server.xet_encode import File, Shard, Xorb, whole_file

pytest.importorskip("hf_xet", reason="needs hf_xet")

CLIENT = """
import hashlib, json, random, struct, sys
from pathlib import Path
from huggingface_hub import CommitOperationAdd, HfApi

kind, name, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
api = HfApi()
api.create_repo(name, repo_type=kind)
source = folder / "source"
if not source.exists():
    (source / "weights").mkdir(parents=True)
    noise = random.Random(7)
    big = noise.randbytes(30 << 20)
    (source / "weights" / "noise.bin").write_bytes(big)
    (source / "weights" / "twice.bin").write_bytes(big[: 5 << 20] * 2 + b"tail")
    (source / "weights" / "floats.bin").write_bytes(b"".join(struct.pack("<f", i / 997) for i in range(700_000)))
    (source / "weights" / "text.bin").write_bytes(b"the same line again\\n" * 150_000)
    (source / "weights" / "small.safetensors").write_bytes(b"a small file that is large by its name")
    (source / "README.md").write_text("# hello\\n")
files = sorted(path for path in source.rglob("*") if path.is_file())
adds = [CommitOperationAdd(str(path.relative_to(source)), str(path)) for path in files]
commits = [api.create_commit(name, adds, commit_message="all", repo_type=kind).oid]
# The same content again, by other means: nothing changes.
commits.append(api.upload_folder(repo_id=name, folder_path=source, repo_type=kind).oid)
# Known chunks under another name, and a file that differs in its middle.
changed = bytearray((source / "weights" / "noise.bin").read_bytes())
changed[15 << 20 : (15 << 20) + 5] = b"other"
api.upload_file(path_or_fileobj=bytes(changed), path_in_repo="changed.bin", repo_id=name, repo_type=kind)
api.upload_file(
    path_or_fileobj=source / "weights" / "noise.bin", path_in_repo="copy.bin", repo_id=name, repo_type=kind
)
got = Path(api.snapshot_download(name, repo_type=kind, local_dir=folder / name.replace("/", "-")))
expected = {str(path.relative_to(source)): path.read_bytes() for path in files}
expected |= {"changed.bin": bytes(changed), "copy.bin": expected["weights/noise.bin"]}
for path, content in expected.items():
    assert (got / path).read_bytes() == content, path
lfs = {entry.path: entry.lfs.sha256 for entry in api.list_repo_tree(name, recursive=True, repo_type=kind)
       if getattr(entry, "lfs", None)}
for path, sha256 in lfs.items():
    assert hashlib.sha256(expected[path]).hexdigest() == sha256, path
print(json.dumps({"commits": commits, "lfs": sorted(lfs)}))
"""
LFS_FILES = [
    "changed.bin",
    "copy.bin",
    "weights/floats.bin",
    "weights/noise.bin",
    "weights/small.safetensors",
    "weights/text.bin",
    "weights/twice.bin",
]


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with start_hub(tmp_path_factory.mktemp("xet") / "root") as running:
        yield running


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("client")


def run_client(hub: RunningHub, work: Path, kind: str, name: str, **environment: str) -> dict:
    env = {
        **os.environ,
        "HF_ENDPOINT": hub.endpoint,
        "HF_TOKEN": hub.token("ada"),
        "HF_HOME": str(work / "home"),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        **environment,
    }
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, kind, name, str(work)],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def posts(hub: RunningHub, part: str) -> int:
    return sum(
        part in request.path and request.method == "POST" and request.status == 200
        for request in hub.requests()
    )


@pytest.mark.parametrize("kind, workers", [("kernel", 1), ("model", 2)])
def test_an_unmodified_client_uploads_and_downloads_the_same_bytes(
    hub, work, tmp_path, request, kind, workers
):
    if workers == 2:
        hub = start_hub(tmp_path / "root", workers=2)
        request.addfinalizer(hub.stop)
    result = run_client(hub, work, kind, f"ada/{kind}-by-xet")
    assert result["lfs"] == LFS_FILES
    assert len(set(result["commits"])) == 1, "the same content makes no commit"
    assert posts(hub, "/v1/xorbs/") > 0
    assert posts(hub, "/v1/shards") >= 3
    assert not any("xet-read-token" in request.path for request in hub.requests()), "downloads never use Xet"


def test_without_xet_the_same_files_arrive_by_lfs(hub, work):
    before = posts(hub, "/v1/xorbs/"), posts(hub, "/v1/shards")
    result = run_client(hub, work, "model", "ada/by-lfs", HF_HUB_DISABLE_XET="1")
    assert result["lfs"] == LFS_FILES
    assert (posts(hub, "/v1/xorbs/"), posts(hub, "/v1/shards")) == before


# -- by hand ----------------------------------------------------------------------------------------

ONE = Xorb([b"one" * 1000, b"two" * 1000, b"three"], [1, 2, 0])


class Session:
    """A Xet upload by hand."""

    def __init__(self, hub: RunningHub, repository: str, token: str | None = None) -> None:
        self.hub = hub
        self.repository = repository
        self.token = hub.token("ada") if token is None else token
        answer = httpx.get(
            f"{hub.endpoint}/api/models/{repository}/xet-write-token/main", headers=self._as(self.token)
        )
        answer.raise_for_status()
        self.address = answer.headers["X-Xet-Cas-Url"]
        self.access = answer.headers["X-Xet-Access-Token"]
        assert answer.json() == {
            "casUrl": self.address,
            "accessToken": self.access,
            "exp": int(answer.headers["X-Xet-Token-Expiration"]),
        }

    @staticmethod
    def _as(token: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {token}"}

    def xorb(self, xorb: Xorb, body: bytes | None = None, **changes: str) -> httpx.Response:
        address = changes.get("address", self.address)
        return httpx.post(
            f"{address}/v1/xorbs/default/{hash_to_hex(xorb.hash)}",
            content=xorb.body if body is None else body,
            headers=self._as(changes.get("access", self.access)),
            timeout=60,  # of several at once, on a machine that is busy with other tests
        )

    def shard(self, body: bytes, **changes: str) -> httpx.Response:
        address = changes.get("address", self.address)
        return httpx.post(
            f"{address}/v1/shards",
            content=body,
            headers=self._as(changes.get("access", self.access)),
            timeout=60,
        )

    def large_files(self) -> list[str]:
        with Hub(self.hub.root) as opened:
            repository = opened.repositories.find("model", *self.repository.split("/"))
            return sorted(entry.oid for entry in opened.large_files.objects.entries(repository.id))


def new_repository(hub: RunningHub, name: str, private: bool = False) -> str:
    answer = httpx.post(
        f"{hub.endpoint}/api/repos/create",
        json={"name": name, "organization": "ada", "type": "model", "private": private},
        headers={"Authorization": f"Bearer {hub.token('ada')}"},
    )
    assert answer.status_code in (200, 409), answer.text
    return f"ada/{name}"


@pytest.fixture
def session(hub, request):
    return Session(
        hub, new_repository(hub, "by-hand-" + hashlib.sha256(request.node.name.encode()).hexdigest()[:8])
    )


def left_over(hub: RunningHub) -> list[str]:
    parts = [path for root in hub.roots for path in (root / "xet").rglob("*.part")]
    incoming = [path for root in hub.roots for path in (root / "incoming").rglob("*")]
    files = [path for path in incoming if path.is_file() and path.name != "lock"]
    return [str(path) for path in parts + files]


def test_a_file_by_hand(session):
    file = whole_file(ONE)
    assert session.xorb(ONE).json() == {"was_inserted": True}
    assert session.xorb(ONE).json() == {"was_inserted": False}
    assert session.shard(Shard([file], [ONE]).body).json() == {"result": 1}
    assert session.shard(Shard([file], [ONE]).body).json() == {"result": 0}
    assert session.large_files() == [hashlib.sha256(file.content).hexdigest()]
    assert left_over(session.hub) == []


BAD_XORBS = {
    "empty": b"",
    "truncated": ONE.body[:-2],
    "another xorb": Xorb([b"another"]).body,
    "changed": ONE.body[:-1] + b"X",
    "no xorb": b"x" * 100,
}


@pytest.mark.parametrize("body", BAD_XORBS.values(), ids=BAD_XORBS.keys())
def test_a_bad_xorb_is_400_and_leaves_nothing(session, body):
    answer = session.xorb(ONE, body)
    assert answer.status_code == 400, answer.text
    assert session.shard(Shard([whole_file(ONE)], [ONE]).body).status_code == 400
    assert session.large_files() == []
    assert left_over(session.hub) == []


def test_a_bad_shard_is_400_and_none_of_its_files_is_kept(session):
    good = whole_file(ONE)
    wrong = File(b"something else", good.segments)
    foreign = File(b"", [(bytes(range(32)), 0, 1, 5)])
    assert session.xorb(ONE).status_code == 200
    for body, message in [
        (b"", "ends inside its header"),
        (Shard([good, wrong]).body, "sha256"),
        (Shard([good, foreign]).body, "was not uploaded"),
        (Shard([good]).body[:-60], "ends inside"),
        (Shard([File(good.content, [(ONE.hash, 0, 9, 6005)])]).body, "which has 3"),
    ]:
        answer = session.shard(body)
        assert answer.status_code == 400, message
        assert message in answer.text
        assert session.large_files() == []
    assert left_over(session.hub) == []


def test_a_xorb_of_another_repository_cannot_be_used(hub, session):
    other = Session(hub, new_repository(hub, "the-other"))
    secret = Xorb([b"what only the other repository has"])
    assert other.xorb(secret).status_code == 200
    assert other.shard(Shard([whole_file(secret)]).body).status_code == 200
    answer = session.shard(Shard([whole_file(secret)]).body)
    assert answer.status_code == 400
    assert "was not uploaded for this repository" in answer.text
    assert session.large_files() == []


def test_a_token_is_for_its_repository_its_user_and_its_time(hub, session):
    other = Session(hub, new_repository(hub, "the-other"))
    assert session.xorb(ONE, access=other.access).status_code == 403
    assert session.xorb(ONE, address=other.address).status_code == 403
    assert session.shard(b"", access=other.access).status_code == 403
    assert session.xorb(ONE, access=f"{session.access}&token={'0' * 12}").status_code == 403
    assert session.xorb(ONE, access=session.access.replace("token=", "token=0")).status_code == 403
    assert session.xorb(ONE, access=session.token).status_code == 403
    assert httpx.post(f"{session.address}/v1/shards", content=b"").status_code == 401
    with Hub(hub.root) as opened:
        identifier = session.address.split("/")[-2]
        token = opened.accounts.tokens("ada")[0]
        past = int(time.time()) - 5
        expired = opened.signer.query(UploadXet(repository=identifier, token=token.id, expires=past))
        assert session.xorb(ONE, access=expired).status_code == 403
        # Revoking the token ends what it began.
        secret, token = opened.accounts.new_token("ada", "write")
        revoked = Session(hub, session.repository, secret)
        assert revoked.xorb(ONE).status_code == 200
        opened.accounts.remove_token(token.id)
        assert revoked.xorb(ONE).status_code == 403


def test_a_token_of_one_repository_uploads_there_and_nowhere_else(hub, session):
    scoped = hub.token("ada", repository=session.repository)
    mine = Session(hub, session.repository, scoped)
    assert mine.xorb(ONE).status_code == 200
    assert mine.shard(Shard([whole_file(ONE)]).body).json() == {"result": 1}
    answer = httpx.get(
        f"{hub.endpoint}/api/models/{new_repository(hub, 'the-other')}/xet-write-token/main",
        headers={"Authorization": f"Bearer {scoped}"},
    )
    assert answer.status_code == 403


def test_a_hub_that_asks_everybody_for_a_token_takes_uploads(tmp_path):
    with start_hub(tmp_path / "root", require_token=True, limits={"max_requests_per_minute": 1000}) as closed:
        mine = Session(closed, new_repository(closed, "closed"))
        assert mine.xorb(ONE).status_code == 200
        assert mine.shard(Shard([whole_file(ONE)]).body).json() == {"result": 1}


def test_limits_of_size_and_quota(tmp_path):
    limits = {"max_file_bytes": 10_000, "max_repository_bytes": 15_000}
    with start_hub(tmp_path / "root", limits=limits) as small:
        mine = Session(small, new_repository(small, "small"))
        first, second, third = (Xorb([letter * 9000]) for letter in (b"a", b"b", b"c"))
        assert mine.xorb(first).status_code == 200
        long = File(b"", [(first.hash, 0, 1, 9000)] * 2)
        assert mine.shard(Shard([long]).body).status_code == 413
        # A shard of some bytes that names terabytes is refused by its sums.
        bomb = [File(bytes([i]), [(first.hash, 0, 1, 9000)]) for i in range(100)]
        assert mine.shard(Shard(bomb).body).status_code == 403
        assert mine.large_files() == []
        assert mine.shard(Shard([whole_file(first)]).body).status_code == 200
        assert mine.xorb(second).status_code == 200
        assert mine.shard(Shard([whole_file(second)]).body).status_code == 403
        assert mine.xorb(third).status_code == 403, "more was sent than the repository may hold"
        assert len(mine.large_files()) == 1
        assert left_over(small) == []


def test_the_same_upload_many_times_at_once(session):
    with ThreadPoolExecutor(8) as threads:
        sent = list(threads.map(lambda _: session.xorb(ONE).status_code, range(16)))
        stored = list(
            threads.map(lambda _: session.shard(Shard([whole_file(ONE)]).body).status_code, range(16))
        )
    assert set(sent + stored) == {200}
    assert len(session.large_files()) == 1
    assert left_over(session.hub) == []


def test_a_connection_that_breaks_leaves_nothing(session):
    url = urlsplit(f"{session.address}/v1/xorbs/default/{hash_to_hex(ONE.hash)}")
    head = (
        f"POST {url.path} HTTP/1.1\r\nHost: {url.netloc}\r\nAuthorization: Bearer {session.access}\r\n"
        f"Content-Length: {len(ONE.body)}\r\n\r\n"
    )
    with socket.create_connection((url.hostname, url.port)) as connection:
        connection.sendall(head.encode() + ONE.body[:-5])
        wait_for(lambda: left_over(session.hub))
    wait_for(lambda: not left_over(session.hub))
    assert session.shard(Shard([whole_file(ONE)]).body).status_code == 400
    assert session.xorb(ONE).json() == {"was_inserted": True}


def wait_for(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_only_writers_get_a_token(hub, session):
    address = f"{hub.endpoint}/api/models/{session.repository}/xet-write-token/main"
    assert httpx.get(address).status_code == 401
    for token in (hub.token("ada", role="read"), hub.token("stranger")):
        assert httpx.get(address, headers={"Authorization": f"Bearer {token}"}).status_code == 403
    hidden = new_repository(hub, "hidden", private=True)
    answer = httpx.get(
        f"{hub.endpoint}/api/models/{hidden}/xet-write-token/main",
        headers={"Authorization": f"Bearer {hub.token('stranger')}"},
    )
    assert (answer.status_code, answer.headers["X-Error-Code"]) == (404, "RepoNotFound")


def test_addresses_that_do_not_exist(session):
    base, hour = session.address.rsplit("/", 1)
    assert session.xorb(ONE, address=f"{base}/{int(hour) + 1}").status_code == 400
    assert session.xorb(ONE, address=f"{base}/{int(hour) - 1000}").status_code == 400
    assert session.xorb(ONE, address=f"{base}/x").status_code == 404
    headers = session._as(session.access)
    for method, path in [
        ("GET", f"/v1/chunks/default/{'0' * 64}"),
        ("POST", f"/v1/xorb-grants/default/{'0' * 64}"),
        ("POST", "/v2/shards"),
        ("GET", f"/v1/reconstructions/{'0' * 64}"),
    ]:
        assert httpx.request(method, session.address + path, headers=headers).status_code == 404, path
    assert httpx.post(f"{session.hub.endpoint}/v1/telemetry", json={}).status_code == 204
    for name in ("0" * 63, "g" * 64, "..%2F..%2Fsecret"):
        answer = httpx.post(f"{session.address}/v1/xorbs/default/{name}", content=b"", headers=headers)
        assert answer.status_code in (400, 404)


def test_what_is_too_long_is_refused(session):
    def body():
        for _ in range(SHARD_LIMIT // (1 << 20) + 1):
            yield bytes(1 << 20)

    answer = httpx.post(f"{session.address}/v1/shards", content=body(), headers=session._as(session.access))
    assert answer.status_code == 413, answer.text
    assert left_over(session.hub) == []


@pytest.mark.git_folder
def test_old_xorbs_are_swept_and_an_upload_that_needs_them_says_so(hub, session):
    assert session.xorb(ONE).status_code == 200
    with Hub(hub.root) as opened:
        area = next(
            path for path in (opened.layout.root / "xet").glob("*/*") if path.parent.name in session.address
        )
        old = area.with_name(str(int(area.name) - 5))
        area.rename(old)
        os.utime(old, (time.time() - 5 * 3600,) * 2)
        assert "what 1 Xet uploads sent in hours that are over" in sweep(opened)
        assert not old.exists()
    answer = session.shard(Shard([whole_file(ONE)]).body)
    assert answer.status_code == 400
    assert "start the upload again" in answer.text
