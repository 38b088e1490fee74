"""Sizes of an exported program: torch's SymInts (sympy) as dims of the graph, with the facts that export found."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from operator import add, mul
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from kernels_hub.compiler.errors import CompilerError, ImportFailure
from kernels_hub.compiler.importers.aten_ops import UnsupportedArgumentsError
from kernels_hub.compiler.importers.compared_sizes import comparison_value
from kernels_hub.compiler.importers.float_sizes import WHOLE, float_value, whole_size
from kernels_hub.compiler.importers.torch_trace import TRACED_FROM, arguments_of
from kernels_hub.compiler.ir.dims import Dim, divide_exactly, floordiv, mod, without_mod
from kernels_hub.compiler.ir.extrema import dim_max, dim_min
from kernels_hub.compiler.ir.graph import Graph, Value
from kernels_hub.compiler.ir.proofs import interval, proves_different, proves_equal, proves_le

if TYPE_CHECKING:
    import sympy
    import torch

_UNBOUNDED = 1 << 60

_PROOFS: Mapping[str, Callable[[Dim, Dim], bool]] = {
    "Equality": proves_equal,
    "Unequality": proves_different,
    "LessThan": proves_le,
    "StrictLessThan": lambda left, right: proves_le(left + 1, right),
    "GreaterThan": lambda left, right: proves_le(right, left),
    "StrictGreaterThan": lambda left, right: proves_le(right + 1, left),
}
"""Relation of sympy's -> how it is known to hold."""
_LEAST: Mapping[str, int] = {"LessThan": 0, "StrictLessThan": 1, "GreaterThan": 0, "StrictGreaterThan": 1}
"""Relation of sympy's -> how much larger one side is at least."""
_TRIALS = 64
"""Sizes for which a relation that is not proven is tried."""
_QUOTIENTS = frozenset({"FloorDiv", "CleanDiv", "Mod", "PythonMod"})
_MOST_MULTIPLES = 8
"""How far sizes that are no multiples are tried, in divisors."""
_SMALL = 8
"""Sizes below are few: a relation that fails for them alone raises the bound."""
_FAR = 4
"""How far sizes are tried for which a relation may hold that is not proven, in the largest number that is in it."""
_FARTHEST = 1 << 14


class _Range(NamedTuple):
    """The least and the largest size of a symbol, None for no largest."""

    low: int = 0
    high: int | None = None

    @classmethod
    def of(cls, known: Any) -> _Range:
        """Of torch's ValueRanges."""
        low = int(known.lower) if known.lower.is_Integer else 0
        high = int(known.upper) if known.upper.is_Integer and int(known.upper) < _UNBOUNDED else None
        return cls(max(low, 0), high)


class Sizes:
    """Dims of SymInts. Symbols take the names that the caller's dynamic dims have, else torch's (s0, u0)."""

    def __init__(self, graph: Graph, ranges: Mapping[Any, Any]) -> None:
        self.graph = graph
        self.names: dict[str, str] = {}
        self.order: dict[str, None] = {}
        """Symbols as the inputs bring them."""
        self.example: dict[str, int] = {}
        """Sizes that symbols have in the example."""
        self.solved: dict[str, Any] = {}
        """Symbols that are sums of others: what export found equal, and has left as a guard."""
        self.ranges = {str(symbol): _Range.of(known) for symbol, known in ranges.items()}

    def call(self, example: object, names: Sequence[str | None]) -> None:
        """Name the symbols that an input's dims are."""
        for dim, name in itertools.zip_longest(getattr(example, "shape", ()), names):
            expression = getattr(getattr(dim, "node", None), "expr", None)
            symbols = [] if expression is None else list(expression.free_symbols)
            self.order.update(dict.fromkeys(sorted(map(str, symbols))))
            if name and len(symbols) == 1:
                self.names.setdefault(str(symbols[0]), name)
            if expression in symbols and isinstance(size := dim.node.hint, int):
                self.example.setdefault(str(expression), size)

    def raise_bounds(self, decided: Sequence[sympy.Basic]) -> None:
        """Have sizes of 0 and 1 not fit for which a relation does not hold that torch.export took to hold always."""
        for relation in decided:
            symbols = sorted(relation.free_symbols, key=str)
            if not all(str(one) in self.order for one in symbols) or self._fails(relation, TRACED_FROM):
                continue  # sizes that data tell; what torch.export has a guard of
            for one in symbols:
                low, high = self.ranges.get(str(one), _Range())
                fails = [self._fails_at(relation, one, size) for size in range(TRACED_FROM)]
                self.ranges[str(one)] = _Range(max(low, TRACED_FROM if fails[1] else int(fails[0])), high)

    def guard(
        self, guards: Sequence[sympy.Basic], *, are_checked: bool = False, may_fix: bool = False
    ) -> None:
        """See that what export decided by sizes holds for all calls. Raises ImportFailure for what may be otherwise.

        Sums that were found equal become one: a + b == c + d makes d a + b - c, which the runtime compares with the
        shapes of a call, and n * a == n * b makes b a. So does which of two sizes is less: a < b makes b a sum of a
        and a symbol of its own, at least 1; calls where it is the other way round do not fit. A size with a name of
        the caller's that has to be a multiple of 7 becomes 7 times another. What fails for a few small sizes alone
        raises the bound of the symbol, and what holds on one side of a size alone bounds a symbol to the example's
        side, where nobody gave it a name. Symbols with a name of the caller's keep it where they can.

        are_checked: nothing is refused, as the caller sees at each call that guards hold; nothing more than they say is
        made of them. may_fix: of a relation that nothing else makes hold, a symbol without a name is what it is in the
        example, as are the features that convolutions leave for a linear layer; calls with others do not fit.
        """
        guards = list(dict.fromkeys(guards))
        for one in guards:
            if type(one).__name__ == "Equality" and self.holds(one) is False:
                self._solve(one, are_checked=are_checked)
        for one in guards:
            if type(one).__name__ in _LEAST and self.holds(one) is False:
                self._order(one)
        for one in self._unproved(guards):
            self._divide(one, are_checked=are_checked)
        for one in self._unproved(guards):
            self._raise_bound(one, exactly=are_checked)
        if are_checked:
            return
        for one in self._unproved(guards):
            self._bound_around_example(one)
        for one in self._unproved(guards if may_fix else ()):
            self._fix_at_example(one)
        for one in self._unproved([*guards, *self._bounds()]):
            raise ImportFailure(
                f"what it computes depends on whether {one}, which holds for the example and not for all sizes: "
                "give dims of which it is known, or compile its layers",
                of_sizes=True,
            )

    def _unproved(self, guards: Iterable[sympy.Basic]) -> Iterator[sympy.Basic]:
        """Those that are not known to hold, each asked when its turn comes."""
        return (one for one in guards if self.holds(one) is False)

    def bound(self, decided: Sequence[sympy.Basic]) -> None:
        """Bound symbols to the example's side of what forwards were answered. Of n <= 1, and of n != 1, export has a
        guard that is told from one of strides by nothing, where n is computed from a size.
        """
        for one in decided:
            if self._fails(one, TRACED_FROM):
                self._bound_around_example(one)

    def holds(self, relation: sympy.Basic) -> bool | None:
        """Whether a relation of sizes is known to hold; None of what is not, and cannot be shown to be otherwise."""
        kind = type(relation).__name__
        if not relation.free_symbols or any(str(one).startswith("u") for one in relation.free_symbols):
            return None
        if kind == "Unequality" and self._asks_for_one(*relation.args):
            return None
        apart = Sizes(Graph("guards"), {})
        apart.ranges, apart.names, apart.solved = self.ranges, self.names, self.solved
        known = False
        with suppress(CompilerError, UnsupportedArgumentsError):
            if kind == "Unequality" and apart._asks_for_multiple(*relation.args):
                return None
            known = kind in _PROOFS and _PROOFS[kind](*(apart._dim(side) for side in relation.args))
            known = known or (kind == "Equality" and apart._is_quotient(*relation.args))
            if kind in {"Equality", "Unequality"}:
                return known
        return known or (False if self._fails(relation) else None)

    def _fails_at(self, relation: sympy.Basic, symbol: sympy.Symbol, size: int) -> bool:
        """Whether it does where a symbol has that size; so it is where the module would divide by zero."""
        import sympy

        try:
            return self._fails(relation.xreplace({symbol: sympy.Integer(size)}))
        except ZeroDivisionError:
            return True

    def _is_quotient(self, quotient: sympy.Expr, number: sympy.Expr) -> bool:
        """Whether a // b is known to be a number, as is the count of chunks: number * b <= a < (number + 1) * b."""
        if not (type(quotient).__name__ in {"FloorDiv", "CleanDiv"} and number.is_Integer):
            return False
        a, b = (self._dim(part) for part in quotient.args)
        least = int(number) * b
        return proves_le(1, b) and proves_le(least, a) and proves_le(a + 1, least + b)

    def _fails(self, relation: sympy.Basic, least: int = 0) -> bool:
        """Whether it does for some sizes that symbols may have: all least, all largest, and more that are drawn.

        least: of what is tried.
        """
        import sympy

        relation = self._in_terms_of_others(relation)
        random = Random(0)  # noqa: S311  (sizes, no secret)
        for trial in range(_TRIALS):
            sizes = {}
            for one in sorted(relation.free_symbols, key=str):
                low, largest = self.ranges.get(str(one), _Range())
                low = max(low, least)
                high = low + (4 << trial // 4)
                if largest is not None:
                    high = max(low, largest if trial == 1 else min(largest, high))
                sizes[one] = sympy.Integer(random.randint(low, high) if trial > 1 else (low, high)[trial])
            if _is_false(relation, sizes):
                return True
        return False

    def _in_terms_of_others(self, expression: sympy.Basic) -> sympy.Basic:
        """With what symbols that are no more are sums of."""
        solved = {one: self.solved[str(one)] for one in expression.free_symbols if str(one) in self.solved}
        return expression.xreplace(solved)

    def _bounds(self) -> list[sympy.Basic]:
        """The bounds that symbols had which are sums of others now."""
        import sympy

        found = []
        for name in self.solved:
            one, (least, largest) = sympy.Symbol(name, integer=True), self.ranges.get(name, _Range())
            if least > (TRACED_FROM if name in self.order else 0):
                found.append(sympy.Ge(one, least))
            if largest is not None:
                found.append(sympy.Le(one, largest))
        return found

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

    def _asks_for_multiple(self, left: sympy.Expr, right: sympy.Expr) -> bool:
        """Whether it asks that n % m is not 0, of a multiple m of n: strides depend on that, and no results."""
        if right != 0 or type(left).__name__ not in {"Mod", "PythonMod"}:
            return False
        n, m = (without_mod(self._dim(part)) for part in left.args)
        return divide_exactly(m, n) is not None

    def _solve(self, equation: sympy.Basic, *, are_checked: bool) -> None:
        rest = self._in_terms_of_others(equation.lhs - equation.rhs).expand()
        rest = self._without_factors(rest, may_be_zero=not are_checked)
        factors = rest.as_coefficients_dict()
        if any(not one.is_Symbol and one != 1 for one in factors):
            return
        order = {name: place for place, name in enumerate(self.order)}
        for one in sorted(
            rest.free_symbols, key=lambda one: (order.get(str(one), -1), str(one)), reverse=True
        ):
            if abs(factors[one]) == 1 and str(one) not in self.names and len(rest.free_symbols) > 1:
                found = one - rest * factors[one]
                self._is(one, found)
                return

    def _without_factors(self, difference: sympy.Expr, *, may_be_zero: bool) -> sympy.Expr:
        """A difference without the sizes and numbers that all of its terms have as factors: of 2 * k * (a - b), a - b.

        may_be_zero: also without those that are not known to be 1 at least.
        """
        import sympy

        if not difference.is_polynomial(*difference.free_symbols):
            return difference
        rest = difference
        for one in sympy.Mul.make_args(sympy.factor_terms(difference)):
            size = one.as_base_exp()[0]
            is_size = size.is_Symbol and (may_be_zero or self.ranges.get(str(size), _Range()).low > 0)
            if is_size or (one.is_Integer and one != 0):
                rest = sympy.cancel(rest / one)
        return rest.expand()

    def _order(self, relation: sympy.Basic) -> None:
        """Make the larger size the smaller one and a symbol: the difference, without the number in it."""
        import sympy

        larger, smaller = (
            (relation.rhs, relation.lhs)
            if "Less" in type(relation).__name__
            else (relation.lhs, relation.rhs)
        )
        factors = self._in_terms_of_others(larger - smaller).expand().as_coefficients_dict()
        least = _LEAST[type(relation).__name__] - int(factors.pop(sympy.S.One, 0))
        if not all(one.is_Symbol for one in factors):
            return
        if len(factors) == 1:
            ((symbol, factor),) = factors.items()
            self._bound(symbol, int(factor), least)
            return
        alone = [one for one, factor in factors.items() if factor == 1]
        for one in sorted(alone, key=lambda one: (str(one) in self.names, str(one))):
            others = sympy.Add(*(-factor * other for other, factor in factors.items() if other != one))
            is_plain = least >= 0 and {str(one), str(others)} <= set(self.order)
            name = f"{one}_minus_{others}" if is_plain else f"more_{len(self.ranges)}"
            before = self.solved
            self._is(one, others + sympy.Symbol(name, integer=True) + min(least, 0))
            if self._are_told():
                self.ranges[name] = _Range(max(least, 0))
                return
            self.solved = before

    def _bound(self, symbol: sympy.Symbol, factor: int, least: int) -> None:
        """Have a symbol, times a factor, be at least so much: a number, where its largest size is its least then."""
        import sympy

        low, high = self.ranges.get(str(symbol), _Range())
        if factor > 0:
            low = max(low, -(-least // factor))
        else:
            most = -least // -factor
            high = most if high is None else min(high, most)
        self.ranges[str(symbol)] = _Range(low, high)
        if low == high:
            self._is(symbol, sympy.Integer(low))

    def _divide(self, relation: sympy.Basic, *, are_checked: bool) -> None:
        """Make a size so many times another where a relation holds for multiples of a number, and for these alone."""
        import sympy

        relation = self._in_terms_of_others(relation)
        for part in sorted(relation.atoms(sympy.Function), key=str):
            if type(part).__name__ not in _QUOTIENTS or len(part.args) != 2:
                continue
            size, divisor = sympy.cancel(part.args[0] / part.args[1]).as_numer_denom()
            symbol = next(iter(size.free_symbols), None)
            if not divisor.is_Integer or divisor < 2 or symbol is None or not (size - symbol).is_Integer:
                continue
            if not (are_checked or str(symbol) in self.names):
                continue
            if self._is_of_multiples(relation, symbol, int(divisor)):
                self._is_multiple(symbol, int(divisor))
                return

    def _is_of_multiples(self, relation: sympy.Basic, symbol: sympy.Symbol, divisor: int) -> bool:
        """Whether it holds where a symbol is a multiple of a number, and fails for all others that are tried."""
        import sympy

        times = sympy.Symbol("times", integer=True)
        low, high = self.ranges.get(str(symbol), _Range())
        apart = Sizes(Graph("multiples"), {})
        apart.names, apart.solved = self.names, self.solved
        apart.ranges = {
            **self.ranges,
            "times": _Range(-(-low // divisor), None if high is None else high // divisor),
        }
        if apart.holds(relation.xreplace({symbol: divisor * times})) is False:
            return False
        tried = [*range(low, _MOST_MULTIPLES * divisor), *(1 + (divisor << bits) for bits in range(4, 20))]
        sizes = [size for size in tried if size % divisor and low <= size <= (size if high is None else high)]
        others = [self._some_sizes(relation.free_symbols, least) for least in (3, 4)]
        return bool(sizes) and all(
            _is_false(relation, {**rest, symbol: sympy.Integer(size)}) for rest in others for size in sizes
        )

    def _is_multiple(self, symbol: sympy.Symbol, divisor: int) -> None:
        import sympy

        low, high = self.ranges.get(str(symbol), _Range())
        name = f"{self.names.get(str(symbol), symbol)}_by_{divisor}"
        self.ranges[name] = _Range(-(-low // divisor), None if high is None else high // divisor)
        self._is(symbol, divisor * sympy.Symbol(name, integer=True))

    def _raise_bound(self, relation: sympy.Basic, *, exactly: bool) -> None:
        """Have symbols be larger than the few small sizes for which a relation does not hold, whatever the others are.

        exactly: only where it holds for none of the smaller ones.
        """
        import sympy

        relation = self._in_terms_of_others(relation)
        before = self.ranges
        for symbol in sorted(relation.free_symbols, key=str):
            low, high = self.ranges.get(str(symbol), _Range())
            others = [self._some_sizes(relation.free_symbols - {symbol}, least) for least in (3, 4)]
            fails = [
                size
                for size in range(low, _SMALL if high is None else min(high, _SMALL))
                if all(_is_false(relation, {**rest, symbol: sympy.Integer(size)}) for rest in others)
            ]
            if fails and not (exactly and len(fails) != fails[-1] + 1 - low):
                self.ranges = {**self.ranges, str(symbol): _Range(fails[-1] + 1, high)}
        if self.holds(relation) is False:
            self.ranges = before

    def _bound_around_example(self, relation: sympy.Basic) -> None:
        """Have the one symbol of a relation take the sizes around the example's for which it holds: more than one chunk
        of 256, or one alone, of s + (-s) % 256.
        """
        import sympy

        relation = self._in_terms_of_others(relation)
        symbols = sorted(map(str, relation.free_symbols))
        if len(symbols) != 1 or symbols[0] in self.names or symbols[0] not in self.example:
            return
        (name,), (symbol,), before = symbols, relation.free_symbols, self.ranges
        low, high = before.get(name, _Range())
        first = last = self.example[name]
        numbers = [abs(int(one)) for one in relation.atoms(sympy.Integer)]
        farthest = min(_FAR * max(first, *numbers), first + _FARTHEST)
        farthest = farthest if high is None else min(farthest, high)

        def holds(size: int) -> bool:
            return not _is_false(relation, {symbol: sympy.Integer(size)})

        while first > low and holds(first - 1):
            first -= 1
        while last < farthest and holds(last + 1):
            last += 1
        if first < last and holds(first) and (first == low or last == farthest):
            self.ranges = {**before, name: _Range(first, high if last == farthest else last)}
        if self.holds(relation) is False:
            self.ranges = before

    def _fix_at_example(self, relation: sympy.Basic) -> None:
        """Have the one symbol of a relation be what it is in the example, where nobody gave it a name."""
        import sympy

        names = sorted(map(str, self._in_terms_of_others(relation).free_symbols))
        if len(names) == 1 and names[0] not in self.names and names[0] in self.example:
            self._is(sympy.Symbol(names[0], integer=True), sympy.Integer(self.example[names[0]]))

    def _some_sizes(self, symbols: Iterable[sympy.Symbol], least: int) -> dict[sympy.Symbol, sympy.Integer]:
        """A size that each symbol may have, and at least this."""
        import sympy

        return {one: sympy.Integer(max(self.ranges.get(str(one), _Range()).low, least)) for one in symbols}

    def _are_told(self) -> bool:
        """Whether the sizes of inputs tell all symbols, one after the other."""
        sums = [
            {str(symbol) for symbol in self.solved[name].free_symbols} if name in self.solved else {name}
            for name in self.order
        ]
        told: set[str] = set()
        while found := [left for one in sums if len(left := one - told) == 1]:
            told.update(*found)
        return all(one <= told for one in sums)

    def _is(self, one: sympy.Symbol, found: sympy.Expr) -> None:
        """Have a symbol be a sum of others from here on."""
        self.solved = {name: value.xreplace({one: found}) for name, value in self.solved.items()}
        self.solved[str(one)] = found

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

    def comparison_value(self, condition: torch.SymBool) -> Value:
        """A SymBool as a 0-d bool of the graph. Raises UnsupportedArgumentsError for what it does not express."""
        return comparison_value(condition.node.expr, self.graph, self._dim)

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
            return _quotient(*(self._dim(part) for part in one.args))
        if kind in {"Mod", "PythonMod"}:
            return _remainder(*(self._dim(part) for part in one.args))
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
        if torch_name not in self.ranges:
            return self.graph.symbol(name)
        return self.graph.symbol(name, *self.ranges[torch_name])


def _quotient(a: Dim, b: Dim) -> Dim:
    """a // b; a number where bounds leave one, as of the chunks of 64 of at most 64 rows: what is divided by that
    number in turn is what it was.
    """
    found = floordiv(without_mod(a), without_mod(b))
    low, high = interval(found)
    return low if low is not None and low == high else floordiv(a, b)


def _remainder(a: Dim, b: Dim) -> Dim:
    """a % b; 0 of a multiple of b, as b rows of whole windows are written."""
    return mod(a, b) if divide_exactly(without_mod(a), without_mod(b)) is None else 0


def _is_false(relation: sympy.Basic, sizes: Mapping[sympy.Symbol, sympy.Integer]) -> bool:
    import sympy

    with suppress(ZeroDivisionError):  # the module would divide by it, too
        return bool(relation.xreplace(sizes) == sympy.false)
    return False


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
