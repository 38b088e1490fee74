"""What a Hub asks of the place that its git data lies in, whichever it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from kernels_hub.server.packs import AnyObject, Packs
from kernels_hub.server.refs import Ref, Refs
from kernels_hub.server.repositories import Repository

LOCK_SECONDS = 60.0
"""How long a change waits for another one of the same repository."""


@dataclass(frozen=True)
class Content:
    """The git side of one repository."""

    packs: Packs
    refs: Refs


class GitStore(ABC):
    """The git data of every repository of a Hub. Safe from several threads and processes.

    Repositories go by their ids. Locks are let go when the process that holds them ends, however it does.
    """

    description: str
    """Where the data lies, in words for an administrator."""
    has_several_roots: bool
    """Whether servers with roots of their own serve the Hub: no file of one is seen by another."""

    # -- locks

    @abstractmethod
    def locked(self, repository: str, timeout: float = LOCK_SECONDS) -> AbstractContextManager[None]:
        """Hold a repository, against everybody else who changes it; 503 when it stays taken."""

    @abstractmethod
    def try_locked(self, repository: str) -> AbstractContextManager[bool]:
        """Hold a repository if nobody does: whether it is held."""

    @abstractmethod
    def drop_lock(self, repository: str) -> None:
        """Forget the lock of a repository that is gone."""

    @abstractmethod
    def alone(self, work: str, timeout: float = 0.0) -> AbstractContextManager[bool]:
        """Do some work as the only one on the Hub: whether it can be, within `timeout` seconds."""

    # -- repositories

    @abstractmethod
    def create(
        self,
        repository: str,
        objects: Iterable[AnyObject],
        refs: Mapping[str, Ref],
        insert: Callable[[], Repository | None],
    ) -> Repository | None:
        """Make a repository of these objects and refs, and the row that `insert` adds, which makes it visible.

        None where `insert` returns None: then nothing is left.
        """

    @abstractmethod
    def open(self, repository: str) -> Content:
        """The git side of a repository. Refuses one that was deleted meanwhile."""

    @abstractmethod
    def exists(self, repository: str) -> bool:
        """Whether the git side of a repository is there, whether it has a row or not."""

    @abstractmethod
    def remove(self, repository: str) -> None:
        """Remove the git side of a repository that has no row any more. Call it under the repository's lock."""

    @abstractmethod
    def copy(self, repository: str, target: Path) -> None:
        """Copy the git side of a repository as a bare repository of git's. Call it under the repository's lock.

        Raises FileNotFoundError where it was deleted meanwhile.
        """

    # -- upkeep

    @abstractmethod
    def sweep(self, has_row: Callable[[str], bool], recover: Callable[[str], None]) -> list[str]:
        """Remove or set aside what crashes left, when a server starts; a line for each.

        has_row: whether there is such a repository.
        recover: completes what a crash interrupted in one, whose lock is held.
        """

    @abstractmethod
    def strays(self, has_row: Callable[[str], bool]) -> list[str]:
        """What is kept and belongs to no repository: no problem, and removed by `collect`; a line for each."""

    @abstractmethod
    def collect(self, has_row: Callable[[str], bool], before: float, *, prune: bool) -> list[str]:
        """Remove what crashes left, from before a moment; a line for each.

        prune: also that of repositories without a row, which may be those of a database that was restored.
        """

    @abstractmethod
    def close(self) -> None:
        """Close every file."""
