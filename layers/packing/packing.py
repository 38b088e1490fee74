"""Packed weights, shared by every repository of this process that ships the same bytes of them.

`linear` and `mlp` both pack the weights of `torch.nn.Linear`. Were each to hold a cache of its own, a
weight that both of them use would be packed twice, and a weight freed by one would be unknown to the
other. So the folder `packed` is imported once for its content, under a name of its own; repositories
that ship another version of it get another one, and do not meet.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.abc
import importlib.util
import sys
import threading
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

import torch

from . import cxx_compiler, files, guard, native, tensor_state, weight_guard
from .files import read_shipped

_FOLDER = Path(__file__).absolute().with_name("packed")

# dict.setdefault is atomic: repositories that are imported side by side agree on one lock.
_LOCK: threading.RLock = vars(torch).setdefault("_kernels_hub_packing_lock", threading.RLock())


def shared_package(folder: Path) -> ModuleType:
    """The package in `folder`, imported once in a process for its content, and for that of the weight guard."""
    digest = hashlib.sha256()
    sources: dict[str, bytes] = {}
    header = Path(weight_guard.__file__).with_suffix(".h")
    beside = [
        *(
            Path(str(one.__file__))
            for one in (cxx_compiler, files, guard, native, tensor_state, weight_guard)
        ),
        header,
    ]
    for file in (*sorted(folder.glob("*.py")), *beside):
        content = read_shipped(file)
        if file.parent == folder:
            sources[file.stem] = content
        digest.update(f"{file.name}\0{len(content)}\0".encode())
        digest.update(content)
    name = f"kernels_hub_packed_{digest.hexdigest()[:12]}"
    with _LOCK:
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        if spec is None or spec.loader is None:
            raise ImportError(f"Python cannot import {folder / '__init__.py'}")
        if _is_sealed():
            finder = _Finder(name, folder, sources)
            sys.meta_path.insert(0, finder)
            spec = finder.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        vars(module)["guard"] = guard
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            for loaded in [m for m in sys.modules if m == name or m.startswith(name + ".")]:
                del sys.modules[loaded]
            raise
        return module


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of the package in the bytes that were read, whatever lies on the disk by now."""

    def __init__(self, name: str, folder: Path, sources: dict[str, bytes]) -> None:
        self._name, self._folder, self._sources = name, folder, sources

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The spec of the package or of a module inside; None for everything else."""
        package, _, module = fullname.partition(".")
        source = self._sources.get(module or "__init__") if package == self._name else None
        if source is None:
            return None
        file = self._folder / f"{module or '__init__'}.py"
        return importlib.util.spec_from_file_location(
            fullname,
            file,
            loader=_Loader(fullname, str(file), source),
            submodule_search_locations=None if module else [],
        )


class _Loader(SourceFileLoader):
    """Compiles the bytes that were read; keeps no bytecode."""

    def __init__(self, fullname: str, path: str, source: bytes) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self._source, self.get_filename(fullname))
        return code


def _is_sealed() -> bool:
    """Whether this repository was verified, so that only what was may run."""
    return bool(getattr(None if __spec__ is None else __spec__.loader, "is_sealed", False))


packed = shared_package(_FOLDER)
cache: ModuleType = importlib.import_module(f"{packed.__name__}.cache")
held: ModuleType = importlib.import_module(f"{packed.__name__}.held")
products: ModuleType = importlib.import_module(f"{packed.__name__}.products")
