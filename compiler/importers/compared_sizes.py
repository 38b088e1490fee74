"""Comparisons of sizes whose truth is a value of a program: torch.full((1,), x.shape[0] >= 1024)."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING

from kernels_hub.compiler.importers.aten_ops import UnsupportedArgumentsError
from kernels_hub.compiler.importers.float_sizes import float_value
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.graph import Graph, Value
from kernels_hub.compiler.ir.types import BOOL

if TYPE_CHECKING:
    from sympy import Basic, Expr

_COMPARISONS: dict[str, Callable[[Value, Value], Value]] = {
    "Equality": lambda a, b: a.eq(b),
    "Unequality": lambda a, b: a.ne(b),
    "LessThan": lambda a, b: a <= b,
    "StrictLessThan": lambda a, b: a < b,
    "GreaterThan": lambda a, b: a >= b,
    "StrictGreaterThan": lambda a, b: a > b,
}


def comparison_value(one: Basic, graph: Graph, dim_of: Callable[[Expr], Dim]) -> Value:
    """A comparison of sizes, as a 0-d bool of the graph. dim_of: of an expression that is an integer.

    Raises UnsupportedArgumentsError for what the graph has no op for.
    """
    kind = type(one).__name__
    if kind in {"BooleanTrue", "BooleanFalse"}:
        return graph.constant(kind == "BooleanTrue", BOOL)
    if kind == "Not":
        return comparison_value(one.args[0], graph, dim_of).unary("bitnot")
    if kind in {"And", "Or"}:
        parts = [comparison_value(part, graph, dim_of) for part in one.args]
        return reduce(lambda a, b: a & b if kind == "And" else a | b, parts)
    if kind not in _COMPARISONS:
        raise UnsupportedArgumentsError(f"a comparison of sizes: {one}", of_sizes=True)
    left, right = one.args
    if left.is_integer and right.is_integer:
        return _COMPARISONS[kind](graph.size(dim_of(left)), graph.size(dim_of(right)))
    return _COMPARISONS[kind](*(float_value(side, graph, dim_of) for side in (left, right)))
