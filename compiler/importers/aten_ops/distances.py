# ruff: noqa: D103
"""Distances between rows: cdist, dist. Gradients at 0 are 0, as PyTorch has them."""

from __future__ import annotations

import math

from kernels_hub.compiler.importers.aten_ops.call import AtenCall, Scalar, aten
from kernels_hub.compiler.importers.aten_ops.reduce import vector_norm
from kernels_hub.compiler.ir.graph import Value


@aten("_cdist_forward.default")
def cdist(call: AtenCall, a: Value, b: Value, order: float, _: int | None) -> Value:
    """The norm of each difference; what multiplies instead, for many rows, PyTorch writes out itself."""
    if a.shape[-1] == 0:
        return call.graph.full(call.shape, 0, call.dtype)
    away = call.tensor(a).unsqueeze(-2) - call.tensor(b).unsqueeze(-3)
    if order == 0:
        return away.ne(0).cast(call.dtype).sum(away.rank - 1)
    return vector_norm(call, away, order, away.rank - 1, False)


@aten("_cdist_backward.default")
def cdist_backward(
    call: AtenCall, gradient: Value, a: Value, b: Value, order: float, distances: Value
) -> Value:
    """The gradient of the rows of a; 0 where a distance is 0."""
    away = a.unsqueeze(-2) - b.unsqueeze(-3)
    g, far = gradient.unsqueeze(gradient.rank), distances.unsqueeze(distances.rank)
    if order == 0:
        return call.graph.full(call.shape, 0, call.dtype)
    sign = away.unary("sign")
    if order == 1:
        each = g * sign
    elif order == math.inf:
        each = (away.unary("abs") - far).eq(0).select(g * sign, 0.0)
    else:
        power = away if order == 2 else sign * away.unary("abs") ** (order - 1)
        zero = far.eq(0) if order >= 1 else far.eq(0) | away.eq(0)
        each = zero.select(0.0, g * power / (far if order == 2 else far ** (order - 1)))
    return each.sum(each.rank - 2)


@aten("dist.default")
def dist(call: AtenCall, a: Value, b: Value, order: Scalar) -> Value:
    return vector_norm(call, call.tensor(a) - call.tensor(b), order, None, False)
