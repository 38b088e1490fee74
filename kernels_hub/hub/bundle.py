"""Bundles: kernels in one archive, to carry to where no Hub can be reached.

    kernels.bundle (a tar, compressed)
        bundle.json                  repositories, refs, commits, trees with the sha256 of every file
        blobs/<sha256>               every file once

Unpacking puts them where a download would have put them, so that afterwards every way to name a
version works offline. Before that, and in this order: the index is parsed into typed records; what it
announces is counted; the trust policy is asked, as for a download; everything is unpacked aside and
hashed; signatures that the policy asks for are verified; releases that are known here keep their commits.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from kernels_hub.contained_paths import link_inside, replacing_inside
from kernels_hub.errors import IntegrityError, MetadataError, RepositoryNotFoundError
from kernels_hub.files import replacing, scratch_folder
from kernels_hub.hub.cache import KnownRefs, RepositoryCache, hub_cache_folder
from kernels_hub.hub.tree import File, Tree
from kernels_hub.repository.versions import Pinned, Refs
from kernels_hub.trust.decision import Admission, RemoteCode, admit_bundle, check_signature

if TYPE_CHECKING:
    from kernels_hub.hub.bundle_index import RepositoryRow
    from kernels_hub.hub.locked_kernels import Lock

INDEX = "bundle.json"
_BLOBS = "blobs"
_FORMAT = 1
_CHUNK = 1 << 20
_BLOCK = tarfile.BLOCKSIZE
_ANEW = "copy it again, or make it anew: kernels-hub bundle"


@dataclass(frozen=True)
class BundleLimits:
    """What a bundle may take, counted before anything of it is unpacked.

    unpacked: bytes of all files together. ratio: how many times the archive's own size they may be, above
        `always` bytes; None for any. files: number of files. index: bytes of bundle.json.
    """

    unpacked: int = 16 << 30
    ratio: int | None = 100
    always: int = 64 << 20
    files: int = 20_000
    index: int = 4 << 20


@dataclass(frozen=True)
class Item:
    """One repository at one commit, with those of its files that are to be carried."""

    place: RepositoryCache
    tree: Tree
    known: KnownRefs | None

    def __str__(self) -> str:
        return f"{self.place.repo_id}@{self.tree.commit[:12]} ({', '.join(self.tree.variants())})"


def write_bundle(items: Iterable[Item], target: Path) -> None:
    """Write one archive with items whose files are in the cache. Equal items give equal bytes.

    The file appears whole or not at all. Raises IntegrityError for a cached file that is damaged.
    """
    items = sorted(items, key=lambda item: (item.place.repo_id, item.tree.commit))
    blobs: dict[str, Path] = {}
    rows = []
    for item in items:
        files = []
        for file in item.tree.files.values():
            path = item.place.path(item.tree.commit, file)
            files.append(replace(file, sha256=file.check(path), size=path.stat().st_size))
            blobs[str(files[-1].sha256)] = path
        rows.append(_row(replace(item, tree=Tree.of(item.tree.commit, files, item.tree.partial))))
    index = json.dumps({"format": _FORMAT, "repositories": rows}, indent=1, sort_keys=True).encode()
    with (
        replacing(target) as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0, compresslevel=6) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        _add(archive, INDEX, len(index), io.BytesIO(index))
        for sha256, path in sorted(blobs.items()):
            with path.open("rb") as stream:
                _add(archive, f"{_BLOBS}/{sha256}", path.stat().st_size, stream)


def read_bundle(
    source: Path,
    root: Path | None = None,
    *,
    trust_remote_code: bool | tuple[str, ...] = False,
    lock: Lock | None = None,
    limits: BundleLimits = BundleLimits(),
) -> list[Item]:
    """Unpack an archive into the cache and return what it held.

    root: the cache; None for the user's.
    trust_remote_code: True, or names of repositories, to take what no rule of the trust policy is about.
    lock: a kernels.lock; what it pins, commit and every file, is trusted as far as the policy says.
    limits: what it may take of disk and memory.

    Everything is unpacked aside and checked first; then it appears repository by repository.
    Raises RepositoryNotFoundError without such a file; MetadataError for one that is no bundle, or takes more
    than `limits`; TrustError for a repository that the trust policy does not admit, SignatureError for
    signatures that it asks for; IntegrityError for an archive that was changed or cut short, that gives a release
    known here another commit, or a known commit other files. The cache is then as it was.
    """
    from kernels_hub.hub.bundle_index import parse_index, sizes

    root = root or hub_cache_folder()
    if not source.is_file():
        raise RepositoryNotFoundError(
            f"no bundle at {source}; make one where the Hub can be reached: kernels-hub bundle"
        )
    with source.open("rb") as raw:
        packed = os.fstat(raw.fileno()).st_size
        archive = _Archive(raw, source, limits.index)
        name, size = archive.next() or ("", 0)
        if name != INDEX:
            raise MetadataError(f"{source} is no bundle: it has no {INDEX} at its beginning; {_ANEW}")
        if size > limits.index:
            raise _too_large(source, f"its {INDEX} has {size:,} bytes, at most {limits.index:,} are read")
        rows = parse_index(b"".join(archive.content()), source, limits.index)
        expected_sizes = sizes(rows)
        _count(source, expected_sizes, packed, limits)
        items = [_item(row, root) for row in rows]
        admissions = [_admit(item, trust_remote_code, lock) for item in items]
        for item in items:
            _check_known(item, source)
        root.mkdir(parents=True, exist_ok=True)
        _check_space(source, root, expected_sizes)
        with scratch_folder(root, ".bundle-") as scratch:  # its owner's alone
            blobs = _unpack(archive, expected_sizes, scratch, packed, limits)
            for number, (item, admission) in enumerate(zip(items, admissions, strict=True)):
                _check(item, admission, blobs, scratch / f"tree{number}", source)
            for item in items:
                _install(item, blobs, source)
    return items


# -- writing ----------------------------------------------------------------------------------------


def _row(item: Item) -> dict[str, Any]:
    known = item.known or KnownRefs(Refs())

    def here(refs: Any) -> dict[str, str]:
        return {name: commit for name, commit in sorted(refs.items()) if commit == item.tree.commit}

    return {
        "repository": item.place.repo_id,
        "type": item.place.repo_type,
        "branches": here(known.refs.branches),
        "tags": here(known.refs.tags),
        "yanked": dict(sorted(known.yanked.items())),
        "tree": json.loads(item.tree.to_json()),
    }


def _add(archive: tarfile.TarFile, name: str, size: int, content: IO[bytes]) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o644, 0
    archive.addfile(member, content)


# -- reading ----------------------------------------------------------------------------------------


class _Archive:
    """The members of a compressed tar, one after another: plain files only, and no more memory than a chunk.

    Headers that hold anything else (long names, links, sparse files) are refused rather than followed:
    `write_bundle` makes none.
    """

    def __init__(self, raw: IO[bytes], source: Path, most_behind: int) -> None:
        self._stream, self._source = gzip.GzipFile(fileobj=raw, mode="rb"), source
        self._left = 0  # of the content of the current member
        self._padding = 0
        self._behind = most_behind

    def next(self) -> tuple[str, int] | None:
        """Name and size of the next member; None behind the last."""
        for _ in self.content():
            pass
        self._read(self._padding)
        block = self._read(_BLOCK)
        try:
            member = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except tarfile.HeaderError as error:
            if block != bytes(_BLOCK):
                raise self._damaged(error) from error
            self._end()
            return None
        except ValueError as error:
            raise self._damaged(error) from error
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.size < 0:
            raise MetadataError(
                f"{self._source} is no bundle: it holds {member.name[:100]!r}, which is no plain file; {_ANEW}"
            )
        self._left, self._padding = member.size, -member.size % _BLOCK
        return member.name, member.size

    def content(self) -> Iterator[bytes]:
        """The rest of the current member, in chunks."""
        while self._left:
            chunk = self._read(min(self._left, _CHUNK))
            self._left -= len(chunk)
            yield chunk

    def _end(self) -> None:
        """Read what is behind the last member, which is padding: the sum of the whole is at its very end."""
        while chunk := self._some(_CHUNK):
            self._behind -= len(chunk)
            if self._behind < 0:
                raise MetadataError(f"{self._source} is no bundle: more lies behind its last file; {_ANEW}")

    def _read(self, count: int) -> bytes:
        """Exactly so many bytes."""
        parts = []
        while count:
            part = self._some(count)
            if not part:
                raise self._damaged("it ends before its last file does")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _some(self, count: int) -> bytes:
        try:
            return self._stream.read(count)
        except (OSError, EOFError, zlib.error) as error:  # of gzip, or of the disk
            raise self._damaged(error) from error

    def _damaged(self, problem: object) -> IntegrityError:
        return IntegrityError(f"{self._source} is no bundle, or cut short: {problem}; {_ANEW}")


def _count(source: Path, wanted: Mapping[str, int | None], packed: int, limits: BundleLimits) -> None:
    """Raise MetadataError for an index that announces more than may be unpacked."""
    if len(wanted) > limits.files:
        raise _too_large(source, f"it names {len(wanted):,} files, at most {limits.files:,} are unpacked")
    total = sum(size or 0 for size in wanted.values())
    most = _most(packed, limits)
    if total > most:
        raise _too_large(
            source, f"its {packed:,} bytes would become {total:,}, at most {most:,} are unpacked"
        )


def _most(packed: int, limits: BundleLimits) -> int:
    """How many bytes an archive of a size may become."""
    if limits.ratio is None:
        return limits.unpacked
    return min(limits.unpacked, max(limits.always, limits.ratio * packed))


def _too_large(source: Path, problem: str) -> MetadataError:
    return MetadataError(
        f"{source} takes more than a bundle may: {problem}; nothing was unpacked. If it is what you expect, say how "
        "much it may take: kernels-hub download --from-bundle … --max-unpacked 20GiB (and --max-files N)"
    )


def _check_space(source: Path, root: Path, wanted: Mapping[str, int | None]) -> None:
    total, free = sum(size or 0 for size in wanted.values()), shutil.disk_usage(root).free
    if 2 * total > free:  # once aside, once in its place
        raise MetadataError(
            f"{source} takes {total:,} bytes twice while it is unpacked, and {root} has {free:,} left; free some, or "
            "choose another cache with KERNELS_CACHE"
        )


def _item(row: RepositoryRow, root: Path) -> Item:
    cache = RepositoryCache(root, row.repository, row.type)
    return Item(cache, replace(row.files(), bundled=True), KnownRefs(row.refs(), row.yanked))


def _unpack(
    archive: _Archive, wanted: Mapping[str, int | None], scratch: Path, packed: int, limits: BundleLimits
) -> dict[str, Path]:
    """Every content that the index names as a file of a folder that nobody else reads, hashed as it is written."""
    blobs: dict[str, Path] = {}
    left = _most(packed, limits)
    while (member := archive.next()) is not None:
        name, size = member
        folder, _, sha256 = name.partition("/")
        if folder != _BLOBS or sha256 not in wanted or sha256 in blobs:
            raise MetadataError(
                f"{archive._source} is no bundle: its index does not name {name[:100]!r}; {_ANEW}"
            )
        left -= size
        if wanted[sha256] not in (None, size) or left < 0:
            raise _too_large(archive._source, f"{name} has {size:,} bytes, which its index does not say")
        hasher = hashlib.sha256()
        blobs[sha256] = scratch / sha256  # 64 hexadecimal digits, or the index would not name it
        with blobs[sha256].open("xb") as file:
            for chunk in archive.content():
                hasher.update(chunk)
                file.write(chunk)
        if hasher.hexdigest() != sha256:
            raise IntegrityError(f"{archive._source}: {name} has other content than its name says; {_ANEW}")
    return blobs


# -- whether it may be there ------------------------------------------------------------------------


def _admit(item: Item, trust_remote_code: bool | tuple[str, ...], lock: Lock | None) -> Admission:
    """Ask the trust policy about a repository that an archive brings. Raises TrustError."""
    return admit_bundle(_candidate(item, trust_remote_code, _is_locked(item, lock), None))


def _candidate(
    item: Item, trust_remote_code: bool | tuple[str, ...], locked: bool, version: str | int | None
) -> RemoteCode:
    from kernels_hub.hub.connection import Connection

    cache = item.place
    return RemoteCode(
        cache.repo_id,
        cache.repo_type,
        item.tree.commit,
        Connection().endpoint,
        trust_remote_code,
        locked,
        version,
    )


def _is_locked(item: Item, lock: Lock | None) -> bool:
    """Whether a lock pins this commit, with exactly these contents of these files."""
    for kernel in () if lock is None else lock.kernels:
        if (kernel.repo_id, kernel.commit) == (item.place.repo_id, item.tree.commit) and kernel.variants:
            pinned = kernel.tree().files
            return all(
                path in pinned and pinned[path].sha256 == file.sha256
                for path, file in item.tree.files.items()
            )
    return False


def _check_known(item: Item, source: Path) -> None:
    """Raise IntegrityError where an archive contradicts what is known here of a release or a commit."""
    from kernels_hub.hub.bundle_index import rebound

    cache, known = item.place, item.place.read_refs()
    arrived = item.known.refs if item.known is not None else Refs()
    for tag, before, after in rebound({} if known is None else known.refs.tags, arrived.tags):
        raise IntegrityError(
            f"{source} says that {tag} of {cache.repo_id} is commit {after[:12]}; here it is known as {before[:12]}, "
            "and a release never changes. Nothing was unpacked. Ask its publisher which of the two is right; if the "
            f"bundle is, remove {cache.folder} and unpack it again"
        )
    former = cache.read_tree(item.tree.commit)
    if former is None:
        return
    for path, file in item.tree.files.items():
        there = former.files.get(path)
        if there is None and former.partial:
            continue
        if there is None or any(
            mine not in (None, theirs) and theirs is not None
            for mine, theirs in (
                (file.sha256, there.sha256),
                (file.blob, there.blob),
                (file.size, there.size),
            )
        ):
            raise IntegrityError(
                f"{source} has other content for {path} of {cache.repo_id} at commit {item.tree.commit[:12]} than is "
                "known here, and a commit never changes. Nothing was unpacked; make the bundle anew: kernels-hub bundle"
            )


def _check(item: Item, admission: Admission, blobs: Mapping[str, Path], folder: Path, source: Path) -> None:
    """Every file against all that is said of it, and every variant as a download is verified before it is imported."""
    folder.mkdir()
    for file in item.tree.files.values():
        blob = blobs.get(str(file.sha256))
        if blob is None:
            raise IntegrityError(f"{source} lacks {file.path} of {item.place.repo_id}; {_ANEW}")
        file.check(blob)
        with replacing_inside(folder, file.path) as target, blob.open("rb") as stream:
            shutil.copyfileobj(stream, target, _CHUNK)
    refs = item.known.refs if item.known is not None else Refs()
    names = [Pinned(item.tree.commit, name).version for name in (*refs.tags, *refs.branches)]
    versions: list[str | int | None] = [None]
    if admission.signature_keys:
        versions = list(dict.fromkeys(name for name in names if name is not None)) or [None]
    for variant in item.tree.variants():
        for version in versions:
            candidate = _candidate(item, False, False, version)
            check_signature(admission, candidate, folder / "build" / variant)


def _install(item: Item, blobs: Mapping[str, Path], source: Path) -> None:
    """As a download would have: blobs by name, a snapshot of links to them, then the lists."""
    cache, commit = item.place, item.tree.commit
    cache.folder.mkdir(parents=True, exist_ok=True)
    with cache.lock("bundle"):
        _check_known(item, source)
        for file in item.tree.files.values():
            name = f"blobs/{file.name_in_cache or file.sha256}"
            if not _intact(file, cache.folder / name):
                _put(file, blobs[str(file.sha256)], cache.folder, name)
            _link(cache.folder, f"snapshots/{commit}/{file.path}", name)
        known = cache.read_refs() or KnownRefs(Refs())
        arrived = item.known or KnownRefs(Refs())
        refs = Refs(
            {**known.refs.branches, **arrived.refs.branches}, {**arrived.refs.tags, **known.refs.tags}
        )
        cache.write_refs(replace(known, refs=refs, yanked={**arrived.yanked, **known.yanked}, asked=0.0))
        for name, at in arrived.refs.branches.items():
            if at == commit:
                cache.write_ref(name, commit)
        former = cache.read_tree(commit)
        files = {**item.tree.files, **({} if former is None else former.files)}
        partial = item.tree.partial and (former is None or former.partial)
        bundled = former is None or former.bundled or files.keys() != former.files.keys()
        cache.write_tree(Tree.of(commit, files.values(), partial, bundled))


def _put(file: File, blob: Path, folder: Path, name: str) -> None:
    """Copy a content to its place; what is put there is what is hashed."""
    hasher = hashlib.sha256()
    with replacing_inside(folder, name) as target, blob.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            hasher.update(chunk)
            target.write(chunk)
        if hasher.hexdigest() != file.sha256:
            raise IntegrityError(f"{blob} changed while it was unpacked; unpack the bundle again")


def _intact(file: File, blob: Path) -> bool:
    try:
        return not blob.is_symlink() and bool(file.check(blob))
    except (IntegrityError, OSError):
        return False


def _link(folder: Path, relative: str, blob: str) -> None:
    up = "../" * relative.count("/")
    if not link_inside(folder, relative, up + blob):  # a system without links
        with replacing_inside(folder, relative) as target, (folder / blob).open("rb") as stream:
            shutil.copyfileobj(stream, target, _CHUNK)
