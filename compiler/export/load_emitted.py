"""The package of a repository that was just emitted, imported as `get_local_kernel` imports it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from kernels_hub.repository.local import local_variant
from kernels_hub.repository.resolved import ResolvedKernel
from kernels_hub.repository.system import System


def load_emitted(folder: Path, backend: str) -> ModuleType:
    """The imported package of a backend's variant; it needs no other kernel.

    `get_local_kernel` comes with a client of a Hub, which every process that compiles would import for it: 26 ms.
    Raises NoVariantError, MetadataError, KernelImportError.
    """
    return ResolvedKernel(str(folder), None, local_variant(folder, System.detect(backend))).load()
