"""The record of one event in a repository's release log, and the hash that chains it to the one before.

A Hub keeps one chain a repository and name. An entry's hash is the SHA-256 of its canonical JSON (all fields but the
hash, keys sorted, no spaces, ASCII), and every entry holds the hash of the one before it, so that a log that was
shown once cannot be changed without its hashes changing too. The first entry follows `START`.

    release       the tag appeared at the commit
    forced-move   an administrator moved the tag to the commit
    delete        the tag is gone, by force or with its repository
    yank, unyank  no specifier chooses the release any more, or again; `note` is the reason
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct
from packaging.utils import canonicalize_version

from kernels_hub.escaping import TerminalText
from kernels_hub.parsing import CommitId, Sha256
from kernels_hub.repository.versions import Refs, parse_tag

START = "0" * 64
"""`previous` of the first entry."""
MOST_NOTE = 1000
_SHOWN = 5

Kind = Literal["release", "yank", "unyank", "forced-move", "delete"]
Short = Annotated[str, Meta(max_length=400)]


class ReleaseEntry(Struct, frozen=True):
    """One event. `repository` is "kernel/org/name" or "model/org/name", `time` is in UTC and in ISO 8601."""

    index: Annotated[int, Meta(ge=0)]
    previous: Sha256
    kind: Kind
    repository: Short
    tag: Short
    commit: CommitId
    digest: Sha256
    """Of the content: that of the commit for the tag, whatever the kind (see `content_digest`)."""
    actor: Short
    time: Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\Z")]
    note: Annotated[str, Meta(max_length=MOST_NOTE)] = ""

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON."""
        return hashlib.sha256(self.canonical()).hexdigest()

    def canonical(self) -> bytes:
        """The bytes that are hashed."""
        document = msgspec.to_builtins(self)
        return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()

    def __str__(self) -> str:
        who = f" by {self.actor}" if self.actor else ""
        note = f": {self.note}" if self.note else ""
        return f"#{self.index} {self.kind} {self.tag} at {self.commit[:12]}, {self.time}{who}{note}"


class Standing(NamedTuple):
    """What a log says of one version: its last release, move or deletion, and its last yank where it is yanked."""

    entry: ReleaseEntry
    yanked: ReleaseEntry | None = None

    @property
    def is_out(self) -> bool:
        """Whether its tag exists."""
        return self.entry.kind != "delete"


def version_key(tag: str) -> str | None:
    """Equal for tags that stand for one version, such as v1.0.0 and v1.00.0; None for a tag that is no release."""
    version = parse_tag(tag)
    return None if version is None else canonicalize_version(version)


def content_digest(files: Iterable[tuple[str, str]]) -> str:
    """SHA-256 of the lines of `sha256sum` for all files of a commit: (path, sha256 of its content), by path."""
    lines = sorted((path.encode(), sha256) for path, sha256 in files)
    total = hashlib.sha256()
    for path, sha256 in lines:
        total.update(sha256.encode() + b"  " + path + b"\n")
    return total.hexdigest()


def standings(entries: Iterable[ReleaseEntry]) -> dict[str, Standing]:
    """What a log says of each version, by `version_key`."""
    found: dict[str, Standing] = {}
    for entry in entries:
        key = version_key(entry.tag) or entry.tag
        if entry.kind not in ("yank", "unyank"):
            found[key] = Standing(entry)
        elif key in found:
            found[key] = Standing(found[key].entry, entry if entry.kind == "yank" else None)
    return found


def forced(entries: Iterable[ReleaseEntry]) -> dict[str, ReleaseEntry]:
    """By tag, what happened last to a release that is not what it once was: moved, or removed and possibly back."""
    return {entry.tag: entry for entry in entries if entry.kind in ("forced-move", "delete")}


def chain_problem(
    entries: Iterable[ReleaseEntry], repository: str, previous: str = START, index: int = 0
) -> str | None:
    """What is wrong with entries that should follow `previous`, the hash of number `index` - 1; None if nothing is."""
    for entry in entries:
        if entry.index != index:
            return f"entry #{index} is numbered {entry.index}"
        if entry.previous != previous:
            return (
                f"entry #{index} names {entry.previous[:12]} as the one before it, which is {previous[:12]}"
            )
        if entry.repository.lower() != repository.lower():
            return f"entry #{index} is of {entry.repository}, not of {repository}"
        if version_key(entry.tag) is None:
            return f"entry #{index} names {entry.tag!r}, which is no release"
        previous, index = entry.hash, index + 1
    return None


def disagreement(refs: Refs, entries: Iterable[ReleaseEntry]) -> str | None:
    """Where branches and tags are not what a log says; None where they are."""
    standing = standings(entries)
    found = []
    for tag, commit in sorted(refs.tags.items()):
        if (key := version_key(tag)) is None:
            continue
        said = standing.get(key)
        if said is None or not said.is_out or said.entry.tag != tag:
            found.append(
                f"the tag {tag} at {commit[:12]}, of which the log has {told(said.entry if said else None)}"
            )
        elif said.entry.commit != commit:
            found.append(f"the tag {tag} at {commit[:12]}, and the log has {told(said.entry)}")
    found += [
        f"no tag {item.entry.tag}, and the log has {told(item.entry)}"
        for item in standing.values()
        if item.is_out and item.entry.tag not in refs.tags
    ]
    found += [
        f"a branch {name}, the name of a release"
        for name in sorted(refs.branches)
        if (key := version_key(name)) is not None and key in standing
    ]
    if not found:
        return None
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"its tags are not what its release log says: it has {'; '.join(found[:_SHOWN])}{more}"


def told(entry: ReleaseEntry | None) -> str:
    """An entry on one line without control characters: its fields are foreign text."""
    return "nothing" if entry is None else TerminalText(str(entry))
