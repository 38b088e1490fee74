"""Compares the refs of a repository with the release log, and brings lost refs back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

from kernels_hub.errors import KernelsHubError
from kernels_hub.repository.release_entry import Standing, version_key
from kernels_hub.server.hub import Hub
from kernels_hub.server.packs import COMMIT, Packs
from kernels_hub.server.refs import BRANCHES, DEFAULT_BRANCH, TAGS, Ref, RefsDamagedError
from kernels_hub.server.release_log import chain_of
from kernels_hub.server.repositories import Repository
from kernels_hub.server.store import CommitInfo, parse_commit

_SHOWN = 10
_MAIN = BRANCHES + DEFAULT_BRANCH


def ref_problems(hub: Hub, repository: Repository, refs: Mapping[str, Ref]) -> list[str]:
    """Where refs that can be read are not what every repository has, and what its release log says."""
    problems = []
    if _MAIN not in refs and not hub.mirror.is_arriving(repository):
        problems.append(f"packed-refs has no {_MAIN}; {_advice(repository)}")
    standing = hub.releases.log.standings(chain_of(repository))
    unlogged = hub.database.row("SELECT 1 FROM unlogged WHERE repository = ?", repository.id) is not None
    for name, ref in refs.items():
        tag = name.removeprefix(TAGS)
        if not name.startswith(TAGS) or (key := version_key(tag)) is None or unlogged:
            continue
        logged = standing.get(key)
        if logged is None or not logged.is_out:
            said = "nothing of it" if logged is None else str(logged.entry)
            problems.append(f"the tag {tag} at {ref.commit} is no release: the release log has {said}")
        elif (logged.entry.tag, logged.entry.commit) != (tag, ref.commit):
            problems.append(
                f"the tag {tag} is at {ref.commit}, the release log says {logged.entry}; it was moved past the "
                f"server. {_advice(repository)}"
            )
    problems += [
        f"the release {item.entry.tag} has lost its tag; the release log says {item.entry}. {_advice(repository)}"
        for item in _lost(standing, refs)
    ]
    return problems


def lost_refs(hub: Hub, repository: Repository, packs: Packs, problem: str) -> Iterator[str]:
    """What a packed-refs file that cannot be read held, as far as the release log and the objects know."""
    yield f"{problem}: its branches and tags are lost, and requests for it are refused"
    standing = hub.releases.log.standings(chain_of(repository))
    releases = [f"{item.entry.tag} at {item.entry.commit}" for item in standing.values() if item.is_out]
    yield f"releases that the log knows, and that can be restored: {', '.join(releases) or 'none'}"
    tips = [f"{tip.oid} ({tip.date}, {tip.title[:60]!r})" for tip in _tips(packs)]
    more = f" and {len(tips) - _SHOWN} more" if len(tips) > _SHOWN else ""
    yield f"commits that nothing follows, which branches were at: {', '.join(tips[:_SHOWN]) or 'none'}{more}"
    yield _advice(repository)


def restore_refs(hub: Hub, repository: Repository, branches: Mapping[str, str]) -> dict[str, Ref]:
    """Write the refs of a repository anew: its releases as the log has them, and branches where they can be read.

    branches: where branches go, in place of what the damaged file says; `main` is needed unless it can be read.

    Returns the refs. Raises KernelsHubError where a commit is not in the repository, or nothing says where `main` was.
    """
    with hub.git.locked(repository.id):
        content = hub.store.content(repository)
        log = hub.releases.log
        kept: dict[str, Ref] = {}
        with suppress(RefsDamagedError):
            kept = {name: ref for name, ref in content.refs.all().items() if version_key(_tag(name)) is None}
        for name, commit in branches.items():
            kept[BRANCHES + name] = Ref(commit)
        oids = log.oids(chain_of(repository))
        for item in log.standings(chain_of(repository)).values():
            if item.is_out:
                entry = item.entry
                oid = oids[entry.tag, entry.commit]
                annotated = oid != entry.commit and content.packs.kind(oid) is not None
                kept[TAGS + entry.tag] = Ref(oid, entry.commit) if annotated else Ref(entry.commit)
        if _MAIN not in kept:
            tips = ", ".join(f"{tip.oid} ({tip.date})" for tip in _tips(content.packs)[:_SHOWN])
            raise KernelsHubError(
                f"nothing says where {DEFAULT_BRANCH} of {repository.full_name} was; say it with --branch "
                f"{DEFAULT_BRANCH}=COMMIT. Commits that nothing follows, newest first: {tips or 'none'}"
            )
        for name, ref in kept.items():
            if content.packs.kind(ref.commit) != COMMIT:
                raise KernelsHubError(
                    f"{name} would be at {ref.commit}, which is no commit of {repository.full_name}; "
                    "restore the repository from a backup"
                )
        hub.repositories.mark_changed(repository)
        with hub.database.transaction():
            content.refs.replace(kept)
            named = ", ".join(f"{name}={commit}" for name, commit in branches.items())
            hub.audit.record("repository.restore", repository.full_name, type=repository.type, branches=named)
        return kept


def fit_copy(hub: Hub) -> None:
    """Make the refs of a copied root those of its log: releases that appeared while it was made are left out.

    Whatever was out when its rows were copied is in the refs, or its objects are. Repositories that were deleted
    meanwhile have left their releases in the log, which end here.
    """
    for repository in hub.repositories.all():
        content = hub.store.content(repository)
        if hub.releases.needs_recovery(repository):
            continue
        with suppress(RefsDamagedError):
            refs = content.refs.all()
            standing = hub.releases.log.standings(chain_of(repository))
            out = {item.entry.tag: item.entry.commit for item in standing.values() if item.is_out}
            changes: dict[str, Ref | None] = {
                name: None for name in refs if version_key(_tag(name)) is not None and _tag(name) not in out
            }
            for tag, commit in out.items():
                if (at := refs.get(TAGS + tag)) is None or at.commit != commit:
                    changes[TAGS + tag] = Ref(commit)
            if changes:
                hub.repositories.mark_changed(repository)
                content.refs.change(changes)
    for chain in hub.releases.log.chains():
        kind, namespace, name = chain.split("/")
        if hub.repositories.find(kind, namespace, name) is None:
            hub.releases.bury(Repository("", kind, namespace, name, False, "", 0.0), "")


def check_logs(hub: Hub) -> list[str]:
    """What is wrong with the logs themselves, and releases of repositories that are not there."""
    problems = hub.audit.problems()
    # What is removed from a mirror leaves the origin's log as it is.
    mirrors = hub.mirror.origin() is not None
    for chain in hub.releases.log.chains():
        kind, namespace, name = chain.split("/")
        found = hub.releases.log.problems(chain)
        if not found and not mirrors and hub.repositories.find(kind, namespace, name) is None:
            found = [
                f"the release log says {item.entry}, and there is no repository; restore it from a backup"
                for item in hub.releases.log.standings(chain).values()
                if item.is_out
            ]
        problems += [f"{kind} {namespace}/{name}: {problem}" for problem in found]
    return problems


def _lost(standing: Mapping[str, Standing], refs: Mapping[str, Ref]) -> list[Standing]:
    return [item for item in standing.values() if item.is_out and TAGS + item.entry.tag not in refs]


def _tag(name: str) -> str:
    return name.removeprefix(TAGS) if name.startswith(TAGS) else ""


def _tips(packs: Packs) -> list[CommitInfo]:
    """Commits that are no parent of another, newest first."""
    commits: dict[str, CommitInfo] = {}
    for oid in packs.oids():
        with suppress(Exception):  # A damaged pack fails in any of its ways; fsck names what cannot be read.
            kind, content = packs.read_stored(oid)
            if kind == COMMIT:
                commits[oid] = parse_commit(oid, content)
    parents = {parent for info in commits.values() for parent in info.parents}
    tips = [info for oid, info in commits.items() if oid not in parents]
    return sorted(tips, key=lambda info: (info.date, info.oid), reverse=True)


def _advice(repository: Repository) -> str:
    return (
        f"put packed-refs of {repository.id} back from a backup, or write it anew with `kernels-hub hub repo restore "
        f"{repository.full_name} --type {repository.type}`"
    )
