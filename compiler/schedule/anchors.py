"""Builds anchors (products, convolutions, attentions, sorts …), with their operands as strided views of memory."""

from __future__ import annotations

from collections.abc import Callable

from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.ops.fourier import samples_of
from kernels_hub.compiler.schedule.index import Loop, Ranges, linear
from kernels_hub.compiler.schedule.kernel import (
    Anchor,
    Attention,
    Buffer,
    Convolution,
    Coupling,
    FewBitsProduct,
    FourierTransform,
    GroupedProduct,
    Order,
    Product,
    Recurrence,
    Trees,
    View,
)
from kernels_hub.compiler.schedule.lower import ORDERS, Body
from kernels_hub.compiler.schedule.scores import ANCHOR_DTYPES, attention_parts
from kernels_hub.compiler.schedule.views import loops_of, step

BufferOf = Callable[[Value], Buffer | None]


class NotStrided(Exception):
    """An operand that no strides describe, in the layout of the value whose memory it lies in."""

    def __init__(self, operand: Value, value: Value) -> None:
        super().__init__(operand, value)
        self.operand, self.value = operand, value


def view_of(value: Value, buffer_of: BufferOf) -> View:
    """A value as a strided window of the memory that it lies in. Raises NotStrided."""
    operand, loops = value, loops_of(value)
    ranges = Ranges(loops)
    index = tuple(loop.index for loop in loops)
    buffer = buffer_of(value)
    while buffer is None:
        value, index = step(value, index, ranges)
        buffer = buffer_of(value)
    found = linear(buffer.place(index), [loop.name for loop in loops])
    if found is None:
        raise NotStrided(operand, value)
    strides, offset = found
    return View(
        buffer, offset, tuple(loop.extent for loop in loops), tuple(strides[loop.name] for loop in loops)
    )


def make_anchor(value: Value, loops: tuple[Loop, ...], name: str, buffer_of: BufferOf) -> Anchor:
    """The anchor that computes a value; `loops`: one for each of its dims."""
    origin = value.node.origin
    if value.op_name == "matmul":
        a, b = (view_of(operand, buffer_of) for operand in value.operands)
        return Product(name, a, b, value.dtype, origin)
    if value.op_name == "grouped_matmul":
        a, b, ends = (view_of(operand, buffer_of) for operand in value.operands)
        return GroupedProduct(name, a, b, ends, value.dtype, origin)
    if value.op_name == "matmul_few_bits":
        a, w, scales, *zeros = (view_of(operand, buffer_of) for operand in value.operands)
        bits, given = value.attrs["bits"], zeros[0] if zeros else None
        return FewBitsProduct(name, bits, a, w, scales, given, value.dtype, origin)
    if value.op_name == "recurrent":
        return _recurrence(value, name, buffer_of)
    if value.op_name == "tree_ensemble":
        x, roots, nodes, weights = (view_of(operand, buffer_of) for operand in value.operands)
        return Trees(name, value.attrs["aggregate"], x, roots, nodes, weights, origin)
    if value.op_name == "pairwise_coupling":
        return Coupling(name, view_of(value.operands[0], buffer_of), origin)
    if value.op_name == "fourier":
        return _transform(value, name, buffer_of)
    if value.op_name == "argkth":
        x, attrs = view_of(value.operands[0], buffer_of), value.attrs
        return Order(name, x, attrs["axis"], descending=False, kth=attrs["k"] - 1, origin=origin)
    if value.op_name in ORDERS:
        descending = value.attrs["descending" if value.op_name == "argsort" else "largest"]
        return Order(
            name, view_of(value.operands[0], buffer_of), value.attrs["axis"], descending, origin=origin
        )
    if value.op_name == "conv":
        x, w = (view_of(operand, buffer_of) for operand in value.operands)
        attrs = value.attrs
        return Convolution(
            name, x, w, attrs["strides"], attrs["dilations"], attrs["padding"], attrs["groups"], value.dtype, origin
        )  # fmt: skip
    return _attention(value, loops, name, buffer_of, origin)


def _recurrence(value: Value, name: str, buffer_of: BufferOf) -> Recurrence:
    attrs = value.attrs
    x, weight, h, *more = (view_of(operand, buffer_of) for operand in value.operands)
    c = more.pop(0) if attrs["cell"] == "lstm" else None
    bias = more.pop(0) if attrs["cell"] == "gru_after" else None
    scales, zeros = (more.pop(0), more.pop(0)) if attrs["quantized"] else (None, None)
    lengths = more.pop(0) if attrs["lengths"] else None
    return Recurrence(
        name, attrs["cell"], attrs["reverse"], x, weight, h, c, bias, scales, zeros, lengths, value.dtype,
        value.node.origin,
    )  # fmt: skip


def _transform(value: Value, name: str, buffer_of: BufferOf) -> FourierTransform:
    attrs = value.attrs
    real, *imaginary = (view_of(operand, buffer_of) for operand in value.operands)
    return FourierTransform(
        name, attrs["form"], attrs["inverse"], attrs["axis"], samples_of(real.shape, attrs), attrs["scale"], real,
        imaginary[0] if imaginary else None, value.dtype, value.node.origin,
    )  # fmt: skip


def _attention(
    value: Value, loops: tuple[Loop, ...], name: str, buffer_of: BufferOf, origin: str
) -> Attention:
    parts = attention_parts(value, ANCHOR_DTYPES | {value.dtype})
    assert parts is not None
    q, k, *v = (view_of(one, buffer_of) for one in parts.strided)
    keys = Loop(f"{loops[2].name}k", parts.scores.shape[3])
    score_loops = (loops[0], loops[1], loops[2], keys)
    index = tuple(loop.index for loop in score_loops)
    callee = value.attrs["callee"]
    aliases = dict(zip(callee.inputs.values(), value.operands, strict=True))
    body = Body(Ranges(score_loops), buffer_of, aliases=aliases, prefix="s")
    body.define_at(parts.product, index, "score")
    result = body.at(parts.scores, index)
    scores = tuple(body.statements)
    return Attention(
        name, q, k, v[0] if v else None, 1.0, score_loops, scores, result, value.dtype, parts.blank, origin,
        parts.weights,
    )  # fmt: skip
