"""The release log of a repository, as a Hub shows it: remembered, and refused where it does not go on from there.

Our own Hub keeps a hash-chained log of releases and yanks (`kernels_hub/repository/release_entry.py`); others, Hugging
Face's among them, keep none, and then nothing is checked. Whenever the versions of a repository are asked for, the
entries that are new since the last time are too. They must follow the last hash that this machine knows, and tags must
be where the log says. What is remembered lies in the cache of the repository, by address of the Hub.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta, Struct

from kernels_hub.errors import IntegrityError
from kernels_hub.files import write_atomically
from kernels_hub.hub.cache import RepositoryCache
from kernels_hub.hub.endpoints import endpoints_of
from kernels_hub.parsing import Sha256, parse_json
from kernels_hub.repository.release_entry import (
    START,
    ReleaseEntry,
    chain_problem,
    disagreement,
    standings,
    told,
    version_key,
)
from kernels_hub.repository.versions import Refs

if TYPE_CHECKING:
    from kernels_hub.hub.connection import Connection

logger = logging.getLogger(__name__)

_FILE = "release_log.json"
_MOST_BYTES = 64 << 20
_MOST_ENTRIES = 100_000
_SHOWN = 5


class _Page(Struct):
    """An answer of the Hub."""

    format: Annotated[int, Meta(ge=1, le=1)]
    length: Annotated[int, Meta(ge=0, le=_MOST_ENTRIES)]
    head: Sha256
    entries: list[ReleaseEntry]


class _Memory(Struct):
    """What is remembered of a repository: the address of a Hub -> the entries of its log."""

    hubs: dict[str, list[ReleaseEntry]] = {}


@dataclass(frozen=True)
class ReleaseLog:
    """A log that was checked: every entry follows the one before it, and what was known before."""

    entries: tuple[ReleaseEntry, ...]
    known: int
    """How many of the entries this machine knew before."""
    later: tuple[ReleaseEntry, ...] = ()
    """Entries of the Hub's that this machine knows, and the mirror that answered does not have yet."""

    @property
    def head(self) -> str:
        """Hash of the last entry."""
        return self.entries[-1].hash if self.entries else START

    def yanked_later(self) -> dict[str, str]:
        """Releases that are yanked by what the mirror does not have yet: tag -> reason."""
        standing = standings((*self.entries, *self.later)).values()
        return {item.entry.tag: item.yanked.note for item in standing if item.yanked is not None}

    def released_later(self) -> dict[str, str]:
        """Releases that the mirror does not have yet: tag -> commit."""
        tags = {entry.tag for entry in self.later}
        standing = standings((*self.entries, *self.later)).values()
        return {
            item.entry.tag: item.entry.commit for item in standing if item.is_out and item.entry.tag in tags
        }


def checked_refs(
    connection: Connection, place: RepositoryCache, refs: Refs
) -> tuple[Refs, ReleaseLog | None]:
    """Refs that are what the release log says, and the log; asked for again where a release came in between.

    connection: to one address. A mirror's log is compared with what is known of the Hub's; it may be behind, and tags
    that the Hub has moved or deleted since, as is known here, are left out then.
    refs: as the same address told them just now.

    Raises IntegrityError for a log that does not go on from what is remembered, is broken in itself, or says
    otherwise than the refs; HubError where the Hub cannot be asked. None for the log of a Hub that keeps none.
    """
    with place.lock("release_log"):
        memory = _read_memory(place)
        known = _known(connection, place, memory)
        log = _extended(connection, place, known)
        if log is not None and (problem := disagreement(refs, log.entries)):
            # Changed between the two questions? The log is never behind refs that were asked for before it.
            refs = connection.refs(place.repo_id, place.repo_type)
            log = _extended(connection, place, known)
            problem = None if log is None else disagreement(refs, log.entries)
            if problem:
                raise _refused(connection, place, problem)
        if log is not None and len(log.entries) > len(known):
            memory.hubs[connection.address] = list(log.entries)
            _write_memory(place, memory)
            _warn(place, log)
            _warn_of_mirrors(connection, place, memory)
    if log is not None and log.later:
        logger.info(
            "%s: the mirror %s is %d entries of the release log behind",
            *(place.repo_id, connection.address, len(log.later)),
        )
        refs = _without_withdrawn(refs, (*log.entries, *log.later))
    return refs, log


def _known(connection: Connection, place: RepositoryCache, memory: _Memory) -> list[ReleaseEntry]:
    """What an address must go on from: of a mirror, what the Hub said, or beyond that what it said itself."""
    of_hub = memory.hubs.get(connection.endpoint, [])
    told_here = memory.hubs.get(connection.address, [])
    if not connection.is_mirror:
        return of_hub
    if (fork := _fork(of_hub, told_here)) is not None:
        raise _refused(
            connection,
            place,
            f"the mirror has told another release log than {connection.endpoint}, from entry #{fork} on: "
            f"{told(told_here[fork])}; the Hub has {told(of_hub[fork])}",
        )
    return told_here if len(told_here) > len(of_hub) else of_hub


def _fork(one: list[ReleaseEntry], other: list[ReleaseEntry]) -> int | None:
    """The first entry that two logs have, and not alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (left, right) in pairs if left.hash != right.hash), None)


def _warn_of_mirrors(connection: Connection, place: RepositoryCache, memory: _Memory) -> None:
    """Say which mirrors told otherwise than the Hub does now; they are refused from here on."""
    of_hub = memory.hubs.get(connection.endpoint, [])
    for one in () if connection.is_mirror else endpoints_of(connection.endpoint):
        if not one.is_origin and _fork(of_hub, memory.hubs.get(one.address, [])) is not None:
            logger.warning(
                "%s: the mirror %s told another release log than %s does; it is refused from now on",
                *(place.repo_id, one.address, connection.endpoint),
            )


def _without_withdrawn(refs: Refs, entries: tuple[ReleaseEntry, ...]) -> Refs:
    """Refs without the tags that the Hub is known to have moved or deleted since."""
    standing = standings(entries)

    def holds(tag: str, commit: str) -> bool:
        said = standing.get(version_key(tag) or "")
        return said is None or (said.is_out and said.entry.commit == commit)

    return Refs(refs.branches, {tag: commit for tag, commit in refs.tags.items() if holds(tag, commit)})


def forget_log(connection: Connection, place: RepositoryCache) -> bool:
    """Take the Hub's log as it is from now on; whether anything was remembered."""
    with place.lock("release_log"):
        path = _path(place)
        try:
            memory = _read_memory(place)
        except IntegrityError:
            path.unlink(missing_ok=True)
            return True
        addresses = [one.address for one in connection.endpoints]
        if not [address for address in addresses if memory.hubs.pop(address, None) is not None]:
            return False
        _write_memory(place, memory)
    return True


def _extended(connection: Connection, place: RepositoryCache, known: list[ReleaseEntry]) -> ReleaseLog | None:
    """The log as far as it goes: what is known, and all that follows."""
    entries = list(known)
    while True:
        page = _page(connection, place, len(entries))
        if page is None:
            if known:
                raise _refused(
                    connection,
                    place,
                    f"its release log had {len(known)} entries, the last {known[-1]}, and now it has no log at all",
                )
            return None
        previous = entries[-1].hash if entries else START
        if connection.is_mirror and page.length < len(known):
            if page.head != (known[page.length - 1].hash if page.length else START):
                raise _refused(connection, place, _difference(connection, place, known, None))
            return ReleaseLog(tuple(known[: page.length]), page.length, tuple(known[page.length :]))
        problem = chain_problem(page.entries, _chain(place), previous, len(entries))
        shorter = page.length < len(entries) or (page.length == len(entries) and page.head != previous)
        if problem or shorter:
            raise _refused(connection, place, _difference(connection, place, known, problem))
        entries += page.entries
        if len(entries) >= page.length or not page.entries:
            break
    if (len(entries), entries[-1].hash if entries else START) != (page.length, page.head):
        raise _refused(
            connection,
            place,
            f"its release log should have {page.length} entries up to {page.head[:12]}; it shows {len(entries)}",
        )
    return ReleaseLog(tuple(entries), len(known))


def _difference(
    connection: Connection,
    place: RepositoryCache,
    known: list[ReleaseEntry],
    problem: str | None,
) -> str:
    """Which entries are not what they were."""
    if not known:
        return f"its release log is broken: {problem or 'its head is not the last entry'}"
    now: list[ReleaseEntry] = []
    while len(now) < len(known):
        following = _page(connection, place, len(now))
        if following is None or not following.entries:
            break
        now += following.entries
    differing = [
        f"\n  #{index}: it was {told(before)}; now it is {told(after)}"
        for index, (before, after) in enumerate(zip_longest(known, now[: len(known)]))
        if before is not None and (after is None or after.hash != before.hash)
    ]
    if not differing:
        return (
            f"its release log does not go on from entry #{len(known) - 1}: {problem or 'its head is another'}"
        )
    more = f"\n  and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
    return (
        f"its release log was rewritten: {len(differing)} of the {len(known)} entries that this machine knows are "
        f"others or gone:{''.join(differing[:_SHOWN])}{more}"
    )


def _refused(connection: Connection, place: RepositoryCache, problem: str) -> IntegrityError:
    return IntegrityError(
        f"{place.repo_id} at {connection.address} is refused: {problem}. Somebody changed releases past the log, or "
        "the Hub was put back from an older copy: ask its administrator (kernels-hub hub log, hub fsck). If that is "
        f"how it should be, `kernels-hub versions {place.repo_id} --verify --accept` takes the log as it is now; "
        "until then, what is pinned and cached can be used with HF_HUB_OFFLINE=1"
    )


def _warn(place: RepositoryCache, log: ReleaseLog) -> None:
    """Say what was forced since the last look."""
    before = {entry.tag for entry in log.entries[: log.known]}
    for entry in log.entries[log.known :]:
        if entry.kind in ("forced-move", "delete") and entry.tag in before:
            logger.warning(
                "%s: the release %s was %s since it was last looked at: %s",
                place.repo_id,
                entry.tag,
                "moved by force" if entry.kind == "forced-move" else "deleted",
                told(entry),
            )


def _page(connection: Connection, place: RepositoryCache, after: int) -> _Page | None:
    data = connection.release_log(place.repo_id, place.repo_type, after, _MOST_BYTES)
    if data is None:
        return None
    where = f"release log of {place.repo_id} at {connection.address}"
    return parse_json(data, _Page, where=where, error=IntegrityError, most_bytes=_MOST_BYTES)


def _chain(place: RepositoryCache) -> str:
    return f"{place.repo_type}/{place.repo_id}"


def _path(place: RepositoryCache) -> Path:
    return place.folder / ".kernels_hub" / _FILE


def _read_memory(place: RepositoryCache) -> _Memory:
    path = _path(place)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return _Memory({})
    return parse_json(
        data,
        _Memory,
        where=str(path),
        error=IntegrityError,
        most_bytes=4 * _MOST_BYTES,
        advice="remove it to begin anew with the log as the Hub shows it",
    )


def _write_memory(place: RepositoryCache, memory: _Memory) -> None:
    write_atomically(_path(place), msgspec.json.encode(memory))
