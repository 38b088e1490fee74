"""Kernels without layers: get the imported module of a repository."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from kernels_hub.errors import NoVariantError
from kernels_hub.repository.load import import_kernel
from kernels_hub.repository.local import local_variant, local_variants
from kernels_hub.repository.local_overrides import local_override
from kernels_hub.repository.refs import check_version, not_available, resolve_hub_kernel
from kernels_hub.repository.system import System
from kernels_hub.repository.variants import VariantAccepted, VariantRejected


def get_kernel(
    repo_id: str,
    *,
    version: str | int | None = None,
    revision: str | None = None,
    backend: str | None = None,
) -> ModuleType:
    """The imported module of a kernel on a Hub.

    repo_id, version, revision: as for `LayerRepository`.
    backend: device type to choose the variant for; None for the one that torch was built for.

    Raises VersionError, OfflineError, NoVariantError, KernelImportError.
    """
    check_version(repo_id, version, revision)
    return import_kernel(resolve_hub_kernel(repo_id, version, revision, backend).files)


def get_local_kernel(
    repo_path: str | Path, *, package_name: str | None = None, backend: str | None = None
) -> ModuleType:
    """The imported module of a kernel in a folder: a repository, its `build/`, or one variant.

    Raises RepositoryNotFoundError, NoVariantError, MetadataError, KernelImportError.
    """
    return import_kernel(local_variant(Path(repo_path), System.detect(backend), package_name))


def has_kernel(
    repo_id: str,
    *,
    version: str | int | None = None,
    revision: str | None = None,
    backend: str | None = None,
) -> bool:
    """Whether a kernel exists with a variant that this machine accepts.

    Raises VersionError, and OfflineError when that cannot be known without the network.
    """
    check_version(repo_id, version, revision)
    try:
        resolve_hub_kernel(repo_id, version, revision, backend)
    except NoVariantError:
        return False
    return True


def get_kernel_variants(
    repo_id: str | Path,
    *,
    version: str | int | None = None,
    revision: str | None = None,
    backend: str | None = None,
) -> list[VariantAccepted | VariantRejected]:
    """Every variant of a repository: the accepted ones best first, then the rejected with their reasons.

    repo_id: "org/name", or the path of a local repository.

    Raises RepositoryNotFoundError; OfflineError for a repository on a Hub without a local copy.
    """
    system = System.detect(backend)
    if isinstance(repo_id, Path) or Path(repo_id).is_dir():
        return local_variants(Path(repo_id), system)
    check_version(repo_id, version, revision)
    if (folder := local_override(repo_id)) is not None:
        return local_variants(folder, system)
    raise not_available(repo_id, version, revision)
