"""The text of a kernels.lock as typed records, and those as a `Lock`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Literal

from msgspec import Meta, field

from kernels_hub.contained_paths import relative_path_problem
from kernels_hub.errors import LockError, VersionError
from kernels_hub.hub.locked_kernels import Dependency, Lock, LockedKernel
from kernels_hub.hub.tree import BUILD
from kernels_hub.parsing import CommitId, RepositoryId, Sha256, Struct, parse_json
from kernels_hub.repository.versions import VersionRequest

FORMAT = 1
MOST_BYTES = 32 << 20
_ANEW = "make it anew with: kernels-hub lock --upgrade-all"
_PEER = re.compile(rb"\s*\[")

Version = Annotated[int, Meta(ge=0, lt=1 << 31)] | Annotated[str, Meta(max_length=200)] | None
Revision = Annotated[str, Meta(pattern=r"^[^\s\x00-\x1f\x7f]+\Z", max_length=250)]


class DependsRow(Struct, frozen=True, forbid_unknown_fields=True):
    """A kernel that another one depends on."""

    repository: RepositoryId
    version: Version = None
    revision: Revision | None = None


class KernelRow(Struct, frozen=True, forbid_unknown_fields=True):
    """A kernel at one commit."""

    repository: RepositoryId
    type: Literal["kernel", "model"]
    ref: Revision
    commit: CommitId
    direct: bool
    depends: list[DependsRow]
    variants: dict[str, dict[str, Sha256]]
    version: Version = None
    revision: Revision | None = None


class _Document(Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    kernels: list[KernelRow]


class _Format(Struct, frozen=True):
    format: int


class _PeerAsked(Struct, frozen=True):
    repo_id: RepositoryId = field(name="repo-id")
    version: Version = None
    revision: Revision | None = None


class _PeerLock(Struct, frozen=True):
    commit: CommitId


class _PeerRow(Struct, frozen=True):
    dependency: _PeerAsked
    lock: _PeerLock


def parse(data: bytes, where: str) -> Lock:
    """A lock from its text, in the format of this library or of HF `kernels`. Raises LockError."""
    place = f"{where} is no lock file"

    try:
        if _PEER.match(data):
            peers = parse_json(
                data, list[_PeerRow], where=place, error=LockError, advice=_ANEW, most_bytes=MOST_BYTES,
                unique_keys=True,
            )  # fmt: skip
            return Lock(_once(map(_peer_kernel, peers)), where)
        found = parse_json(
            data, _Format, where=place, error=LockError, advice=_ANEW, most_bytes=MOST_BYTES
        ).format
        if found != FORMAT:
            raise LockError(f"{where} has format {found}, this release reads {FORMAT}; upgrade kernels_hub")
        rows = parse_json(
            data,
            _Document,
            where=place,
            error=LockError,
            advice=_ANEW,
            most_bytes=MOST_BYTES,
            unique_keys=True,
        ).kernels
        return Lock(_once(map(_kernel, rows)), where)
    except (VersionError, _Malformed) as error:
        raise LockError(f"{place}: {error}; {_ANEW}") from error


class _Malformed(ValueError):
    """What is wrong with a lock file; `parse` says which file."""


def _once(kernels: Iterable[LockedKernel]) -> tuple[LockedKernel, ...]:
    found: dict[tuple[str, VersionRequest], LockedKernel] = {}
    for kernel in kernels:
        if found.setdefault((kernel.repo_id, kernel.wanted), kernel) is not kernel:
            raise _Malformed(f"{kernel.repo_id}{kernel.wanted} stands there twice")
    return tuple(found.values())


def _kernel(row: KernelRow) -> LockedKernel:
    if not row.variants:
        raise _Malformed(f"{row.repository}: it pins no files")
    for variant, files in row.variants.items():
        if "/" in variant or not files:
            raise _Malformed(f"{row.repository}: {variant[:100]!r} is no variant with files")
        for inside in files:
            path = f"{BUILD}/{variant}/{inside}"
            if (problem := relative_path_problem(path)) is not None:
                raise _Malformed(
                    f"{row.repository}: {path[:100]!r} is no path inside a repository: {problem}"
                )
            if "__pycache__" in path.split("/") or path.endswith(".pyc"):
                raise _Malformed(f"{row.repository}: {path[:100]!r} is bytecode, which is never loaded")
    return LockedKernel(
        row.repository,
        row.type,
        VersionRequest.of(row.repository, row.version, row.revision),
        row.ref,
        row.commit,
        row.direct,
        row.variants,
        tuple(
            Dependency(
                depend.repository, VersionRequest.of(depend.repository, depend.version, depend.revision)
            )
            for depend in row.depends
        ),
    )


def _peer_kernel(row: _PeerRow) -> LockedKernel:
    asked, commit = row.dependency, row.lock.commit
    wanted = VersionRequest.of(asked.repo_id, asked.version, asked.revision)
    return LockedKernel(asked.repo_id, "kernel", wanted, commit, commit, True, {})
