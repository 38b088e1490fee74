"""`hub migrate`: large files from the root's folders to a store and back, while clients write; interrupted; refused."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels_hub.errors import IntegrityError, KernelsHubError
from kernels_hub.server.durable import locked
from kernels_hub.server.hub import Hub
from kernels_hub.server.maintenance import check, strays
from kernels_hub.server.objects.migration import migrate
from kernels_hub.server.refusal import Refusal
from kernels_hub.server.repositories import Repository
from tests.object_store import OPTION, flip, store, stored
from tests.running_hub import start_hub
from tests.server.lfs_client import Lfs, Trouble, oid_of
from tests.server.test_objects_upkeep import commit, upload

COMMAND = [sys.executable, "-c", "from kernels_hub.cli import main; main()"]
LIMITS = {"large_from_bytes": 1024}


@pytest.fixture(autouse=True)
def folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new root has its large files below it, wherever those of other tests have them."""
    monkeypatch.delenv(OPTION, raising=False)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return store().address("m" + hashlib.sha256(str(tmp_path).encode()).hexdigest()[:16])


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with Hub(tmp_path / "root", create=True) as hub:
        hub.accounts.add_user("ada")
        yield hub


def fill(hub: Hub, repositories: int, each: int) -> dict[str, list[bytes]]:
    """Repositories with large files, every second of which a commit names."""
    found = {}
    for number in range(repositories):
        repo = hub.changes.create("kernel", "ada", f"k{number}", private=False, author="ada")
        found[repo.id] = [os.urandom(2000 + count) for count in range(each)]
        for count, content in enumerate(found[repo.id]):
            oid = upload(hub, repo, content)
            if count % 2:
                commit(hub, repo, f"f{count}", oid, len(content))
    return found


def of(hub: Hub, identifier: str) -> Repository:
    repo = hub.repositories.by_id(identifier)
    assert repo is not None
    return repo


def holds(hub: Hub, contents: dict[str, list[bytes]]) -> bool:
    return all(
        stored(hub, of(hub, identifier), oid_of(content)) == content
        for identifier, all_of_it in contents.items()
        for content in all_of_it
    )


def test_there_and_back(hub: Hub, address: str):
    contents, root = fill(hub, 3, 8), hub.layout.root
    files = sorted(root.glob("repositories/*/lfs/*/*/*"))
    done = migrate(hub, address)
    assert (done.copied, done.known, done.in_the_last) == (24, 0, 0)
    assert done.bytes == sum(len(content) for some in contents.values() for content in some)
    assert sorted(root.glob("repositories/*/lfs/*/*/*")) == files, "the old store is left as it was"
    with pytest.raises(KernelsHubError, match="say which: --objects"):
        Hub(root)
    with Hub(root, objects=address) as moved:
        assert check(moved) == [] and strays(moved) == [] and holds(moved, contents)
        new = upload(moved, moved.repositories.all()[0], b"after the move" * 100)
        with pytest.raises(KernelsHubError, match="are there already"):
            migrate(moved, address)
        keys = store().keys(address.partition("hub-tests/")[2].partition("?")[0])
        back = migrate(moved, "files")
        assert (
            back.copied == 25 and store().keys(address.partition("hub-tests/")[2].partition("?")[0]) == keys
        )
    with Hub(root) as again:
        assert check(again) == [] and holds(again, contents)
        assert stored(again, again.repositories.all()[0], new) == b"after the move" * 100
        assert migrate(again, address).copied == 25, "to the same prefix, which is still this root's"


def test_a_process_that_still_has_the_old_store_adds_nothing_to_it(hub: Hub, address: str):
    repo = hub.changes.create("kernel", "ada", "k", private=False, author="ada")
    old = upload(hub, repo, b"old" * 1000)
    with Hub(hub.layout.root) as other:
        migrate(other, address)
    with pytest.raises(Refusal, match="have moved") as refused:
        upload(hub, repo, b"new" * 1000)
    assert refused.value.status == 503 and refused.value.headers["Retry-After"]
    assert stored(hub, repo, old) == b"old" * 1000, "what was there is read as before"
    with Hub(hub.layout.root, objects=address) as new:
        oid = upload(new, repo, b"newer" * 1000)
    with pytest.raises(Refusal, match="have moved"):
        hub.large_files.open(repo, oid)
    with Hub(hub.layout.root, objects=address) as stale, Hub(hub.layout.root, objects=address) as new:
        migrate(new, "files")
        assert "X-Amz-Signature" in str(stale.large_files.address(repo, oid, "f"))
    with Hub(hub.layout.root) as last:
        newest = upload(last, repo, b"newest" * 1000)
        with pytest.raises(Refusal, match="have moved"):
            stale.large_files.address(repo, newest, "f")


@pytest.mark.parametrize("damage", ["other content", "gone"])
def test_an_object_that_is_damaged_stops_it(hub: Hub, address: str, damage: str):
    contents = fill(hub, 1, 4)
    repo = hub.repositories.all()[0]
    oid = oid_of(contents[repo.id][2])
    if damage == "gone":
        hub.large_files.objects.remove(repo.id, oid)
    else:
        flip(hub, repo, oid)
    with pytest.raises(IntegrityError if damage != "gone" else KernelsHubError, match=f"{oid} of ada/k0 "):
        migrate(hub, address)
    assert hub.layout.objects() is None
    Hub(hub.layout.root).close()


@pytest.mark.exhaustive
def test_an_interrupted_migration_goes_on(hub: Hub, tmp_path: Path, address: str):
    contents = fill(hub, 2, 10)
    with Trouble(store().endpoint) as trouble:
        behind = address.replace(store().endpoint, trouble.endpoint) + "&timeout=2"
        # The store goes away after some objects.
        trouble.rule = lambda method, path, query: "drop" if len(trouble.seen) > 16 else None
        with pytest.raises(Refusal, match="does not answer"):
            migrate(hub, behind)
        assert hub.layout.objects() is None and (hub.layout.root / "migration").is_file()
        with (hub.layout.root / "migration").open("a") as journal:
            journal.write("half of a li")  # as of a process that was killed
        trouble.well()
        done = migrate(hub, behind)
    assert done.known > 0 and done.copied + done.known == 20, done
    assert not (hub.layout.root / "migration").exists()
    with Hub(hub.layout.root, objects=address) as moved:
        assert check(moved) == [] and strays(moved) == [] and holds(moved, contents)


def test_two_at_once_and_a_deletion_meanwhile(hub: Hub, address: str, monkeypatch: pytest.MonkeyPatch):
    contents = fill(hub, 3, 3)
    gone = hub.repositories.all()[0]
    with locked(hub.layout.root / "maintenance.lock"):
        import kernels_hub.server.objects.migration as module

        real = module.maintaining
        monkeypatch.setattr(module, "maintaining", lambda hub, timeout: real(hub, timeout=0.1))
        with pytest.raises(KernelsHubError, match="is at work on"):
            migrate(hub, address)

    # A repository is deleted after its objects were copied.
    def announce(line: str) -> None:
        if line.startswith("round 1:"):
            hub.store.delete(gone)

    assert migrate(hub, address, announce=announce).copied == 9
    contents.pop(gone.id)
    with Hub(hub.layout.root, objects=address) as moved:
        assert check(moved) == [] and strays(moved) == [] and holds(moved, contents)


class _Writer(threading.Thread):
    """Uploads and commits, and remembers what was acknowledged."""

    def __init__(self, lfs: Lfs) -> None:
        super().__init__(daemon=True)
        self.lfs, self.done, self.problems, self.ended = lfs, {}, [], threading.Event()

    def run(self) -> None:
        number = 0
        while not self.ended.is_set():
            name, content, number = f"w{number}", os.urandom(3000), number + 1
            try:
                sent = self.lfs.upload(content)
                if sent.status_code == 200 and self.lfs.commit(name, content).status_code == 200:
                    self.done[name] = content
                elif sent.status_code != 503:
                    self.problems.append(f"{sent.status_code} {sent.text}")
            except (AssertionError, OSError, ConnectionError) as error:
                if "503" not in str(error) and "have moved" not in str(error):
                    self.problems.append(repr(error))


@pytest.mark.exhaustive
def test_while_a_client_writes(tmp_path: Path, address: str):
    root = tmp_path / "root"
    with Hub(root, create=True) as hub:
        hub.accounts.add_user("ada")
        contents = fill(hub, 2, 15)
    done: dict[str, bytes] = {}
    objects: str | None = None
    for target in (address, "files"):
        with start_hub(root, workers=2, limits=LIMITS, objects=objects) as running:
            lfs = Lfs(running, running.token("ada"), "ada/written")
            if not done:
                lfs.create()
            writer = _Writer(lfs)
            writer.start()
            while len(writer.done) < 3:
                time.sleep(0.05)
            out = subprocess.run(
                [*COMMAND, "hub", "migrate", "--json", "--root", str(root), "--to", target],
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert out.returncode == 0, out.stderr
            assert json.loads(out.stdout)["copied"] >= 33
            writer.ended.set()
            writer.join()
            assert writer.problems == []
            done = {**{f"{target[:5]}{name}": content for name, content in writer.done.items()}, **done}
            names = dict(writer.done)
        objects = None if target == "files" else target
        with start_hub(root, limits=LIMITS, objects=objects) as again:
            after = Lfs(again, again.token("ada"), "ada/written")
            assert {name for name, content in names.items() if after.get(name).content != content} == set()
            with again.administer() as opened:
                assert check(opened) == [] and holds(opened, contents)


@pytest.mark.exhaustive
def test_a_migration_that_is_killed_again_and_again(tmp_path: Path, address: str):
    root = tmp_path / "root"
    with Hub(root, create=True) as hub:
        hub.accounts.add_user("ada")
        contents = fill(hub, 4, 25)
    command = [*COMMAND, "hub", "migrate", "--json", "--root", str(root), "--to", address]
    for seconds in (3, 4, 5):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if "objects" in (root / "FORMAT").read_text():
            break
        with Hub(root) as hub:
            assert holds(hub, contents)
    if "objects" not in (root / "FORMAT").read_text():
        out = subprocess.run(command, capture_output=True, text=True, check=True)
        assert json.loads(out.stdout)["copied"] + json.loads(out.stdout)["known"] == 100
    with Hub(root, objects=address) as moved:
        assert check(moved) == [] and holds(moved, contents)
