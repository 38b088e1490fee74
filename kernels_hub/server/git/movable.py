"""Git data that can be exchanged for that in another place while threads use it, together with the database.

Whoever holds a repository's lock is inside the gate of the database (`database/movable.py`) from the first step to the
last: a change is made in one place, or in the other. What is read goes, call by call, to where the data is then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from pathlib import Path

from kernels_hub.server.git.seam import LOCK_SECONDS, Content, GitStore
from kernels_hub.server.packs import AnyObject, KeptPack, Packs
from kernels_hub.server.refs import Ref, RefChanges, Refs
from kernels_hub.server.repositories import Repository

_KEPT = 256


class MovableGit(GitStore):
    """Another store of git data, whichever it is now."""

    def __init__(self, git: GitStore, gate: AbstractContextManager[None]) -> None:
        """gate: nothing is exchanged while a thread is inside; entered again and again, also by who is inside."""
        self.gate = gate
        self._movable = lru_cache(_KEPT)(self._made)
        self.exchange(git)

    def exchange(self, git: GitStore) -> None:
        """Go on with another one. Call it while nobody is inside the gate."""
        self.inner = git
        self.description, self.has_several_roots = git.description, git.has_several_roots

    # -- locks

    @contextmanager
    def locked(self, repository: str, timeout: float = LOCK_SECONDS) -> Iterator[None]:
        """Hold a repository; 503 when it stays taken."""
        with self.gate, self.inner.locked(repository, timeout):
            yield

    @contextmanager
    def try_locked(self, repository: str) -> Iterator[bool]:
        """Hold a repository if nobody does: whether it is held."""
        with self.gate, self.inner.try_locked(repository) as held:
            yield held

    def drop_lock(self, repository: str) -> None:
        """Forget the lock of a repository that is gone."""
        with self.gate:
            self.inner.drop_lock(repository)

    def alone(self, work: str, timeout: float = 0.0) -> AbstractContextManager[bool]:
        """Do some work as the only one, for as long as it takes: who does keeps the root open (`Hub.follow_moves`)."""
        return self.inner.alone(work, timeout)

    # -- repositories

    def create(
        self,
        repository: str,
        objects: Iterable[AnyObject],
        refs: Mapping[str, Ref],
        insert: Callable[[], Repository | None],
    ) -> Repository | None:
        """Make a repository of these objects and refs, and its row."""
        with self.gate:
            return self.inner.create(repository, objects, refs, insert)

    def open(self, repository: str) -> Content:
        """The git side of a repository, wherever it is when it is asked."""
        with self.gate:
            self.inner.open(repository)
        return self._movable(repository)

    def _made(self, repository: str) -> Content:
        return Content(_MovablePacks(self, repository), _MovableRefs(self, repository))

    def exists(self, repository: str) -> bool:
        """Whether the git side of a repository is there."""
        with self.gate:
            return self.inner.exists(repository)

    def remove(self, repository: str) -> None:
        """Remove the git side of a repository that has no row any more."""
        with self.gate:
            self.inner.remove(repository)

    def copy(self, repository: str, target: Path) -> None:
        """Copy the git side of a repository as a bare repository."""
        with self.gate:
            self.inner.copy(repository, target)

    # -- upkeep

    def sweep(self, has_row: Callable[[str], bool], recover: Callable[[str], None]) -> list[str]:
        """Remove or set aside what crashes left."""
        with self.gate:
            return self.inner.sweep(has_row, recover)

    def strays(self, has_row: Callable[[str], bool]) -> list[str]:
        """What is kept and belongs to no repository."""
        with self.gate:
            return self.inner.strays(has_row)

    def collect(self, has_row: Callable[[str], bool], before: float, *, prune: bool) -> list[str]:
        """Remove what crashes left."""
        with self.gate:
            return self.inner.collect(has_row, before, prune=prune)

    def close(self) -> None:
        """Close every file."""
        self.inner.close()


class _MovablePacks(Packs):
    def __init__(self, git: MovableGit, repository: str) -> None:
        self._git, self._gate, self._repository = git, git.gate, repository

    def _now(self) -> Packs:
        """Where they are now: of use inside the gate only."""
        return self._git.inner.open(self._repository).packs

    def read_kind(self, oid: str) -> tuple[int, bytes]:
        with self._gate:
            return self._now().read_kind(oid)

    def kind(self, oid: str) -> int | None:
        with self._gate:
            return self._now().kind(oid)

    def read_stored(self, oid: str) -> tuple[int, bytes]:
        with self._gate:
            return self._now().read_stored(oid)

    def oids(self) -> list[str]:
        with self._gate:
            return self._now().oids()

    def kept(self) -> list[KeptPack]:
        with self._gate:
            return self._now().kept()

    def problems(self, *, content: bool) -> Iterator[str]:
        with self._gate:
            yield from self._now().problems(content=content)

    def write(self, objects: Iterable[AnyObject]) -> int:
        with self._gate:
            return self._now().write(objects)

    def add(self, objects: Iterable[AnyObject]) -> None:
        with self._gate:
            self._now().add(objects)

    def join(self, keep: Callable[[str], bool] = lambda _: True) -> None:
        with self._gate:
            self._now().join(keep)

    def merge_many(self) -> None:
        with self._gate:
            self._now().merge_many()

    def close(self) -> None:
        with self._gate:
            self._now().close()


class _MovableRefs(Refs):
    def __init__(self, git: MovableGit, repository: str) -> None:
        self._git, self._gate, self._repository = git, git.gate, repository

    def _now(self) -> Refs:
        """Where they are now: of use inside the gate only."""
        return self._git.inner.open(self._repository).refs

    def all(self) -> Mapping[str, Ref]:
        with self._gate:
            return self._now().all()

    def change(self, changes: RefChanges, record: Callable[[], None] | None = None) -> None:
        with self._gate:
            self._now().change(changes, record)

    def replace(self, refs: Mapping[str, Ref]) -> None:
        with self._gate:
            self._now().replace(refs)

    def interrupted(self) -> bool:
        with self._gate:
            return self._now().interrupted()

    def recover(self) -> None:
        with self._gate:
            self._now().recover()
