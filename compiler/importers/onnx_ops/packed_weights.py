"""Weights that importers make of others, as arrays that are made when they are needed; those of few bits, packed.

Packed, a weight is an operand of `dequantize` (see `ir.ops.few_bits`): bytes (N, blocks, bytes of a block) of numbers
from 0 on, so that signed ones are moved by half of their range, and their zero points as well.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence

import numpy as np

from kernels_hub.compiler.importers.external_data import FewBitElements
from kernels_hub.compiler.importers.onnx_node import OnnxNode
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.ops.few_bits import fits, packed
from kernels_hub.compiler.ir.types import Array, DType


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
                if table.flags.writeable:
                    table.flags.writeable = False
                self._made = weakref.ref(table)
            return table


def made_weight(
    node: OnnxNode, what: str, shape: Sequence[int], dtype: DType, make: Callable[[], Array]
) -> Value:
    """A weight that is made of others; in a subgraph, which has no weights of its own, a constant.

    what: of the node's result, for its name.
    """
    if node.scope.path:
        return node.constant(make())
    name = f"{node.proto.output[0]} {what}"
    while name in node.graph.parameters or name in node.graph.inputs:
        name += "'"
    return node.graph.parameter(name, shape, dtype, _Shared(make))


def weight_of(node: OnnxNode, value: Value) -> Callable[[], Array]:
    """What makes the array of a weight. Raises UnknownValueError for a value that is none."""
    value = node.scope.outside.get(value, value)
    data = value.graph.weights.get(value.attrs["name"]) if value.op_name == "parameter" else None
    if callable(data):
        return data
    array = node.weight(value, "a weight of few bits")
    return lambda: array


def from_zero(numbers: Array, row: DType) -> Array:
    """Numbers of a dtype, one a byte, as those from 0 on that are packed."""
    raw = np.ascontiguousarray(numbers).view(np.uint8)
    if row.kind == "uint":
        return raw
    moved = raw + np.uint8(1 << (row.bits - 1))
    moved &= np.uint8((1 << row.bits) - 1)
    return moved


def bytes_of(data: Callable[[], Array], row: DType, width: int) -> Array:
    """Numbers (…, width) of a dtype, packed along their last axis; in place of a file's bytes where those are that."""
    if isinstance(data, FewBitElements) and width * row.bits % 8 == 0:
        raw = data.data.reshape(*data.shape[:-1], width * row.bits // 8)
        halves = sum(1 << (place + row.bits - 1) for place in range(0, 8, row.bits))
        return raw if row.kind == "uint" else raw ^ np.uint8(halves)
    return packed(_padded(from_zero(data(), row), 8 // row.bits), row.bits)


def _padded(numbers: Array, multiple: int) -> Array:
    """With zeros up to a multiple along the last axis."""
    lacking = -numbers.shape[-1] % multiple
    return np.pad(numbers, [(0, 0)] * (numbers.ndim - 1) + [(0, lacking)]) if lacking else numbers


def packed_weight(
    node: OnnxNode, x: Value, scale: Value, zero: Value | None, axis: int, block: int
) -> Value | None:
    """DequantizeLinear of a matrix of few bits that stays packed; None where it is none.

    That are weights of 2 and 4 bits, and of 8 bits in blocks, with a scale a block or a column.
    """
    data = x.graph.weights.get(x.attrs["name"]) if x.op_name == "parameter" else None
    row, shape = x.dtype, x.shape
    if data is None or node.scope.path or not row.is_integer or row.bits > 8 or x.rank != 2:
        return None
    if (row.bits == 8 and not block) or not all(isinstance(dim, int) for dim in shape):
        return None
    axis = x.axis(axis)
    if scale.rank == 1 and not block and scale.shape[0] == shape[axis]:  # of columns: a block is all of one
        scale = scale.unsqueeze(1 - axis)
        zero = None if zero is None else zero.unsqueeze(1 - axis)
        axis, block = 1 - axis, int(shape[1 - axis])
    depth = int(shape[axis])
    given = (scale,) if zero is None else (scale, zero)
    if scale.rank != 2 or not fits(row.bits, block) or any(one.shape != scale.shape for one in given):
        return None
    if not scale.dtype.is_float or any(_is_computed(one) for one in given):
        return None
    blocks, columns = -(-depth // block), int(shape[1 - axis])
    if scale.shape[axis] != blocks or (zero is not None and zero.dtype is not row):
        return None

    load, offsets = _loader(data), None if zero is None else weight_of(node, _beneath(zero))

    def words() -> Array:
        if axis == 1 and depth % block == 0:
            found = bytes_of(load, row, depth)
        else:
            numbers = from_zero(load(), row)
            found = packed(_padded(numbers.T if axis == 0 else numbers, block), row.bits)
        return found.reshape(columns, blocks, block * row.bits // 8)

    def zeros() -> Array:
        if offsets is None:
            return np.zeros((columns, blocks), np.uint8)
        found = from_zero(offsets(), row).reshape((blocks, columns) if axis == 0 else (columns, blocks))
        return np.ascontiguousarray(found.T if axis == 0 else found)

    parts = [
        made_weight(node, "weight", (columns, blocks, block * row.bits // 8), types.UINT8, words),
        scale.transpose() if axis == 0 else scale,
    ]
    if zero is not None or row.kind == "uint":  # else it is 0, which signed numbers have in the middle
        parts.append(made_weight(node, "zero points", (columns, blocks), types.UINT8, zeros))
    result = node.graph.apply("dequantize", *parts, bits=row.bits, depth=depth)
    return result.transpose() if axis == 0 else result


def _beneath(value: Value) -> Value:
    return value.operands[0] if value.op_name == "reshape" else value


def _is_computed(value: Value) -> bool:
    return _beneath(value).op_name not in {"parameter", "constant"}


def _loader(data: object) -> Callable[[], Array]:
    return data if callable(data) else lambda: np.asarray(data)
