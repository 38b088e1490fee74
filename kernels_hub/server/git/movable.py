"""Git data that can be exchanged for that in another place while threads use it, together with the database.

Whoever holds a repository's lock is inside the gate of the database (`database/movable.py`) from the first step to the
last: a change is made in one place, or in the other. What is read goes, call by call, to where the data is then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from kernels_hub.server.git.seam import LOCK_SECONDS, Content, GitStore
from kernels_hub.server.packs import AnyObject, KeptPack, Packs
from kernels_hub.server.refs import Ref, RefChanges, Refs
from kernels_hub.server.repositories import Repository

Staying = Callable[[], AbstractContextManager[None]]
"""Holds the gate: nothing is exchanged meanwhile."""


class MovableGit(GitStore):
    """Another store of git data, whichever it is now."""

    def __init__(self, git: GitStore, staying: Staying) -> None:
        self._staying = staying
        self.exchange(git)

    def exchange(self, git: GitStore) -> None:
        """Go on with another one. Call it while nobody is inside the gate."""
        self.inner = git
        self.description, self.has_several_roots = git.description, git.has_several_roots

    # -- locks

    @contextmanager
    def locked(self, repository: str, timeout: float = LOCK_SECONDS) -> Iterator[None]:
        """Hold a repository; 503 when it stays taken."""
        with self._staying(), self.inner.locked(repository, timeout):
            yield

    @contextmanager
    def try_locked(self, repository: str) -> Iterator[bool]:
        """Hold a repository if nobody does: whether it is held."""
        with self._staying(), self.inner.try_locked(repository) as held:
            yield held

    def drop_lock(self, repository: str) -> None:
        """Forget the lock of a repository that is gone."""
        with self._staying():
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
        with self._staying():
            return self.inner.create(repository, objects, refs, insert)

    def open(self, repository: str) -> Content:
        """The git side of a repository, wherever it is when it is asked."""
        with self._staying():
            self.inner.open(repository)

        @contextmanager
        def opened() -> Iterator[Content]:
            with self._staying():
                yield self.inner.open(repository)

        return Content(_MovablePacks(opened), _MovableRefs(opened))

    def exists(self, repository: str) -> bool:
        """Whether the git side of a repository is there."""
        with self._staying():
            return self.inner.exists(repository)

    def remove(self, repository: str) -> None:
        """Remove the git side of a repository that has no row any more."""
        with self._staying():
            self.inner.remove(repository)

    def copy(self, repository: str, target: Path) -> None:
        """Copy the git side of a repository as a bare repository."""
        with self._staying():
            self.inner.copy(repository, target)

    # -- upkeep

    def sweep(self, has_row: Callable[[str], bool], recover: Callable[[str], None]) -> list[str]:
        """Remove or set aside what crashes left."""
        with self._staying():
            return self.inner.sweep(has_row, recover)

    def strays(self, has_row: Callable[[str], bool]) -> list[str]:
        """What is kept and belongs to no repository."""
        with self._staying():
            return self.inner.strays(has_row)

    def collect(self, has_row: Callable[[str], bool], before: float, *, prune: bool) -> list[str]:
        """Remove what crashes left."""
        with self._staying():
            return self.inner.collect(has_row, before, prune=prune)

    def close(self) -> None:
        """Close every file."""
        self.inner.close()


_Opened = Callable[[], AbstractContextManager[Content]]


class _MovablePacks(Packs):
    def __init__(self, opened: _Opened) -> None:
        self._opened = opened

    def read_kind(self, oid: str) -> tuple[int, bytes]:
        with self._opened() as content:
            return content.packs.read_kind(oid)

    def kind(self, oid: str) -> int | None:
        with self._opened() as content:
            return content.packs.kind(oid)

    def read_stored(self, oid: str) -> tuple[int, bytes]:
        with self._opened() as content:
            return content.packs.read_stored(oid)

    def oids(self) -> list[str]:
        with self._opened() as content:
            return content.packs.oids()

    def kept(self) -> list[KeptPack]:
        with self._opened() as content:
            return content.packs.kept()

    def problems(self, *, content: bool) -> Iterator[str]:
        with self._opened() as opened:
            yield from opened.packs.problems(content=content)

    def write(self, objects: Iterable[AnyObject]) -> int:
        with self._opened() as content:
            return content.packs.write(objects)

    def add(self, objects: Iterable[AnyObject]) -> None:
        with self._opened() as content:
            content.packs.add(objects)

    def join(self, keep: Callable[[str], bool] = lambda _: True) -> None:
        with self._opened() as content:
            content.packs.join(keep)

    def merge_many(self) -> None:
        with self._opened() as content:
            content.packs.merge_many()

    def close(self) -> None:
        with self._opened() as content:
            content.packs.close()


class _MovableRefs(Refs):
    def __init__(self, opened: _Opened) -> None:
        self._opened = opened

    def all(self) -> Mapping[str, Ref]:
        with self._opened() as content:
            return content.refs.all()

    def change(self, changes: RefChanges, record: Callable[[], None] | None = None) -> None:
        with self._opened() as content:
            content.refs.change(changes, record)

    def replace(self, refs: Mapping[str, Ref]) -> None:
        with self._opened() as content:
            content.refs.replace(refs)

    def interrupted(self) -> bool:
        with self._opened() as content:
            return content.refs.interrupted()

    def recover(self) -> None:
        with self._opened() as content:
            content.refs.recover()
