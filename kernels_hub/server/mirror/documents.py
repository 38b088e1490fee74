"""What a Hub answers its mirrors, as types that its answers are parsed as."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from kernels_hub.parsing import CommitId, Sha256, Struct
from kernels_hub.repository.release_entry import ReleaseEntry

MOST_ROWS = 1000
"""Repositories of one page."""
MOST_OIDS = 1000
"""Objects of one question."""
MOST_HISTORY = 1000
"""Commits of one answer that were not named."""
MOST_REFS = 100_000
MOST_ENTRIES = 100_000
HubId = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z", max_length=32)]
RowId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]+\Z", max_length=64)]
AccountName = Annotated[str, Meta(min_length=1, max_length=96)]
RefName = Annotated[str, Meta(min_length=6, max_length=400)]


class OwnerDocument(Struct, frozen=True):
    """The account that owns a repository."""

    kind: Literal["user", "org"]
    trusted: bool


class RepositoryDocument(Struct, frozen=True):
    """A repository that the caller may see. `state` is equal as long as its refs and its log are."""

    id: RowId
    type: Literal["model", "kernel"]
    namespace: AccountName
    name: AccountName
    private: bool
    gated: Literal["", "auto", "manual"]
    owner: OwnerDocument
    state: Sha256 | None
    """None for a repository that is damaged at the origin."""

    @property
    def full_name(self) -> str:
        """ "org/name"."""
        return f"{self.namespace}/{self.name}"

    @property
    def chain(self) -> str:
        """The name of its release log."""
        return f"{self.type}/{self.full_name}"


class FeedDocument(Struct, frozen=True):
    """A page of the repositories of a Hub, by id."""

    format: Annotated[int, Meta(ge=1, le=1)]
    hub: HubId
    path: Annotated[list[HubId], Meta(max_length=64)]
    """The Hubs that this one mirrors itself, nearest first."""
    repositories: Annotated[list[RepositoryDocument], Meta(max_length=MOST_ROWS)]
    after: RowId | None
    """What to ask for the next page with; None on the last."""


class LogHead(Struct, frozen=True):
    """How long a release log is, and the hash of its last entry."""

    length: Annotated[int, Meta(ge=0, le=MOST_ENTRIES)]
    head: Sha256


class StateDocument(Struct, frozen=True):
    """The refs of a repository, and its log at the same moment."""

    format: Annotated[int, Meta(ge=1, le=1)]
    refs: Annotated[dict[RefName, tuple[CommitId, CommitId | None]], Meta(max_length=MOST_REFS)]
    """Full name -> what it holds, and the commit where that is an annotated tag."""
    log: LogHead


class LogDocument(Struct, frozen=True):
    """A page of a release log."""

    format: Annotated[int, Meta(ge=1, le=1)]
    length: Annotated[int, Meta(ge=0, le=MOST_ENTRIES)]
    head: Sha256
    entries: list[ReleaseEntry]


class HiddenDocument(Struct, frozen=True):
    """Which of some repositories exist, but not for the caller."""

    hidden: list[RowId]


class IdsBody(Struct, frozen=True):
    """A question of a mirror for repositories that it finds no more."""

    ids: Annotated[list[RowId], Meta(max_length=MOST_ROWS)]


class ObjectsBody(Struct, frozen=True):
    """A question of a mirror for git objects; `history` also asks for so many commits before those that are named."""

    oids: Annotated[list[CommitId], Meta(min_length=1, max_length=MOST_OIDS)]
    history: Annotated[int, Meta(ge=0, le=MOST_HISTORY)] = 0
    known: Annotated[tuple[CommitId, ...], Meta(max_length=MOST_OIDS)] = ()
