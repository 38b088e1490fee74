"""Instruction sets of this processor, and what PyTorch uses of them."""

from __future__ import annotations

from functools import cache

import torch


@cache
def has_vectors() -> bool:
    """Whether `dot_products.h` has vectors for it; elsewhere its loops are plain ones, and PyTorch is faster."""
    return torch.backends.cpu.get_cpu_capability() in {"AVX2", "AVX512"}


@cache
def has_half() -> bool:
    """Whether oneDNN has products of float16 for it; where not, PyTorch's are loops."""
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
