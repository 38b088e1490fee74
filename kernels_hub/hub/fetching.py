"""Fetches kernels from a Hub, with the kernels that they depend on.

LOCAL_KERNELS comes first for every repository: a folder in its place needs neither Hub nor trust.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kernels_hub.errors import LockError, MetadataError
from kernels_hub.hub.client import Fetched, fetch, fetch_locked, preview
from kernels_hub.hub.local_overrides import local_override
from kernels_hub.hub.locate import Request
from kernels_hub.hub.locked_kernels import Dependency, Lock
from kernels_hub.repository.load import RepoInfo
from kernels_hub.repository.local import local_variant
from kernels_hub.repository.resolved import Preview, ResolvedKernel
from kernels_hub.repository.system import System
from kernels_hub.repository.versions import VersionRequest

_Resolve = Callable[[Dependency, tuple[Dependency, ...]], ResolvedKernel]


def resolve_hub_kernel(request: Request) -> ResolvedKernel:
    """A kernel on a Hub with everything that it depends on. Raises as `hub.client.fetch` does."""
    return _resolver(request)(Dependency(request.repo_id, request.wanted, request.repo_type), ())


def preview_hub_kernel(request: Request) -> Preview:
    """What `resolve_hub_kernel` would find, dependencies aside; only lists are asked for."""
    if (local := _override(request.repo_id, request.backend)) is not None:
        return Preview(local.repository, local.revision, local.files.variant)
    repo_id, pinned, variant = preview(request)
    return Preview(repo_id, pinned.release or pinned.ref, variant)


def resolve_locked_kernel(
    repo_id: str,
    find_lock: Callable[[], Lock],
    backend: str | None,
    trust_remote_code: bool | tuple[str, ...] = False,
    download: bool = True,
) -> ResolvedKernel:
    """A kernel as a lock pins it, dependencies included. Raises LockError, and as `fetch` does."""
    if (local := _override(repo_id, backend)) is not None:
        return local
    lock = find_lock()
    pinned = lock.direct(repo_id)

    def resolve(dependency: Dependency, chain: tuple[Dependency, ...]) -> ResolvedKernel:
        if (local := _override(dependency.repo_id, backend)) is not None:
            return local
        locked = lock.find(dependency)
        if locked is None:
            raise LockError(
                f"{lock.where} does not lock {dependency}, which {chain[-1]} depends on; run: kernels-hub lock"
            )
        return _join(fetch_locked(locked, backend, trust_remote_code, download), dependency, chain, resolve)

    return resolve(Dependency(repo_id, pinned.wanted), ())


def with_dependencies(
    kernel: ResolvedKernel,
    backend: str | None,
    trust_remote_code: bool | tuple[str, ...] = False,
    user_agent: str | dict[str, str] | None = None,
) -> ResolvedKernel:
    """A kernel of a local folder, with the kernels of a Hub that its metadata.json asks for."""
    if kernel.files.metadata is None or not kernel.files.metadata.kernel_depends:
        return kernel
    request = Request(kernel.repository, VersionRequest(), backend, None, trust_remote_code, user_agent)
    resolve = _resolver(request)
    return _depending(kernel, Dependency(kernel.repository, VersionRequest()), (), resolve)


def _resolver(request: Request) -> _Resolve:
    def resolve(dependency: Dependency, chain: tuple[Dependency, ...]) -> ResolvedKernel:
        if (local := _override(dependency.repo_id, request.backend)) is not None:
            return local
        one = replace(
            request, repo_id=dependency.repo_id, wanted=dependency.wanted, repo_type=dependency.repo_type
        )
        return _join(fetch(one), dependency, chain, resolve)

    return resolve


def _override(repo_id: str, backend: str | None) -> ResolvedKernel | None:
    folder = local_override(repo_id)
    if folder is None:
        return None
    files = local_variant(folder, System.detect(backend))
    return with_dependencies(ResolvedKernel(f"{repo_id} ({folder})", None, files), backend)


def _join(
    fetched: Fetched, asked: Dependency, chain: tuple[Dependency, ...], resolve: _Resolve
) -> ResolvedKernel:
    revision = fetched.pinned.release or fetched.pinned.ref
    info = RepoInfo(fetched.repo_id, fetched.pinned.commit)
    served = ", ".join(fetched.served_by) or None
    kernel = ResolvedKernel(fetched.repo_id, revision, fetched.files, repo_info=info, served_by=served)
    return _depending(kernel, asked, chain, resolve)


def _depending(
    kernel: ResolvedKernel, asked: Dependency, chain: tuple[Dependency, ...], resolve: _Resolve
) -> ResolvedKernel:
    metadata = kernel.files.metadata
    if metadata is None or not metadata.kernel_depends:
        return kernel
    chain = (*chain, asked)
    depends = {}
    for row in metadata.kernel_depends:
        dependency = Dependency(row.repo_id, VersionRequest.of(row.repo_id, row.version, row.revision))
        if any(ancestor.repo_id == dependency.repo_id for ancestor in chain):
            ring = " -> ".join(str(link) for link in (*chain, dependency))
            raise MetadataError(f"kernels depend on one another in a ring: {ring}")
        depends[row.repo_id] = resolve(dependency, chain)
    return replace(kernel, depends=depends)
