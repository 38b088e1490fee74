# ruff: noqa: D103 (what an importer does is what ONNX says of its op)
"""Sequences: lists of values while the model is imported, which no op of the IR computes."""

from __future__ import annotations

from collections.abc import Sequence

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.importers.onnx_sequences import Named, TensorSequence
from kernels_hub.compiler.importers.onnx_types import dtype_of
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import Dim, Expr
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.operators import same_shapes


@onnx_op("SequenceConstruct", since=11)
def sequence_construct(node: OnnxNode) -> TensorSequence:
    values = node.all_inputs()
    return TensorSequence(values[0].dtype, tuple(values))


@onnx_op("SequenceEmpty", since=11)
def sequence_empty(node: OnnxNode) -> TensorSequence:
    return TensorSequence(dtype_of(node.attr("dtype")) if node.has("dtype") else types.FLOAT32, ())


@onnx_op("SequenceLength", since=11)
def sequence_length(node: OnnxNode) -> Value:
    return node.constant(len(node.sequence(0).values))


@onnx_op("SequenceAt", since=11)
def sequence_at(node: OnnxNode) -> Value:
    values, place = node.sequence(0).values, node.input(1)
    known = node.maybe_known(place)
    alike = bool(values) and all(same_shapes(value.shape, values[0].shape) for value in values)
    if known is None and alike:
        stacked = node.graph.apply("concat", *(value.unsqueeze(0) for value in values), axis=0)
        return stacked.gather(place.reshape(()), 0)
    if known is None:
        node.known(place, "the place in a sequence of tensors of several shapes")
    return values[_place(node, 1, len(values))]


@onnx_op("SequenceInsert", since=11)
def sequence_insert(node: OnnxNode) -> TensorSequence:
    into, value = node.sequence(0), node.input(1)
    place = _place(node, 2, len(into.values), after=1)
    return TensorSequence(into.dtype, (*into.values[:place], value, *into.values[place:]))


@onnx_op("SequenceErase", since=11)
def sequence_erase(node: OnnxNode) -> TensorSequence:
    of = node.sequence(0)
    place = _place(node, 1, len(of.values))
    return TensorSequence(of.dtype, (*of.values[:place], *of.values[place + 1 :]))


def _place(node: OnnxNode, operand: int, count: int, after: int = 0) -> int:
    """A place in a sequence, its last one by default; a new element may also be put `after` it."""
    if node.optional(operand) is None:
        place = count + after - 1
    else:
        place = int(node.number(node.input(operand), "the place in the sequence"))
    if not -count <= place < count + after:
        raise node.refuse(f"place {place} is out of range of a sequence of {count}")
    return place + count if place < 0 else place


@onnx_op("SplitToSequence", since=11)
def split_to_sequence(node: OnnxNode) -> TensorSequence:
    x, axis = node.input(0), node.input(0).axis(node.attr("axis", 0))
    sizes = _sizes(node, x.shape[axis])
    values = x.split(sizes, axis)
    if node.optional(1) is None and not node.attr("keepdims", 1):
        values = [value.squeeze(axis) for value in values]
    return TensorSequence(x.dtype, tuple(values))


def _sizes(node: OnnxNode, dim: Dim) -> tuple[Dim, ...]:
    """Sizes of the parts: those given, as many of the one size given as there are, or 1 each."""
    split = node.optional(1)
    if split is not None and split.rank:
        return node.dims(1, "the sizes of the parts")
    each = 1 if split is None else int(node.number(split, "the size of a part"))
    if isinstance(dim, Expr):
        raise node.refuse(f"the sequence has one tensor for each {each} of {dim}: bind that dim to a number")
    if each < 1:
        raise node.refuse(f"the size of a part is {each}")
    if dim > each * _MOST_PARTS:
        raise node.refuse(f"the sequence has more than {_MOST_PARTS} tensors: {dim} by {each}")
    return tuple(min(each, dim - start) for start in range(0, dim, each))


_MOST_PARTS = 4096


@onnx_op("ConcatFromSequence", since=11)
def concat_from_sequence(node: OnnxNode) -> Value:
    values, axis = list(node.sequence(0).values), node.attr("axis")
    if not values:
        raise node.refuse("the sequence is empty")
    if node.attr("new_axis", 0):
        values = [value.unsqueeze(axis) for value in values]
    return values[0] if len(values) == 1 else node.graph.apply("concat", *values, axis=values[0].axis(axis))


@onnx_op("SequenceMap", since=17)
def sequence_map(node: OnnxNode) -> Sequence[Named]:
    """The body written out for each element; sequences beside the first go along with it, tensors stay."""
    body, first = node.subgraph("body"), node.sequence(0)
    operands = [node.operand(index) for index in range(len(node.operands))]
    for position, one in enumerate(operands):
        if isinstance(one, TensorSequence) and len(one.values) != len(first.values):
            raise node.refuse(
                f"input 0 is a sequence of {len(first.values)}, but input {position} of {len(one.values)}"
            )
    columns: list[list[Value]] = [[] for _ in body.output]
    for step in range(len(first.values)):
        given = [
            operand.values[step] if isinstance(operand, TensorSequence) else operand for operand in operands
        ]
        results = node.scope.inline(body, given, f"element {step}")
        for column, result in zip(columns, results, strict=True):
            column.append(node.tensor(result, "a result of the body"))
    dtypes = [
        column[0].dtype if column else dtype_of(one.type.tensor_type.elem_type)
        for column, one in zip(columns, body.output, strict=True)
    ]
    return [TensorSequence(dtype, tuple(column)) for dtype, column in zip(dtypes, columns, strict=True)]
