"""What unmodified huggingface_hub does, against one process and two, for both types of repository."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationCopy,
    CommitOperationDelete,
    HfApi,
    hf_hub_url,
)
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from tests.object_store import directly
from tests.running_hub import RunningHub

_numbers = itertools.count()
# huggingface_hub 2.4.0's own way of sending large files.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")


@pytest.fixture(params=["kernel", "model"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def api(each: RunningHub) -> HfApi:
    return HfApi(each.endpoint, token=each.token("ada"))


@pytest.fixture
def repo(api: HfApi, kind: str) -> str:
    name = f"acme/protocol{next(_numbers)}"
    api.create_repo(name, repo_type=kind)
    return name


def add(path: str, content: bytes | str) -> CommitOperationAdd:
    return CommitOperationAdd(path, content.encode() if isinstance(content, str) else content)


def test_accounts(api: HfApi):
    me = api.whoami()
    assert (me["name"], me["auth"]["accessToken"]["role"]) == ("ada", "write")
    assert ("acme", "admin") in [(org["name"], org["roleInOrg"]) for org in me["orgs"]]
    assert api.get_organization_overview("acme").trustedKernelPublisher is True
    assert api.get_user_overview("ada").username == "ada"
    assert next(iter(api.list_organization_members("acme"))).username == "ada"
    with pytest.raises(HfHubHTTPError, match="404"):
        api.get_organization_overview("nobody")


def test_create_and_delete(api: HfApi, kind: str, each: RunningHub):
    name = f"acme/made{next(_numbers)}"
    prefix = "" if kind == "model" else "kernels/"
    assert api.create_repo(name, repo_type=kind) == f"{each.endpoint}/{prefix}{name}"
    assert api.create_repo(name, repo_type=kind, exist_ok=True).repo_id == name
    with pytest.raises(HfHubHTTPError, match="409"):
        api.create_repo(name, repo_type=kind)
    with pytest.raises(HfHubHTTPError, match="differs only in case"):
        api.create_repo(name.upper().replace("ACME", "acme"), repo_type=kind, exist_ok=True)
    api.delete_repo(name, repo_type=kind)
    with pytest.raises(RepositoryNotFoundError):
        api.repo_info(name, repo_type=kind)
    with pytest.raises(RepositoryNotFoundError):
        api.delete_repo(name, repo_type=kind)
    api.delete_repo(name, repo_type=kind, missing_ok=True)
    api.create_repo(name, repo_type=kind)


def test_a_commit_and_everything_that_reads_it(api: HfApi, repo: str, kind: str, tmp_path: Path):
    large = os.urandom(300_000)
    card = "---\nlicense: mit\ntags: [kernel]\n---\n# Title\n"
    done = api.create_commit(
        repo,
        [add("README.md", card), add("build/a b/ü.py", "x = 1\n"), add("build/k.so", large)],
        commit_message="First",
        commit_description="More",
        repo_type=kind,
    )
    info = api.repo_info(repo, repo_type=kind)
    assert info.sha == done.oid and info.private is False and info.id == repo
    if kind == "model":
        assert info.card_data["license"] == "mit"
        found = {item.rfilename: item for item in api.model_info(repo, files_metadata=True).siblings}
        assert found["build/k.so"].size == 300_000 and found["build/k.so"].lfs is not None
    entries = {item.path: item for item in api.list_repo_tree(repo, recursive=True, repo_type=kind)}
    assert list(entries) == [
        ".gitattributes",
        "README.md",
        "build",
        "build/a b",
        "build/a b/ü.py",
        "build/k.so",
    ]
    assert entries["build/k.so"].size == 300_000 and entries["README.md"].lfs is None
    below = [item.path for item in api.list_repo_tree(repo, "build/a b", repo_type=kind)]
    assert below == ["build/a b/ü.py"]
    infos = api.get_paths_info(repo, ["build", "README.md", "none"], repo_type=kind)
    assert sorted(item.path for item in infos) == ["README.md", "build"]
    assert api.file_exists(repo, "README.md", repo_type=kind)
    assert not api.file_exists(repo, "none", repo_type=kind)
    folder = Path(api.snapshot_download(repo, repo_type=kind, cache_dir=tmp_path / "c"))
    assert (folder / "build/k.so").read_bytes() == large
    assert (folder / "build/a b/ü.py").read_text() == "x = 1\n"
    path = api.hf_hub_download(
        repo, "build/k.so", repo_type=kind, revision=done.oid, local_dir=tmp_path / "l"
    )
    assert Path(path).read_bytes() == large
    first, second = api.list_repo_commits(repo, repo_type=kind)
    assert (first.title, first.message, first.authors) == ("First", "More", ["ada"])
    assert second.title == "initial commit"


def test_branches_tags_and_quoted_revisions(api: HfApi, repo: str, kind: str, tmp_path: Path):
    one = api.create_commit(repo, [add("a", "1")], commit_message="1", repo_type=kind).oid
    api.create_tag(repo, tag="v1.0.0", tag_message="First", repo_type=kind)
    api.create_branch(repo, branch="feature/x", repo_type=kind)
    two = api.create_commit(
        repo, [add("a", "2")], commit_message="2", revision="feature/x", repo_type=kind
    ).oid
    api.create_branch(repo, branch="v1", revision="v1.0.0", repo_type=kind)
    api.create_tag(repo, tag="v1.1.0", revision="feature/x", repo_type=kind)
    refs = api.list_repo_refs(repo, repo_type=kind)
    assert {ref.name: ref.target_commit for ref in refs.branches} == {
        "main": one,
        "feature/x": two,
        "v1": one,
    }
    assert {ref.name: ref.target_commit for ref in refs.tags} == {"v1.0.0": one, "v1.1.0": two}
    for revision, content in [("feature/x", "2"), ("v1.0.0", "1"), (two, "2"), ("main", "1")]:
        path = api.hf_hub_download(repo, "a", revision=revision, repo_type=kind, cache_dir=tmp_path / "c")
        assert Path(path).read_text() == content
    for branch in ("v1", "feature/x/y", "v1/x"):
        with pytest.raises(HfHubHTTPError, match="409"):
            api.create_branch(repo, branch=branch, repo_type=kind)
    api.create_branch(repo, branch="v1", exist_ok=True, repo_type=kind)
    with pytest.raises(HfHubHTTPError, match="409"):
        api.create_tag(repo, tag="v1.0.0", repo_type=kind)
    api.create_tag(repo, tag="v1.0.0", exist_ok=True, repo_type=kind)
    for tag in ("v1.0.0", "v1.1.0"):
        with pytest.raises(
            HfHubHTTPError, match="is a release, which is never deleted.*Publish a new version"
        ):
            api.delete_tag(repo, tag=tag, repo_type=kind)
    api.create_tag(repo, tag="latest", repo_type=kind)
    api.delete_tag(repo, tag="latest", repo_type=kind)
    api.delete_branch(repo, branch="feature/x", repo_type=kind)
    with pytest.raises(HfHubHTTPError, match="403"):
        api.delete_branch(repo, branch="main", repo_type=kind)
    for missing in ("feature/x", "latest", "0" * 40):
        with pytest.raises(RevisionNotFoundError):
            api.hf_hub_download(repo, "a", revision=missing, repo_type=kind, cache_dir=tmp_path / "c")
        with pytest.raises(RevisionNotFoundError):
            list(api.list_repo_tree(repo, revision=missing, repo_type=kind))
    # A commit that lost its branch is still there for those who pinned it.
    assert Path(api.hf_hub_download(repo, "a", revision=two, repo_type=kind)).read_text() == "2"


def test_changes(api: HfApi, repo: str, kind: str):
    large = os.urandom(200_000)
    api.create_commit(
        repo,
        [add("keep", "k"), add("gone", "g"), add("dir/x", "x"), add("dir/y/z", "z"), add("big", large)],
        commit_message="1",
        repo_type=kind,
    )
    api.create_commit(
        repo,
        [
            CommitOperationDelete("gone"),
            CommitOperationDelete("dir/"),
            CommitOperationCopy("big", "big2"),
            CommitOperationCopy("keep", "kept"),
        ],
        commit_message="2",
        repo_type=kind,
    )
    assert api.list_repo_files(repo, repo_type=kind) == [".gitattributes", "big", "big2", "keep", "kept"]
    copied = api.hf_hub_download(repo, "big2", repo_type=kind)
    assert Path(copied).read_bytes() == large
    with pytest.raises(EntryNotFoundError):
        api.create_commit(repo, [CommitOperationDelete("gone")], commit_message="3", repo_type=kind)


def test_the_same_tree_again_is_no_new_commit(api: HfApi, repo: str, kind: str):
    import httpx

    head = api.create_commit(repo, [add("a", "1")], commit_message="1", repo_type=kind).oid
    header = {"summary": "again", "parentCommit": head}
    lines = [
        {"key": "header", "value": header},
        {"key": "file", "value": {"path": "a", "content": "1", "encoding": "utf-8"}},
    ]
    answer = httpx.post(
        f"{api.endpoint}/api/{kind}s/{repo}/commit/main",
        content="\n".join(map(json.dumps, lines)),
        headers={"Authorization": f"Bearer {api.token}"},
    )
    assert (answer.status_code, answer.json()["commitOid"]) == (200, head)
    assert len(api.list_repo_commits(repo, repo_type=kind)) == 2


def test_a_stale_parent_is_refused(api: HfApi, repo: str, kind: str):
    old = api.repo_info(repo, repo_type=kind).sha
    head = api.create_commit(
        repo, [add("a", "1")], commit_message="1", parent_commit=old[:12], repo_type=kind
    ).oid
    with pytest.raises(HfHubHTTPError, match="412"):
        api.create_commit(repo, [add("a", "2")], commit_message="2", parent_commit=old, repo_type=kind)
    assert api.repo_info(repo, repo_type=kind).sha == head


def test_large_files_in_parts(api: HfApi, repo: str, kind: str, each: RunningHub):
    large = os.urandom(2_500_000 if not directly() else 12_000_000)
    api.upload_file(path_or_fileobj=large, path_in_repo="m/big.bin", repo_id=repo, repo_type=kind)
    if directly():
        assert [r.path.rsplit("/", 1)[1] for r in each.requests() if r.path.startswith("/lfs/")][-1:] == [
            "stored"
        ]
    else:
        parts = [r for r in each.requests() if "/part/" in r.path and r.status == 200]
        assert {request.path.rsplit("/", 1)[1] for request in parts} == {"1", "2", "3"}
    assert Path(api.hf_hub_download(repo, "m/big.bin", repo_type=kind)).read_bytes() == large
    before = len(each.requests())
    api.upload_file(path_or_fileobj=large, path_in_repo="other.bin", repo_id=repo, repo_type=kind)
    again = each.requests()[before:]
    assert not [r for r in again if r.path.startswith("/lfs/")], "what is there is not sent again"


def test_one_large_content_under_several_names_in_one_commit(api: HfApi, repo: str, kind: str):
    """Clients send each of them, at the same time."""
    content = os.urandom(2_700_000)
    names = [f"{number}.bin" for number in range(6)]
    adds = [CommitOperationAdd(name, content) for name in names]
    api.create_commit(repo, adds, commit_message="six of one", repo_type=kind, num_threads=6)
    for name in names:
        assert Path(api.hf_hub_download(repo, name, repo_type=kind)).read_bytes() == content


def test_a_folder_with_gitignore(api: HfApi, repo: str, kind: str, tmp_path: Path):
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    for name in ("a.py", "b.log", "sub/c.py", "sub/d.log"):
        (folder / name).write_text(name)
    (folder / ".gitignore").write_text("*.log\n!b.log\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    api.upload_folder(repo_id=repo, folder_path=folder, repo_type=kind)
    assert api.list_repo_files(repo, repo_type=kind) == [
        ".gitattributes",
        ".gitignore",
        "a.py",
        "b.log",
        "run.sh",
        "sub/c.py",
    ]
    api.upload_folder(repo_id=repo, folder_path=folder, repo_type=kind, delete_patterns="*.py")
    api.delete_folder("sub", repo_id=repo, repo_type=kind)
    assert "sub/c.py" not in api.list_repo_files(repo, repo_type=kind)


def test_many_files_over_several_pages(api: HfApi, repo: str, kind: str):
    files = [add(f"d{n % 7}/f{n:04}", str(n)) for n in range(1500)]
    api.create_commit(repo, files, commit_message="many", repo_type=kind)
    paths = [item.path for item in api.list_repo_tree(repo, recursive=True, repo_type=kind)]
    assert len(paths) == len(set(paths)) == 1500 + 7 + 1


def test_lists_settings_and_moves(api: HfApi, repo: str, kind: str, each: RunningHub):
    import httpx

    def names(client: httpx.Client, **query: object) -> list[str]:
        answer = client.get(f"/api/{kind}s", params={"author": "acme", "limit": 1000, **query})
        return [item["id"] for item in answer.json()]

    with (
        httpx.Client(base_url=each.endpoint) as nobody,
        httpx.Client(base_url=each.endpoint, headers={"Authorization": f"Bearer {api.token}"}) as admin,
    ):
        assert repo in names(nobody) and names(nobody, search="no such thing") == []
        admin.put(f"/api/{kind}s/{repo}/settings", json={"private": True}).raise_for_status()
        assert repo not in names(nobody) and repo in names(admin)
        listed, url = [], f"/api/{kind}s?author=acme&limit=2"
        while url:
            answer = admin.get(url)
            listed += [item["id"] for item in answer.json()]
            url = answer.links.get("next", {}).get("url", "")
        assert sorted(listed) == sorted(names(admin))
    if kind == "model":
        assert repo in [item.id for item in api.list_models(author="acme")]
    moved = repo + "-moved"
    api.move_repo(repo, moved, repo_type=kind)
    assert api.repo_info(moved, repo_type=kind).private is True


def test_ranges_and_headers(api: HfApi, repo: str, kind: str):
    import httpx

    large = os.urandom(100_000)
    api.create_commit(
        repo, [add("small.html", "0123456789"), add("large", large)], commit_message="1", repo_type=kind
    )
    with httpx.Client(headers={"Accept-Encoding": "identity"}, follow_redirects=True) as client:

        def get(name: str, wanted: str | None, **headers: str) -> httpx.Response:
            url = hf_hub_url(repo, name, repo_type=kind, endpoint=api.endpoint)
            return client.get(url, headers={**({"Range": wanted} if wanted else {}), **headers})

        for name, content in (("small.html", b"0123456789"), ("large", large)):
            size = len(content)
            for wanted, start, end in [
                ("bytes=0-0", 0, 1),
                ("bytes=2-4", 2, 5),
                ("bytes=5-", 5, size),
                ("bytes=-3", size - 3, size),
                (f"bytes=3-{size * 10}", 3, size),
                (f"bytes=-{size * 10}", 0, size),
            ]:
                answer = get(name, wanted)
                assert (answer.status_code, answer.content) == (206, content[start:end]), wanted
                assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/{size}"
            for wanted in (f"bytes={size}-", "bytes=-0", f"bytes={size + 5}-{size + 9}"):
                assert get(name, wanted).status_code == 416
            odd = (
                ()
                if name == "large" and directly()
                else ("bytes=5-2", "lines=1-2", "bytes=0-1,3-4", "bytes=-")
            )
            for wanted in (None, *odd):
                assert (get(name, wanted).status_code, get(name, wanted).content) == (200, content)
        whole = get("small.html", None)
        etag = whole.headers["etag"]
        assert whole.headers["content-disposition"].startswith("attachment")
        assert whole.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in whole.headers["content-security-policy"]
        assert whole.headers["content-type"] == "application/octet-stream"
        assert get("small.html", None, **{"If-None-Match": etag}).status_code == 304
        assert get("small.html", "bytes=1-2", **{"If-Range": etag}).status_code == 206
        assert get("small.html", "bytes=1-2", **{"If-Range": '"other"'}).status_code == 200
        missing = get("none", None)
        assert missing.status_code == 404 and missing.headers["x-error-code"] == "EntryNotFound"
        assert len(missing.headers["x-repo-commit"]) == 40
