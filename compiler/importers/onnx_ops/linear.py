# ruff: noqa: D103 (what an importer does is what ONNX says of its op)
"""Matrix products, einsum, determinants."""

from __future__ import annotations

from functools import reduce

from kernels_hub.compiler.importers.einsum import einsum
from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.graph import Value


@onnx_op("MatMul", since=1)
def matmul(node: OnnxNode) -> Value:
    return node.input(0).matmul(node.input(1))


@onnx_op("Gemm", since=1)
def gemm(node: OnnxNode) -> Value:
    a, b, c = node.input(0), node.input(1), node.optional(2)
    if node.attr("transA", 0):
        a = a.transpose()
    if node.attr("transB", 0):
        b = b.transpose()
    result = a.matmul(b)
    alpha, beta = node.attr("alpha", 1.0), node.attr("beta", 1.0)
    result = result if alpha == 1.0 else _scaled(result, alpha)
    if c is None or beta == 0.0:
        return result
    c = c if beta == 1.0 else _scaled(c, beta)
    return result + c.broadcast_to(result.shape)


def _scaled(x: Value, factor: float) -> Value:
    if x.dtype.is_float:
        return x * factor
    return (x.cast(types.FLOAT64) * factor).cast(x.dtype)


@onnx_op("Einsum", since=12)
def einsum_of_node(node: OnnxNode) -> Value:
    values, equation = node.all_inputs(), node.attr("equation")
    try:
        return einsum(equation, values)
    except ValueError as error:
        raise node.refuse(str(error)) from error


@onnx_op("Det", since=11)
def det(node: OnnxNode) -> Value:
    """By elimination with the greatest pivot of each column, written out for the size at hand."""
    x = node.input(0)
    size = x.shape[-1]
    if not isinstance(size, int) or size > 16:
        raise node.refuse(f"determinants are written out for matrices of a known size up to 16, not {x.type}")
    batch = x.shape[:-2]
    factors: list[Value] = []
    rest = x
    for left in range(size, 0, -1):
        column = rest.slice(-1, 0, 1)
        pivot = column.unary("abs").along("argmax", -2).unsqueeze(-1)
        at = x.graph.iota(left).reshape((left, 1)).broadcast_to((*batch, left, 1))
        chosen = at.eq(pivot)
        row = chosen.select(rest, 0.0).sum(-2, keepdims=True)
        head = row.slice(-1, 0, 1)
        moved = chosen.select(rest.slice(-2, 0, 1), rest)
        swapped = pivot.ne(0).select(head.like(-1.0), head.like(1.0))
        factors.append((head * swapped).reshape(batch))
        if left > 1:
            below = moved.slice(-2, 1, left)
            ratio = head.eq(0.0).select(0.0, below.slice(-1, 0, 1) / head)
            rest = (below - ratio * row).slice(-1, 1, left)
    return reduce(lambda a, b: a * b, factors) if factors else x.graph.full(batch, 1.0, x.dtype)
