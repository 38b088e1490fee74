"""`kernels-hub hub gc`, `fsck` and `backup`: on a root, whether servers run on it or not."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from kernels_hub.errors import KernelsHubError
from kernels_hub.files import move_into_place
from kernels_hub.server.database.sqlite import SqliteDatabase
from kernels_hub.server.git.left_behind import LeftBehind
from kernels_hub.server.git.rows import TABLES as GIT_TABLES
from kernels_hub.server.hub import Hub
from kernels_hub.server.layout import FORMAT, marker_text
from kernels_hub.server.listing import Large, parse_pointer
from kernels_hub.server.mirror.state import MIRRORING
from kernels_hub.server.objects.store import StoredObject
from kernels_hub.server.packs import BLOB, COMMIT, KINDS
from kernels_hub.server.reachable import reach
from kernels_hub.server.refs import RefsDamagedError
from kernels_hub.server.refusal import Refusal
from kernels_hub.server.release_check import check_logs, fit_copy, lost_refs, ref_problems
from kernels_hub.server.repositories import Repository
from kernels_hub.server.sweep import sweep

GRACE_SECONDS = 24 * 3600
"""How long an uploaded large file may wait for the commit that names it."""
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Collected:
    """What garbage collection did."""

    packs_before: int
    packs_after: int
    large_files_removed: int
    bytes_freed: int
    swept: tuple[str, ...]


@contextmanager
def maintaining(hub: Hub, timeout: float = 3600) -> Iterator[None]:
    """One of these at a time on a root. Raises KernelsHubError where another takes longer than `timeout` seconds."""
    with hub.git.alone("maintenance", timeout) as held:
        if not held:
            raise KernelsHubError(
                f"gc, fsck, backup or migrate is at work on {hub.layout.root}; wait until it is done"
            )
        yield


@contextmanager
def _not_mirroring(hub: Hub) -> Iterator[None]:
    """No mirror brings objects meanwhile: until it is done, no ref leads to them."""
    with hub.git.alone(MIRRORING) as held:
        if not held:
            raise KernelsHubError(
                "`kernels-hub mirror` brings objects here that no ref leads to yet, which --prune would drop; stop it "
                "first"
            )
        yield


def collect_garbage(hub: Hub, *, prune: bool = False, grace: float = GRACE_SECONDS) -> Collected:
    """Join packs, and drop large files that no commit names and that nobody uploaded just now.

    prune: also drop commits that no branch or tag reaches (locks may still pin those: ask first), and
        repositories that were found without a row.
    grace: seconds since an upload within which a large file is kept.
    """
    with maintaining(hub), _not_mirroring(hub) if prune else nullcontext():
        hub.large_files.objects.confirm()
        swept = sweep(hub)
        swept += hub.git.collect(_row_finder(hub), time.time() - grace, prune=prune)
        swept += _left_behind(hub).collect(_row_finder(hub), time.time() - grace, prune=prune)
        if prune:
            swept += _drop_orphaned_objects(hub)
        before = after = removed = freed = 0
        for repository in hub.repositories.all():
            with hub.git.locked(repository.id):
                if hub.repositories.by_id(repository.id) is None:
                    continue
                _check_refs(hub, repository)
                old = hub.store.content(repository).packs.kept()
                needed = _join_packs(hub, repository, len(old), prune=prune)
                new = hub.store.content(repository).packs.kept()
                count, size = _drop_large_files(hub, repository, needed, time.time() - grace)
                before, after, removed = before + len(old), after + len(new), removed + count
                freed += size + sum(pack.size for pack in old) - sum(pack.size for pack in new)
    return Collected(before, after, removed, freed, tuple(swept))


def _drop_orphaned_objects(hub: Hub) -> list[str]:
    """Remove the objects of repositories that have no row, and no folder that might get one."""
    found = []
    objects = hub.large_files.objects
    for identifier in sorted(objects.repositories()):
        if hub.repositories.by_id(identifier) is None and not hub.git.exists(identifier):
            objects.remove_all(identifier)
            found.append(f"the large files of a repository without a row: {identifier}")
    return found


def _check_refs(hub: Hub, repository: Repository) -> None:
    """Refuse to remove anything of a repository whose refs are not all there: they say what is needed."""
    content = hub.store.content(repository)
    try:
        hub.releases.recover(repository, content.packs, content.refs)
        problems = ref_problems(hub, repository, content.refs.all())
    except (RefsDamagedError, KeyError) as error:
        problems = [error.problem if isinstance(error, RefsDamagedError) else f"object {error} is missing"]
    if problems:
        raise KernelsHubError(
            f"{repository.full_name} is damaged ({problems[0]}); nothing was removed, "
            "run `kernels-hub hub fsck` and restore it from a backup"
        )


def _row_finder(hub: Hub) -> Callable[[str], bool]:
    return lambda identifier: hub.repositories.by_id(identifier) is not None


def _left_behind(hub: Hub) -> LeftBehind:
    return LeftBehind(hub.layout, hub.database, hub.large_files.objects)


def _join_packs(hub: Hub, repository: Repository, count: int, *, prune: bool) -> set[str]:
    """One pack in place of `count`; which large files the objects that stay name."""
    content = hub.store.content(repository)
    starts = [(name, ref.oid) for name, ref in content.refs.all().items()]
    reached = reach(content.packs, starts)
    if reached.problems:
        raise KernelsHubError(
            f"{repository.full_name} is damaged ({reached.problems[0]}); nothing was removed, "
            "run `kernels-hub hub fsck` and restore it from a backup"
        )
    present = content.packs.oids()
    unreached = [oid for oid in present if oid not in reached.objects]
    if count > 1 or (prune and unreached):
        content.packs.join((lambda oid: oid in reached.objects) if prune else (lambda _: True))
    large = set(reached.large)
    for oid in () if prune else unreached:
        if content.packs.kind(oid) == BLOB and (pointer := parse_pointer(content.packs.read(oid))):
            large.add(pointer.sha256)
    return large


def _drop_large_files(hub: Hub, repository: Repository, needed: set[str], before: float) -> tuple[int, int]:
    count = size = 0
    objects = hub.large_files.objects
    for oid, bytes_ in hub.large_files.rows(repository).items():
        if oid not in needed and hub.database.change(
            "DELETE FROM objects WHERE repository = ? AND oid = ? AND touched < ?",
            *(repository.id, oid, before),
        ):
            objects.remove(repository.id, oid)
            count, size = count + 1, size + bytes_
    # A crash between an object and its row leaves an object that nobody has.
    for entry in list(objects.entries(repository.id)):
        if hub.large_files.size(repository, entry.oid) is None:
            objects.remove(repository.id, entry.oid)
            count, size = count + 1, size + entry.size
    return count, size


def check(hub: Hub, *, content: bool = True) -> list[str]:
    """Every problem of a root, none when all is well: rows, objects, refs, large files.

    content: also read every large file and compare its SHA-256.
    """
    problems = [f"{hub.database.name}: {problem}" for problem in hub.database.check()]
    hub.large_files.objects.confirm()
    # No lock of a repository: commits go on, they only add. What garbage collection removes, stays.
    with maintaining(hub):
        for repository in hub.repositories.all():
            found = list(_check_repository(hub, repository, content))
            if found and hub.repositories.by_id(repository.id) is None:
                continue  # Deleted meanwhile.
            problems += [f"{repository.type} {repository.full_name}: {problem}" for problem in found]
        problems += check_logs(hub)
    return problems


def _check_repository(hub: Hub, repository: Repository, read_large: bool) -> Iterator[str]:
    if not hub.git.exists(repository.id):
        yield "its folder is missing"
        return
    content = hub.store.content(repository)
    yield from content.packs.problems(content=read_large)
    with suppress(RefsDamagedError, KeyError), hub.git.locked(repository.id):
        # What a process that was killed has begun; it is no problem until nobody can complete it.
        hub.releases.recover(repository, content.packs, content.refs)
    try:
        refs = content.refs.all()
    except RefsDamagedError as error:
        refs = {}
        yield from lost_refs(hub, repository, content.packs, error.problem)
    else:
        yield from ref_problems(hub, repository, refs)
    for oid in content.packs.oids():
        try:
            kind, data = content.packs.read_stored(oid)
        except Exception as error:  # noqa: BLE001 -- a damaged pack fails in dulwich in any of its ways
            yield f"object {oid} cannot be read: {type(error).__name__}: {error}"
            continue
        header = b"%s %d\0" % (KINDS.get(kind, b"?"), len(data))
        if hashlib.sha1(header + data, usedforsecurity=False).hexdigest() != oid:
            yield f"object {oid} has other content"
    for name, ref in refs.items():
        with suppress(Exception):  # What cannot be read is named above.
            if content.packs.kind(ref.commit) != COMMIT:
                yield f"{name} does not point to a commit"
    reached = reach(content.packs, [(name, ref.oid) for name, ref in refs.items()])
    yield from reached.problems
    yield from _check_large_files(hub, repository, list(reached.large.values()), read_large)


def _check_large_files(
    hub: Hub, repository: Repository, named: list[Large], read_large: bool
) -> Iterator[str]:
    objects = hub.large_files.objects
    stored = {entry.oid: entry.size for entry in objects.entries(repository.id)}
    rows = hub.large_files.rows(repository)
    for large in named:
        size = hub.large_files.size(repository, large.sha256)
        if size != large.size:
            yield f"large file {large.sha256}: no row of {large.size} bytes"
        elif stored.get(large.sha256) != size and objects.size(repository.id, large.sha256) != size:
            yield f"large file {large.sha256} is missing or truncated"
        elif read_large and hub.large_files.sha256(repository, large.sha256) != large.sha256:
            yield f"large file {large.sha256} has other content"
    for oid in sorted(set(rows) - set(stored) - {large.sha256 for large in named}):
        # Asked again, since it may have come, or been collected, after the list was made.
        if hub.large_files.size(repository, oid) is not None and objects.size(repository.id, oid) is None:
            yield f"large file {oid}, which no ref names, has a row and is missing"


def strays(hub: Hub) -> list[str]:
    """What lies in the store and no repository has: left by crashes, deletions and moves; for `gc`, or `gc --prune`."""
    objects, repositories = hub.large_files.objects, hub.repositories
    found = [
        f"{repository.type} {repository.full_name}: object {entry.oid} has no row"
        for repository in repositories.all()
        for entry in objects.entries(repository.id)
        if hub.large_files.size(repository, entry.oid) is None
    ]
    found += [
        f"objects of a repository that has no row: {identifier}"
        for identifier in sorted(objects.repositories())
        if repositories.by_id(identifier) is None
    ]
    return found + hub.git.strays(_row_finder(hub)) + _left_behind(hub).found()


def backup(hub: Hub, target: Path, *, large_files: bool = True) -> int:
    """A copy of a root, which can itself be served; servers may go on working. How many large files it holds.

    large_files: copy them too, into the folders of the copy, whatever store they are in. Otherwise they stay in the
        object store, which the copy remembers: it is whole as long as nothing is removed there.
    Raises KernelsHubError where the target exists. What was acknowledged before the call is in the copy.
    """
    if not large_files and hub.objects is None:
        raise KernelsHubError(
            "large files are below this root, in no object store; a copy without them is none"
        )
    hub.large_files.objects.confirm()
    if target.exists():
        raise KernelsHubError(f"{target} exists already; give the backup a new folder")
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o700, parents=True)
    # Not while garbage is collected: large files are copied without holding up commits.
    with maintaining(hub):
        for name in ("repositories", "locks", "incoming", "multipart"):
            (partial / name).mkdir()
        for repository in hub.repositories.all():
            with suppress(Refusal, KeyError):  # what a crash interrupted is completed before it is copied
                hub.changes.recover(repository)
        # The rows first: every release that their log has is in the refs that are copied after it.
        hub.database.backup(partial / "hub.sqlite")
        copied = {}
        for repository in hub.repositories.all():
            home = partial / "repositories" / repository.id
            if (found := _copy_repository(hub, repository, home, large_files=large_files)) is not None:
                copied[repository.id] = found
        _fit_rows(partial, copied)
    shutil.copy2(hub.layout.root / "secret", partial / "secret")
    if large_files:
        (partial / "FORMAT").write_text(FORMAT)
    else:
        (partial / "FORMAT").write_text(marker_text(objects=hub.layout.objects()))
        shutil.copy2(hub.layout.root / "id", partial / "id")
    with Hub(partial, objects=None if large_files else hub.objects) as copy:
        fit_copy(copy)
    os.sync()
    move_into_place(partial, target, durable=True, overwrite=False)
    return sum(len(found) for found in copied.values()) if large_files else 0


def _copy_repository(
    hub: Hub, repository: Repository, target: Path, *, large_files: bool
) -> dict[str, int] | None:
    """Copy a repository: its large files as they are then, SHA-256 -> size; None where it was deleted meanwhile."""
    objects = hub.large_files.objects
    try:
        with hub.git.locked(repository.id):
            hub.git.copy(repository.id, target / "git")
            entries = list(objects.entries(repository.id))
        (target / "lfs").mkdir(parents=True)
        for entry in entries if large_files else ():
            copy_out(hub, repository, entry, target / "lfs")
    except (FileNotFoundError, shutil.Error):
        if hub.repositories.by_id(repository.id) is not None:
            raise
        shutil.rmtree(target, ignore_errors=True)  # Deleted while it was copied.
        return None
    return {entry.oid: entry.size for entry in entries}


def copy_out(hub: Hub, repository: Repository, entry: StoredObject, folder: Path) -> None:
    """Write an object into a `lfs/` folder, as it is; `fsck` of the copy compares its SHA-256."""
    path = folder / entry.oid[:2] / entry.oid[2:4] / entry.oid
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(hub.large_files.open(repository, entry.oid)) as content, path.open("xb") as file:
        while data := content.read(_CHUNK):
            file.write(data)
    path.chmod(0o444)


def _fit_rows(partial: Path, copied: Mapping[str, Mapping[str, int]]) -> None:
    """Make the copied rows say what was copied: rows and files are not of the same moment.

    copied: repository -> SHA-256 -> size.
    """
    with closing(SqliteDatabase(partial / "hub.sqlite")) as rows, rows.transaction():
        # The git data is in the folders of the copy, and the key of the Hub in a file.
        for table in GIT_TABLES:
            rows.change(f"DELETE FROM {table}")  # noqa: S608 -- of these
        known = {row["id"] for row in rows.rows("SELECT id FROM repositories")}
        for identifier in known - set(copied):
            rows.change("DELETE FROM repositories WHERE id = ?", identifier)
        for identifier in set(copied) - known:
            shutil.rmtree(partial / "repositories" / identifier)
        for identifier in set(copied) & known:
            files = copied[identifier]
            for row in rows.rows("SELECT oid FROM objects WHERE repository = ?", identifier):
                if row["oid"] not in files:
                    rows.change(
                        "DELETE FROM objects WHERE repository = ? AND oid = ?", identifier, row["oid"]
                    )
            for oid, size in files.items():
                rows.change(
                    "INSERT INTO objects VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                    *(identifier, oid, size, time.time()),
                )
