"""Resolved kernels: files that are found, with the kernels that they depend on, ready to import."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import ModuleType

from kernels_hub.errors import KernelImportError
from kernels_hub.repository.architectures import check_architecture
from kernels_hub.repository.load import KernelFiles, RepoInfo, import_kernel

_LOADING: ContextVar[tuple[str, Mapping[str, ModuleType]] | None] = ContextVar("loading", default=None)


@dataclass(frozen=True)
class ResolvedKernel:
    """The files that a reference stands for on one kind of device."""

    repository: str
    """As reports show it: "org/name", "bundled:name" or a path."""
    revision: str | None
    """Commit, tag or version; None for a folder."""
    files: KernelFiles
    depends: Mapping[str, ResolvedKernel] = field(default_factory=dict, hash=False)
    """Repository -> kernel, of those that its metadata.json lists under kernel-depends."""
    repo_info: RepoInfo | None = None
    """Repository and commit of a kernel that comes from a Hub."""
    served_by: str | None = None
    """The addresses that it came from just now, where a mirror's is among them."""

    def load(self, *, check_arch: bool = True) -> ModuleType:
        """Import the kernels that it depends on, then the kernel itself; each once a process.

        check_arch: first compare the GPU architectures that it declares with the GPU that is here.

        Raises KernelImportError with the cause chained, IntegrityError for a file that was changed, NoVariantError
        for a GPU that it was not built for.
        """
        if check_arch and self.files.metadata is not None and self.files.metadata.archs:
            check_architecture(self.files.metadata, self.files.variant)
        if not self.depends:
            return import_kernel(self.files, self.repo_info)
        modules = {repo_id: kernel.load(check_arch=check_arch) for repo_id, kernel in self.depends.items()}
        with _dependencies(self.repository, modules):
            return import_kernel(self.files, self.repo_info)


@dataclass(frozen=True)
class Preview:
    """What a reference would resolve to, without its files."""

    repository: str
    revision: str | None
    variant: str


def get_kernel_dep(repo_id: str) -> ModuleType:
    """Inside a kernel, while it is imported: the module of a kernel that it depends on.

    repo_id: "org/name", listed with its version under kernel-depends in kernel.toml.

    A kernel in the folder "my-stack" depends on acme/scale:

    >>> print(Path("my-stack", "package", "__init__.py").read_text())
    from kernels_hub import get_kernel_dep
    scale = get_kernel_dep("acme/scale")
    def quadrupled(x): return scale.doubled(scale.doubled(x))
    >>> get_local_kernel("my-stack", backend="cpu").quadrupled(torch.ones(2))
    tensor([4., 4.])

    Raises KernelImportError outside of an import, or for a repository that is not listed.
    """
    loading = _LOADING.get()
    if loading is None:
        raise KernelImportError(
            f"get_kernel_dep({repo_id!r}) is for kernels, while they are imported; elsewhere use get_kernel"
        )
    repository, modules = loading
    if repo_id not in modules:
        raise KernelImportError(
            f"{repository} does not list {repo_id} under kernel-depends; "
            f"it lists {', '.join(sorted(modules)) or 'none'}"
        )
    return modules[repo_id]


@contextlib.contextmanager
def _dependencies(repository: str, modules: Mapping[str, ModuleType]) -> Iterator[None]:
    token = _LOADING.set((repository, modules))
    try:
        with _for_the_peer(modules):
            yield
    finally:
        _LOADING.reset(token)


def _for_the_peer(modules: Mapping[str, ModuleType]) -> contextlib.AbstractContextManager[None]:
    """Kernels published for HF `kernels` ask that library, where it is installed, for their dependencies."""
    if importlib.util.find_spec("kernels") is None:
        return contextlib.nullcontext()
    try:
        from kernels.deps import use_kernel_deps
    except ImportError:  # an older release, which knows no dependencies
        return contextlib.nullcontext()
    peer: contextlib.AbstractContextManager[None] = use_kernel_deps(dict(modules))
    return peer
