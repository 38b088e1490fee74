"""Who may do what: every row and column of the table in `kernels_hub/server/access.py`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import httpx
import pytest
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

from tests import hub_databases
from tests.running_hub import RunningHub, start_hub

WHO = ("nobody", "stranger", "reader", "writer", "admin", "admin, read token")


@pytest.fixture(scope="module")
def tokens(server: RunningHub) -> dict[str, str | None]:
    return {
        "nobody": None,
        "stranger": server.token("eve"),
        "reader": server.token("rita"),
        "writer": server.token("will"),
        "admin": server.token("ada"),
        "admin, read token": server.token("ada", "read"),
    }


@pytest.fixture
def ask(server: RunningHub, tokens: dict[str, str | None]) -> Iterator[Callable[..., httpx.Response]]:
    with httpx.Client(base_url=server.endpoint) as client:

        def ask(who: str, method: str, path: str, **options: object) -> httpx.Response:
            token = tokens.get(who, who)
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            return client.request(method, path, headers=headers, **options)

        yield ask


READS = [
    ("GET", ""),
    ("GET", "/revision/main"),
    ("GET", "/refs"),
    ("GET", "/tree/main"),
    ("GET", "/commits/main"),
    ("POST", "/paths-info/main"),
    ("GET", "/auth-check"),
]
WRITES = [
    ("POST", "/branch/b", {}),
    ("DELETE", "/branch/b", None),
    ("POST", "/tag/main", {"tag": "t"}),
    ("DELETE", "/tag/t", None),
    ("POST", "/preupload/main", {"files": []}),
    ("GET", "/xet-write-token/main", None),
]
FORBIDDEN = {"nobody": 401, "stranger": 403, "reader": 403, "admin, read token": 403}


def test_public(ask: Callable[..., httpx.Response], new_repo: Callable[..., str]):
    repo = new_repo()
    for who in WHO:
        for method, path in READS:
            assert ask(who, method, f"/api/kernels/{repo}{path}").status_code == 200, (who, path)
        assert ask(who, "GET", f"/kernels/{repo}/resolve/main/.gitattributes").status_code == 200
        for method, path, body in WRITES:
            answer = ask(who, method, f"/api/kernels/{repo}{path}", json=body)
            assert answer.status_code == FORBIDDEN.get(who, 200), (who, path, answer.text)
        batch = {"operation": "upload", "objects": []}
        answer = ask(who, "POST", f"/kernels/{repo}.git/info/lfs/objects/batch", json=batch)
        assert answer.status_code == FORBIDDEN.get(who, 200)
        answer = ask(who, "PUT", f"/api/kernels/{repo}/settings", json={})
        assert answer.status_code == {**FORBIDDEN, "writer": 403}.get(who, 200)
        create = {"name": repo.split("/")[1], "organization": "acme", "type": "model"}
        assert ask(who, "POST", "/api/repos/create", json=create).status_code == FORBIDDEN.get(
            who, 200 if who == "writer" else 409
        )
    delete = {"name": repo.split("/")[1], "organization": "acme", "type": "kernel"}
    for who in ("nobody", "stranger", "reader", "writer", "admin, read token", "admin"):
        answer = ask(who, "DELETE", "/api/repos/delete", json=delete)
        assert answer.status_code == {**FORBIDDEN, "writer": 403}.get(who, 200), who


def test_private(ask: Callable[..., httpx.Response], new_repo: Callable[..., str]):
    repo = new_repo(private=True)
    for who in WHO:
        hidden = {"nobody": 401, "stranger": 404}.get(who)
        paths = [(method, f"/api/kernels/{repo}{path}") for method, path in READS]
        paths.append(("GET", f"/kernels/{repo}/resolve/main/.gitattributes"))
        paths += [(method, f"/api/kernels/{repo}{path}") for method, path, _ in WRITES if hidden]
        for method, path in paths:
            answer = ask(who, method, path)
            assert answer.status_code == (hidden or 200), (who, path)
            if hidden:
                # The very same answer as for one that does not exist.
                other = ask(who, method, path.replace(repo, "acme/no-such-repo"))
                assert answer.headers["x-error-code"] == "RepoNotFound"
                assert (other.status_code, other.json()) == (answer.status_code, answer.json())
        listed = [item["id"] for item in ask(who, "GET", "/api/kernels?limit=1000").json()]
        assert (repo in listed) == (hidden is None)


def test_gated(
    server: RunningHub, ada: HfApi, new_repo: Callable[..., str], ask: Callable[..., httpx.Response]
):
    repo = new_repo()
    path = f"/kernels/{repo}/resolve/main/.gitattributes"
    ask("admin", "PUT", f"/api/kernels/{repo}/settings", json={"gated": "manual"}).raise_for_status()
    assert ada.repo_info(repo, repo_type="kernel").gated == "manual"
    for who, status in {"nobody": 401, "stranger": 403, "reader": 200, "writer": 200, "admin": 200}.items():
        answer = ask(who, "GET", path)
        assert answer.status_code == status, who
        assert answer.headers.get("x-error-code") == ("GatedRepo" if status != 200 else None)
        assert ask(who, "GET", f"/api/kernels/{repo}").status_code == 200
    eve = HfApi(server.endpoint, token=server.token("eve"))
    with pytest.raises(GatedRepoError, match="ask its owners"):
        eve.hf_hub_download(repo, ".gitattributes", repo_type="kernel")
    asked = ask("stranger", "POST", f"/api/kernels/{repo}/user-access-request")
    assert asked.json() == {"status": "pending"}
    with pytest.raises(GatedRepoError, match="waits"):
        eve.hf_hub_download(repo, ".gitattributes", repo_type="kernel")
    pending = ask("admin", "GET", f"/api/kernels/{repo}/user-access-request/pending").json()
    assert [row["user"]["user"] for row in pending] == ["eve"]
    handle = f"/api/kernels/{repo}/user-access-request/handle"
    for who in ("stranger", "nobody", "reader"):
        assert ask(who, "POST", handle, json={"user": "eve", "status": "accepted"}).status_code in (401, 403)
    ask("writer", "POST", handle, json={"user": "eve", "status": "rejected"}).raise_for_status()
    with pytest.raises(GatedRepoError, match="refused"):
        eve.hf_hub_download(repo, ".gitattributes", repo_type="kernel")
    grant = f"/api/kernels/{repo}/user-access-request/grant"
    assert ask("admin", "POST", grant, json={"user": "no one"}).status_code == 404
    ask("admin", "POST", grant, json={"user": "eve"}).raise_for_status()
    assert eve.hf_hub_download(repo, ".gitattributes", repo_type="kernel")
    # With automatic access, asking is enough.
    other = new_repo()
    ask("admin", "PUT", f"/api/kernels/{other}/settings", json={"gated": "auto"}).raise_for_status()
    assert ask("stranger", "POST", f"/api/kernels/{other}/user-access-request").json()["status"] == "accepted"
    assert ask("stranger", "GET", f"/kernels/{other}/resolve/main/.gitattributes").status_code == 200


def test_tokens_of_one_repository(server: RunningHub, new_repo: Callable[..., str]):
    mine, other, hidden = new_repo(private=True), new_repo(), new_repo(private=True)
    api = HfApi(server.endpoint, token=server.token("ada", repository=mine))

    def add() -> list[CommitOperationAdd]:
        return [CommitOperationAdd("a", b"1")]

    assert api.create_commit(mine, add(), commit_message="1", repo_type="kernel").oid
    assert api.repo_info(other, repo_type="kernel").id == other, "as anybody may"
    with pytest.raises(HfHubHTTPError, match="403.*only"):
        api.create_commit(other, add(), commit_message="1", repo_type="kernel")
    with pytest.raises(RepositoryNotFoundError):
        api.repo_info(hidden, repo_type="kernel")
    with pytest.raises(HfHubHTTPError, match="403"):
        api.create_repo("acme/yet-another", repo_type="kernel")
    reads = HfApi(server.endpoint, token=server.token("ada", "read", repository=mine))
    assert reads.repo_info(mine, repo_type="kernel").private
    with pytest.raises(HfHubHTTPError, match="may only read"):
        reads.create_commit(mine, add(), commit_message="1", repo_type="kernel")


def test_tokens_that_are_none(server: RunningHub, ask: Callable[..., httpx.Response]):
    with server.administer() as hub:
        revoked, token = hub.accounts.new_token("ada", "write")
        expired, _ = hub.accounts.new_token("ada", "write", expires=time.time() - 1)
        assert ask(revoked, "GET", "/api/whoami-v2").status_code == 200
        hub.accounts.remove_token(token.id)
        assert not hub_databases.holds(hub, revoked), "tokens are stored as hashes"
        assert hub_databases.holds(hub, "acme"), "what is there is found"
    for secret in (revoked, expired, "hf_" + "x" * 40, "x"):
        answer = ask(secret, "GET", "/api/kernels")
        assert answer.status_code == 401, "even what anybody may see"
        assert answer.headers["x-error-message"] == "Invalid credentials in Authorization header"
    for header in ("Basic %%%", "Basic eA==", "Digest x", "Bearer", "Bearer \xff"):
        answer = httpx.get(
            f"{server.endpoint}/api/kernels", headers={"Authorization": header.encode("latin-1")}
        )
        assert answer.status_code == 401, header


@pytest.mark.own_addresses
def test_no_credential_is_logged(server: RunningHub, ada: HfApi, new_repo: Callable[..., str]):
    repo = new_repo()
    with pytest.warns(DeprecationWarning, match="content="):
        ada.upload_file(path_or_fileobj=b"x" * 100_000, path_in_repo="big", repo_id=repo, repo_type="kernel")
    commit = f"ada POST /api/kernels/{repo}/commit/main 200"
    log = server.output(until=commit)
    assert "PUT /lfs/" in log and commit in log
    assert "signature" not in log and "hf_" not in log and "?" not in log


def test_a_hub_that_answers_only_with_a_token(tmp_path):
    with start_hub(tmp_path / "hub", require_token=True) as hub:
        api = HfApi(hub.endpoint, token=hub.token("ada"))
        api.create_repo("ada/open", repo_type="kernel")
        with pytest.warns(DeprecationWarning, match="content="):
            api.upload_file(
                path_or_fileobj=b"x" * 2_000_000, path_in_repo="b", repo_id="ada/open", repo_type="kernel"
            )
        assert httpx.get(f"{hub.endpoint}/health").status_code == 200
        for path in (
            "/api/kernels/ada/open",
            "/kernels/ada/open/resolve/main/b",
            "/api/organizations/x/overview",
        ):
            assert httpx.get(hub.endpoint + path).status_code == 401
        assert httpx.get(hub.endpoint + "/").headers["location"] == "/login?next=%2F"
