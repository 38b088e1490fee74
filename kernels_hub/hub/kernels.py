"""Kernels without layers: get the imported module of a repository."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from kernels_hub.errors import NoVariantError
from kernels_hub.hub.caller import find_caller
from kernels_hub.hub.client import judge
from kernels_hub.hub.fetching import resolve_hub_kernel, resolve_locked_kernel, with_dependencies
from kernels_hub.hub.local_overrides import local_override
from kernels_hub.hub.locate import Request
from kernels_hub.hub.lock import find_lock, read_lock
from kernels_hub.hub.locked_kernels import Lock
from kernels_hub.hub.references import frozen_trust
from kernels_hub.repository.local import local_variant, local_variants
from kernels_hub.repository.resolved import ResolvedKernel
from kernels_hub.repository.system import System
from kernels_hub.repository.variants import VariantAccepted, VariantRejected
from kernels_hub.repository.versions import VersionRequest


def get_kernel(
    repo_id: str,
    *,
    version: str | int | None = None,
    revision: str | None = None,
    backend: str | None = None,
    repo_type: str | None = None,
    trust_remote_code: bool | list[str] | tuple[str, ...] = False,
    user_agent: str | dict[str, str] | None = None,
    check_arch: bool = True,
) -> ModuleType:
    """The imported module of a kernel on a Hub, fetched once a machine and imported once a process.

    repo_id, version, revision, repo_type, trust_remote_code, user_agent: as for `LayerRepository`.
    backend: device type to choose the variant for; None for the one that torch was built for.
    check_arch: refuse a kernel that declares GPU architectures without that of the GPU here.

    >>> kernel = get_kernel("acme/scale", version=">=1,<2", backend="cpu")
    >>> kernel.doubled(torch.ones(2))
    tensor([2., 2.])

    Raises VersionError, RepositoryNotFoundError, NoVariantError, TrustError, IntegrityError,
    OfflineError, HubError, KernelImportError; nothing of the kernel has run but for the last.
    """
    version_request = VersionRequest.of(repo_id, version, revision)
    trust = frozen_trust(trust_remote_code)
    request = Request(repo_id, version_request, backend, repo_type, trust, user_agent)
    return resolve_hub_kernel(request).load(check_arch=check_arch)


def install_kernel(
    repo_id: str,
    *,
    revision: str | None = None,
    version: str | int | None = None,
    backend: str | None = None,
    local_files_only: bool = False,
    user_agent: str | dict[str, str] | None = None,
    trust_remote_code: bool | list[str] | tuple[str, ...] = False,
) -> Path:
    """Fetch the variant of a kernel for this machine, and the kernels that it depends on; nothing is imported.

    repo_id, version, revision, trust_remote_code, user_agent: as for `LayerRepository`.
    backend: device type to choose the variant for; None for the one that torch was built for.
    local_files_only: use what is in the cache, and ask no Hub.

    >>> folder = install_kernel("acme/scale", version=">=1,<2", backend="cpu")
    >>> (folder / "__init__.py").exists()
    True

    Returns the variant's folder. Raises as `get_kernel` does, but for KernelImportError.
    """
    version_request = VersionRequest.of(repo_id, version, revision)
    trust = frozen_trust(trust_remote_code)
    request = Request(repo_id, version_request, backend, None, trust, user_agent, local_files_only)
    return resolve_hub_kernel(request).files.folders[0]


def get_locked_kernel(
    repo_id: str,
    *,
    lockfile: str | Path | None = None,
    backend: str | None = None,
    trust_remote_code: bool | list[str] | tuple[str, ...] = False,
) -> ModuleType:
    """The imported module of a kernel as a `kernels.lock` pins it, fetched if it is not here yet.

    lockfile: the lock; None to find it beside the caller's project or in its distribution.

    >>> get_locked_kernel("acme/scale", lockfile="kernels.lock", backend="cpu").doubled(torch.ones(2))
    tensor([2., 2.])

    Raises LockError, and IntegrityError for any file that is not the one that was locked.
    """
    return _locked(repo_id, lockfile, backend, frozen_trust(trust_remote_code), download=True)


def load_kernel(
    repo_id: str, *, lockfile: str | Path | None = None, backend: str | None = None
) -> ModuleType:
    """As `get_locked_kernel`, but never downloads: OfflineError for what `kernels-hub download` did not fetch.

    >>> load_kernel("acme/scale", lockfile="kernels.lock", backend="cpu").doubled(torch.ones(2))
    tensor([2., 2.])
    """
    return _locked(repo_id, lockfile, backend, trust_remote_code=False, download=False)


def get_local_kernel(
    repo_path: str | Path,
    *,
    package_name: str | None = None,
    backend: str | None = None,
    trust_remote_code: bool | list[str] | tuple[str, ...] = False,
    user_agent: str | dict[str, str] | None = None,
) -> ModuleType:
    """The imported module of a kernel in a folder: a repository, its `build/`, or one variant.

    trust_remote_code, user_agent: for the kernels of a Hub that it depends on, as for `LayerRepository`; the
        folder's own code is run as it is.

    >>> get_local_kernel("my-kernels", backend="cpu").doubled(torch.ones(2))
    tensor([2., 2.])

    Raises RepositoryNotFoundError, NoVariantError, MetadataError, KernelImportError.
    """
    files = local_variant(Path(repo_path), System.detect(backend), package_name)
    kernel = ResolvedKernel(str(repo_path), None, files)
    return with_dependencies(kernel, backend, frozen_trust(trust_remote_code), user_agent).load()


def has_kernel(
    repo_id: str,
    *,
    version: str | int | None = None,
    revision: str | None = None,
    backend: str | None = None,
    repo_type: str | None = None,
) -> bool:
    """Whether a kernel exists with a variant that this machine accepts; nothing but lists is fetched.

    >>> has_kernel("acme/scale", version=">=1,<2", backend="cpu")
    True

    Raises VersionError for a version that does not exist, RepositoryNotFoundError, and OfflineError or
    HubError when the answer cannot be known.
    """
    version_request = VersionRequest.of(repo_id, version, revision)
    if (folder := local_override(repo_id)) is not None:
        try:
            local_variant(folder, System.detect(backend))
        except NoVariantError:
            return False
        return True
    decisions = judge(Request(repo_id, version_request, backend, repo_type))
    return any(isinstance(decision, VariantAccepted) for decision in decisions)


def get_kernel_variants(
    repo_id: str | Path,
    *,
    version: str | int | None = None,
    revision: str | None = None,
    backend: str | None = None,
    repo_type: str | None = None,
) -> list[VariantAccepted | VariantRejected]:
    """Every variant of a repository: the accepted ones best first, then the rejected with their reasons.

    repo_id: "org/name", or the path of a local repository.

    >>> print(*get_kernel_variants("my-kernels", backend="cpu"))
    torch-cpu: compatible

    Raises VersionError, RepositoryNotFoundError, OfflineError, HubError.
    """
    system = System.detect(backend)
    if isinstance(repo_id, Path) or Path(repo_id).is_dir():
        return local_variants(Path(repo_id), system)
    version_request = VersionRequest.of(repo_id, version, revision)
    if (folder := local_override(repo_id)) is not None:
        return local_variants(folder, system)
    return judge(Request(repo_id, version_request, backend, repo_type))


def _locked(
    repo_id: str,
    lockfile: str | Path | None,
    backend: str | None,
    trust_remote_code: bool | tuple[str, ...],
    download: bool,
) -> ModuleType:
    caller = find_caller()

    def lock() -> Lock:
        return find_lock(caller) if lockfile is None else read_lock(Path(lockfile))

    return resolve_locked_kernel(repo_id, lock, backend, trust_remote_code, download).load()
