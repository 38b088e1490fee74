# ruff: noqa: D103 (what an importer does is what ONNX says of its op)
"""Reductions, arg-reductions, running sums, softmax."""

from __future__ import annotations

from collections.abc import Callable

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import product
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.proofs import proves_le

_AXES_AS_INPUT = {"ReduceSum": 13}
"""Since when the axes are an input; 18 for the others."""


def _reduction(name: str, compute: Callable[[Value, tuple[int, ...]], Value]) -> Callable[[OnnxNode], Value]:
    since = _AXES_AS_INPUT.get(name, 18)

    def convert(node: OnnxNode) -> Value:
        x = node.input(0)
        if node.opset >= since:
            axes = node.ints(1, "the axes") if node.optional(1) is not None else ()
        else:
            axes = tuple(node.attr("axes", ()))
        if not axes and node.attr("noop_with_empty_axes", 0):
            return _of_nothing(name, x)
        places = tuple(sorted({x.axis(axis) for axis in axes} or range(x.rank)))
        result = compute(x, places)
        return result.unsqueeze(*places) if node.attr("keepdims", 1) and places else result

    return convert


def _of_nothing(name: str, x: Value) -> Value:
    """Without axes to reduce over, only what is done to each element is done."""
    if name in {"ReduceL1", "ReduceL2"}:
        return x.unary("abs")
    if name == "ReduceSumSquare":
        return x * x
    return x.log() if name == "ReduceLogSum" else x


def _log_sum_exp(x: Value, axes: tuple[int, ...]) -> Value:
    top = x.max(axes, keepdims=True)
    safe = top.unary("isinf").select(0.0, top)
    return (x - safe).exp().sum(axes).log() + safe.reshape(
        tuple(d for a, d in enumerate(x.shape) if a not in axes)
    )


def _l2(x: Value, axes: tuple[int, ...]) -> Value:
    if not x.dtype.is_float:
        return _l2(x.cast(types.FLOAT64), axes).cast(x.dtype)
    return (x * x).sum(axes).sqrt()


def _mean(x: Value, axes: tuple[int, ...]) -> Value:
    """Of nothing it is 0, as in ONNX Runtime: what a mask picks may be empty."""
    count = product(x.shape[axis] for axis in axes)
    if not x.dtype.is_float:
        return x.sum(axes) / x.graph.size(count, x.dtype)
    mean = x.mean(axes)
    return mean if proves_le(1, count) else x.graph.size(count).eq(0).select(0.0, mean)


def _bounded(kind: str) -> Callable[[Value, tuple[int, ...]], Value]:
    def convert(x: Value, axes: tuple[int, ...]) -> Value:
        if x.dtype is types.BOOL:
            return x.reduce("any" if kind == "max" else "all", axes)
        return x.reduce(kind, axes)

    return convert


def _float_of(
    function: Callable[[Value, tuple[int, ...]], Value],
) -> Callable[[Value, tuple[int, ...]], Value]:
    def convert(x: Value, axes: tuple[int, ...]) -> Value:
        return function(x, axes) if x.dtype.is_float else function(x.cast(types.FLOAT64), axes).cast(x.dtype)

    return convert


for _name, _compute in {
    "ReduceSum": lambda x, axes: x.sum(axes),
    "ReduceMean": _mean,
    "ReduceProd": lambda x, axes: x.reduce("prod", axes),
    "ReduceMax": _bounded("max"),
    "ReduceMin": _bounded("min"),
    "ReduceL1": lambda x, axes: x.unary("abs").sum(axes),
    "ReduceL2": _l2,
    "ReduceLogSum": _float_of(lambda x, axes: x.sum(axes).log()),
    "ReduceLogSumExp": _float_of(_log_sum_exp),
    "ReduceSumSquare": lambda x, axes: (x * x).sum(axes),
}.items():
    onnx_op(_name, since=1)(_reduction(_name, _compute))


def _place(op: str) -> Callable[[OnnxNode], Value]:
    def convert(node: OnnxNode) -> Value:
        x, axis = node.input(0), node.input(0).axis(node.attr("axis", 0))
        if node.attr("select_last_index", 0):
            last = node.graph.size(x.shape[axis]) - 1
            found = last.broadcast_to(tuple(d for a, d in enumerate(x.shape) if a != axis)) - x.flip(
                axis
            ).along(op, axis)
        else:
            found = x.along(op, axis)
        return found.unsqueeze(axis) if node.attr("keepdims", 1) else found

    return convert


onnx_op("ArgMax", since=1)(_place("argmax"))
onnx_op("ArgMin", since=1)(_place("argmin"))


def _running(kind: str) -> Callable[[OnnxNode], Value]:
    def convert(node: OnnxNode) -> Value:
        (axis,) = node.ints(1, "the axis")
        return node.input(0).cumulate(
            kind, axis, exclusive=bool(node.attr("exclusive", 0)), reverse=bool(node.attr("reverse", 0))
        )

    return convert


onnx_op("CumSum", since=11)(_running("sum"))
onnx_op("CumProd", since=26)(_running("prod"))


def _flattened(node: OnnxNode, compute: Callable[[Value], Value]) -> Value:
    """Before opset 13: over all dims from the axis on, 1 by default."""
    x = node.input(0)
    axis = x.axis(node.attr("axis", 1)) if x.rank > 1 or node.has("axis") else 0
    flat = x.reshape((product(x.shape[:axis]), product(x.shape[axis:])))
    return compute(flat).reshape(x.shape)


@onnx_op("Softmax", since=1)
def softmax_flattened(node: OnnxNode) -> Value:
    return _flattened(node, lambda x: x.softmax(1))


@onnx_op("Softmax", since=13)
def softmax(node: OnnxNode) -> Value:
    return node.input(0).softmax(node.attr("axis", -1))


@onnx_op("LogSoftmax", since=1)
def log_softmax_flattened(node: OnnxNode) -> Value:
    return _flattened(node, lambda x: x.along("log_softmax", 1))


@onnx_op("LogSoftmax", since=13)
def log_softmax(node: OnnxNode) -> Value:
    return node.input(0).along("log_softmax", node.attr("axis", -1))


def _hard(x: Value, axis: int) -> Value:
    axis = x.axis(axis)
    best = x.along("argmax", axis).unsqueeze(axis)
    size = x.shape[axis]
    places = x.graph.iota(size).reshape((size, *[1] * (x.rank - 1 - axis))).broadcast_to(x.shape)
    return places.eq(best).cast(x.dtype)


@onnx_op("Hardmax", since=1)
def hardmax_flattened(node: OnnxNode) -> Value:
    return _flattened(node, lambda x: _hard(x, 1))


@onnx_op("Hardmax", since=13)
def hardmax(node: OnnxNode) -> Value:
    return _hard(node.input(0), node.attr("axis", -1))
