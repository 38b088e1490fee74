"""The types of request bodies: what is read of each, and what each field may be.

`Call.parse` reads a body as one of these or answers 400; the handlers check what a type cannot say. Fields that a
type does not name are ignored, as clients send more than this server knows.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from kernels_hub.parsing import Sha256, Struct

MOST_OBJECTS = 1000
"""Objects of one LFS batch."""
MOST_PARTS = 10_000
"""Parts of one large file."""
MOST_PATHS = 10_000
"""Paths of one question for paths."""
Size = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
ShortText = Annotated[str, Meta(max_length=4096)]


class RepositoryBody(Struct, frozen=True, rename="camel"):
    """A repository to create, delete or move, and who may see it."""

    name: ShortText | None = None
    organization: ShortText | None = None
    type: ShortText | None = None
    visibility: ShortText | None = None
    private: bool | None = None
    from_repo: ShortText | None = None
    to_repo: ShortText | None = None


class SettingsBody(Struct, frozen=True):
    """Who may see and download a repository."""

    visibility: ShortText | None = None
    private: bool | None = None
    gated: Literal["auto", "manual"] | bool | None = None


class AccessBody(Struct, frozen=True, rename="camel"):
    """An answer to a request for access."""

    user: ShortText | None = None
    user_id: ShortText | None = None
    status: ShortText | None = None


class CardBody(Struct, frozen=True):
    """A README to check."""

    content: str


class BranchBody(Struct, frozen=True, rename="camel"):
    """A branch to create."""

    starting_point: ShortText | None = None
    overwrite: bool | None = None


class TagBody(Struct, frozen=True):
    """A tag to create."""

    tag: ShortText | None = None
    message: Annotated[str, Meta(max_length=65_536)] | None = None


class PathsBody(Struct, frozen=True):
    """Paths to tell about."""

    paths: Annotated[list[str], Meta(max_length=MOST_PATHS)]


class FileToCome(Struct, frozen=True):
    """A file that a client is about to send; `sample` is base64 of its first bytes."""

    path: str
    size: Size = 0
    sample: str | None = None


class PreuploadBody(Struct, frozen=True, rename="camel"):
    """Files that a client is about to send."""

    files: list[FileToCome]
    git_ignore: str | None = None


class LargeObject(Struct, frozen=True):
    """A large file by its SHA-256 and size."""

    oid: Sha256
    size: Size


class BatchBody(Struct, frozen=True):
    """An LFS batch."""

    operation: ShortText
    objects: Annotated[list[LargeObject], Meta(max_length=MOST_OBJECTS)]
    transfers: list[str] | None = None
    hash_algo: ShortText | None = None


class Part(Struct, frozen=True, rename="camel"):
    """An uploaded part, as its PUT was answered."""

    part_number: Annotated[int, Meta(ge=1, le=MOST_PARTS)]
    etag: Annotated[str, Meta(max_length=100)]


class CompletionBody(Struct, frozen=True):
    """All parts of a large file."""

    oid: Sha256
    parts: Annotated[list[Part], Meta(max_length=MOST_PARTS)]


class StoredBody(Struct, frozen=True):
    """What was sent to the object store: all parts of a large file, or one that is not told about."""

    oid: Sha256
    parts: Annotated[list[Part], Meta(max_length=MOST_PARTS)] | None = None
