# ruff: noqa: D103 (what an importer does is what ONNX says of its op)
"""Quantized ops, as arithmetic on integers and floats."""

from __future__ import annotations

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.importers.onnx_ops.packed_weights import packed_weight
from kernels_hub.compiler.importers.onnx_types import dtype_of
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import ceildiv, product
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.types import DType


def beside_blocks(x: Value, value: Value, axis: int, block: int) -> Value:
    """A scale or zero point (one, one a channel, or one a block) in the shape of x."""
    if value.rank <= 1 and product(value.shape) == 1:
        return value.reshape(())
    axis = x.axis(axis)
    if value.rank == 1:
        return value.reshape((value.shape[0], *[1] * (x.rank - 1 - axis)))
    if not block:
        block = ceildiv(x.shape[axis], value.shape[axis])
    spread = value.unsqueeze(axis + 1)
    shape = (*value.shape[: axis + 1], block, *value.shape[axis + 1 :])
    wide = spread.broadcast_to(shape).reshape(
        (*value.shape[:axis], value.shape[axis] * block, *value.shape[axis + 1 :])
    )
    return wide.slice(axis, 0, x.shape[axis])


@onnx_op("QuantizeLinear", since=10)
def quantize_linear(node: OnnxNode) -> Value:
    x, scale, zero = node.input(0), node.input(1), node.optional(2)
    row = zero.dtype if zero is not None else types.UINT8
    if node.attr("output_dtype", 0):
        row = dtype_of(node.attr("output_dtype"))
    axis, block = node.attr("axis", 1), node.attr("block_size", 0)
    precision = dtype_of(node.attr("precision")) if node.attr("precision", 0) else scale.dtype
    precision = precision if precision.is_float and precision.bits >= 16 else types.FLOAT32
    wide = x.cast(precision) / beside_blocks(x, scale, axis, block).cast(precision)
    offset = None if zero is None else beside_blocks(x, zero, axis, block)
    if row.is_integer:
        rounded = wide.cast(types.FLOAT32).unary("round")
        if offset is not None:
            rounded = rounded + offset.cast(types.FLOAT32)
        return rounded.cast(row, saturate=True)
    if offset is not None:
        wide = wide + offset.cast(precision)
    return wide.cast(row, saturate=bool(node.attr("saturate", 1)))


@onnx_op("DequantizeLinear", since=10)
def dequantize_linear(node: OnnxNode) -> Value:
    x, scale, zero = node.input(0), node.input(1), node.optional(2)
    axis, block = node.attr("axis", 1), node.attr("block_size", 0)
    row = dtype_of(node.attr("output_dtype")) if node.attr("output_dtype", 0) else scale.dtype
    if row is scale.dtype and (packed := packed_weight(node, x, scale, zero, axis, block)) is not None:
        return packed
    if zero is not None:
        middle = types.INT32 if x.dtype.is_integer else types.FLOAT32
        centred = x.cast(middle) - beside_blocks(x, zero, axis, block).cast(middle)
    else:
        centred = x
    return (centred.cast(types.FLOAT32) * beside_blocks(x, scale, axis, block).cast(types.FLOAT32)).cast(row)


@onnx_op("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(node: OnnxNode) -> list[Value]:
    return list(quantized_by_range(node.input(0)))


def quantized_by_range(x: Value) -> tuple[Value, Value, Value]:
    """(x in uint8 by the range of all of it, scale, zero point)."""
    low, high = x.min().minimum(0.0), x.max().maximum(0.0)
    scale = (high - low) / 255.0
    scale = scale.eq(0.0).select(1.0, scale)
    zero = (0.0 - low / scale).clamp(0.0, 255.0).unary("round")
    result = ((x / scale).unary("round") + zero).cast(types.UINT8, saturate=True)
    return result, scale, zero.cast(types.UINT8, saturate=True)


def centred_operand(x: Value, zero: Value | None, *, rows: bool) -> Value:
    """An operand of an integer product in int32, its zero point (one, or one a row or column) subtracted."""
    wide = x.cast(types.INT32)
    if zero is None:
        return wide
    offset = zero.cast(types.INT32)
    if product(zero.shape) == 1:
        offset = offset.reshape(())
    elif rows and zero.rank == 1:
        offset = offset.unsqueeze(1)
    return wide - offset


@onnx_op("MatMulInteger", since=10)
def matmul_integer(node: OnnxNode) -> Value:
    a, b = node.input(0), node.input(1)
    return centred_operand(a, node.optional(2), rows=True).matmul(
        centred_operand(b, node.optional(3), rows=False)
    )


@onnx_op("QLinearMatMul", since=10)
def qlinear_matmul(node: OnnxNode) -> Value:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (node.input(index) for index in range(8))
    total = (
        centred_operand(a, a_zero, rows=True)
        .matmul(centred_operand(b, b_zero, rows=False))
        .cast(types.FLOAT32)
    )
    scales = [_scalar(one).cast(types.FLOAT32) for one in (a_scale, b_scale, y_scale)]
    if scales[0].rank == 1:
        scales[0] = scales[0].unsqueeze(1)
    scaled = total * (scales[0] * scales[1] / scales[2])
    return _saturated(scaled.unary("round") + _scalar(y_zero).cast(types.FLOAT32), y_zero.dtype)


def _scalar(value: Value) -> Value:
    return value.reshape(()) if product(value.shape) == 1 else value


def _saturated(value: Value, row: DType) -> Value:
    return value.cast(row, saturate=True)
