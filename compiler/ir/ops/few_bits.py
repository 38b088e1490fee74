"""Weights of few bits, in blocks that have a scale each: made floats, or multiplied as they are.

A weight (N, blocks, bytes) has N columns of K numbers of 2, 4 or 8 bits, the low ones of a byte first. Each `block` of
them along K begins with a byte, and has a scale and a zero point: (number - zero) * scale. So the last may be a part of
a block. The middle, 2 ** (bits - 1), is the zero point of all where none are given.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels_hub.compiler.errors import ShapeError, TypeRuleError
from kernels_hub.compiler.ir.dims import Dim, ceildiv
from kernels_hub.compiler.ir.flops import matmul_flops, moves_only
from kernels_hub.compiler.ir.op import (
    DTYPE,
    INT,
    Attr,
    Attrs,
    Op,
    Operands,
    ReferenceCall,
    Shape,
    require_equal,
    require_rank,
    show,
)
from kernels_hub.compiler.ir.ops.conversion import convert
from kernels_hub.compiler.ir.types import FLOAT64, UINT8, Array, DType

BITS = (2, 4, 8)
_WORD = 32
"""Bits of a column that kernels read together: a block is a multiple of it."""
_PART = 1 << 18
"""Elements of a weight that become floats together."""


def unpacked(packed: Array, bits: int) -> Array:
    """Bytes as numbers of 2, 4 or 8 bits, the low ones first, along the last axis."""
    if bits == 8:
        return packed
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    spread = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return spread.reshape(*packed.shape[:-1], -1)


def packed(numbers: Array, bits: int) -> Array:
    """What `unpacked` makes these numbers of, whose last axis fills whole bytes."""
    if bits == 8:
        return np.ascontiguousarray(numbers, np.uint8)
    each = 8 // bits
    wide = numbers.astype(np.uint8, copy=False).reshape(*numbers.shape[:-1], -1, each)
    result = wide[..., 0].copy()
    for place in range(1, each):
        result |= wide[..., place] << np.uint8(place * bits)
    return result


def block_of(w: Shape, bits: int) -> Dim:
    """Numbers of a block of a weight of this shape."""
    return w[2] * 8 // bits


def fits(bits: int, block: int) -> bool:
    """Whether numbers of so many bits, in blocks of so many, can be a weight of these ops."""
    return bits in BITS and block > 0 and block * bits % _WORD == 0


def _check(weights: Operands, bits: int, first: int) -> None:
    w, scales, *zeros = weights
    if bits not in BITS:
        raise TypeRuleError(f"a number has 2, 4 or 8 bits, not {bits}")
    require_rank(w, 3, f"the weight (operand {first})")
    if w.dtype is not UINT8:
        raise TypeRuleError(f"the weight (operand {first}) is of bytes, uint8, not {w.dtype}")
    block = block_of(w.shape, bits)
    if isinstance(block, int) and not fits(bits, block):
        raise ShapeError(f"a block of {block} numbers of {bits} bits is no multiple of {_WORD} bits")
    if not scales.dtype.is_float:
        raise TypeRuleError(f"the scales (operand {first + 1}) are floats, not {scales.dtype}")
    for index, (one, what) in enumerate(
        ((scales, "scales"), *((one, "zero points") for one in zeros)), first + 1
    ):
        require_rank(one, 2, f"the {what} (operand {index})")
        for axis in range(2):
            require_equal(
                one.shape[axis], w.shape[axis], f"dim {axis} of the {what} {show(one.shape)}",
                f"dim {axis} of the weight {show(w.shape)}",
            )  # fmt: skip
    for one in zeros:
        if one.dtype is not UINT8 and one.dtype is not scales.dtype:
            raise TypeRuleError(
                f"the zero points (operand {first + 2}) are uint8 or {scales.dtype} as the scales, not {one.dtype}"
            )


def _check_depth(w: Shape, depth: Dim, bits: int) -> None:
    block = block_of(w, bits)
    if isinstance(block, int) and block:
        require_equal(
            w[1],
            ceildiv(depth, block),
            f"dim 1 of the weight {show(w)}",
            f"blocks of {block} of {depth} numbers",
        )


def _dequantize_dtype(operands: Operands, attrs: Attrs) -> DType:
    _check(operands, attrs["bits"], 0)
    return operands[1].dtype


def _dequantize_shape(operands: Operands, attrs: Attrs) -> Shape:
    w, depth = operands[0].shape, attrs["depth"]
    _check_depth(w, depth, attrs["bits"])
    return (w[0], depth)


def _matmul_dtype(operands: Operands, attrs: Attrs) -> DType:
    a, *weights = operands
    _check(weights, attrs["bits"], 1)
    result: DType = attrs["dtype"] or a.dtype
    if not a.dtype.is_float or not result.is_float:
        raise TypeRuleError(f"a product of floats, not of {a.dtype} as {result}")
    return result


def _matmul_shape(operands: Operands, attrs: Attrs) -> Shape:
    a, w = operands[:2]
    require_rank(a, 2, "the rows (operand 0)")
    _check_depth(w.shape, a.shape[1], attrs["bits"])
    return (a.shape[0], w.shape[0])


def floats_of(w: Array, bits: int, depth: int, scales: Array, zeros: Array | None, dtype: DType) -> Array:
    """A weight as floats (N, K), each rounded once."""
    rounds = dtype is not FLOAT64 and scales.dtype.itemsize < 8 and (zeros is None or zeros.dtype == np.uint8)
    exact = (
        np.float32 if rounds else np.float64
    )  # of float32, a difference is exact, and the product rounded once
    offsets = None if zeros is None else zeros.astype(exact)[..., None]
    result = np.empty((len(w), depth), dtype.numpy)
    step = max(1, _PART // max(1, depth))
    for start in range(0, len(w), step):  # in parts, so that nothing beside the result takes memory
        part = slice(start, start + step)
        wide: Any = unpacked(w[part], bits).astype(exact)
        wide -= exact(1 << (bits - 1)) if offsets is None else offsets[part]
        with np.errstate(all="ignore"):
            wide *= scales[part].astype(exact)[..., None]
        result[part] = convert(wide.reshape(len(wide), -1)[:, :depth], dtype)
    return result


def _run_dequantize(step: ReferenceCall) -> Array:
    w, scales, *zeros = step.operands
    dtype = step.results[0].dtype
    return floats_of(w, step.attrs["bits"], step.shape[1], scales, zeros[0] if zeros else None, dtype)


def weight_of(step: ReferenceCall) -> Array:
    """The weight (K, N) of a "matmul_few_bits" in float64."""
    a, w, scales, *zeros = step.operands
    return floats_of(w, step.attrs["bits"], a.shape[1], scales, zeros[0] if zeros else None, FLOAT64).T


def _run_matmul(step: ReferenceCall) -> Array:
    with np.errstate(all="ignore"):
        return convert(np.matmul(step.operands[0].astype(np.float64), weight_of(step)), step.results[0].dtype)


_BITS = Attr("bits", INT, doc="of a number: 2, 4 or 8")

ROWS = (
    Op("dequantize", "A weight of few bits as floats of the dtype of its scales, (N, K). Operands: bytes (N, blocks, "
       "bytes of a block), the low bits first; scales (N, blocks); zero points (N, blocks), uint8 or like the scales, "
       "or none, and then all are 2 ** (bits - 1): (number - zero point) * scale.", (2, 3), _run_dequantize,
       _dequantize_dtype, _dequantize_shape, attrs=(_BITS, Attr("depth", INT, doc="K")), flops=moves_only,
       source="ONNX DequantizeLinear; ONNX Runtime MatMulNBits"),
    Op("matmul_few_bits", "Rows (M, K) by a weight as that of `dequantize`, which is not rounded: the sum over K, "
       "(M, N).", (3, 4), _run_matmul, _matmul_dtype, _matmul_shape,
       attrs=(_BITS, Attr("dtype", DTYPE, None, "of the result; that of the rows by default")),
       flops=matmul_flops,
       source="ONNX Runtime MatMulNBits"),
)  # fmt: skip
