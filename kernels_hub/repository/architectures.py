"""Checks whether a variant's GPU code runs on this machine's GPU, by the architectures that metadata.json declares.

CUDA: a compute capability ("9.0", which also runs on later minor versions of the same major one), for exactly one
capability ("9.0a"), for a family ("10.0f"), or with intermediate code that is compiled for later GPUs ("9.0+PTX").
ROCm: the name of an architecture ("gfx942"). Others, and strings of other forms, are not judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kernels_hub.errors import NoVariantError
from kernels_hub.repository.metadata import Metadata

_CUDA = re.compile(r"(\d+)\.(\d+)([af]?)(\+PTX)?", re.ASCII)


def check_architecture(metadata: Metadata, variant: str) -> None:
    """Raise NoVariantError where a variant declares architectures, and that of the current GPU is not among them."""
    if not metadata.archs or metadata.backend not in ("cuda", "rocm"):
        return
    import torch

    if not torch.cuda.is_available():
        return
    if metadata.backend == "cuda" and torch.version.cuda is not None:
        major, minor = torch.cuda.get_device_capability()
        here, fits = (
            f"compute capability {major}.{minor}",
            supports_capability(metadata.archs, (major, minor)),
        )
    elif metadata.backend == "rocm" and torch.version.hip is not None:
        name = torch.cuda.get_device_properties(torch.cuda.current_device()).gcnArchName.partition(":")[0]
        here, fits = name, name in metadata.archs
    else:
        return
    if not fits:
        raise NoVariantError(
            f"kernel {metadata.name!r}, variant {variant!r}, is built for {', '.join(metadata.archs)}, and the GPU "
            f"here has {here}; use a release that was built for it, or pass check_arch=False where the list is known "
            "to be incomplete"
        )


def supports_capability(archs: Iterable[str], capability: tuple[int, int]) -> bool:
    """Whether one of the CUDA architectures covers a capability (major, minor); True where none can be read.

    >>> supports_capability(["8.0", "9.0a"], (8, 9)), supports_capability(["9.0a"], (9, 1))
    (True, False)
    """
    known = [match for arch in archs if (match := _CUDA.fullmatch(arch))]
    return not known or any(_covers(match, capability) for match in known)


def _covers(arch: re.Match[str], capability: tuple[int, int]) -> bool:
    built, suffix = (int(arch[1]), int(arch[2])), arch[3]
    if suffix == "a":
        return capability == built
    if arch[4] and not suffix:
        return capability >= built
    return capability[0] == built[0] and capability >= built
