"""Weights of 2, 4 or 8 bits in blocks that have a scale each, of ONNX Runtime's domain com.microsoft.

A weight is spelled out in the dtype of its scales, as an array that is made when it is needed. Source: onnxruntime,
docs/ContribOperators.md.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence

import numpy as np

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.importers.onnx_ops.contrib import DOMAIN
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.types import Array

_PART = 1 << 18
"""Elements of a weight that are spelled out together."""


def unpacked(packed: Array, bits: int) -> Array:
    """Bytes as numbers of 2, 4 or 8 bits, the low ones first, along the last axis."""
    if bits == 8:
        return packed
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    spread = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return spread.reshape(*packed.shape[:-1], -1)


class _Shared:
    """What makes a table, and gives the one that was made as long as somebody holds it."""

    def __init__(self, make: Callable[[], Array]) -> None:
        self._make = make
        self._made: Callable[[], Array | None] = lambda: None
        self._lock = threading.Lock()

    def __call__(self) -> Array:
        with self._lock:
            table = self._made()
            if table is None:
                table = self._make()
                table.flags.writeable = False
                self._made = weakref.ref(table)
            return table


def _table(node: OnnxNode, shape: Sequence[int], dtype: np.dtype, make: Callable[[], Array]) -> Value:
    """A weight that is made of others; in a subgraph, which has no weights of its own, a constant."""
    if node.scope.path:
        return node.constant(make())
    name = f"{node.proto.output[0]} weight"
    while name in node.graph.parameters or name in node.graph.inputs:
        name += "'"
    return node.graph.parameter(name, shape, types.dtype(dtype), _Shared(make))


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
    scales = node.weight(node.input(2), "the scales").reshape(rows, blocks, 1)
    given = node.optional(3)
    zeros = None if given is None else node.weight(given, "the zero points")
    groups = node.maybe_known(node.optional(4))
    order = None if groups is None or not groups.size else groups.reshape(-1)[:columns]

    def make() -> Array:
        offsets = _zero_points(zeros, rows, blocks, bits, scales.dtype)
        table = np.empty((columns, rows), scales.dtype)
        step = max(1, _PART // columns)
        for start in range(0, rows, step):  # in parts, so that nothing beside the table takes memory
            part = slice(start, start + step)
            numbers = unpacked(packed[part], bits)[..., :block].astype(scales.dtype)
            if order is None:
                numbers -= offsets[part]
                numbers *= scales[part]
            flat = numbers.reshape(len(numbers), -1)[:, :columns]
            if order is not None:
                flat = (flat - offsets[part, order, 0]) * scales[part, order, 0]
            table[:, part] = flat.T
        return table

    result = node.input(0).matmul(_table(node, (columns, rows), scales.dtype, make))
    bias = node.optional(5)
    return result if bias is None else result + bias


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
    data = node.weight(node.input(0), "the table")
    scales = node.weight(node.input(2), "the scales")
    given = node.optional(3)
    zeros = None if given is None else node.weight(given, "the zero points")
    packed, bits, block = data.dtype == np.uint8, node.attr("bits", 4), node.attr("block_size", 128)
    along = node.attr("quantize_axis", 1) % data.ndim
    if packed and (bits not in (2, 4, 8) or along != data.ndim - 1):
        raise node.refuse("a table of uint8 has numbers of 2, 4 or 8 bits, and blocks along its last axis")
    width = data.shape[-1] * (8 // bits if packed else 1)

    def make() -> Array:
        whole = (unpacked(data, bits) if packed else data).astype(scales.dtype)
        offsets: Array = np.asarray(1 << (bits - 1) if packed else 0, scales.dtype)
        if zeros is not None:
            wide = unpacked(zeros, bits)[..., : scales.shape[-1]] if packed else zeros
            offsets = _repeated(wide.astype(scales.dtype), along, block, whole.shape[along])
        return (whole - offsets) * _repeated(scales, along, block, whole.shape[along])

    table = _table(node, (*data.shape[:-1], width), scales.dtype, make)
    return table.gather(node.input(1), node.attr("gather_axis", 0))


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

    return node.input(0).matmul(_table(node, (columns, rows), largest.dtype, make))
