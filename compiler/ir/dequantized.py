"""Weights of few bits made floats by the ops that any engine has: shifts, masks and arithmetic."""

from __future__ import annotations

import numpy as np

from kernels_hub.compiler.ir.graph import Value


def numbers_of(packed: Value, bits: int) -> Value:
    """Bytes as numbers of 2, 4 or 8 bits, uint8, the low ones first, along the last axis."""
    if bits == 8:
        return packed
    shape = (*packed.shape, 8 // bits)
    shifts = packed.graph.constant(np.arange(0, 8, bits, dtype=np.uint8)).broadcast(shape, (packed.rank,))
    spread = packed.unsqueeze(packed.rank).broadcast_to(shape).binary("shr", shifts)
    wide = spread.binary("bitand", spread.like((1 << bits) - 1))
    return wide.reshape((*packed.shape[:-1], packed.shape[-1] * (8 // bits)))


def dequantized(w: Value, scales: Value, zeros: Value | None, bits: int, depth: int) -> Value:
    """What the op "dequantize" gives."""
    wide = scales.dtype.compute
    numbers = numbers_of(w, bits).cast(wide)
    if zeros is None:
        centred = numbers - float(1 << (bits - 1))
    else:
        centred = numbers - zeros.cast(wide).broadcast(numbers.shape, (0, 1))
    floats = centred * scales.cast(wide).broadcast(numbers.shape, (0, 1))
    rows, blocks, block = numbers.shape
    return floats.reshape((rows, blocks * block)).slice(1, 0, depth).cast(scales.dtype)
