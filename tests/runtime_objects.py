"""The compiled sources of the C++ runtime, which tests with a cache of their own take from the one of the session."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from kernels_hub.compiler.runtime import toolchain
from kernels_hub.files import cache_folder

PRODUCTS = ("linked_product.cpp",)
"""What nearly every program with a product of matrices links."""


def share_runtime_objects(cache: Path, sources: Sequence[str] = PRODUCTS) -> Path:
    """Link the runtime's objects into a folder that KERNELS_HUB_CACHE is going to name; returns the folder.

    Compiles those of `sources` that are missing, for later tests as well: they take seconds, the units of a test less
    than one. An object's name is a digest of all that determines it, and a file beside it says whether it is whole, so
    that a test finds what it would have compiled. To be called before the environment names the new folder.
    """
    shared, compiler = cache_folder("compiled"), toolchain.find_compiler()
    (folder := cache / "compiled").mkdir(parents=True, exist_ok=True)
    if compiler is None:
        return cache
    shared.mkdir(parents=True, exist_ok=True)
    for source in sources:
        toolchain._runtime_object(source, shared, compiler, toolchain.machine_isas()[0])
    for found in shared.glob("runtime_*.o"):
        for name in (found.name, f"{found.name}.sha256"):
            if (shared / name).exists() and not (folder / name).exists():
                os.symlink(shared / name, folder / name)
    return cache
