"""Import kernels: once per content in a process, whatever the number of threads and of copies.

Only where the files of the imported copy are gone from the disk, an equal copy elsewhere is imported again: modules
read data files, and import submodules, later on.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType

from kernels_hub.errors import IntegrityError, KernelImportError, RepositoryNotFoundError
from kernels_hub.repository.digest import content_digest, file_sha256
from kernels_hub.repository.finder import KernelFinder, Package
from kernels_hub.repository.metadata import Metadata, check_python_depends

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class KernelFiles:
    """One variant, found and ready to import: a snapshot, not to be used after files change."""

    name: str
    variant: str
    folders: tuple[Path, ...]
    """Folders laid over one another; the first holds `__init__.py`."""
    files: Mapping[str, Path] = field(hash=False)
    """Every file of the package by its path inside."""
    metadata: Metadata | None = None
    bytecode: bool = field(default=False, compare=False)
    """Python may keep bytecode beside the sources: for what is installed with this library."""
    sealed: Mapping[str, str] | None = field(default=None, hash=False)
    """Path inside -> sha256 that was verified: no module with other content is imported."""

    def seal(self, sha256: Mapping[Path, str]) -> KernelFiles:
        """These files, as far as they were verified, bound to what was found in them.

        sha256: file -> sha256 in hexadecimal. Files that are not in it leave the kernel.
        """
        files = {inside: path for inside, path in self.files.items() if path in sha256}
        return replace(self, files=files, sealed={inside: sha256[path] for inside, path in files.items()})

    @cached_property
    def digest(self) -> str:
        """sha256 of the content, in hexadecimal; reads every file once, unless they are sealed."""
        sha256 = self.sealed or {inside: file_sha256(path) for inside, path in self.files.items()}
        return content_digest(sha256)

    @cached_property
    def module_name(self) -> str:
        """Name to import it under: kernel, variant and content."""
        readable = f"{self.name}_{self.variant.removeprefix('torch-')}"
        return "".join(c if c.isalnum() else "_" for c in f"{readable}_{self.digest[:12]}")


@dataclass(frozen=True)
class RepoInfo:
    """Where a kernel of a Hub comes from."""

    repo_id: str
    """"org/name"."""
    revision: str
    """The commit."""


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel in this process: its files and the imported package."""

    kernel: KernelFiles
    module: ModuleType
    repo_info: RepoInfo | None = None
    """The repository on a Hub that it was first loaded from; None for folders and bundled kernels."""

    @property
    def metadata(self) -> Metadata | None:
        """Its metadata.json."""
        return self.kernel.metadata

    def serves(self, kernel: KernelFiles) -> bool:
        """Whether its module can stand for an equal kernel: it is the same folder, or its own is still there."""
        return kernel.folders == self.kernel.folders or all(
            path.exists() for path in self.kernel.files.values()
        )


_FINDER = KernelFinder()
_NAMES: dict[str, str] = {}
"""Content digest -> name of the module that serves it. Each change is one atomic operation."""
_LOADED: dict[str, LoadedKernel] = {}
"""Name of a module -> kernel whose import is complete. Entries are only ever added."""


def get_loaded_kernels() -> list[LoadedKernel]:
    """A snapshot of every kernel that this process has imported.

    >>> model = kernelize(nn.Sequential(nn.SiLU()), mode=Mode.INFERENCE, device="cpu")
    >>> "activation" in {loaded.kernel.name for loaded in get_loaded_kernels()}
    True
    """
    return list(_LOADED.values())


def import_kernel(kernel: KernelFiles, repo_info: RepoInfo | None = None) -> ModuleType:
    """The package of a variant, imported once for its content.

    repo_info: the repository on a Hub that it comes from, for `get_loaded_kernels`.

    Equal content shares one module, wherever it lies, as long as the files that it was imported from are
    there; other content gets one of its own, whatever its name. The module's name carries the digest, so
    operator namespaces derived from it never collide. Threads wait for the one that imports; a failed import
    can be tried again.

    Raises KernelImportError (an ImportError), with the cause chained and without a trace in
    `sys.modules`, when the code raises; also when a Python package that it needs is missing.
    Raises IntegrityError for a sealed file that was changed, before any of it runs.
    """
    name = _NAMES.setdefault(kernel.digest, kernel.module_name)
    if (loaded := _LOADED.get(name)) is None:
        return _imported(name, kernel, repo_info)
    if loaded.serves(kernel):
        return loaded.module
    path_digest = hashlib.sha256("\0".join(map(str, kernel.folders)).encode()).hexdigest()[:8]
    name = f"{kernel.module_name}_{path_digest}"
    try:
        module = _imported(name, kernel, repo_info)
    except KernelImportError as error:  # a native library may refuse to register its operators again
        _LOGGER.warning(
            "%s is not there any more, and the equal %s cannot be imported beside it; the module of the former is "
            "used: %s", _where(loaded.kernel), _where(kernel), error,
        )  # fmt: skip
        return loaded.module
    _NAMES[kernel.digest] = name
    return module


def _imported(name: str, kernel: KernelFiles, repo_info: RepoInfo | None) -> ModuleType:
    """The package of a variant under a name of its own, imported unless it is already."""
    if "__init__.py" not in kernel.files:
        raise RepositoryNotFoundError(
            f"kernel {kernel.name!r}, variant {kernel.variant!r}: no __init__.py in {_where(kernel)}"
        )
    if kernel.metadata is not None:
        check_python_depends(kernel.metadata)

    def loaded_now(module: ModuleType) -> None:
        _LOADED[name] = LoadedKernel(kernel, module, repo_info)

    _FINDER.register(name, Package(kernel.folders, kernel.files, kernel.bytecode, loaded_now, kernel.sealed))
    try:
        return _import(name)
    except IntegrityError:
        raise
    except (Exception, SystemExit) as error:
        raise KernelImportError(
            f"kernel {kernel.name!r}, variant {kernel.variant!r} ({_where(kernel)}) "
            f"raised {type(error).__name__} on import: {error}"
        ) from error


def _import(name: str) -> ModuleType:
    # `__import__`, which the import statement calls: where a cycle of imports over two threads must be
    # cut, it gives the module as far as it is, while importlib.import_module raises. But it also gives
    # a waiting thread the module whose import just failed in another: that one has left sys.modules.
    while True:
        module = __import__(name)
        if name in _LOADED or sys.modules.get(name) is module:
            return module


def _where(kernel: KernelFiles) -> str:
    return ", ".join(map(str, kernel.folders))
