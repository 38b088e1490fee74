"""Packed weights, shared by every repository of this process that ships the same bytes of them.

`linear` and `mlp` both pack the weights of `torch.nn.Linear`. Were each to hold a cache of its own, a
weight that both of them use would be packed twice, and a weight freed by one would be unknown to the
other. So the folder `packed` is imported once for its content, under a name of its own; repositories
that ship another version of it get another one, and do not meet.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import threading
from pathlib import Path
from types import ModuleType

import torch

from . import guard, native, weight_guard

_FOLDER = Path(__file__).resolve().with_name("packed")

# dict.setdefault is atomic: repositories that are imported side by side agree on one lock.
_LOCK: threading.RLock = vars(torch).setdefault("_kernels_hub_packing_lock", threading.RLock())


def shared_package(folder: Path) -> ModuleType:
    """The package in `folder`, imported once in a process for its content, and for that of the weight guard."""
    digest = hashlib.sha256()
    header = Path(weight_guard.__file__).with_suffix(".h")
    beside = [*(Path(str(one.__file__)) for one in (guard, native, weight_guard)), header]
    for file in (*sorted(folder.glob("*.py")), *beside):
        content = file.read_bytes()
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


packed = shared_package(_FOLDER)
cache: ModuleType = importlib.import_module(f"{packed.__name__}.cache")
held: ModuleType = importlib.import_module(f"{packed.__name__}.held")
products: ModuleType = importlib.import_module(f"{packed.__name__}.products")
