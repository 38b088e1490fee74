"""Instruction sets of this processor, and what PyTorch uses of them."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path
from typing import Any

import torch

_ARM = frozenset({"aarch64", "arm64"})


@cache
def has_vectors() -> bool:
    """Whether `dot_products.h` has vectors for it; elsewhere its loops are plain ones, and PyTorch is faster."""
    return platform.machine() in _ARM or torch.backends.cpu.get_cpu_capability() in {"AVX2", "AVX512"}


@cache
def is_amd() -> bool:
    """Whether AMD made it: MKL, PyTorch's products of float32 on x86, has no kernels for the whole of its vectors."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        text = platform.processor()
    return "AuthenticAMD" in text.partition("\n\n")[0]


@cache
def has_half() -> bool:
    """Whether PyTorch has products of float16 for it, its own (ARM) or oneDNN's; where not, they are loops."""
    if platform.machine() in _ARM:
        return True
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


@cache
def has_tiles() -> bool:
    """Whether it multiplies tiles (AMX): on such, PyTorch's products of float32, too, are fast for few rows."""
    supported: Any = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return supported is not None and bool(supported())


has_half()  # asked on import: torch.jit.trace refuses the operator, whose result is no tensor
