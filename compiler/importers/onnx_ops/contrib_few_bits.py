"""Weights of 2, 4 or 8 bits in blocks that have a scale each, of ONNX Runtime's domain com.microsoft.

A weight stays packed (`dequantize` of the IR) where blocks follow one another along K; else it is spelled out in the
dtype of its scales, as an array that is made when it is needed. Source: onnxruntime, docs/ContribOperators.md.
"""

from __future__ import annotations

import numpy as np

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.importers.onnx_ops.contrib import DOMAIN
from kernels_hub.compiler.importers.onnx_ops.packed_weights import bytes_of, from_zero, made_weight, weight_of
from kernels_hub.compiler.importers.onnx_ops.quantize import beside_blocks
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dequantized import numbers_of
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.ops.few_bits import fits, unpacked
from kernels_hub.compiler.ir.types import Array

_PART = 1 << 18
"""Elements of a weight that are spelled out together."""


@onnx_op("MatMulNBits", since=1, domain=DOMAIN)
def matmul_nbits(node: OnnxNode) -> Value:
    """a (…, K) by b (N, blocks, bytes), scales (N * blocks), zero points?, order of groups?, bias (N)?.

    Whatever accuracy_level says: ONNX Runtime may round `a` to 8 bits, and its results are then the coarser ones.
    """
    rows, columns = node.attr("N"), node.attr("K")
    bits, block = node.attr("bits", 4), node.attr("block_size", 32)
    if bits not in (2, 4, 8):
        raise node.refuse(f"weights of {bits} bits are not taken")
    blocks = -(-columns // block)
    packed = node.weight(node.input(1), "the weight").reshape(rows, blocks, -1)
    scales = node.weight(node.input(2), "the scales").reshape(rows, blocks)
    given = node.optional(3)
    zeros = None if given is None else node.weight(given, "the zero points")
    groups = node.maybe_known(node.optional(4))
    order = np.arange(columns) // block if groups is None or not groups.size else groups.reshape(-1)[:columns]
    if not fits(bits, block) or (groups is not None and groups.size):
        weight = _reordered(node, packed, scales, zeros, order)
    else:
        weight = _blocks_of(node, packed, scales, zeros, bits, columns).transpose()
    result = node.input(0).matmul(weight)
    bias = node.optional(5)
    return result if bias is None else result + bias


def _blocks_of(
    node: OnnxNode, packed: Array, scales: Array, zeros: Array | None, bits: int, depth: int
) -> Value:
    """A weight as it is packed, as floats (N, K)."""
    rows, blocks, _ = packed.shape
    parts = [
        made_weight(node, "weight", packed.shape, types.UINT8, lambda: packed),
        made_weight(node, "scales", scales.shape, types.dtype(scales.dtype), lambda: scales),
    ]
    if zeros is not None:
        kept = types.UINT8 if zeros.dtype == np.uint8 else types.dtype(scales.dtype)
        parts.append(
            made_weight(
                node, "zero points", scales.shape, kept,
                lambda: np.ascontiguousarray(_zero_points(zeros, rows, blocks, bits, kept.numpy)[..., 0]),
            )
        )  # fmt: skip
    return node.graph.apply("dequantize", *parts, bits=bits, depth=depth)


def _reordered(node: OnnxNode, packed: Array, scales: Array, zeros: Array | None, order: Array) -> Value:
    """A weight (K, N) each row of which is of the block that `order` names."""
    bits, columns = node.attr("bits", 4), len(order)
    rows, blocks, _ = packed.shape

    def make() -> Array:
        offsets = _zero_points(zeros, rows, blocks, bits, scales.dtype)[..., 0]
        table = np.empty((columns, rows), scales.dtype)
        step = max(1, _PART // columns)
        for start in range(0, rows, step):  # in parts, so that nothing beside the table takes memory
            part = slice(start, start + step)
            numbers = unpacked(packed[part], bits).astype(scales.dtype)
            flat = numbers.reshape(len(numbers), -1)[:, :columns]
            table[:, part] = ((flat - offsets[part, order]) * scales[part, order]).T
        return table

    return made_weight(node, "weight", (columns, rows), types.dtype(scales.dtype), make)


def _zero_points(given: Array | None, rows: int, blocks: int, bits: int, dtype: np.dtype) -> Array:
    """Of each block, (rows, blocks, 1): packed as the weight is, or of the scales' dtype; without, the middle."""
    if given is None:
        return np.broadcast_to(np.asarray(1 << (bits - 1), dtype), (rows, blocks, 1))
    if given.dtype == np.uint8:
        given = unpacked(given.reshape(rows, -1), bits)[:, :blocks]
    return given.reshape(rows, blocks, 1).astype(dtype)


@onnx_op("GatherBlockQuantized", since=1, domain=DOMAIN)
def gather_block_quantized(node: OnnxNode) -> Value:
    """(data, indices, scales, zero points?): a table of few bits, in blocks along an axis, gathered along another.

    data: int4 or uint4; or uint8, in which numbers are packed along the last axis, and whose zero is the middle.
    """
    data, indices, floats, offsets = node.input(0), node.input(1), node.input(2), node.optional(3)
    packed, bits, block = data.dtype is types.UINT8, node.attr("bits", 4), node.attr("block_size", 128)
    along, across = data.axis(node.attr("quantize_axis", 1)), data.axis(node.attr("gather_axis", 0))
    if packed and (bits not in (2, 4, 8) or along != data.rank - 1):
        raise node.refuse("a table of uint8 has numbers of 2, 4 or 8 bits, and blocks along its last axis")
    width = int(data.shape[-1]) * (8 // bits if packed else 1)
    if across == 0 and 0 < along == data.rank - 1 and not node.scope.path:
        return _gathered(node, width, bits if packed else data.dtype.bits, block)

    def make() -> Array:
        table, scales = node.weight(data, "the table"), node.weight(floats, "the scales")
        whole = (unpacked(table, bits) if packed else table).astype(scales.dtype)
        zeros: Array = np.asarray(1 << (bits - 1) if packed else 0, scales.dtype)
        if offsets is not None:
            given = node.weight(offsets, "the zero points")
            wide = unpacked(given, bits)[..., : scales.shape[-1]] if packed else given
            zeros = _repeated(wide.astype(scales.dtype), along, block, whole.shape[along])
        return (whole - zeros) * _repeated(scales, along, block, whole.shape[along])

    table = made_weight(node, "weight", (*data.shape[:-1], width), floats.dtype, make)
    return table.gather(indices, across)


def _gathered(node: OnnxNode, width: int, bits: int, block: int) -> Value:
    """Rows of a packed table, of which those that are gathered become floats."""
    data, indices, floats, offsets = node.input(0), node.input(1), node.input(2), node.optional(3)
    row = data.dtype
    if row.bits < 8:
        shape = (*data.shape[:-1], -(-width * bits // 8))
        of = weight_of(node, data)
        data = made_weight(node, "weight", shape, types.UINT8, lambda: bytes_of(of, row, width))
    rows = numbers_of(data.gather(indices, 0), bits)
    axis, scales = rows.rank - 1, floats.gather(indices, 0)
    rows = rows.slice(axis, 0, width).cast(floats.dtype)
    middle = float(1 << (bits - 1)) if row.kind == "int" or row.bits == 8 else 0.0
    if offsets is None:
        centred = rows - middle
    elif row.bits == 8:
        zeros = numbers_of(offsets.gather(indices, 0), bits).slice(axis, 0, floats.shape[-1])
        centred = rows - beside_blocks(rows, zeros.cast(floats.dtype), axis, block)
    else:
        given = weight_of(node, offsets)
        zeros = made_weight(
            node, "zero points", offsets.shape, types.UINT8, lambda: from_zero(given(), row)
        ).gather(indices, 0)
        centred = rows - beside_blocks(rows, zeros.cast(floats.dtype), axis, block)
    return centred * beside_blocks(rows, scales, axis, block)


def _repeated(of_blocks: Array, axis: int, block: int, size: int) -> Array:
    """What is given for each block, for each element along an axis."""
    return np.take(of_blocks, np.arange(size) // block, axis)


_FP4 = (0.0, 5.208333333e-3, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
_TABLES = (
    np.array([*_FP4, *(-one for one in _FP4)], np.float32),
    np.array(
        [
            -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
            -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
            0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
        ],
        np.float32,
    ),
)  # fmt: skip
"""FP4 and NF4 of bitsandbytes, by the number that stands for each."""


@onnx_op("MatMulBnb4", since=1, domain=DOMAIN)
def matmul_bnb4(node: OnnxNode) -> Value:
    """a (…, K) by N * K numbers of four bits, the high ones first, each a place in a table, by the block's largest."""
    rows, columns, block = node.attr("N"), node.attr("K"), node.attr("block_size")
    packed = node.weight(node.input(1), "the weight").reshape(-1)
    largest = node.weight(node.input(2), "the largest of each block").reshape(-1)
    numbers = _TABLES[node.attr("quant_type")]

    def make() -> Array:
        places = np.stack([packed >> 4, packed & 15], -1).reshape(-1)[: rows * columns]
        scales = np.repeat(largest, block)[: rows * columns]
        table = (numbers[places] * scales).astype(largest.dtype).reshape(rows, columns)
        return np.ascontiguousarray(table.T)

    weight = made_weight(node, "weight", (columns, rows), types.dtype(largest.dtype), make)
    return node.input(0).matmul(weight)
