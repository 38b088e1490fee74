"""Import finder for kernels, in Python's import system.

A finder of our own rather than a path, for three reasons: the folders of a kernel are laid over one
another; bytecode lying beside sources that come from elsewhere is neither read (it is outside every
digest, and goes stale when a file is edited twice within a second) nor written into their folders;
and everything else (one import a process, threads that wait for it, detection of deadlocks between
imports) is Python's own.
"""

from __future__ import annotations

import hashlib
import linecache
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, SourceFileLoader
from importlib.util import decode_source, find_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from kernels_hub.errors import IntegrityError
from kernels_hub.files import PrivateFolder, write_atomically


@dataclass
class Package:
    """What the finder knows of a kernel."""

    folders: tuple[Path, ...]
    files: Mapping[str, Path]
    bytecode: bool
    """Whether to use and write bytecode beside the sources, as Python does for installed packages."""
    loaded: Callable[[ModuleType], None]
    """Called once its `__init__.py` has run, before any waiting thread goes on."""
    sealed: Mapping[str, str] | None = None
    """Path inside -> sha256 of what may be imported; None for folders that one works in."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
    _private: PrivateFolder = field(
        default_factory=lambda: PrivateFolder("verified"), init=False, repr=False, compare=False
    )

    def read(self, path: str) -> bytes:
        """A file of the kernel, or of another place; of a sealed kernel only what was verified.

        Raises IntegrityError for a file inside the kernel that was changed, or is none of those verified.
        """
        if self.sealed is None:
            return Path(path).read_bytes()
        place = os.path.abspath(path)  # noqa: PTH100 (links of a Hub's cache stay as they are)
        if (inside := self._inside.get(place)) is not None:
            content = self.files[inside].read_bytes()
            self.check(inside, content)
            return content
        if any(place.startswith(f"{os.path.abspath(folder)}{os.sep}") for folder in self.folders):  # noqa: PTH100
            raise IntegrityError(
                f"{path} was never verified: its kernel does not list it; nothing of it was used"
            )
        return Path(path).read_bytes()

    def library(self, inside: str, path: Path) -> Path:
        """Where to load a shared object from: of a sealed kernel a private copy of what was verified.

        The others of the kernel are copied with it, as it may link to them by their place.
        """
        if self.sealed is None:
            return path
        with self._lock:
            private = self._private.get()  # kept: the dynamic linker and debuggers go on naming it
            if not (private / inside).is_file():
                for name, other in self.files.items():
                    if name.endswith((".so", ".pyd", ".dylib", ".dll")) or ".so." in name:
                        write_atomically(private / name, self.read(str(other)), mode=0o700)
            return private / inside

    @cached_property
    def _inside(self) -> dict[str, str]:
        return {os.path.abspath(path): inside for inside, path in self.files.items()}  # noqa: PTH100

    def check(self, inside: str, content: bytes) -> None:
        """Raise IntegrityError unless a sealed file still has the content that was verified."""
        if self.sealed is not None and hashlib.sha256(content).hexdigest() != self.sealed.get(inside):
            raise IntegrityError(
                f"{self.files[inside]} was changed after it was verified; it was not imported. Fetch it again"
            )


class KernelFinder:
    """Finds modules of registered kernels, and no others."""

    def __init__(self) -> None:
        self._packages: dict[str, Package] = {}

    def register(self, name: str, package: Package) -> None:
        """Make a kernel importable under a top-level name."""
        self._packages[name] = package
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)  # before the path finder, which reads bytecode

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 (the protocol's)
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """The spec of a kernel or of a module inside one; None for everything else."""
        name, _, submodule = fullname.partition(".")
        package = self._packages.get(name)
        if package is None:
            return None
        inside = submodule.replace(".", "/")
        below = f"{inside}/" if inside else ""
        locations = [str(folder / inside) for folder in package.folders]
        if (init := package.files.get(f"{below}__init__.py")) is not None:
            kind = _SourceLoader if inside else _KernelLoader
            loader = kind(fullname, str(init), package, f"{below}__init__.py")
            return spec_from_file_location(
                fullname, init, loader=loader, submodule_search_locations=locations
            )
        for suffix in EXTENSION_SUFFIXES:
            if (extension := package.files.get(inside + suffix)) is not None:
                return spec_from_file_location(fullname, package.library(inside + suffix, extension))
        if (source := package.files.get(f"{inside}.py")) is not None:
            loader = _SourceLoader(fullname, str(source), package, f"{inside}.py")
            return spec_from_file_location(fullname, source, loader=loader)
        if any(file.startswith(below) for file in package.files):
            spec = ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = locations
            return spec
        if package.sealed is not None:  # Python would look into the folder itself, at what was never verified
            raise ModuleNotFoundError(f"the kernel {name} has no module {submodule!r}", name=fullname)
        return None


class _SourceLoader(SourceFileLoader):
    """Compiles the source that is there, whatever bytecode lies beside it."""

    def __init__(self, fullname: str, path: str, package: Package, inside: str) -> None:
        super().__init__(fullname, path)
        self._package = package
        self._inside = inside

    def get_code(self, fullname: str) -> CodeType | None:
        if self._package.bytecode:
            return super().get_code(fullname)
        path = self.get_filename(fullname)
        source = self.get_data(path)
        self._package.check(self._inside, source)
        if (code := _code_of_library(self._inside, source)) is not None:
            return code
        code = self.source_to_code(source, path)
        if self._package.sealed is not None:
            _remember(path, source)
        return code

    @property
    def is_sealed(self) -> bool:
        """Whether only what was verified is read and run."""
        return self._package.sealed is not None

    def get_data(self, path: str) -> bytes:
        """A file's bytes. What lies beside a sealed kernel's sources (C++, weights, tables) is verified as they are.

        Kernels read it by `__spec__.loader.get_data`, which every loader of Python's has.
        """
        return self._package.read(path)


def _code_of_library(inside: str, source: bytes) -> CodeType | None:
    """The code of this library's module of that name, where a kernel ships a copy of its very bytes; None otherwise.

    Published layers bring the runtime of compiled graphs. Python has the bytecode of what is installed, and compiling
    thirty modules again took longer than all else that the first use of such a layer does.
    """
    if "/" in inside and not inside.startswith(_SHIPPED):
        return None
    name = f"kernels_hub.{inside.removesuffix('.py').removesuffix('/__init__').replace('/', '.')}"
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):  # no package of that name
        return None
    loader = None if spec is None else spec.loader
    if not isinstance(loader, SourceFileLoader):
        return None
    try:
        return loader.get_code(name) if loader.get_data(loader.path) == source else None
    except OSError:
        return None


_SHIPPED = "compiler/"
"""Of the library's packages, the one that layers ship modules of: to look into another would import it."""


def _remember(path: str, source: bytes) -> None:
    """Give `inspect` the source that was verified: Triton compiles what it says, which else is read from the disk.

    An entry without a time is never compared with the file, as for modules that come from archives.
    """
    linecache.cache[path] = (len(source), None, decode_source(source).splitlines(keepends=True), path)


class _KernelLoader(_SourceLoader):
    """Loads a kernel's `__init__.py`. A failure leaves nothing of the kernel behind."""

    def exec_module(self, module: ModuleType) -> None:
        # Under Python's lock for this module: no other thread imports the kernel meanwhile.
        try:
            super().exec_module(module)
        except BaseException:
            _forget(module)
            raise
        self._package.loaded(sys.modules[module.__name__])  # code may have put another object there


def _forget(module: ModuleType) -> None:
    """Undo a failed import: submodules leave `sys.modules` (Python removes the package itself), and
    operators that they registered are taken back, so that a retry may register them again."""
    inside = module.__name__ + "."
    dead = [module, *(sys.modules.pop(name) for name in tuple(sys.modules) if name.startswith(inside))]
    library = getattr(sys.modules.get("torch.library"), "Library", None)
    if library is None:
        return
    for namespace in map(vars, dead):
        for name in [name for name, value in namespace.items() if isinstance(value, library)]:
            del namespace[name]  # its finalizer deregisters; the exception's frames keep the rest alive
