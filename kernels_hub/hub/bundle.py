"""Bundles: kernels in one archive, to carry to where no Hub can be reached.

    kernels.bundle (a tar, compressed)
        bundle.json                  repositories, refs, commits, trees with the sha256 of every file
        blobs/<sha256>               every file once

Unpacking puts them where a download would have put them, so that afterwards every way to name a
version works offline. Nothing of a bundle is used before it has the sha256 that bundle.json says;
whether its code may run is decided when it is loaded, as for a download.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from kernels_hub.errors import IntegrityError, MetadataError, RepositoryNotFoundError
from kernels_hub.hub.cache import KnownRefs, RepositoryCache, cache_folder
from kernels_hub.hub.tree import File, Tree
from kernels_hub.repository.versions import Refs, is_commit

INDEX = "bundle.json"
_BLOBS = "blobs"
_FORMAT = 1
_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_CHUNK = 1 << 20
_LARGEST_INDEX = 64 << 20


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
            files.append(replace(file, sha256=file.check(path)))
            blobs[str(files[-1].sha256)] = path
        rows.append(_row(replace(item, tree=Tree.of(item.tree.commit, files, item.tree.partial))))
    index = json.dumps({"format": _FORMAT, "repositories": rows}, indent=1, sort_keys=True).encode()
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with (
            os.fdopen(handle, "wb") as raw,
            gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0, compresslevel=6) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
        ):
            _add(archive, INDEX, len(index), io.BytesIO(index))
            for sha256, path in sorted(blobs.items()):
                with path.open("rb") as stream:
                    _add(archive, f"{_BLOBS}/{sha256}", path.stat().st_size, stream)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_bundle(source: Path, root: Path | None = None) -> list[Item]:
    """Unpack an archive into the cache and return what it held.

    root: the cache; None for the user's.

    Everything is unpacked aside and checked first; then it appears repository by repository.
    Raises RepositoryNotFoundError without such a file, MetadataError for one that is no bundle, and
    IntegrityError for one that was changed or cut short; the cache is then as it was.
    """
    root = root or cache_folder()
    if not source.is_file():
        raise RepositoryNotFoundError(
            f"no bundle at {source}; make one where the Hub can be reached: kernels-hub bundle"
        )
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".bundle-") as scratch:
        try:
            index, blobs = _unpack(source, Path(scratch))
        except (tarfile.TarError, EOFError, OSError, ValueError) as error:
            if isinstance(error, (IntegrityError, MetadataError)) or (
                isinstance(error, OSError) and error.errno is not None
            ):
                raise
            raise IntegrityError(
                f"{source} is no bundle, or cut short: {error}; copy it again, or make it anew: kernels-hub bundle"
            ) from error
        items = [_item(row, root, source) for row in index]
        for item in items:
            for file in item.tree.files.values():
                if file.sha256 not in blobs:
                    raise IntegrityError(f"{source} lacks {file.path} of {item.place.repo_id}; make it again")
        for item in items:
            _install(item, blobs)
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


def _unpack(source: Path, scratch: Path) -> tuple[list[dict[str, Any]], dict[str, Path]]:
    """The rows of the index, and every blob as a file whose name is its sha256."""
    blobs: dict[str, Path] = {}
    rows: list[dict[str, Any]] | None = None
    with tarfile.open(source, mode="r|gz") as archive:
        for member in archive:
            stream = archive.extractfile(member)
            if stream is None or not member.isreg():
                raise MetadataError(f"{source} is no bundle: it holds {member.name!r}, which is no file")
            if member.name == INDEX:
                if member.size > _LARGEST_INDEX:
                    raise MetadataError(f"{source} is no bundle: its {INDEX} has {member.size} bytes")
                rows = _rows(stream.read(), source)
                continue
            folder, _, sha256 = member.name.partition("/")
            if rows is None or folder != _BLOBS or not sha256.isalnum():
                raise MetadataError(f"{source} is no bundle: it holds {member.name!r}")
            path = scratch / sha256
            if _copy(stream, path) != sha256:
                raise IntegrityError(f"{source}: {member.name} has other content than its name says")
            blobs[sha256] = path
    if rows is None:
        raise MetadataError(f"{source} is no bundle: it has no {INDEX}")
    return rows, blobs


def _copy(stream: IO[bytes], path: Path) -> str:
    hasher = hashlib.sha256()
    with path.open("wb") as target:
        for chunk in _chunks(stream):
            hasher.update(chunk)
            target.write(chunk)
    return hasher.hexdigest()


def _chunks(stream: IO[bytes]) -> Iterator[bytes]:
    while chunk := stream.read(_CHUNK):
        yield chunk


def _rows(text: bytes, source: Path) -> list[dict[str, Any]]:
    try:
        document = json.loads(text)
        if document["format"] != _FORMAT:
            raise MetadataError(
                f"{source} has format {document['format']!r}, this release reads {_FORMAT}; upgrade kernels_hub"
            )
        rows: list[dict[str, Any]] = document["repositories"]
        return rows
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, MetadataError):
            raise
        raise MetadataError(f"{source} is no bundle: its {INDEX} does not parse: {error}") from error


def _item(row: dict[str, Any], root: Path, source: Path) -> Item:
    try:
        repo_id, repo_type = row["repository"], row["type"]
        tree = Tree.from_json(json.dumps(row["tree"]))
        refs = Refs(dict(row["branches"]), dict(row["tags"]))
        yanked = dict(row["yanked"])
    except (KeyError, TypeError, ValueError) as error:
        raise MetadataError(f"{source} is no bundle: {error}") from error
    plain = _NAME.fullmatch(str(repo_id)) is not None
    plain = plain and not any(".." in str(name) for name in (repo_id, *refs.branches, *refs.tags))
    if not plain or repo_type not in ("kernel", "model") or not is_commit(tree.commit):
        raise MetadataError(f"{source} is no bundle: it names {repo_type} {repo_id!r} at {tree.commit!r}")
    return Item(RepositoryCache(root, repo_id, repo_type), tree, KnownRefs(refs, yanked))


def _install(item: Item, blobs: dict[str, Path]) -> None:
    """As a download would have: blobs by name, a snapshot of links to them, then the lists."""
    place, commit = item.place, item.tree.commit
    with place.lock("bundle"):
        for file in item.tree.files.values():
            blob = place.folder / "blobs" / (file.name_in_cache or str(file.sha256))
            blob.parent.mkdir(parents=True, exist_ok=True)
            if not _intact(file, blob):
                temporary = blob.with_name(f".{blob.name}.incoming")
                shutil.copyfile(blobs[str(file.sha256)], temporary)
                temporary.replace(blob)
            _link(place.path(commit, file), blob)
        known = place.read_refs() or KnownRefs(Refs())
        arrived = item.known or KnownRefs(Refs())
        refs = Refs(
            {**known.refs.branches, **arrived.refs.branches}, {**known.refs.tags, **arrived.refs.tags}
        )
        place.write_refs(replace(known, refs=refs, yanked={**known.yanked, **arrived.yanked}, asked=0.0))
        for name, at in arrived.refs.branches.items():
            if at == commit:
                place.write_ref(name, commit)
        former = place.read_tree(commit)
        files = {**({} if former is None else former.files), **item.tree.files}
        partial = item.tree.partial and (former is None or former.partial)
        place.write_tree(Tree.of(commit, files.values(), partial))


def _intact(file: File, blob: Path) -> bool:
    try:
        file.check(blob)
    except IntegrityError:
        return False
    return True


def _link(path: Path, blob: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{time.monotonic_ns()}")
    try:
        temporary.symlink_to(os.path.relpath(blob, path.parent))
    except OSError:  # a system without links
        shutil.copyfile(blob, temporary)
    temporary.replace(path)
