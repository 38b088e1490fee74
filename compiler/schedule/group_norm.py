"""Writes a group norm out so that every pass over its input runs along the channels.

As models spell it, the statistics are over (channels of a group, pixels) at once: in memory with channels last, that
is a walk in short strides. Here the pixels are summed for each channel first, a vector of sums that lies as the
channels do, and those of a group after that; mean and scale become vectors over the channels, too. Only the order of
the sums is another one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import product
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.op import Trait

_MADE_OF = {"reduce_mean", "reduce_sum", "sub", "mul", "add", "div", "rsqrt", "sqrt", "pow"}


@dataclass(frozen=True)
class GroupNorm:
    """The operands of a recognised group norm, and how many groups it has."""

    x: Value
    eps: Value
    weight: Value | None
    bias: Value | None
    groups: int


def group_norm_of(value: Value, operands: tuple[Value, ...]) -> GroupNorm | None:
    """The parts of a call, on these operands; None of what is no group norm in float32 over known channels."""
    if (
        value.op_name != "call"
        or value.attrs["callee"].name != "group_norm"
        or value.dtype is not types.FLOAT32
    ):
        return None
    callee = value.attrs["callee"]
    given = dict(zip(callee.inputs, operands, strict=True))
    if not {"x", "eps"} <= set(given) <= {"x", "eps", "weight", "bias"}:
        return None
    ops = Counter(node.op.name for node in callee.live() if not node.op.traits & (Trait.VIEW | Trait.LEAF))
    once = ops["sub"] == 1 and ops["rsqrt"] + ops["sqrt"] == 1 and ops["reduce_mean"] + ops["reduce_sum"] == 2
    x = given["x"]
    grouped = [user.results[0] for user in callee.inputs["x"].users if user.op.name == "reshape"]
    if not once or set(ops) - _MADE_OF or len(grouped) != 1 or x.dtype is not types.FLOAT32 or x.rank < 3:
        return None
    groups, channels = grouped[0].shape[1], x.shape[1]
    if not isinstance(groups, int) or not isinstance(channels, int) or not groups or channels % groups:
        return None
    return GroupNorm(x, given["eps"], given.get("weight"), given.get("bias"), groups)


def written_out(norm: GroupNorm) -> Value:
    """(x - mean) * scale + bias, with mean and scale for each channel."""
    x, graph = norm.x, norm.x.graph
    batch, channels = x.shape[0], x.shape[1]
    each = channels // norm.groups
    count = graph.size(product(x.shape[2:]) * each).cast(x.dtype)

    def of_group(values: Value) -> Value:
        """Sums over the pixels, then over the channels of each group, and back to all of its channels."""
        sums = graph.apply("reduce_sum", values, axes=tuple(range(2, x.rank)))
        sums = graph.apply("reduce_sum", sums.reshape((batch, norm.groups, each)), axes=(2,))
        back = graph.apply("broadcast", sums, shape=(batch, norm.groups, each), axes=(0, 1))
        return back.reshape((batch, channels)) / count

    def along(statistic: Value, axes: tuple[int, ...] = (0, 1)) -> Value:
        return graph.apply("broadcast", statistic, shape=x.shape, axes=axes)

    centred = x - along(of_group(x))
    scale = (of_group(centred * centred) + norm.eps).unary("rsqrt")
    if norm.weight is not None:
        scale = scale * norm.weight
    result = centred * along(scale)
    return result if norm.bias is None else result + along(norm.bias, (1,))
