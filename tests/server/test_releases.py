"""Releases are immutable by every way into a repository, and the log keeps what becomes of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import HfHubHTTPError

import kernels_hub.server as server_package
from kernels_hub.errors import KernelsHubError
from kernels_hub.repository.release_entry import START, ReleaseEntry, chain_problem, standings
from kernels_hub.server.database import RowConflictError
from kernels_hub.server.hub import Hub
from kernels_hub.server.maintenance import check, collect_garbage
from kernels_hub.server.refs import BRANCHES, TAGS, Ref
from kernels_hub.server.refusal import Refusal
from kernels_hub.server.releases import Force
from kernels_hub.server.repositories import Repository
from kernels_hub.server.sweep import sweep
from tests import hub_databases
from tests.git_folder import change_refs
from tests.running_hub import RunningHub
from tests.server.release_cases import CHAIN, commit, kinds, log, new, release, tags

RELEASES = [
    "v1.0.0",
    "v0.1.0",
    "v1.0.0rc1",
    "v1.0.0-rc.1",
    "v2.0.0.dev3",
    "v1.2.3.post1",
    "v1.0.0+local",
    "v1.0.0.1",
]
OTHERS = [
    "latest",
    "v1",
    "v1.0",
    "1.0.0",
    "release-v1.0.0",
    "V1.0.0",
    "v1.0.0/x",
    "v1.0.0 beta".replace(" ", "_x"),
]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with Hub(tmp_path / "root", create=True) as hub:
        hub.accounts.add_user("ada")
        yield hub


@pytest.fixture
def repo(hub: Hub) -> Repository:
    return new(hub)


# -- immutable ----------------------------------------------------------------------------------------


@pytest.mark.each_database
@pytest.mark.parametrize("tag", RELEASES)
def test_a_release_is_neither_deleted_nor_moved(hub: Hub, repo: Repository, tag: str):
    one = release(hub, repo, tag, "1")
    two = commit(hub, repo, "file", "2")
    with pytest.raises(
        Refusal, match=r"is a release, which is never deleted.*Publish a new version.*yank"
    ) as found:
        hub.changes.delete_tag(repo, tag, "ada")
    assert found.value.status == 403
    with pytest.raises(Refusal) as found:
        hub.changes.create_tag(repo, tag, two, None, "ada")
    assert found.value.status == 409
    assert tags(hub, repo) == {tag: one} and kinds(hub) == [("release", tag)]


@pytest.mark.parametrize("tag", OTHERS)
def test_other_tags_come_and_go(hub: Hub, repo: Repository, tag: str):
    release(hub, repo, tag, "1")
    hub.changes.delete_tag(repo, tag, "ada")
    two = release(hub, repo, tag, "2")
    assert tags(hub, repo) == {tag: two} and log(hub) == []


@pytest.mark.each_database
@pytest.mark.parametrize("other", ["v1.00.0", "v1.0.0.0", "v01.0.0", "v1.0.0-0".replace("-0", ".0.0")])
def test_another_spelling_of_a_version_is_refused(hub: Hub, repo: Repository, other: str):
    release(hub, repo, "v1.0.0", "1")
    commit(hub, repo, "file", "2")
    with pytest.raises(Refusal, match=f"{other} is another spelling of v1.0.0"):
        release(hub, repo, other)
    hub.changes.delete_tag(repo, "v1.0.0", force=Force("gone"))
    with pytest.raises(Refusal, match="another spelling"):
        release(hub, repo, other)


def test_no_branch_stands_in_a_releases_place(hub: Hub, repo: Repository):
    one = release(hub, repo, "v1.0.0", "1")
    commit(hub, repo, "file", "2")
    for branch in ("v1.0.0", "v2.0.0"):
        with pytest.raises(Refusal, match="is the name of a release") as found:
            hub.changes.create_branch(repo, branch, None)
        assert found.value.status == 403
    # As a root may have it from before: the tag is what the name means.
    change_refs(hub, repo, {BRANCHES + "v1.0.0": Ref(hub.store.resolve(repo, "main"))})
    assert hub.store.resolve(repo, "v1.0.0") == one
    change_refs(hub, repo, {BRANCHES + "v3.0.0": Ref(one)})
    with pytest.raises(Refusal, match="There is a branch v3.0.0"):
        release(hub, repo, "v3.0.0")
    hub.changes.delete_branch(repo, "v3.0.0")
    release(hub, repo, "v3.0.0")


def test_a_commit_to_a_tag_or_over_a_release_is_refused(hub: Hub, repo: Repository):
    one = release(hub, repo, "v1.0.0", "1")
    for name in ("v1.0.0", "refs/tags/v1.0.0"):
        with pytest.raises(Refusal):
            commit(hub, repo, "file", "2", name)
    assert tags(hub, repo) == {"v1.0.0": one}


def test_refs_are_written_in_few_places():
    """Whoever writes refs past `Releases.write` could move a release."""
    allowed = {
        ("releases.py", "refs.change("),
        ("release_check.py", "content.refs.replace("),  # what the log says
        ("release_check.py", "content.refs.change("),
        ("movable.py", "self._now().change("),  # hands on what these ask for
        ("movable.py", "self._now().replace("),
    }
    found = {
        (path.name, match)
        for path in Path(server_package.__file__).parent.rglob("*.py")
        for match in re.findall(r"\b(?:\w+\.)*(?:refs|_now\(\))\.(?:change|replace)\(", path.read_text())
    }
    assert found == allowed


# -- a name keeps its releases ------------------------------------------------------------------------


@pytest.mark.each_database
def test_a_deleted_repository_leaves_its_releases(hub: Hub, repo: Repository):
    one = release(hub, repo, "v1.0.0", "1")
    hub.store.delete(repo, "ada")
    assert kinds(hub) == [("release", "v1.0.0"), ("delete", "v1.0.0")]
    assert log(hub)[-1].note == "the repository was deleted" and log(hub)[-1].commit == one
    assert check(hub) == []
    again = hub.changes.create("kernel", "ADA".lower(), "K", private=False, author="ada")
    with pytest.raises(
        Refusal, match="released v1.0.0 before, with other content.*publish a new version"
    ) as found:
        release(hub, again, "v1.0.0", "2")
    assert found.value.status == 403 and tags(hub, again) == {}
    two = release(hub, again, "v1.0.1")
    hub.changes.delete_branch
    same = commit(hub, again, "file", "1")
    hub.changes.create_tag(again, "v1.0.0", same, None, "ada")  # the same content may come back
    assert tags(hub, again) == {"v1.0.0": same, "v1.0.1": two}
    assert [kind for kind, _ in kinds(hub)] == ["release", "delete", "release", "release"]
    assert check(hub) == []


@pytest.mark.each_database
def test_a_renamed_repository_takes_its_releases_along(hub: Hub, repo: Repository):
    release(hub, repo, "v1.0.0", "1")
    commit(hub, repo, "yanked.json", '{"1.0.0": "slow"}')
    hub.changes.rename(repo, "ada", "other", "ada")
    assert kinds(hub)[-1] == ("delete", "v1.0.0") and "renamed to ada/other" in log(hub)[-1].note
    assert kinds(hub, "kernel/ada/other") == [("release", "v1.0.0"), ("yank", "v1.0.0")]
    taken = new(hub)  # under the old name
    with pytest.raises(Refusal, match="with other content"):
        release(hub, taken, "v1.0.0", "2")
    release(hub, taken, "v2.0.0", "2")
    hub.store.delete(taken, "ada")
    moved = hub.repositories.find("kernel", "ada", "other")
    assert moved is not None
    release(hub, moved, "v2.0.0", "3")
    with pytest.raises(Refusal, match=r"ada/k released v2\.0\.0 with other content") as found:
        hub.changes.rename(moved, "ada", "k", "ada")
    assert found.value.status == 409
    assert hub.repositories.by_id(moved.id) == moved and check(hub) == []


def test_gc_keeps_releases(hub: Hub, repo: Repository):
    hub.changes.create_branch(repo, "side", None)
    oid = commit(hub, repo, "file", "1", "side")
    hub.changes.create_tag(repo, "v1.0.0", oid, "annotated", "ada")
    hub.changes.delete_branch(repo, "side")
    collect_garbage(hub, prune=True, grace=0)
    assert hub.store.resolve(repo, "v1.0.0") == oid and check(hub) == []


# -- by force -----------------------------------------------------------------------------------------


@pytest.mark.each_database
def test_an_administrator_can_force_it_and_it_shows(hub: Hub, repo: Repository):
    one = release(hub, repo, "v1.0.0", "1")
    two = commit(hub, repo, "file", "2")
    with pytest.raises(Refusal) as found:
        hub.changes.force_tag(repo, "v9.0.0", two, "root", Force("never was"))
    assert found.value.status == 404
    with pytest.raises(Refusal, match="is at .* already"):
        hub.changes.force_tag(repo, "v1.0.0", one, "root", Force("no change"))
    hub.changes.force_tag(repo, "v1.0.0", two, "root", Force("leaked a key"))
    assert tags(hub, repo) == {"v1.0.0": two}
    hub.changes.delete_tag(repo, "v1.0.0", "root", force=Force("again"))
    moved, deleted = log(hub)[1:]
    assert (moved.kind, moved.commit, moved.actor, moved.note) == ("forced-move", two, "root", "leaked a key")
    assert (deleted.kind, deleted.commit, deleted.note) == ("delete", two, "again")
    assert log(hub)[0].commit == one and log(hub)[0].digest != moved.digest
    with pytest.raises(Refusal, match="never comes back"):
        hub.changes.create_tag(repo, "v1.0.0", one, None, "ada")
    assert [record.action for record in hub.audit.records(last=2)] == [
        "release.forced-move",
        "release.delete",
    ]
    assert check(hub) == []


def test_the_command_asks_for_force_and_a_reason(
    hub: Hub, repo: Repository, capsys: pytest.CaptureFixture[str]
):
    from kernels_hub.cli import main

    release(hub, repo, "v1.0.0", "1")
    two = commit(hub, repo, "file", "2")

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as done:
            main(["hub", *arguments, "--root", str(hub.layout.root)])
        out, err = capsys.readouterr()
        return int(done.value.code or 0), out + err

    for given in ([], ["--force"], ["--reason", "x"], ["--force", "--reason", " "]):
        code, said = run("release", "move", "ada/k", "v1.0.0", two, *given)
        assert code == 1 and "give --force and a --reason" in said
    assert run("release", "move", "ada/k", "latest", two, "--force", "--reason", "x")[0] == 1
    hostile = "bad\x1b[2J\nnews"
    assert run("release", "move", "ada/k", "v1.0.0", two, "--force", "--reason", hostile)[0] == 0
    code, said = run("log")
    assert code == 0 and "forced-move" in said and "\x1b" not in said and "bad" in said
    assert len(said.splitlines()) == 2
    code, said = run("log", "ada/k", "--json")
    assert [row["kind"] for row in json.loads(said)["entries"]] == ["release", "forced-move"]
    assert json.loads(said)["entries"][1]["note"] == hostile
    code, said = run("log", "--audit")
    assert code == 0 and "release.forced-move" in said and "\x1b" not in said
    code, said = run("release", "delete", "ada/k", "v1.0.0", "--force", "--reason", "x")
    assert code == 0 and tags(hub, repo) == {}
    assert run("log", "other/k")[1] == "no releases yet\n"


def test_the_page_shows_it(server: RunningHub, ada: HfApi, new_repo: Callable[..., str]):
    name = new_repo()
    for version in ("1.0.0", "1.1.0", "1.2.0"):
        ada.create_tag(name, tag=f"v{version}", repo_type="kernel")
    head = ada.create_commit(
        name, [CommitOperationAdd("a", b"1")], commit_message="m", repo_type="kernel"
    ).oid
    with server.administer() as hub:
        found = hub.repositories.find("kernel", *name.split("/"))
        assert found is not None
        hub.changes.force_tag(found, "v1.0.0", head, "root", Force("<b>leaked</b>"))
        hub.changes.delete_tag(found, "v1.1.0", "root", force=Force("<script>x</script>"))
    page = httpx.get(f"{server.endpoint}/kernels/{name}").text
    assert "moved by force on " in page and "&lt;b&gt;leaked&lt;/b&gt;" in page
    assert page.count("changed by force") == 1
    page = httpx.get(f"{server.endpoint}/kernels/{name}/versions").text
    assert "v1.1.0 removed on " in page and "&lt;script&gt;x" in page and "<script>x" not in page


# -- the log ------------------------------------------------------------------------------------------


@pytest.mark.each_database
def test_yanks_are_logged_as_the_file_says(hub: Hub, repo: Repository):
    release(hub, repo, "v1.0.0", "1")
    release(hub, repo, "v1.1.0", "2")
    commit(hub, repo, "yanked.json", '{"1.0.0": "wrong", "9.9.9": "no release"}')
    commit(hub, repo, "other", "x")
    commit(hub, repo, "yanked.json", '{"1.0.0": "wrong for odd rows", "1.1.0": ""}')
    commit(hub, repo, "yanked.json", "not JSON")
    commit(hub, repo, "yanked.json", '{"2.0.0": "from the start"}')
    release(hub, repo, "v2.0.0", "3")
    hub.changes.create_branch(repo, "clean", log(hub)[0].commit)
    hub.changes.create_branch(repo, "main", "clean", overwrite=True, author="ada")
    assert [(entry.kind, entry.tag, entry.note) for entry in log(hub)[2:]] == [
        ("yank", "v1.0.0", "wrong"),
        ("yank", "v1.0.0", "wrong for odd rows"),
        ("yank", "v1.1.0", ""),
        ("unyank", "v1.0.0", ""),
        ("unyank", "v1.1.0", ""),
        ("release", "v2.0.0", ""),
        ("yank", "v2.0.0", "from the start"),
        ("unyank", "v2.0.0", ""),
    ]
    assert check(hub) == []


def test_the_digest_is_that_of_sha256sum(hub: Hub, repo: Repository):
    import hashlib

    release(hub, repo, "v1.0.0", "1")
    files = {
        ".gitattributes": hub.store.blob(
            repo,
            hub.store.listing(repo, "main" and hub.store.resolve(repo, "main")).entries[".gitattributes"].oid,
        ),
        "file": b"1",
    }
    lines = b"".join(
        hashlib.sha256(files[path]).hexdigest().encode() + b"  " + path.encode() + b"\n"
        for path in sorted(files)
    )
    assert log(hub)[0].digest == hashlib.sha256(lines).hexdigest()


@pytest.mark.each_database
@pytest.mark.parametrize("table", ["release_log", "audit_log"])
def test_rows_of_the_logs_stay(hub: Hub, repo: Repository, table: str):
    release(hub, repo, "v1.0.0", "1")
    for statement in (f"DELETE FROM {table}", f"UPDATE {table} SET hash = ''"):
        with pytest.raises(RowConflictError, match="append-only"):
            hub.database.change(statement)


@pytest.mark.each_database
def test_a_changed_log_is_found(hub: Hub, repo: Repository):
    release(hub, repo, "v1.0.0", "1")
    release(hub, repo, "v1.1.0", "2")
    assert check(hub) == []
    with hub_databases.unguarded(hub, "release_log"):
        hub.database.change(
            "UPDATE release_log SET document = replace(document, 'ada\"', 'bob\"') WHERE number = 0"
        )
    assert any("entry #0" in problem or "entry #1" in problem for problem in check(hub))
    with hub_databases.unguarded(hub, "audit_log"):
        hub.database.change("UPDATE audit_log SET document = replace(document, 'user.add', 'user.sub')")
    assert any("audit log: record 0" in problem for problem in check(hub))


def test_a_chain_is_checked(hub: Hub, repo: Repository):
    for number in range(3):
        release(hub, repo, f"v1.{number}.0", str(number))
    one, two, three = log(hub)
    assert one.previous == START and two.previous == one.hash
    assert chain_problem([two, three], CHAIN, one.hash, 1) is None
    for wrong in ([two, three], [one, three], [one, two, two], [three, two, one]):
        assert chain_problem(wrong, CHAIN) is not None
    assert chain_problem([one], "kernel/ada/other") is not None
    assert {item.entry.tag for item in standings([one, two, three]).values()} == {
        "v1.0.0",
        "v1.1.0",
        "v1.2.0",
    }


@pytest.mark.sqlite
def test_an_older_roots_releases_are_taken_into_the_log(hub: Hub, repo: Repository):
    content = hub.store.content(repo)
    head = commit(hub, repo, "yanked.json", '{"1.0.0": "old"}')
    content.refs.change({TAGS + "v1.0.0": Ref(head), TAGS + "latest": Ref(head)})
    hub.database.change("DELETE FROM upgrades")
    with Hub(hub.layout.root) as upgraded:
        assert upgraded.releases.needs_recovery(repo)
        sweep(upgraded)
        assert not upgraded.releases.needs_recovery(repo)
        assert kinds(upgraded) == [("release", "v1.0.0"), ("yank", "v1.0.0")]
        assert check(upgraded) == []
    with Hub(hub.layout.root) as again:
        assert len(log(again)) == 2, "once a root"


# -- over HTTP ----------------------------------------------------------------------------------------


def test_it_reads_well_through_huggingface_hub(server: RunningHub, ada: HfApi, new_repo: Callable[..., str]):
    name = new_repo()
    oid = ada.create_commit(name, [CommitOperationAdd("a", b"1")], commit_message="m", repo_type="kernel").oid
    ada.create_tag(name, tag="v1.0.0", tag_message="First", repo_type="kernel")
    with pytest.raises(
        HfHubHTTPError, match=r"v1\.0\.0 of acme/\S+ is a release, which is never deleted"
    ) as found:
        ada.delete_tag(name, tag="v1.0.0", repo_type="kernel")
    assert found.value.response.status_code == 403
    with pytest.raises(HfHubHTTPError, match="is the name of a release"):
        ada.create_branch(name, branch="v1.0.1", repo_type="kernel")
    for tag in ("latest", "v1-candidate"):
        ada.create_tag(name, tag=tag, repo_type="kernel")
        ada.delete_tag(name, tag=tag, repo_type="kernel")
    url = f"{server.endpoint}/api/kernels/{name}/release-log"
    document = httpx.get(url).json()
    (entry,) = document["entries"]
    assert (document["length"], entry["kind"], entry["commit"], entry["actor"]) == (1, "release", oid, "ada")
    assert document["head"] == ReleaseEntry(**entry).hash
    assert httpx.get(url, params={"after": 1}).json()["entries"] == []
    assert httpx.get(url, params={"after": "-1"}).status_code == 400
    assert httpx.get(f"{server.endpoint}/api/kernels/acme/none/release-log").status_code in (401, 404)
    ada.delete_repo(name, repo_type="kernel")
    with server.administer() as hub:
        record = hub.audit.records(last=1)[0]
    assert (record.action, record.subject, record.actor) == ("repository.delete", name, "ada")
    assert record.source.startswith("token ") and "127.0.0.1" in record.source


def test_administration_is_recorded(hub: Hub, repo: Repository):
    secret, token = hub.accounts.new_token("ada", "write", expires=4e9)
    hub.accounts.add_organisation("acme", "ada")
    hub.accounts.set_trusted("acme", True)
    hub.accounts.add_user("bob")
    hub.accounts.set_member("acme", "bob", "read")
    hub.repositories.set_private(repo, True)
    hub.repositories.set_gated(repo, "auto")
    hub.repositories.grant(repo, "bob", "accepted")
    hub.accounts.remove_token(token.id)
    hub.accounts.remove("bob", "user")
    with pytest.raises(KernelsHubError):
        hub.accounts.add_user("ada")  # what failed is not recorded
    records = hub.audit.records()
    assert [record.action for record in records] == [
        "user.add", "token.new", "org.add", "org.trust", "user.add", "org.member", "repository.private",
        "repository.gated", "repository.grant", "token.remove", "user.remove",
    ]  # fmt: skip
    assert secret not in json.dumps([record.detail for record in records])
    assert records[1].subject == token.id and records[1].detail["role"] == "write"
    assert all(record.actor and record.source.startswith("command line on ") for record in records)
    assert hub.audit.problems() == []
