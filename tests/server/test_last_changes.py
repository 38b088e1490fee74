"""The commit that last changed each file of a folder, against one that compares whole listings."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels_hub.server.commit import AddFile, CommitRequest, DeleteFile
from kernels_hub.server.hub import Hub
from kernels_hub.server.packs import BLOB, git_object
from kernels_hub.server.web.last_changes import last_changes

PATHS = ["a", "b", "d/a", "d/b", "d/e/a", "f/a"]
STEPS = st.lists(st.tuples(st.sampled_from(PATHS), st.integers(0, 2)), min_size=1, max_size=14)


def oracle(hub: Hub, repository, commits: list[str], folder: str) -> dict[str, str]:
    """Newest first: the first commit before which an entry was not what it is now."""
    prefix = f"{folder}/" if folder else ""

    def inside(commit: str) -> dict[str, str]:
        entries = hub.store.listing(repository, commit).entries
        return {
            path[len(prefix) :]: entry.oid
            for path, entry in entries.items()
            if path.startswith(prefix) and "/" not in path[len(prefix) :]
        }

    now, found = inside(commits[0]), {}
    for name, oid in now.items():
        same = [commit for commit in commits if inside(commit).get(name) == oid]
        run = next((i for i, commit in enumerate(commits) if commit not in same), len(commits))
        found[name] = commits[run - 1]
    return found


def put(hub: Hub, repository, path: str, value: int) -> None:
    """Write a value; zero deletes."""
    main = hub.store.listing(repository, hub.store.resolve(repository, "main")).entries
    if value == 0 and path not in main:
        return
    operation = AddFile(path, git_object(BLOB, b"%d" % value)) if value else DeleteFile(path)
    hub.changes.commit(repository, "main", CommitRequest(f"{path} is {value}", None, (operation,)), "ada")


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_last_changes(tmp_path: Path, steps: list[tuple[str, int]]):
    with Hub(tmp_path / "root", create=True) as hub:
        if hub.accounts.find("ada") is None:
            hub.accounts.add_user("ada")
        for old in hub.repositories.all():
            hub.store.delete(old)
        repository = hub.changes.create("kernel", "ada", "norms", private=False, author="ada")
        for path, value in steps:
            put(hub, repository, path, value)
        head = hub.store.resolve(repository, "main")
        commits = [info.oid for info in hub.store.history(repository, head, 100)[0]]
        for folder in ("", "d", "d/e", "f", "none"):
            found = last_changes(hub.store, repository, head, folder, seconds=60)
            assert {name: info.oid for name, info in found.items()} == oracle(
                hub, repository, commits, folder
            )


def test_what_is_older_than_the_limits_is_left_out(tmp_path: Path):
    with Hub(tmp_path / "root", create=True) as hub:
        hub.accounts.add_user("ada")
        repository = hub.changes.create("kernel", "ada", "norms", private=False, author="ada")
        for number in range(1, 5):
            put(hub, repository, f"file{number}", 1)
        head = hub.store.resolve(repository, "main")
        few = last_changes(hub.store, repository, head, "", commits=2, seconds=60)
        assert sorted(few) == ["file3", "file4"] and few["file4"].title == "file4 is 1"
        assert last_changes(hub.store, repository, head, "", seconds=-1) == {}
