"""References to layers: where a kernel comes from, which version, which layer of it.

A reference is a small immutable value. Building, comparing, hashing and printing one never touches
the disk or the network; `resolve` finds the files, `load` imports them.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from kernels_hub.errors import LayerNotFoundError, OfflineError, VersionError
from kernels_hub.repository.bundled import bundled_repository, source_variant
from kernels_hub.repository.load import KernelFiles, import_kernel
from kernels_hub.repository.local import local_variant
from kernels_hub.repository.local_overrides import local_override
from kernels_hub.repository.system import System

logger = logging.getLogger("kernels_hub")


@dataclass(frozen=True)
class ResolvedKernel:
    """The files that a reference stands for on one kind of device."""

    repository: str
    """As reports show it: "org/name", "bundled:name" or a path."""
    revision: str | None
    """Commit, tag or version; None for a folder."""
    files: KernelFiles


def find_layer(module: ModuleType, layer_name: str, repository: str) -> Any:
    """The layer class `layer_name` of an imported kernel, or a function of that name.

    Looked up in the package's `layers` module first, as the layer contract says, then among the
    package's own functions. Raises LayerNotFoundError naming the layers that exist.
    """
    layers = getattr(module, "layers", None)
    for place in (layers, module):
        found = getattr(place, layer_name, None)
        if callable(found):
            return found
    known = (
        sorted(
            name
            for name, value in vars(layers).items()
            if isinstance(value, type) and not name.startswith("_")
        )
        if layers is not None
        else []
    )
    raise LayerNotFoundError(
        f"{repository} has no layer {layer_name!r}; "
        + (f"it has {', '.join(known)}" if known else "it defines no layers at all (no `layers` module)")
    )


class Reference(ABC):
    """What every reference offers: `resolve` is its own, `load` the same for all."""

    layer_name: str

    @abstractmethod
    def resolve(self, backend: str | None = None) -> ResolvedKernel:
        """Find the files for a device type (None: the one that torch was built for)."""

    def load(self, backend: str | None = None) -> Any:
        """Import the kernel and return the layer class (or function).

        backend: device type to choose the variant for ("cpu", "cuda" …); None for the one that
            torch was built for.
        """
        resolved = self.resolve(backend)
        return find_layer(import_kernel(resolved.files), self.layer_name, resolved.repository)


@dataclass(frozen=True)
class LayerRepository(Reference):
    """A layer of a repository on a Hub.

    repo_id: "org/name".
    layer_name: the layer's class in the repository's `layers` module.
    version: a PEP 440 specifier over tags v<major>.<minor>.<patch>, such as ">=0.1,<0.2" (the
        highest match is used, prereleases only when the specifier names one), or an int N for the
        branch vN.
    revision: a branch, tag or commit instead of a version. With neither, `main` is used, with one
        warning: an author may push anything there.
    trust_remote_code, user_agent: as in HF `kernels`; they matter when the Hub is asked.

    Raises VersionError (a ValueError) for both, or for a version that does not parse.
    """

    repo_id: str
    layer_name: str = field(kw_only=True)
    version: str | int | None = field(default=None, kw_only=True)
    revision: str | None = field(default=None, kw_only=True)
    trust_remote_code: bool | tuple[str, ...] = field(default=False, kw_only=True)
    user_agent: str | dict[str, str] | None = field(default=None, kw_only=True, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_version(self.repo_id, self.version, self.revision)
        if isinstance(self.trust_remote_code, list):
            object.__setattr__(self, "trust_remote_code", tuple(self.trust_remote_code))
        if self.version is None and self.revision is None:
            _warn_unpinned(self.repo_id)

    def __str__(self) -> str:
        return f"{self.repo_id}{_version_suffix(self.version, self.revision)}, layer {self.layer_name}"

    def resolve(self, backend: str | None = None) -> ResolvedKernel:
        """Find the files: a LOCAL_KERNELS override. Raises OfflineError without one."""
        return resolve_hub_kernel(self.repo_id, self.version, self.revision, backend)


@dataclass(frozen=True)
class LocalLayerRepository(Reference):
    """A layer of a repository in a folder, for developing and testing kernels.

    repo_path: a repository (with `build/` or `kernel.toml`), its `build/`, or one variant.
    package_name: name of the package inside a variant, where metadata.json does not tell.
    """

    repo_path: Path
    layer_name: str = field(kw_only=True)
    package_name: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "repo_path", Path(self.repo_path))

    def __str__(self) -> str:
        return f"{self.repo_path}, layer {self.layer_name}"

    def resolve(self, backend: str | None = None) -> ResolvedKernel:
        """Find the variant for this machine; raises RepositoryNotFoundError or NoVariantError."""
        files = local_variant(self.repo_path, System.detect(backend), self.package_name)
        return ResolvedKernel(str(self.repo_path), None, files)


@dataclass(frozen=True)
class BundledLayerRepository(Reference):
    """A layer of a repository that ships with kernels_hub, such as "activation"."""

    name: str
    layer_name: str = field(kw_only=True)

    def __str__(self) -> str:
        return f"bundled:{self.name}, layer {self.layer_name}"

    def resolve(self, backend: str | None = None) -> ResolvedKernel:
        """Find the source form; raises RepositoryNotFoundError, or NoVariantError for the backend."""
        repository = bundled_repository(self.name)
        files = source_variant(repository.path, backend or System.detect().backend)
        return ResolvedKernel(f"bundled:{self.name}", repository.version, files)


@dataclass(frozen=True)
class LockedLayerRepository(Reference):
    """A layer of exactly the revision that a `kernels.lock` pins.

    lockfile: the lock file; None to find it beside the caller's project.
    """

    repo_id: str
    lockfile: Path | None = field(default=None, kw_only=True)
    layer_name: str = field(kw_only=True)

    def __post_init__(self) -> None:
        if self.lockfile is not None:
            object.__setattr__(self, "lockfile", Path(self.lockfile))

    def __str__(self) -> str:
        return f"{self.repo_id} as pinned by {self.lockfile or 'kernels.lock'}, layer {self.layer_name}"

    def resolve(self, backend: str | None = None) -> ResolvedKernel:
        """Find the pinned files: a LOCAL_KERNELS override. Raises OfflineError without one."""
        return resolve_hub_kernel(self.repo_id, None, None, backend)


def resolve_hub_kernel(
    repo_id: str, version: str | int | None, revision: str | None, backend: str | None
) -> ResolvedKernel:
    """Files of a kernel on a Hub.

    The environment's LOCAL_KERNELS comes first. Raises OfflineError where that names no folder for
    it, since this release fetches nothing from the network.
    """
    if (folder := local_override(repo_id)) is not None:
        return ResolvedKernel(f"{repo_id} ({folder})", None, local_variant(folder, System.detect(backend)))
    raise not_available(repo_id, version, revision)


def not_available(repo_id: str, version: str | int | None, revision: str | None) -> OfflineError:
    """The error for a repository on a Hub that has no local copy."""
    return OfflineError(
        f"{repo_id}{_version_suffix(version, revision)} is not available offline: it is on a Hub and no local copy is "
        f"known; give one with LOCAL_KERNELS={repo_id}=/path/to/repository or map a LocalLayerRepository"
    )


def check_version(repo_id: str, version: object, revision: object) -> None:
    """Raise VersionError unless at most one of both is given and it is well formed."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    if version is not None and revision is not None:
        raise VersionError(f"{repo_id}: give version={version!r} or revision={revision!r}, not both")
    if isinstance(version, str):
        try:
            SpecifierSet(version)
        except InvalidSpecifier as error:
            raise VersionError(
                f"{repo_id}: version {version!r} is not a specifier; write for example '>=0.1,<0.2' or '==1.2.0'"
            ) from error
    elif isinstance(version, bool) or not (version is None or isinstance(version, int)):
        raise VersionError(
            f"{repo_id}: a version is a specifier string or the int N of a branch vN, got {version!r}"
        )
    elif isinstance(version, int) and version < 0:
        raise VersionError(f"{repo_id}: version {version} is negative; branches are named v0, v1 …")
    if revision is not None and (not isinstance(revision, str) or not revision):
        raise VersionError(f"{repo_id}: a revision is a branch, tag or commit, got {revision!r}")


def _version_suffix(version: str | int | None, revision: str | None) -> str:
    if revision is not None:
        return f"@{revision}"
    if isinstance(version, int):
        return f"@v{version}"
    return f" {version}" if version else "@main"


@cache
def _warn_unpinned(repo_id: str) -> None:
    logger.warning(
        "%s is used without a version: its author may change `main` at any time; "
        "pin it, for example version='>=0.1,<0.2' or version=1",
        repo_id,
    )
