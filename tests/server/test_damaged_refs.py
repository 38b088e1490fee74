"""Refs that are lost, garbled or changed past the server: said, refused, restored from the log; and copies of a root."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from huggingface_hub import HfApi

from kernels_hub.errors import KernelsHubError
from kernels_hub.server.hub import Hub
from kernels_hub.server.maintenance import backup, check, collect_garbage
from kernels_hub.server.refs import BRANCHES, TAGS, Ref
from kernels_hub.server.refusal import Refusal
from kernels_hub.server.release_check import restore_refs
from kernels_hub.server.releases import Force
from kernels_hub.server.repositories import Repository
from kernels_hub.server.sweep import sweep
from tests.git_folder import change_refs
from tests.running_hub import RunningHub
from tests.server.release_cases import commit, kinds, new, packed, release, tags


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with Hub(tmp_path / "root", create=True) as hub:
        hub.accounts.add_user("ada")
        yield hub


@pytest.fixture
def repo(hub: Hub) -> Repository:
    return new(hub)


GARBLED: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda content: None,
    "empty": lambda content: b"",
    "zeros": lambda content: bytes(len(content)),
    "not UTF-8": lambda content: content[:60] + b"\xff\xfe" + content[60:],
    "cut off": lambda content: content[:-20],
    "no id": lambda content: content.replace(b"\n", b"\nxyz refs/heads/x\n", 1),
    "twice": lambda content: content + content.split(b"\n")[1] + b"\n",
    "peeled first": lambda content: b"^" + b"0" * 40 + b"\n" + content,
}


@pytest.mark.git_folder
@pytest.mark.parametrize("how", GARBLED)
def test_garbled_refs_are_said_and_restored(hub: Hub, repo: Repository, how: str):
    one = release(hub, repo, "v1.0.0", "1")
    two = commit(hub, repo, "file", "2")
    sound = new(hub, "sound")
    path = packed(hub, repo)
    if (content := GARBLED[how](path.read_bytes())) is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(Refusal, match="damaged on the server.*hub fsck") as found:
        hub.store.resolve(repo, "main")
    assert found.value.status == 500
    for change in (
        lambda: commit(hub, repo, "file", "3"),
        lambda: hub.changes.create_tag(repo, "v2.0.0", "main", None, "ada"),
        lambda: hub.changes.create_branch(repo, "b", None),
    ):
        with pytest.raises(Refusal, match="damaged"):
            change()
    problems = check(hub)
    text = "\n".join(problems)
    assert all(problem.startswith("kernel ada/k: ") for problem in problems)
    assert "packed-refs" in text and f"v1.0.0 at {one}" in text and two in text and "hub repo restore" in text
    with pytest.raises(KernelsHubError, match=r"is damaged .* nothing was removed"):
        collect_garbage(hub, prune=True, grace=0)
    assert {one, two} <= set(hub.store.content(repo).packs.oids())
    assert hub.store.resolve(sound, "main") and sweep(hub) == []
    with pytest.raises(KernelsHubError, match=f"nothing says where main of ada/k was.*{two}"):
        restore_refs(hub, repo, {})
    with pytest.raises(KernelsHubError, match="no commit of ada/k"):
        restore_refs(hub, repo, {"main": "0" * 40})
    restore_refs(hub, repo, {"main": two})
    assert check(hub) == [] and tags(hub, repo) == {"v1.0.0": one} and hub.store.resolve(repo, "main") == two


@pytest.mark.git_folder
def test_a_server_answers_for_damaged_refs(server: RunningHub, ada: HfApi, new_repo: Callable[..., str]):
    name, other = new_repo(), new_repo()
    with server.administer() as hub:
        found = hub.repositories.find("kernel", *name.split("/"))
        assert found is not None
        path = packed(hub, found)
    kept = path.read_bytes()
    try:
        for content in (b"\xff\xfe garbled\n", None):
            path.unlink() if content is None else path.write_bytes(content)
            for url in (
                f"/api/kernels/{name}/refs",
                f"/kernels/{name}/resolve/main/x",
                f"/api/kernels/{name}",
            ):
                answer = httpx.get(server.endpoint + url)
                assert (
                    answer.status_code == 500
                    and "is damaged on the server" in answer.headers["X-Error-Message"]
                )
            assert httpx.get(f"{server.endpoint}/api/kernels/{other}/refs").status_code == 200
            listed = httpx.get(f"{server.endpoint}/api/kernels?author=acme&limit=1000").json()
            assert {name, other} <= {row["id"] for row in listed}
            assert httpx.get(f"{server.endpoint}/").status_code == 200
        assert "Traceback" not in server.output()
    finally:
        path.write_bytes(kept)


def test_fsck_compares_refs_with_the_log(hub: Hub, repo: Repository):
    one = release(hub, repo, "v1.0.0", "1")
    two = release(hub, repo, "v1.1.0", "2")
    change_refs(hub, repo, {TAGS + "v1.0.0": Ref(two), TAGS + "v1.1.0": None, TAGS + "v9.0.0": Ref(one)})
    problems = "\n".join(check(hub))
    assert "the tag v1.0.0 is at" in problems and "moved past the server" in problems
    assert "v1.1.0 has lost its tag" in problems and "v9.0.0" in problems
    with pytest.raises(KernelsHubError, match="nothing was removed"):
        collect_garbage(hub)
    restore_refs(hub, repo, {})
    assert check(hub) == [] and tags(hub, repo) == {"v1.0.0": one, "v1.1.0": two}
    change_refs(hub, repo, {BRANCHES + "main": None})
    assert any("has no refs/heads/main" in problem for problem in check(hub))


def test_annotated_tags_are_restored_as_they_were(hub: Hub, repo: Repository):
    hub.changes.create_tag(repo, "v1.0.0", "main", "A message", "ada")
    commit(hub, repo, "yanked.json", '{"1.0.0": "slow"}')
    refs = hub.store.content(repo).refs
    before = dict(refs.all())
    change_refs(hub, repo, {TAGS + "v1.0.0": None})
    restore_refs(hub, repo, {})
    assert dict(refs.all()) == before
    assert hub.store.tag_message(repo, before[TAGS + "v1.0.0"].oid) == "A message"
    assert hub.audit.records(last=1)[0].action == "repository.restore" and check(hub) == []


def test_a_lost_repository_is_missed(hub: Hub, repo: Repository):
    release(hub, repo, "v1.0.0", "1")
    hub.database.change("DELETE FROM repositories")
    hub.git.remove(repo.id)
    assert any("there is no repository" in problem for problem in check(hub))


def test_a_copy_has_the_releases_of_its_log(
    hub: Hub, repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Releases go on while a root is copied."""
    from kernels_hub.server import maintenance

    release(hub, repo, "v1.0.0", "1")
    gone = new(hub, "gone")
    release(hub, gone, "v1.0.0", "1")
    copied = maintenance._copy_repository

    def late(hub: Hub, repository: Repository, target: Path, *, large_files: bool) -> dict[str, int] | None:
        if repository.id == repo.id:
            release(hub, repo, "v1.1.0", "2")
            hub.changes.force_tag(repo, "v1.0.0", "main", "root", Force("x"))
        else:
            hub.store.delete(gone)
        return copied(hub, repository, target, large_files=large_files)

    monkeypatch.setattr(maintenance, "_copy_repository", late)
    one = hub.store.resolve(repo, "v1.0.0")
    backup(hub, tmp_path / "copy")
    with Hub(tmp_path / "copy") as copy:
        assert check(copy) == []
        assert tags(copy, repo) == {"v1.0.0": one}
        assert kinds(copy) == [("release", "v1.0.0")]
    assert kinds(hub)[-1] == ("forced-move", "v1.0.0") and check(hub) == []
