"""Everything that must not get in: each has one status, one clear error, and changes nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from huggingface_hub import CommitOperationAdd, HfApi

from kernels_hub.server.signing import UploadFile
from tests.running_hub import RunningHub

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")
HEADER = {"key": "header", "value": {"summary": "s"}}


@pytest.fixture(scope="module")
def client(server: RunningHub) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {server.token('ada')}"}
    with httpx.Client(base_url=server.endpoint, headers=headers) as client:
        yield client


def file(path: object, content: str = "x") -> dict:
    encoded = base64.b64encode(content.encode()).decode()
    return {"key": "file", "value": {"path": path, "content": encoded, "encoding": "base64"}}


def large(path: str, oid: str, **size: object) -> dict:
    return {"key": "lfsFile", "value": {"path": path, "algo": "sha256", "oid": oid, **size}}


def lines(*items: object) -> bytes:
    return b"".join((i if isinstance(i, bytes) else json.dumps(i).encode()) + b"\n" for i in items)


@pytest.fixture
def repo(new_repo: Callable[..., str], ada: HfApi) -> str:
    name = new_repo()
    files = [CommitOperationAdd("dir/file", b"1"), CommitOperationAdd("README.md", b"2")]
    ada.create_commit(name, files, commit_message="start", repo_type="kernel")
    return name


@pytest.fixture
def unchanged(repo: str, ada: HfApi) -> Iterator[None]:
    """Whatever the test does, the repository's refs and files stay what they were."""

    def state() -> object:
        refs = ada.list_repo_refs(repo, repo_type="kernel")
        return refs, ada.list_repo_files(repo, repo_type="kernel")

    before = state()
    yield
    assert state() == before


def commit(client: httpx.Client, repo: str, *items: object, rev: str = "main") -> httpx.Response:
    return client.post(f"/api/kernels/{repo}/commit/{rev}", content=lines(*items))


def refused(answer: httpx.Response, status: int, words: str, code: str | None = None) -> None:
    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"], answer.text
    assert words.encode("ascii", "replace").decode() in answer.headers["x-error-message"]
    assert answer.headers.get("x-error-code") == code


PATHS = [
    *("../x", "a/../../x", "/etc/passwd", "a//b", "a/", "./a", "a/.", "..", ".", ""),
    *("a\\..\\b", "C:x", "a:b", "a\0b", "a\nb", "a\x7fb", "\x1b[31m", "a\u0085b"),
    *(".git/config", ".GIT/config", "x/.Git/hooks/post", ".git", "git~1/config", ".git /x", ".git./x"),
    *(".g\u200cit/config", "\ufeff.git/config", ".gitmodules", "x/.GitModules"),
    *("con", "x/NUL.txt", "com1", "a.", "a ", "a?b", "a*b", 'a"b', "a|b", "a<b"),
    *("x" * 256, "y/" * 600 + "z", None, 5, ["a"]),
]  # fmt: skip


@pytest.mark.usefixtures("unchanged")
def test_paths_that_are_refused(client: httpx.Client, repo: str):
    for path in PATHS:
        refused(commit(client, repo, HEADER, file(path)), 400, "path")
        deleted = {"key": "deletedFile", "value": {"path": path}}
        assert commit(client, repo, HEADER, deleted).status_code == 400, path
        sample = {"files": [{"path": path, "size": 1, "sample": ""}]}
        answer = client.post(f"/api/kernels/{repo}/preupload/main", json=sample)
        assert answer.status_code == 400, path


@pytest.mark.usefixtures("unchanged")
def test_paths_that_are_fine(client: httpx.Client, repo: str, ada: HfApi):
    fine = [
        "a",
        "a b",
        ".github/x",
        ".gitignore",
        "git",
        "x.git",
        "..a",
        "a..b",
        "ü/ñ",
        "con_",
        "x/(1) [2].py",
    ]
    name = ada.create_repo(f"{repo}-fine", repo_type="kernel").repo_id
    answer = commit(client, name, HEADER, *map(file, fine))
    assert answer.status_code == 200, answer.text
    assert set(ada.list_repo_files(name, repo_type="kernel")) == {".gitattributes", *fine}


@pytest.mark.parametrize(
    "path",
    [
        "../../../../etc/passwd",
        "..%2f..%2f..%2f..%2fetc%2fpasswd",
        "%2e%2e/%2e%2e/secret",
        "%2fetc%2fpasswd",
        "dir%2f..%2f..%2f..%2fhub.sqlite",
        "..%5c..%5chub.sqlite",
        ".git/config",
        "dir/file%00",
        "dir",
        "dir/",
        "/",
    ],
)
def test_downloads_of_what_is_no_file(server: RunningHub, client: httpx.Client, repo: str, path: str):
    for prefix in (f"/kernels/{repo}/resolve/main/", f"/api/kernels/{repo}/tree/main/"):
        if "tree" in prefix and path.rstrip("/") in ("dir", ""):
            continue
        # By hand: clients tidy paths up before they send them.
        with socket.create_connection(("127.0.0.1", int(server.endpoint.rsplit(":", 1)[1]))) as raw:
            token = server.token("ada")
            raw.sendall(
                f"GET {prefix}{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
                "Connection: close\r\n\r\n".encode()
            )
            answer = b"".join(iter(lambda: raw.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 404 "), answer[:300]
        assert b"root:" not in answer and b"SQLite" not in answer


@pytest.mark.parametrize(
    "revision", ["..", "../main", "refs%2Fheads%2F..%2Fmain", "%00", "main%0a", "HEAD^", "-"]
)
def test_revisions_that_are_not_there(client: httpx.Client, repo: str, revision: str):
    answer = client.get(f"/kernels/{repo}/resolve/{revision.replace('..', '%2e%2e')}/README.md")
    assert answer.status_code == 404 and "sha" not in answer.text


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "body, words",
    [
        (b"", "the body is empty"),
        (b"\n\n", "the body is empty"),
        (lines(file("a")), "begins with a header"),
        (lines(HEADER, HEADER), "second header"),
        (lines(HEADER, b"{"), "Line 2"),
        (lines(HEADER, b"[]"), "Line 2"),
        (lines(HEADER, b'"text"'), "Line 2"),
        (lines(HEADER, b"\xff\xfe"), "Line 2"),
        (lines(HEADER, b"[" * 100_000), "Line 2"),
        (lines(HEADER, {"key": "file"}), "Line 2"),
        (lines(HEADER, {"key": "file", "value": 1}), "Line 2"),
        (lines(HEADER, {"key": "move", "value": {"path": "a"}}), "has the key 'move'"),
        (lines({"key": "header", "value": {}}), "summary"),
        (lines({"key": "header", "value": {"summary": ""}}), "summary"),
        (lines({"key": "header", "value": {"summary": "a\0b"}}), "message"),
        (lines({"key": "header", "value": {"summary": "\ud800"}}), "Line 1"),
        (lines({"key": "header", "value": {"summary": "s", "parentCommit": 5}}), "parentCommit"),
        (lines(HEADER, {"key": "file", "value": {"path": "a", "content": "%%%", "encoding": "base64"}}), "base64"),
        (lines(HEADER, {"key": "file", "value": {"path": "a", "content": "eA", "encoding": "base64"}}), "base64"),
        (lines(HEADER, {"key": "file", "value": {"path": "a", "content": "x", "encoding": "rot13"}}), "base64"),
        (lines(HEADER, {"key": "file", "value": {"path": "a"}}), "content"),
        (lines(HEADER, file("README.md/x")), "file and a folder"),
        (lines(HEADER, file("dir")), "file and a folder"),
        (lines(HEADER, file("new"), file("new/x")), "file and a folder"),
        (lines(HEADER, file("readme.md")), "differ only in case"),
        (lines(HEADER, file("DIR/other")), "differ only in case"),
        (lines(HEADER, file("n\u0303"), file("\u00f1")), "differ only in case"),
        (lines(HEADER, large("a", "0" * 64, size=3)), "no large file"),
        (lines(HEADER, large("a", "0" * 63)), "SHA-256"),
        (lines(HEADER, large("a", "../" + "0" * 61)), "SHA-256"),
        (lines(HEADER, large("a", "0" * 64, size=-1)), "size"),
        (lines(HEADER, large("a", "0" * 64, size=True)), "size"),
    ],
)  # fmt: skip
def test_commits_that_are_refused(client: httpx.Client, repo: str, body: bytes, words: str):
    refused(client.post(f"/api/kernels/{repo}/commit/main", content=body), 400, words)


@pytest.mark.usefixtures("unchanged")
def test_a_good_operation_before_a_bad_one_changes_nothing(client: httpx.Client, repo: str):
    assert commit(client, repo, HEADER, file("good"), file("../bad")).status_code == 400
    answer = commit(client, repo, HEADER, file("good"), {"key": "deletedFile", "value": {"path": "none"}})
    refused(answer, 404, "none", "EntryNotFound")


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "content",
    [
        "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 5\n",
        "version https://git-lfs.github.com/spec/v1\r\noid sha256:" + "0" * 64 + "\r\nsize 5\r\n",
        " \nversion https://hawser.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 5",
    ],
)
def test_smuggled_pointers(client: httpx.Client, repo: str, content: str):
    refused(commit(client, repo, HEADER, file("a", content)), 400, "LFS pointer")


@pytest.mark.usefixtures("unchanged")
def test_large_files_of_another_repository(
    client: httpx.Client, ada: HfApi, new_repo: Callable[..., str], repo: str
):
    other, secret = new_repo(private=True), os.urandom(100_000)
    ada.upload_file(path_or_fileobj=secret, path_in_repo="s", repo_id=other, repo_type="kernel")
    oid = hashlib.sha256(secret).hexdigest()
    refused(commit(client, repo, HEADER, large("a", oid, size=100_000)), 400, "no large file")
    refused(commit(client, other, HEADER, large("a", oid, size=99)), 400, "has 100000 bytes")


@pytest.mark.parametrize(
    "rev, status", [("none", 404), ("v1", 400), ("refs%2Fpr%2F1", 404), ("a%2F..%2Fb", 404)]
)
def test_commits_to_what_is_no_branch(client: httpx.Client, ada: HfApi, repo: str, rev: str, status: int):
    ada.create_tag(repo, tag="v1", repo_type="kernel")
    assert commit(client, repo, HEADER, file("a"), rev=rev).status_code == status
    head = ada.repo_info(repo, repo_type="kernel").sha
    assert commit(client, repo, HEADER, file("a"), rev=head).status_code == 400
    assert client.post(f"/api/kernels/{repo}/commit/main?create_pr=1", content=b"").status_code == 400


NAMES = ["..", "a..b", "-x", ".x", "x.lock", "x/", "/x", "a//b", "a b", "a~1", "a^", "a:b", "a?", "a*", "a[", "a\\b", "@", "a@{1}", "\x01", "HEAD", "refs/heads/x", "0" * 40, "x" * 300]  # fmt: skip


@pytest.mark.usefixtures("unchanged")
def test_names_of_branches_and_tags(client: httpx.Client, repo: str):
    from urllib.parse import quote

    for name in NAMES:
        quoted = quote(name, safe="").replace(".", "%2E")
        assert client.post(f"/api/kernels/{repo}/branch/{quoted}", json={}).status_code == 400, name
        assert client.post(f"/api/kernels/{repo}/tag/main", json={"tag": name}).status_code == 400, name


@pytest.mark.parametrize(
    "name", ["", "..", "a/b", "a..b", "a--b", ".a", "a.", "a.git", "a b", "a\\b", "ü", "x" * 97, None]
)
def test_names_of_repositories(client: httpx.Client, name: object):
    body = {"name": name, "organization": "acme", "type": "kernel"}
    refused(client.post("/api/repos/create", json=body), 400, "cannot name a repository")


@pytest.mark.parametrize(
    ("field", "value"),
    [("name", 5), ("organization", []), ("type", {}), ("private", "yes"), ("visibility", 1)],
)
def test_fields_of_another_type(client: httpx.Client, field: str, value: object):
    body = {"name": "fine", "organization": "acme", "type": "kernel", field: value}
    refused(client.post("/api/repos/create", json=body), 400, f"at `$.{field}`")


@pytest.mark.parametrize("body", [b"{", b"[]", b"1", b"\xff", b"[" * 100_000])
def test_bodies_that_are_no_json(client: httpx.Client, repo: str, body: bytes):
    for path in (
        "/api/repos/create",
        f"/api/kernels/{repo}/branch/x",
        f"/kernels/{repo}.git/info/lfs/objects/batch",
    ):
        refused(client.post(path, content=body), 400, "JSON")


def test_other_types_and_addresses(client: httpx.Client):
    assert client.post("/api/repos/create", json={"name": "x", "type": "space"}).status_code == 400
    refused(client.get("/api/datasets/acme/x"), 404, "Repository not found", "RepoNotFound")
    refused(client.get("/api/nothing"), 404, "nothing at this address")
    answer = client.put("/api/whoami-v2")
    refused(answer, 405, "GET")
    assert answer.headers["allow"] == "GET"
    assert client.get("/api/kernels/%ff/x").status_code == 400


# -- uploads


def upload_address(client: httpx.Client, repo: str, data: bytes, **changed: object) -> dict:
    item = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), **changed}
    body = {"operation": "upload", "transfers": ["basic", "multipart"], "objects": [item]}
    answer = client.post(f"/kernels/{repo}.git/info/lfs/objects/batch", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["objects"][0]


def has(client: httpx.Client, repo: str, data: bytes) -> bool:
    return "actions" not in upload_address(client, repo, data)


@pytest.mark.own_addresses
def test_uploads_that_are_not_what_was_announced(client: httpx.Client, server: RunningHub, repo: str):
    data = os.urandom(5000)
    href = upload_address(client, repo, data)["actions"]["upload"]["href"]
    with httpx.Client() as nobody:
        refused(nobody.put(href, content=data[:-1] + b"?"), 400, "SHA-256 differs")
        refused(nobody.put(href, content=data[:-1]), 400, "5000 bytes")
        refused(nobody.put(href, content=data + b"x"), 400, "5000 bytes")
        # Without a Content-Length, it is found out on the way.
        refused(nobody.put(href, content=iter([data[:-1]])), 400, "truncated")
        refused(nobody.put(href, content=iter([data, b"x"])), 400, "longer")
        assert not has(client, repo, data)
        assert nobody.put(href, content=data).status_code == 200
    assert has(client, repo, data)


def test_an_upload_that_breaks_off(client: httpx.Client, server: RunningHub, repo: str):
    data = os.urandom(200_000)
    url = httpx.URL(upload_address(client, repo, data)["actions"]["upload"]["href"])
    with socket.create_connection((url.host, url.port)) as raw:
        head = f"PUT {url.raw_path.decode()} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
        raw.sendall(head.encode() + data[:100_000])
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and left_behind(server):
        time.sleep(0.05)
    assert not left_behind(server) and not has(client, repo, data)
    assert httpx.put(str(url), content=data).status_code == 200


def left_behind(server: RunningHub) -> list[Path]:
    return [path for path in server.root.glob("incoming/*/*") if path.name not in ("lock", "metrics")]


@pytest.mark.own_addresses
@pytest.mark.parametrize(
    "change",
    [
        lambda href: href.replace("size=5000", "size=6000"),
        lambda href: href[:-1] + ("0" if href[-1] != "0" else "1"),
        lambda href: href.split("?")[0],
        lambda href: href.replace("expires=", "expires=9"),
        lambda href: href.replace("?", "/complete?"),
        lambda href: href.replace("?", "/part/1?"),
    ],
)
def test_addresses_that_were_changed(client: httpx.Client, repo: str, change: Callable[[str], str]):
    data = os.urandom(5000)
    href = change(upload_address(client, repo, data)["actions"]["upload"]["href"])
    method = "POST" if "/complete" in href else "PUT"
    refused(httpx.request(method, href, content=data), 403, "not one of this server's")


@pytest.mark.own_addresses
def test_addresses_are_for_one_repository_and_one_file(
    client: httpx.Client, repo: str, new_repo: Callable[..., str]
):
    data, other = os.urandom(5000), os.urandom(5000)
    here = upload_address(client, repo, data)["actions"]["upload"]["href"]
    there = upload_address(client, new_repo(), data)["actions"]["upload"]["href"]
    path, query = here.split("?")
    mixed = f"{there.split('?')[0]}?{query}"
    refused(httpx.put(mixed, content=data), 403, "not one of this server's")
    oid = hashlib.sha256(other).hexdigest()
    wrong = f"{path.rsplit('/', 1)[0]}/{oid}?{query}"
    refused(httpx.put(wrong, content=other), 403, "not one of this server's")


def test_an_address_that_has_expired(server: RunningHub, repo: str):
    with server.administer() as hub:
        repository = hub.repositories.find("kernel", *repo.split("/"))
        assert repository is not None
        oid = hashlib.sha256(b"x").hexdigest()
        server.token("ada")
        token = hub.accounts.tokens("ada")[0]
        end = int(time.time()) - 1
        address = UploadFile(repository=repository.id, token=token.id, expires=end, oid=oid, size=1)
        query = hub.signer.query(address)
    refused(httpx.put(f"{server.endpoint}/lfs/{repository.id}/{oid}?{query}", content=b"x"), 403, "expired")


@pytest.mark.own_addresses
def test_a_repository_that_was_deleted_meanwhile(
    client: httpx.Client, ada: HfApi, server: RunningHub, new_repo: Callable[..., str]
):
    name, data, large_data = new_repo(), os.urandom(5000), os.urandom(2_200_000)
    single = upload_address(client, name, data)["actions"]["upload"]["href"]
    parts = upload_address(client, name, large_data)["actions"]["upload"]
    etag = httpx.put(parts["header"]["1"], content=large_data[: 1 << 20]).headers["etag"]
    ada.delete_repo(name, repo_type="kernel")
    body = {"oid": hashlib.sha256(large_data).hexdigest(), "parts": [{"partNumber": 1, "etag": etag}]}
    for answer in (
        httpx.put(single, content=data),
        httpx.put(parts["header"]["2"], content=large_data[1 << 20 : 2 << 20]),
        httpx.post(parts["href"], json=body),
    ):
        refused(answer, 404, "Repository not found", "RepoNotFound")
    answer = commit(client, name, HEADER, file("a"))
    refused(answer, 404, "Repository not found", "RepoNotFound")
    assert not left_behind(server)


@pytest.mark.own_addresses
def test_parts_that_are_missing_or_wrong(client: httpx.Client, repo: str):
    data = os.urandom(2_200_000)
    upload = upload_address(client, repo, data)["actions"]["upload"]
    parts = {int(key): url for key, url in upload["header"].items() if key.isdigit()}
    assert len(parts) == 3
    oid = hashlib.sha256(data).hexdigest()

    def piece(number: int) -> bytes:
        return data[(number - 1) << 20 : number << 20]

    def finish(**etags: str) -> httpx.Response:
        rows = [{"partNumber": int(number[1:]), "etag": etag} for number, etag in etags.items()]
        return httpx.post(upload["href"], json={"oid": oid, "parts": rows})

    etags = {f"p{n}": httpx.put(parts[n], content=piece(n)).headers["etag"] for n in (1, 3)}
    refused(finish(**etags), 400, "Part 2 of 3")
    refused(httpx.put(parts[2], content=piece(2)[:-1]), 400, "bytes")
    refused(httpx.put(parts[2], content=iter([piece(2)[:-1]])), 400, "truncated")
    refused(finish(**etags), 400, "Part 2 of 3")
    etags["p2"] = httpx.put(parts[2], content=b"?" * len(piece(2))).headers["etag"]
    refused(finish(**{**etags, "p1": "other"}), 400, "Part 1 of 3")
    assert httpx.post(upload["href"], content=b"{").status_code == 400
    refused(finish(**etags), 400, "SHA-256 differs")
    assert not has(client, repo, data)
    etags = {f"p{n}": httpx.put(parts[n], content=piece(n)).headers["etag"] for n in (3, 2, 1)}
    assert finish(**etags).status_code == 200
    assert finish(**etags).status_code == 200, "asking again is answered as the first time"
    assert has(client, repo, data)


@pytest.mark.parametrize(
    "change",
    [
        {"operation": "download"},
        {"hash_algo": "sha1"},
        {"objects": 5},
        {"objects": [5]},
        {"objects": [{"oid": "x", "size": 1}]},
        {"objects": [{"oid": "0" * 64, "size": -1}]},
        {"objects": [{"oid": "0" * 64, "size": "1"}]},
        {"objects": [{"oid": "0" * 64, "size": 1}] * 2000},
    ],
)
def test_batches_that_are_refused(client: httpx.Client, repo: str, change: dict):
    body = {"operation": "upload", "objects": [{"oid": "0" * 64, "size": 1}], **change}
    assert client.post(f"/kernels/{repo}.git/info/lfs/objects/batch", json=body).status_code == 400


def test_cards_with_yaml_that_does_not_parse(ada: HfApi, repo: str):
    card = b"---\nkey: [\n---\n# x\n"
    with pytest.raises(ValueError, match="does not parse"):
        ada.upload_file(path_or_fileobj=card, path_in_repo="README.md", repo_id=repo, repo_type="kernel")


# -- limits


def test_limits(strict: RunningHub):
    token = strict.token("ada")
    api = HfApi(strict.endpoint, token=token)
    api.create_repo("ada/one", repo_type="kernel")
    with httpx.Client(base_url=strict.endpoint, headers={"Authorization": f"Bearer {token}"}) as client:
        repo = "ada/one"
        refused(client.post("/api/repos/create", content=b" " * 20_001), 413, "20000")
        refused(commit(client, repo, HEADER, file("a", "x" * 10_001)), 413, "10000")
        refused(commit(client, repo, HEADER, b"x" * 40_000), 413, "10000")
        many = [file(f"f{n}") for n in range(21)]
        refused(commit(client, repo, HEADER, *many), 413, "20 operations")
        refused(commit(client, repo, HEADER, *(file(f"f{n}") for n in range(18))), 413, "18 files")
        folders = [{"key": "deletedFolder", "value": {"path": f"d{n}"}} for n in range(3)]
        refused(
            commit(client, repo, HEADER, *map(file, ("d0/x", "d1/x", "d2/x")), *folders), 413, "2 folders"
        )
        refused(commit(client, repo, HEADER, b"\n" * 3000, file("a")), 400, "empty lines")
        big = [file(f"f{n}", "x" * 8000) for n in range(8)]
        refused(commit(client, repo, HEADER, *big), 413, "60000")
        assert api.list_repo_files(repo, repo_type="kernel") == [".gitattributes"]
        body = {"operation": "upload", "objects": [{"oid": "0" * 64, "size": 200_001}]}
        refused(client.post(f"/kernels/{repo}.git/info/lfs/objects/batch", json=body), 413, "200000")
        api.upload_file(
            path_or_fileobj=os.urandom(190_000), path_in_repo="a", repo_id=repo, repo_type="kernel"
        )
        body["objects"] = [{"oid": "1" * 64, "size": 190_000}]
        answer = client.post(f"/kernels/{repo}.git/info/lfs/objects/batch", json=body)
        refused(answer, 403, "may hold 300000 bytes")
        api.create_repo("ada/two")
        refused(client.post("/api/repos/create", json={"name": "three"}), 403, "may own 2 repositories")
        assert api.create_repo("ada/two", exist_ok=True).repo_id == "ada/two"


def test_the_rate_limit(strict: RunningHub):
    with httpx.Client(base_url=strict.endpoint) as nobody:
        # 600 at once, and 10 a second: a slow machine takes some more to meet the limit.
        passed = 0
        while (answer := nobody.get("/api/agent-harnesses")).status_code == 200 and passed < 3000:
            passed += 1
        assert passed >= 600
        refused(answer, 429, "Too many requests")
        assert int(answer.headers["retry-after"]) >= 1
        assert nobody.get("/health").status_code == 200
        # Of one caller, not of all.
        headers = {"Authorization": f"Bearer {strict.token('bob')}"}
        assert nobody.get("/api/whoami-v2", headers=headers).status_code == 200


def test_a_full_disk(tmp_path: Path):
    from tests.running_hub import start_hub

    with start_hub(tmp_path / "hub", limits={"min_free_bytes": 1 << 60}) as hub:
        token = hub.token("ada")
        api = HfApi(hub.endpoint, token=token)
        api.create_repo("ada/k", repo_type="kernel")
        with httpx.Client(base_url=hub.endpoint, headers={"Authorization": f"Bearer {token}"}) as client:
            refused(commit(client, "ada/k", HEADER, file("a")), 507, "disk is full")
            body = {"operation": "upload", "objects": [{"oid": "0" * 64, "size": 5}]}
            answer = client.post("/kernels/ada/k.git/info/lfs/objects/batch", json=body)
            refused(answer, 507, "disk is full")
        assert api.list_repo_files("ada/k", repo_type="kernel") == [".gitattributes"]


@pytest.mark.parametrize("rule", ["*a" * 4 + "b", "a/**/" * 4 + "b", "**/" * 5 + "b", "?*" * 9])
@pytest.mark.parametrize("where", [".gitattributes", ".gitignore"])
def test_rules_that_are_slow_to_match(client: httpx.Client, repo: str, rule: str, where: str):
    content = f"{rule} filter=lfs\n" if where == ".gitattributes" else f"{rule}\n"
    assert commit(client, repo, HEADER, file(where, content)).status_code == 200
    body = {"files": [{"path": "a" * 250, "size": 5, "sample": ""}, {"path": "/".join("a" * 300), "size": 5}]}
    start = time.monotonic()
    refused(client.post(f"/api/kernels/{repo}/preupload/main", json=body), 400, "slow to match")
    assert time.monotonic() - start < 30  # to match them takes hours
    assert commit(client, repo, HEADER, file(where, "*.bin\nbuild/**/*.so\n*tfevents*\n")).status_code == 200
    assert client.post(f"/api/kernels/{repo}/preupload/main", json=body).status_code == 200


@pytest.mark.parametrize(
    "value",
    [b"Basic \x80", b"Basic %%%", b"Basic gA==", b"Bearer \xff", b"Bearer " + b"x" * 9000, b"Digest x"],
)
def test_credentials_that_are_none(server: RunningHub, value: bytes):
    answer = httpx.get(f"{server.endpoint}/api/whoami-v2", headers=[(b"Authorization", value)])
    refused(answer, 401, "Invalid credentials")
