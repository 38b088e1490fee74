"""The rules of releases: which changes of refs are refused, and what the release log says of those that are made.

A tag vX.Y.Z, prereleases included, is a release from the moment it appears: nobody moves or deletes it, by whatever
way, and no other spelling of the version (v1.00.0) and no branch may stand beside it. An administrator can force it,
with a reason, and that shows. Every change of refs goes through `Releases.write`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dulwich.objects import parse_tree

from kernels_hub.errors import MetadataError
from kernels_hub.parsing import parse_json
from kernels_hub.repository.release_entry import (
    MOST_NOTE,
    ReleaseEntry,
    Standing,
    content_digest,
    forced,
    version_key,
)
from kernels_hub.repository.versions import parse_tag
from kernels_hub.server.audit import Audit, plain
from kernels_hub.server.database import Database
from kernels_hub.server.lfs import LargeFiles
from kernels_hub.server.listing import FOLDER, parse_pointer
from kernels_hub.server.mirror.state import MirrorState
from kernels_hub.server.packs import BLOB, COMMIT, TREE, Packs
from kernels_hub.server.refs import BRANCHES, TAGS, Ref, RefChanges, Refs, RefsDamagedError
from kernels_hub.server.refusal import Refusal, forbidden
from kernels_hub.server.release_log import Event, ReleaseLog, chain_of
from kernels_hub.server.repositories import Repository

_YANKED = b"yanked.json"
_MOST_YANKED = 256 * 1024
_MAIN = BRANCHES + "main"
Known = Mapping[str, Ref]
Out = list[tuple[Event, str | None]]
"""Releases that are out, each with the reason for its yank as the log has it."""


@dataclass(frozen=True)
class Force:
    """An administrator's reason to change a release all the same."""

    reason: str


class Releases:
    """The rules, over the rows of one Hub."""

    def __init__(
        self, database: Database, large_files: LargeFiles, audit: Audit, mirror: MirrorState
    ) -> None:
        self.log = ReleaseLog(database)
        self.mirror = mirror
        self._database = database
        self._large_files = large_files
        self.audit = audit

    # -- changes of refs; all of it under the repository's lock

    def write(
        self,
        repository: Repository,
        packs: Packs,
        refs: Refs,
        changes: RefChanges,
        actor: str,
        force: Force | None = None,
    ) -> None:
        """Change refs, and log what that means for releases. 403 or 409 for what a release forbids."""
        self.mirror.check_writable()
        try:
            events = self._events(repository, packs, refs.all(), changes, force)
        except KeyError as error:
            raise RefsDamagedError(f"object {error} is missing") from error
        if not events:
            refs.change(changes)
            return

        def record() -> None:
            self.log.append(repository, events, actor)
            for event in events if force else ():
                self.audit.record(
                    f"release.{event.kind}",
                    repository.full_name,
                    type=repository.type,
                    tag=event.tag,
                    commit=event.commit,
                    reason=event.note,
                )

        refs.change(changes, record)

    def follow(self, refs: Refs, changes: RefChanges, record: Callable[[], None]) -> None:
        """Change refs of a mirror to those of its origin. record: adds what the origin's log says of that."""
        refs.change(changes, record)

    def recover(self, repository: Repository, packs: Packs, refs: Refs) -> bool:
        """Complete what a crash interrupted, and log tags that are older than the log; whether there was anything."""
        found = False
        if refs.interrupted():
            # Lists may have read the repository again since the crash.
            self._database.change("UPDATE search SET stale = 1 WHERE repository = ?", repository.id)
            refs.recover()
            found = True
        if self._database.row("SELECT 1 FROM unlogged WHERE repository = ?", repository.id) is not None:
            try:
                with self._database.transaction():
                    self._adopt(repository, packs, refs.all())
                    self._database.change("DELETE FROM unlogged WHERE repository = ?", repository.id)
            except KeyError as error:
                raise RefsDamagedError(f"object {error} of a release is missing") from error
            found = True
        return found

    def needs_recovery(self, repository: Repository) -> bool:
        """Whether `recover` would do something."""
        row = self._database.row(
            "SELECT 1 FROM pending_refs WHERE repository = ? UNION ALL SELECT 1 FROM unlogged WHERE repository = ?",
            *(repository.id, repository.id),
        )
        return row is not None

    def _adopt(self, repository: Repository, packs: Packs, refs: Known) -> None:
        events = [
            Event(
                "release",
                tag,
                ref.commit,
                release_digest(packs, ref.commit),
                ref.oid,
                "released before this log was kept",
            )
            for tag, ref in _releases(refs)
        ]
        out: Out = [(event, None) for event in events]
        self.log.append(repository, [*events, *self._yanks(repository, packs, refs, out)], "")

    def bury(self, repository: Repository, actor: str) -> None:
        """Log that a repository's releases go with it. Call it in the transaction that deletes its row.

        A mirror logs nothing: its log is the origin's, and goes on where the repository comes again.
        """
        if self.mirror.origin() is not None:
            return
        self._end(repository, actor, "the repository was deleted")

    def rename(self, old: Repository, new: Repository, refs: Known, packs: Packs, actor: str) -> None:
        """Log the releases of a repository under its new name; 409 where that name had others of these versions.

        Call it in the transaction that renames.
        """
        self.mirror.check_writable()
        before = self.log.standings(chain_of(old))
        known = self.log.standings(chain_of(new))
        events, yanked = [], []
        for tag, ref in _releases(refs):
            key = version_key(tag) or ""
            digest = before[key].entry.digest if key in before else release_digest(packs, ref.commit)
            if key in known and known[key].entry.digest != digest:
                raise Refusal(
                    409,
                    f"{new.full_name} released {known[key].entry.tag} with other content, of which the log says: "
                    f"{known[key].entry}. A version never comes back as something else: choose another name",
                )
            note = f"renamed from {old.full_name}"
            events.append(Event("release", tag, ref.commit, digest, ref.oid, note))
            if key in before and (yank := before[key].yanked) is not None:
                yanked.append(Event("yank", tag, ref.commit, digest, ref.oid, yank.note))
        self._end(old, actor, f"the repository was renamed to {new.full_name}")
        self.log.append(new, [*events, *yanked], actor)

    def _end(self, repository: Repository, actor: str, note: str) -> None:
        standing = self.log.standings(chain_of(repository)).values()
        events = [
            Event("delete", item.entry.tag, item.entry.commit, item.entry.digest, item.entry.commit, note)
            for item in standing
            if item.is_out
        ]
        self.log.append(repository, events, actor)

    def knows(self, repository: Repository, tag: str) -> bool:
        """Whether a version was ever released."""
        return version_key(tag) in self.log.standings(chain_of(repository))

    def changed(self, repository: Repository) -> dict[str, ReleaseEntry]:
        """By tag, the releases of a repository's name that were moved or removed, and what happened last."""
        return forced(self.log.entries(chain_of(repository)))

    # -- what changes mean

    def _events(
        self, repository: Repository, packs: Packs, refs: Known, changes: RefChanges, force: Force | None
    ) -> list[Event]:
        tags = {name.removeprefix(TAGS): ref for name, ref in changes.items() if name.startswith(TAGS)}
        tags = {tag: ref for tag, ref in tags.items() if version_key(tag) is not None}
        for name, ref in changes.items():
            branch = name.removeprefix(BRANCHES)
            if name.startswith(BRANCHES) and ref is not None and name not in refs and version_key(branch):
                raise forbidden(
                    f"{branch} is the name of a release: a branch of that name could be taken for it. Name the "
                    "branch otherwise, or tag the commit to release it"
                )
        yanks = _MAIN in changes and _yanked_oid(packs, refs.get(_MAIN)) != _yanked_oid(packs, changes[_MAIN])
        if not tags and not yanks:
            return []
        known = self.log.standings(chain_of(repository))
        if force is None:
            _check_whole(repository, refs, known)
        events = [
            event
            for tag, ref in tags.items()
            if (event := self._event(repository, packs, refs, tag, ref, known, force)) is not None
        ]
        after = {**refs, **{name: ref for name, ref in changes.items() if ref is not None}}
        changed = {version_key(event.tag) for event in events}
        out: Out = [(event, None) for event in events if event.kind != "delete"]
        for key, (entry, yank) in known.items():
            if key not in changed and entry.kind != "delete":
                event = Event("release", entry.tag, entry.commit, entry.digest, entry.commit)
                out.append((event, yank.note if yank else None))
        return [*events, *self._yanks(repository, packs, after, out)]

    def _event(
        self,
        repository: Repository,
        packs: Packs,
        refs: Known,
        tag: str,
        ref: Ref | None,
        known: Mapping[str, Standing],
        force: Force | None,
    ) -> Event | None:
        """What a change of one release's tag means; None where the log says the same already."""
        now, standing = refs.get(TAGS + tag), known.get(version_key(tag) or "")
        note = force.reason if force else ""
        if ref is None:
            if force is None:
                raise forbidden(_immutable(repository, tag, "deleted"))
            last = standing.entry if standing else None
            commit = last.commit if last else now.commit if now else ""
            return Event(
                "delete", tag, commit, last.digest if last else release_digest(packs, commit), commit, note
            )
        if BRANCHES + tag in refs and now is None:
            raise Refusal(
                409, f"There is a branch {tag}, which would be taken for the release; delete it first"
            )
        self._check_spelling(repository, refs, tag, standing)
        if standing is not None and standing.is_out and standing.entry.commit == ref.commit:
            return None
        digest = release_digest(packs, ref.commit)
        if now is None and (standing is None or (not standing.is_out and standing.entry.digest == digest)):
            return Event("release", tag, ref.commit, digest, ref.oid, note)
        if force is None and now is not None:
            raise forbidden(_immutable(repository, tag, "moved"))
        if force is None:
            assert standing is not None
            raise forbidden(
                f"{repository.full_name} released {tag} before, with other content, of which the log says: "
                f"{standing.entry}. A version never comes back as something else: publish a new version"
            )
        return Event("forced-move", tag, ref.commit, digest, ref.oid, note)

    def _check_spelling(
        self, repository: Repository, refs: Known, tag: str, standing: Standing | None
    ) -> None:
        other = next(
            (name for name, _ in _releases(refs) if name != tag and version_key(name) == version_key(tag)),
            None,
        )
        if other is None and standing is not None and standing.entry.tag != tag:
            other = standing.entry.tag
        if other is not None:
            raise Refusal(
                409,
                f"{tag} is another spelling of {other}, which {repository.full_name} has released; clients could take "
                "one for the other. Publish a new version",
            )

    def _yanks(self, repository: Repository, packs: Packs, refs: Known, out: Out) -> Iterator[Event]:
        """What yanked.json of main says of the releases that are out, and the log does not."""
        wanted = self._yanked(repository, packs, refs.get(_MAIN))
        for event, logged in out:
            reason = wanted.get(str(parse_tag(event.tag)))
            if reason is not None and reason != logged:
                yield replace(event, kind="yank", note=reason)
            elif reason is None and logged is not None:
                yield replace(event, kind="unyank", note="")

    def _yanked(self, repository: Repository, packs: Packs, main: Ref | None) -> dict[str, str]:
        """Version -> reason, as clients read it: a file that is no JSON object yanks nothing."""
        if (oid := _yanked_oid(packs, main)) is None:
            return {}
        content = packs.read(oid, BLOB)
        if (large := parse_pointer(content)) is not None:
            content = b""
            if large.size <= _MOST_YANKED:
                content = self._large_files.read(repository, large.sha256) or b""
        try:
            document: dict[str, Any] = parse_json(
                content, dict[str, Any], where="yanked.json", most_bytes=_MOST_YANKED
            )
        except MetadataError:
            return {}
        return {version: plain(reason)[:MOST_NOTE] for version, reason in document.items()}


def _check_whole(repository: Repository, refs: Known, known: Mapping[str, Standing]) -> None:
    """409 where the refs have a release and the log does not: others' entries would take the place of those lost."""
    for tag, ref in _releases(refs):
        standing = known.get(version_key(tag) or "")
        if standing is None or not standing.is_out:
            raise Refusal(
                409,
                f"The release log of {repository.full_name} does not have {tag} at {ref.commit}, which the repository "
                "has: the database is older, or the tag was made past the server. Nothing was changed; an "
                "administrator restores the database, or accepts what the log says with `kernels-hub hub repo restore`",
            )


def _immutable(repository: Repository, tag: str, what: str) -> str:
    return (
        f"{tag} of {repository.full_name} is a release, which is never {what}: somebody may have pinned it. Publish a "
        f"new version, or keep this one from being chosen with `kernels-hub yank {repository.full_name} "
        f"{tag.removeprefix('v')}`; an administrator can force it with `kernels-hub hub release`"
    )


def _releases(refs: Known) -> Iterator[tuple[str, Ref]]:
    for name in sorted(refs):
        if name.startswith(TAGS) and version_key(tag := name.removeprefix(TAGS)) is not None:
            yield tag, refs[name]


def _yanked_oid(packs: Packs, ref: Ref | None) -> str | None:
    """The blob of yanked.json at a commit; looked up in the root tree alone."""
    if ref is None:
        return None
    tree = packs.read(ref.commit, COMMIT).split(b"\n", 1)[0].removeprefix(b"tree ").decode()
    for name, mode, oid in parse_tree(packs.read(tree, TREE), 20):
        if name == _YANKED and mode != FOLDER:
            return bytes(oid).decode()
    return None


def release_digest(packs: Packs, commit: str) -> str:
    """The digest of a commit's content, as the release log has it."""
    tree = packs.read(commit, COMMIT).split(b"\n", 1)[0].removeprefix(b"tree ").decode()
    return content_digest(_files(packs, tree, ""))


def _files(packs: Packs, tree: str, prefix: str) -> Iterable[tuple[str, str]]:
    for name, mode, raw in parse_tree(packs.read(tree, TREE), 20):
        path = prefix + name.decode()
        if mode == FOLDER:
            yield from _files(packs, raw.decode(), path + "/")
            continue
        content = packs.read(raw.decode(), BLOB)
        large = parse_pointer(content)
        yield path, large.sha256 if large else hashlib.sha256(content).hexdigest()
