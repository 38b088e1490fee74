"""Sizes of an exported program: torch's SymInts (sympy) as dims of the graph, with the facts that export found."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add, mul
from typing import TYPE_CHECKING, Any

from kernels_hub.compiler.errors import CompilerError, ImportFailure
from kernels_hub.compiler.importers.aten_ops import UnsupportedArgumentsError
from kernels_hub.compiler.importers.float_sizes import WHOLE, float_value, whole_size
from kernels_hub.compiler.importers.torch_trace import arguments_of
from kernels_hub.compiler.ir.dims import Dim, floordiv, mod
from kernels_hub.compiler.ir.extrema import dim_max, dim_min
from kernels_hub.compiler.ir.graph import Graph, Value
from kernels_hub.compiler.ir.proofs import proves_different, proves_equal

if TYPE_CHECKING:
    import sympy
    import torch
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

_UNBOUNDED = 1 << 60

_PROOFS: Mapping[str, Callable[[Dim, Dim], bool]] = {
    "Equality": proves_equal,
    "Unequality": proves_different,
}
"""Relation of sympy's -> how it is known to hold. Which of two sizes is less, masks ask whatever comes of it."""


class Sizes:
    """Dims of SymInts. Symbols take the names that the caller's dynamic dims have, else torch's (s0, u0)."""

    def __init__(self, graph: Graph, ranges: Mapping[Any, Any]) -> None:
        self.graph = graph
        self.names: dict[str, str] = {}
        self.order: dict[str, None] = {}
        """Symbols as the inputs bring them."""
        self.solved: dict[str, Any] = {}
        """Symbols that are sums of others: what export found equal, and has left as a guard."""
        self.ranges = {str(symbol): found for symbol, found in ranges.items()}

    def call(self, example: object, names: Sequence[str | None]) -> None:
        """Name the symbols that an input's dims are."""
        for dim, name in itertools.zip_longest(getattr(example, "shape", ()), names):
            expression = getattr(getattr(dim, "node", None), "expr", None)
            symbols = [] if expression is None else list(expression.free_symbols)
            self.order.update(dict.fromkeys(sorted(map(str, symbols))))
            if name and len(symbols) == 1:
                self.names.setdefault(str(symbols[0]), name)

    def guard(self, shape_env: ShapeEnv | None) -> None:
        """See that what export decided by sizes holds for all calls. Raises ImportFailure for what may be otherwise.

        Sums that were found equal become one: a + b == c + d makes d a + b - c, which the runtime compares with the
        shapes of a call; symbols with a name of the caller's stay what they are.
        """
        guards = [] if shape_env is None else [shape_env.simplify(one.expr) for one in shape_env.guards]
        for one in guards:
            if type(one).__name__ == "Equality" and self._holds(one) is False:
                self._solve(one)
        for one in guards:
            if self._holds(one) is False:
                raise ImportFailure(
                    f"what it computes depends on whether {one}, which holds for the example and not for all sizes: "
                    "give dims of which it is known, or compile its layers"
                )

    def _holds(self, relation: Any) -> bool | None:
        """Whether a relation of sizes is known to hold; None of what dims do not express."""
        kind = type(relation).__name__
        if kind not in _PROOFS or any(str(one).startswith("u") for one in relation.free_symbols):
            return None
        if kind == "Unequality" and self._asks_for_one(*relation.args):
            return None
        apart = Sizes(Graph("guards"), {})
        apart.ranges, apart.names, apart.solved = self.ranges, self.names, self.solved
        try:
            return _PROOFS[kind](*(apart._dim(side) for side in relation.args))
        except CompilerError:
            return None

    @staticmethod
    def _asks_for_one(left: sympy.Expr, right: sympy.Expr) -> bool:
        """Whether the sides are n * size and n, n % (n * size) and 0, or n * (size - 1) and 0: strides depend on that,
        and no results.
        """
        import sympy

        if right == 0 and type(left).__name__ in {"Mod", "PythonMod"}:
            right, left = left.args
        if right == 0:
            factors = (one.as_coeff_Add() for one in sympy.Mul.make_args(sympy.factor_terms(left)))
            return any(abs(number) == 1 and rest.free_symbols for number, rest in factors)
        above, below = (sympy.factor_terms(left) / sympy.factor_terms(right)).as_numer_denom()
        return 1 in (above, below)

    def _solve(self, equation: Any) -> None:
        rest = equation.lhs - equation.rhs
        rest = rest.xreplace({one: self.solved.get(str(one), one) for one in rest.free_symbols}).expand()
        factors = rest.as_coefficients_dict()
        if any(not one.is_Symbol and one != 1 for one in factors):
            return
        order = {name: place for place, name in enumerate(self.order)}
        for one in sorted(
            rest.free_symbols, key=lambda one: (order.get(str(one), -1), str(one)), reverse=True
        ):
            if abs(factors[one]) == 1 and str(one) not in self.names and len(rest.free_symbols) > 1:
                found = one - rest * factors[one]
                self.solved = {name: value.xreplace({one: found}) for name, value in self.solved.items()}
                self.solved[str(one)] = found
                return

    def dim(self, size: Any) -> Dim:
        """A SymInt, or an int, as a dim. Raises UnsupportedArgumentsError for what dims do not express."""
        if isinstance(size, int):
            return int(size)
        try:
            return self._dim(size.node.expr)
        except CompilerError as error:
            raise UnsupportedArgumentsError(f"the size {size}: {error}") from error

    def float_value(self, number: torch.SymFloat) -> Value:
        """A SymFloat as a 0-d float64 of the graph. Raises UnsupportedArgumentsError for what it does not express."""
        return float_value(number.node.expr, self.graph, self._dim)

    def _dim(self, one: Any) -> Dim:
        if one.is_Integer:
            return int(one)
        if one.is_Symbol:
            return self._symbol(str(one))
        kind = type(one).__name__
        if kind == "Pow" and one.exp.is_Integer and int(one.exp) >= 0:
            return reduce(mul, [self._dim(one.base)] * int(one.exp), 1)
        if kind in {"Add", "Mul"}:
            return reduce(add if kind == "Add" else mul, [self._dim(part) for part in one.args])
        if kind in {"FloorDiv", "CleanDiv"}:
            return floordiv(*(self._dim(part) for part in one.args))
        if kind in {"Mod", "PythonMod"}:
            return mod(*(self._dim(part) for part in one.args))
        if kind in {"Min", "Max"}:
            return (dim_min if kind == "Min" else dim_max)(*(self._dim(part) for part in one.args))
        if kind in WHOLE:
            return whole_size(one, self._dim)
        raise UnsupportedArgumentsError(f"a size computed as {one}")

    def _symbol(self, torch_name: str) -> Dim:
        if torch_name in self.solved:
            return self._dim(self.solved[torch_name])
        name = self.names.get(torch_name, torch_name)
        if name in self.graph.symbols:
            return self.graph.symbol(name)
        known = self.ranges.get(torch_name)
        if known is None:
            return self.graph.symbol(name)
        low = int(known.lower) if known.lower.is_Integer else 0
        high = int(known.upper) if known.upper.is_Integer and int(known.upper) < _UNBOUNDED else None
        return self.graph.symbol(name, max(low, 0), high)


def input_symbols(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic_shapes: Any
) -> dict[str, list[Any]]:
    """Input name -> the name that dynamic_shapes gives each of its dims, None where it gives none."""
    if not dynamic_shapes:
        return {}
    given = arguments_of(module, args, kwargs)
    if isinstance(dynamic_shapes, Mapping):
        specs = dict(dynamic_shapes)
    else:
        specs = {name: spec for (name, _), spec in zip(given, dynamic_shapes, strict=False)}
    found: dict[str, list[Any]] = {}
    for name, value in given:
        _collect(value, specs.get(name), name, found)
    return found


def _collect(value: Any, spec: Any, path: str, found: dict[str, list[Any]]) -> None:
    if spec is None:
        return
    if hasattr(value, "shape"):
        rank = len(value.shape)
        dims = (
            [spec.get(axis, spec.get(axis - rank)) for axis in range(rank)]
            if isinstance(spec, Mapping)
            else list(spec)
        )
        found[path] = [_name_of(dim) for dim in dims]
    elif isinstance(value, Mapping) and isinstance(spec, Mapping):
        for key, item in value.items():
            _collect(item, spec.get(key), f"{path}.{key}", found)
    elif isinstance(spec, (list, tuple)):
        for index, (item, inner) in enumerate(zip(_children(value), spec, strict=False)):
            _collect(item, inner, f"{path}.{index}", found)


def _children(value: object) -> Sequence[Any]:
    """Of a tree: of a list or a tuple, or of what torch's pytree takes for one."""
    from torch.utils import _pytree as pytree

    if isinstance(value, (list, tuple)):
        return value
    children: list[Any] = pytree.tree_leaves(value, is_leaf=lambda one: one is not value)
    return children


def _name_of(dim: object) -> str | None:
    """The name of a torch.export.Dim, or of the one that it is derived from; None of hints, numbers and nothing."""
    if isinstance(dim, str):
        return dim
    name = getattr(getattr(dim, "root", dim), "__name__", None)
    return name if isinstance(name, str) and name.isidentifier() else None
