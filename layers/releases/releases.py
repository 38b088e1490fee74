"""Differences between releases of Triton: tiles that spill registers with a release are not offered there.

The tiles beside the kernels are those for the newest release. What its predecessors spill of them was read from what
they compile for NVIDIA's sm_80, sm_90 and sm_100 and AMD's gfx942, and so was that what takes its place does not spill.
"""

from __future__ import annotations

import triton

# Release -> (kernel, its case) -> fields of the tile that are others.
_TILES: dict[str, dict[tuple[str, object], dict[str, int]]] = {
    "3.6": {
        ("attention key gradient", "float32 64"): {"warps": 8},
        ("gated norm backward", 128): {"warps": 8},
        ("gated norm backward", 4096): {"warps": 8},
    },
    "3.7": {
        ("attention forward", "float32 64"): {"stages": 2},
        ("norm backward", 2048): {"warps": 16},
        ("gated norm backward", 128): {"warps": 8},
        ("gated norm backward", 4096): {"warps": 8},
        ("gated linear", "tf32 64 32 32"): {"warps": 8},
    },
    "3.8": {
        ("attention forward", "hip narrow"): {"warps": 8},
        ("attention key gradient", "float32 64"): {"warps": 8},
        ("gated norm backward", 4096): {"warps": 8},
        ("gated linear", "tf32 64 32 32"): {"warps": 8},
    },
}

# Release -> kernel -> the longest rows that it holds in registers.
_WIDTHS: dict[str, dict[str, int]] = {"3.6": {"norm backward": 4096}, "3.7": {"norm backward": 4096}}

RELEASE = ".".join(triton.__version__.split(".")[:2])
_TILES_HERE, _WIDTHS_HERE = _TILES.get(RELEASE, {}), _WIDTHS.get(RELEASE, {})
_NONE: dict[str, int] = {}


def other_fields(kernel: str, case: object) -> dict[str, int]:
    """Fields of the tile of a kernel that are others with the release that is installed; empty for most."""
    return _TILES_HERE.get((kernel, case), _NONE)


def longest_row(kernel: str, width: int) -> int:
    """The longest rows of a kernel that are held in registers; width: with the newest release."""
    return min(width, _WIDTHS_HERE.get(kernel, width))
