"""References to layers: where a kernel comes from, which version, which layer of it.

A reference is a small immutable value. Building, comparing, hashing and printing one never touches
the disk or the network; `resolve` finds (and fetches) the files, `load` imports them.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kernels_hub.errors import LayerNotFoundError, VersionError
from kernels_hub.hub.caller import Caller, find_caller
from kernels_hub.repository.bundled import bundled_repository, source_variant
from kernels_hub.repository.local import local_variant
from kernels_hub.repository.resolved import Preview, ResolvedKernel
from kernels_hub.repository.system import System
from kernels_hub.repository.versions import VersionRequest

if TYPE_CHECKING:
    from kernels_hub.hub.locate import Request

logger = logging.getLogger(__name__)


def find_layer(module: ModuleType, layer_name: str, repository: str) -> Any:
    """The layer class `layer_name` of an imported kernel, or a function of that name.

    Looked up in the package's `layers` module first, as the layer contract says, then among the
    package's own functions. Raises LayerNotFoundError naming the layers that exist.
    """
    layers = getattr(module, "layers", None)
    for namespace in (layers, module):
        layer = getattr(namespace, layer_name, None)
        if callable(layer):
            return layer
    known = (
        sorted(name for name, value in vars(layers).items() if not name.startswith("_") and _is_layer(value))
        if layers is not None
        else []
    )
    raise LayerNotFoundError(
        f"{repository} has no layer {layer_name!r}; "
        + (f"it has {', '.join(known)}" if known else "it defines no layers at all (no `layers` module)")
    )


def _is_layer(value: object) -> bool:
    """Whether a name of a `layers` module is a layer class: not a helper that it imports, nor nn.Module itself."""
    from torch import nn

    return isinstance(value, type) and issubclass(value, nn.Module) and "forward" in vars(value)


class Reference(ABC):
    """What every reference offers: `resolve` is its own, `load` the same for all."""

    layer_name: str

    @abstractmethod
    def resolve(self, backend: str | None = None) -> ResolvedKernel:
        """Find the files for a device type (None: the one that torch was built for)."""

    def preview(self, backend: str | None = None) -> Preview:
        """What `resolve` would find; nothing is downloaded for it. Raises as `resolve` does."""
        resolved = self.resolve(backend)
        return Preview(resolved.repository, resolved.revision, resolved.files.variant)

    def load(self, backend: str | None = None) -> Any:
        """Import the kernel and return the layer class (or function).

        backend: device type to choose the variant for ("cpu", "cuda" …); None for the one that
            torch was built for.
        """
        resolved = self.resolve(backend)
        return find_layer(resolved.load(), self.layer_name, resolved.repository)


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
    repo_type: "kernel" or "model"; None to find out.
    trust_remote_code: True, or the ids of repositories, to run their code whatever the trust policy
        says of the publisher; a policy may forbid that.
    user_agent: told to the Hub.

    Raises VersionError (a ValueError) for both, or for a version that does not parse.
    """

    repo_id: str
    layer_name: str = field(kw_only=True)
    version: str | int | None = field(default=None, kw_only=True)
    revision: str | None = field(default=None, kw_only=True)
    repo_type: str | None = field(default=None, kw_only=True)
    trust_remote_code: bool | list[str] | tuple[str, ...] = field(default=False, kw_only=True)
    user_agent: str | dict[str, str] | None = field(default=None, kw_only=True, compare=False, repr=False)
    _wanted: VersionRequest = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "trust_remote_code", frozen_trust(self.trust_remote_code))
        version_request = VersionRequest.of(self.repo_id, self.version, self.revision)
        if self.repo_type not in (None, "kernel", "model"):
            raise VersionError(
                f"{self.repo_id}: repo_type is 'kernel', 'model' or None, got {self.repo_type!r}"
            )
        object.__setattr__(self, "_wanted", version_request)
        if self.version is None and self.revision is None:
            _warn_unpinned(self.repo_id)

    def __str__(self) -> str:
        return f"{self.repo_id}{self._wanted}, layer {self.layer_name}"

    def resolve(self, backend: str | None = None) -> ResolvedKernel:
        """Find the files: a LOCAL_KERNELS override, else the Hub's, fetched once.

        Raises VersionError, TrustError, NoVariantError, OfflineError, HubError, IntegrityError.
        """
        from kernels_hub.hub.fetching import resolve_hub_kernel

        return resolve_hub_kernel(self._request(backend))

    def preview(self, backend: str | None = None) -> Preview:
        """What `resolve` would find: the Hub is asked for lists only."""
        from kernels_hub.hub.fetching import preview_hub_kernel

        return preview_hub_kernel(self._request(backend))

    def _request(self, backend: str | None) -> Request:
        from kernels_hub.hub.locate import Request

        trust, agent = frozen_trust(self.trust_remote_code), self.user_agent
        return Request(self.repo_id, self._wanted, backend, self.repo_type, trust, agent)


@dataclass(frozen=True)
class LocalLayerRepository(Reference):
    """A layer of a repository in a folder, for developing and testing kernels.

    repo_path: a repository (with `build/` or `kernel.toml`), its `build/`, or one variant.
    package_name: name of the package inside a variant, where metadata.json does not tell.
    """

    repo_path: str | os.PathLike[str]
    layer_name: str = field(kw_only=True)
    package_name: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "repo_path", Path(self.repo_path))

    def __str__(self) -> str:
        return f"{self.repo_path}, layer {self.layer_name}"

    def resolve(self, backend: str | None = None) -> ResolvedKernel:
        """Find the variant for this machine; raises RepositoryNotFoundError or NoVariantError."""
        files = local_variant(Path(self.repo_path), System.detect(backend), self.package_name)
        kernel = ResolvedKernel(str(self.repo_path), None, files)
        if files.metadata is None or not files.metadata.kernel_depends:
            return kernel  # the client of a Hub, a fifth of what a first use imports, is not needed
        from kernels_hub.hub.fetching import with_dependencies

        return with_dependencies(kernel, backend)


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
    """A layer of exactly the files that a `kernels.lock` pins; other content is never imported.

    lockfile: the lock file; None to find it beside the project of the code that builds this
        reference, or in the metadata of its installed distribution.
    """

    repo_id: str
    lockfile: str | os.PathLike[str] | None = field(default=None, kw_only=True)
    layer_name: str = field(kw_only=True)
    trust_remote_code: bool | list[str] | tuple[str, ...] = field(default=False, kw_only=True)
    _caller: Caller = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "trust_remote_code", frozen_trust(self.trust_remote_code))
        object.__setattr__(self, "_caller", find_caller())
        if self.lockfile is not None:
            object.__setattr__(self, "lockfile", Path(self.lockfile))

    def __str__(self) -> str:
        return f"{self.repo_id} as pinned by {self.lockfile or 'kernels.lock'}, layer {self.layer_name}"

    def resolve(self, backend: str | None = None) -> ResolvedKernel:
        """Find the pinned files, or a LOCAL_KERNELS override.

        Raises LockError, IntegrityError, TrustError, NoVariantError, OfflineError, HubError.
        """
        from kernels_hub.hub.fetching import resolve_locked_kernel
        from kernels_hub.hub.lock import find_lock, read_lock

        caller = self._caller
        lockfile = None if self.lockfile is None else Path(self.lockfile)
        find = (lambda: find_lock(caller)) if lockfile is None else (lambda: read_lock(lockfile))
        return resolve_locked_kernel(self.repo_id, find, backend, frozen_trust(self.trust_remote_code))


def frozen_trust(trust_remote_code: object) -> bool | tuple[str, ...]:
    """`trust_remote_code` as a value that can be compared and kept."""
    if isinstance(trust_remote_code, bool):
        return trust_remote_code
    if isinstance(trust_remote_code, (list, tuple)) and all(isinstance(r, str) for r in trust_remote_code):
        return tuple(trust_remote_code)
    raise TypeError(f"trust_remote_code is a bool or a list of repository ids, got {trust_remote_code!r}")


@cache
def _warn_unpinned(repo_id: str) -> None:
    logger.warning(
        "%s is used without a version: its author may change `main` at any time; "
        "pin it, for example version='>=0.1,<0.2' or version=1",
        repo_id,
    )
