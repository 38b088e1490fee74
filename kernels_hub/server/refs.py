"""Branches and tags of one repository, and what every place that keeps them does.

`git/` has the places: a file of the root's folder, or rows of the database.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kernels_hub.server.refusal import Refusal

BRANCHES, TAGS = "refs/heads/", "refs/tags/"
DEFAULT_BRANCH = "main"


class RefsDamagedError(Refusal):
    """Refs that are missing, cannot be read, or lead to nothing; what answers a request to such a repository.

    `problem` says what is wrong, for the administrator.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(
            500,
            f"This repository is damaged on the server ({problem}); nothing was changed. Its administrator finds "
            "what was lost, and how to restore it, with `kernels-hub hub fsck`",
        )
        self.problem = problem


@dataclass(frozen=True)
class Ref:
    """What a name points to; `peeled` is the commit where `oid` is an annotated tag."""

    oid: str
    peeled: str | None = None

    @property
    def commit(self) -> str:
        """The commit."""
        return self.peeled or self.oid


RefChanges = Mapping[str, Ref | None]
"""What becomes of refs, by full name; None deletes one."""


class Refs(ABC):
    """The refs of one repository, wherever they are kept. They are changed under the repository's lock."""

    @abstractmethod
    def all(self) -> Mapping[str, Ref]:
        """Every ref by its full name. Do not change it. Raises RefsDamagedError where they cannot be read."""

    @abstractmethod
    def change(self, changes: RefChanges, record: Callable[[], None] | None = None) -> None:
        """Set or delete refs, all at once; durable when this returns.

        record: adds rows of the database, in a transaction; they and the change are there together, or neither, also
            after a crash.
        """

    @abstractmethod
    def replace(self, refs: Mapping[str, Ref]) -> None:
        """Have these refs and no others, in place of damaged ones; durable on return."""

    @abstractmethod
    def interrupted(self) -> bool:
        """Whether a crash left a change with its rows there and its refs not."""

    @abstractmethod
    def recover(self) -> None:
        """Complete the change that a crash interrupted."""
