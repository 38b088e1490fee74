"""Derivative rules: how the gradient of an op's result becomes the gradients of its operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kernels_hub.compiler.errors import CompilerError
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.graph import Graph, Value


class NotDifferentiable(CompilerError):
    """A rule that cannot serve this op with these attributes; the message is the reason alone."""


@dataclass(frozen=True)
class Site:
    """An op that a gradient has arrived at.

    operands, result: in the graph that gradients are built in. gradient: of the result, of its type. wanted: of which
    operands a gradient is asked for; others need none.
    """

    operands: tuple[Value, ...]
    result: Value
    gradient: Value
    attrs: dict[str, Any]
    wanted: tuple[bool, ...]

    @property
    def graph(self) -> Graph:
        """The graph that gradients are built in."""
        return self.gradient.graph

    @property
    def x(self) -> Value:
        """The first operand."""
        return self.operands[0]


Gradients = Sequence[Value | None]
"""Of each operand, of its type; None where it is zero or not asked for."""


@dataclass(frozen=True)
class Derivative:
    """A row: the op, how its gradients are built, and the formula in words."""

    op: str
    pull: Callable[[Site], Gradients]
    doc: str


def zeros(graph: Graph, like: Value) -> Value:
    """Zeros of a value's type."""
    return graph.full(like.shape, 0, like.dtype)


def along(statistic: Value, like: Value, axes: Sequence[int]) -> Value:
    """What a reduction over axes left, broadcast back to where it came from."""
    kept = tuple(axis for axis in range(like.rank) if axis not in axes)
    return statistic.broadcast(like.shape, kept)


def as_number(graph: Graph, dim: Dim, like: Value) -> Value:
    """A dim as a scalar of a value's dtype, broadcast to its shape."""
    return graph.size(dim).cast(like.dtype).broadcast_to(like.shape)


def apart(g: Value, axis: int, step: int) -> Value:
    """A value with step - 1 zeros between its elements along an axis."""
    if step == 1 or g.shape[axis] == 0:
        return g
    shape = list(g.shape)
    shape[axis] = shape[axis] * step
    spread = g.unsqueeze(axis + 1).pad([(0, step - 1 if one == axis + 1 else 0) for one in range(g.rank + 1)])
    return spread.reshape(shape).slice(axis, 0, shape[axis] - (step - 1))
