"""Brings one repository of a mirror up to date with its origin: the whole step, or nothing of it.

the refs, and the log's head of the same moment
-> new entries of the log, which must follow the last that is held; the log must say what the refs say
-> git objects and large files, checked by their names
-> the content of new releases, against the SHA-256 that the log has of each
-> the entries and the refs, in the one step that any change of releases is made in
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from kernels_hub.errors import IntegrityError
from kernels_hub.repository.release_entry import (
    START,
    ReleaseEntry,
    chain_problem,
    disagreement,
    standings,
    version_key,
)
from kernels_hub.repository.versions import Refs as ShownRefs
from kernels_hub.server.hub import Hub
from kernels_hub.server.mirror.documents import MOST_ENTRIES, LogHead, RepositoryDocument
from kernels_hub.server.mirror.objects import Objects
from kernels_hub.server.mirror.origin import Origin
from kernels_hub.server.paths import checked_account_name, checked_ref_name, checked_repository_name
from kernels_hub.server.refs import BRANCHES, DEFAULT_BRANCH, TAGS, Ref
from kernels_hub.server.refusal import Refusal, repository_not_found
from kernels_hub.server.releases import release_digest
from kernels_hub.server.repositories import Repository

KEPT = "refs/kept/"
"""Where commits are held that were releases, and are no more at the origin: locks may pin them."""


class LogRefusedError(IntegrityError):
    """A release log that does not go on from the one that is held, or says otherwise than the refs beside it."""


def pull(hub: Hub, origin: Origin, row: RepositoryDocument, repository: Repository) -> int:
    """Bring a repository to what the origin says; how many entries its log grew by.

    Raises LogRefusedError, IntegrityError for content that is not what its name says, Refusal for a full disk, and what
    `Origin` raises. Nothing that is served has changed then.
    """
    hub.changes.recover(repository)
    found = origin.state(row)
    refs = {name: _checked_ref(name, *ref) for name, ref in found.refs.items()}
    if BRANCHES + DEFAULT_BRANCH not in refs:
        raise IntegrityError(f"the origin has no branch {DEFAULT_BRANCH} of it")
    held = hub.releases.log.entries(row.chain)
    new = _new_entries(origin, row, held, found.log)
    shown = ShownRefs(_short(refs, BRANCHES), _short(refs, TAGS))
    if problem := disagreement(shown, [*held, *new]):
        raise LogRefusedError(problem)
    now = hub.store.content(repository).refs.all()
    Objects(hub, origin, row, repository).bring(refs, [ref.commit for ref in now.values()])
    _check_releases(hub, repository, refs, new)
    _apply(hub, repository, row, _changes(now, refs), new)
    return len(new)


def arrive(hub: Hub, row: RepositoryDocument) -> Repository:
    """A repository that is new here: hidden until it is whole. 409 where its name is taken by another."""
    checked_repository_name(row.name)
    checked_account_name(row.namespace)
    hub.accounts.add_of_origin(row.namespace, row.owner.kind, row.owner.trusted)
    return hub.changes.receive(row.type, row.namespace, row.name, row.id)


def _checked_ref(name: str, oid: str, peeled: str | None) -> Ref:
    for place in (BRANCHES, TAGS):
        if name.startswith(place):
            try:
                checked_ref_name(name.removeprefix(place))
            except Refusal as refusal:
                raise IntegrityError(
                    f"the origin has a ref that no Hub makes: {refusal.message}"
                ) from refusal
            return Ref(oid, peeled)
    raise IntegrityError(f"the origin names the ref {name[:100]!r}, which is neither a branch nor a tag")


def _short(refs: Mapping[str, Ref], place: str) -> dict[str, str]:
    return {name.removeprefix(place): ref.commit for name, ref in refs.items() if name.startswith(place)}


def _new_entries(
    origin: Origin, row: RepositoryDocument, held: Sequence[ReleaseEntry], wanted: LogHead
) -> list[ReleaseEntry]:
    """The entries after those that are held, up to the head. Raises LogRefusedError where they do not follow."""
    last = held[-1].hash if held else START
    if wanted.length < len(held):
        raise LogRefusedError(
            f"its release log was cut: {len(held)} entries are held, the last {held[-1]}, and the origin has "
            f"{wanted.length}"
        )
    new: list[ReleaseEntry] = []
    while len(held) + len(new) < wanted.length:
        page = origin.log(row, len(held) + len(new))
        previous = new[-1].hash if new else last
        problem = chain_problem(page.entries, row.chain, previous, len(held) + len(new))
        if problem is None and not page.entries:
            problem = f"it has {wanted.length} entries and shows {len(held) + len(new)}"
        if problem is not None:
            raise LogRefusedError(
                f"its release log does not go on from the {len(held)} entries that are held: {problem}"
            )
        new += page.entries
        if len(new) > MOST_ENTRIES:
            raise LogRefusedError(f"its release log has more than {MOST_ENTRIES} entries")
    new = new[: wanted.length - len(held)]
    if (new[-1].hash if new else last) != wanted.head:
        raise LogRefusedError(
            f"its release log was rewritten: entry #{wanted.length - 1} is another than the one that "
            f"{'it showed' if new else 'is held'} ({held[-1] if held else 'none'})"
        )
    return new


def _check_releases(
    hub: Hub, repository: Repository, refs: Mapping[str, Ref], new: Sequence[ReleaseEntry]
) -> None:
    """Compare the content of new releases with the log's digest: names of git objects are SHA-1 alone."""
    packs = hub.store.content(repository).packs
    for standing in standings(new).values():
        entry = standing.entry
        ref = refs.get(TAGS + entry.tag)
        if entry.kind == "delete" or ref is None or ref.commit != entry.commit:
            continue
        if (found := release_digest(packs, entry.commit)) != entry.digest:
            raise LogRefusedError(
                f"the content of {entry.tag} is not what its release log says: its digest is {found[:12]}, the log "
                f"has {entry.digest[:12]}"
            )


def _changes(now: Mapping[str, Ref], refs: Mapping[str, Ref]) -> dict[str, Ref | None]:
    """What turns the refs of now into those of the origin; a commit that was a release keeps a name."""
    changes: dict[str, Ref | None] = {name: ref for name, ref in refs.items() if now.get(name) != ref}
    for name, ref in now.items():
        if name.startswith(KEPT):
            continue
        if name not in refs:
            changes[name] = None
        tag = name.removeprefix(TAGS)
        if name in changes and name.startswith(TAGS) and version_key(tag) is not None:
            changes[f"{KEPT}{tag}/{ref.commit}"] = ref
    return changes


def _apply(
    hub: Hub,
    repository: Repository,
    row: RepositoryDocument,
    changes: Mapping[str, Ref | None],
    new: Sequence[ReleaseEntry],
) -> None:
    """Make it visible. A crash in between is completed as that of any release: by whoever opens the repository next."""
    with hub.git.locked(repository.id):
        now = hub.repositories.by_id(repository.id)
        if now is None:
            raise repository_not_found(anonymous=False)
        before = now
        hub.repositories.mark_changed(now)

        def record() -> None:
            now = _renamed(hub, before, row)
            if row.private and not now.private:
                hub.repositories.set_private(now, True)
            if new:
                hub.releases.log.extend(now, new, changes)

        hub.releases.follow(hub.store.content(now).refs, changes, record)
        now = hub.repositories.by_id(repository.id) or now
        with hub.database.transaction():
            if row.gated != now.gated:
                hub.repositories.set_gated(now, row.gated)
            if now.private and not row.private:
                hub.repositories.set_private(now, False)
            hub.mirror.note(now, row.id, row.state)


def _renamed(hub: Hub, now: Repository, row: RepositoryDocument) -> Repository:
    """The repository under its name at the origin, with the log of that name."""
    if now.full_name == row.full_name:
        return now
    hub.accounts.add_of_origin(row.namespace, row.owner.kind, row.owner.trusted)
    if not hub.repositories.rename(now, row.namespace, row.name):
        raise Refusal(
            409,
            f"the origin renamed {now.full_name} to {row.full_name}, a name that another repository has here; "
            f"if the origin has that one no more, `kernels-hub hub repo remove {row.full_name}` makes room",
        )
    hub.audit.record("repository.rename", now.full_name, type=now.type, to=row.full_name)
    renamed = hub.repositories.by_id(now.id)
    assert renamed is not None
    return renamed


def mark_gone(hub: Hub, origin: Origin, seen: set[str]) -> list[tuple[Repository, bool]]:
    """Repositories that the origin shows no more, newly found: each, and whether it was made private there.

    Deleted ones stay as they are, for an administrator to remove; private ones become private here.
    """
    missing = {row.origin_id: row for row in hub.mirror.rows() if row.origin_id not in seen and not row.gone}
    found = []
    hidden = origin.hidden(list(missing)[:1000]) if missing else set()
    for origin_id, row in list(missing.items())[:1000]:
        repository = hub.repositories.by_id(row.repository)
        if repository is None:
            continue
        with hub.database.transaction():
            if origin_id in hidden and not repository.private:
                hub.repositories.set_private(repository, True)
            hub.mirror.set_gone(repository.id, time.time())
        found.append((repository, origin_id in hidden))
    return found
