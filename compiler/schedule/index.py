"""Index expressions: dims over loop variables, simplified by what is known of their ranges.

A loop variable is a symbol whose name begins with "$" (so that no size of a graph is taken for one); its extent is
kept beside it, since it may be symbolic. A place in memory is a polynomial over those. A reshape divides and takes
remainders; nearly always these cancel: (8*i + j) // 8 is i where j < 8, and b * (a // b) + a % b is a, because a
remainder is written as a - b * (a // b).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernels_hub.compiler.ir.dims import Dim, Expr, Symbol, atom, floordiv, product
from kernels_hub.compiler.ir.extrema import substitute
from kernels_hub.compiler.ir.op import Shape
from kernels_hub.compiler.ir.proofs import proves_le


@dataclass(frozen=True, slots=True)
class Loop:
    """A variable that runs from 0 to extent - 1."""

    name: str
    extent: Dim

    @property
    def symbol(self) -> Symbol:
        """The variable in index expressions."""
        return Symbol(self.name, 0, self.extent - 1 if isinstance(self.extent, int) and self.extent else None)

    @property
    def index(self) -> Dim:
        """The variable as an expression; 0 where there is but one turn."""
        return 0 if isinstance(self.extent, int) and self.extent == 1 else atom(self.symbol)


def is_variable(one: object) -> bool:
    """Whether a symbol is a loop variable or a loaded value, and no size."""
    return isinstance(one, Symbol) and one.name.startswith("$")


class Ranges:
    """What is known of the variables of a kernel: the extent of each loop."""

    def __init__(self, loops: Sequence[Loop] = ()) -> None:
        self.extents: dict[str, Dim] = {loop.name: loop.extent for loop in loops}
        self._memo: dict[tuple[Dim, Dim], Dim] = {}

    def divide(self, a: Dim, b: Dim) -> Dim:
        """a // b, simplified. b is a dim: where it is 0 there is no element that would ask."""
        if isinstance(b, int) and b == 0:
            return 0
        if isinstance(a, int) and isinstance(b, int):
            return a // b
        if isinstance(b, int) and b == 1:
            return a
        key = (a, b)
        if key not in self._memo:
            self._memo[key] = self._divide(a, b)
        return self._memo[key]

    def _divide(self, a: Dim, b: Dim) -> Dim:
        whole, rest = _split(a, b)
        if self.within(rest, b):
            return whole
        return whole + floordiv(rest, b)

    def remainder(self, a: Dim, b: Dim) -> Dim:
        """a % b for b >= 1, as a - b * (a // b)."""
        return a - b * self.divide(a, b)

    def within(self, value: Dim, size: Dim) -> bool:
        """Whether 0 <= value < size is known."""
        low, high = self.bounds(value)
        return low is not None and high is not None and proves_le(0, low) and proves_le(high, size - 1)

    def holds(self, place: Dim, low: Dim, high: Dim) -> bool | None:
        """Whether low <= place < high in all turns of the loops, or in none; None where that is not known."""
        least, greatest = self.bounds(place)
        if least is None or greatest is None:
            return None
        if proves_le(low, least) and proves_le(greatest, high - 1):
            return True
        return False if proves_le(greatest, low - 1) or proves_le(high, least) else None

    def bounds(self, value: Dim) -> tuple[Dim | None, Dim | None]:
        """The least and the greatest that a value can be, in terms of sizes; None where that is not known."""
        if not isinstance(value, Expr):
            return value, value
        low: Dim | None = 0
        high: Dim | None = 0
        for monomial, coefficient in value.terms:
            sizes: Dim = 1
            most: Dim | None = 1
            for one, power in monomial:
                for _ in range(power):
                    if is_variable(one):
                        extent = self.extents.get(one.name) if isinstance(one, Symbol) else None
                        most = None if extent is None or most is None else most * (extent - 1)
                    elif isinstance(one, Symbol):
                        sizes = sizes * atom(one)
                    else:
                        least, greatest = self._opaque_bounds(one)
                        if least is None or not proves_le(0, least):
                            return None, None
                        most = None if greatest is None or most is None else most * greatest
            variable = any(is_variable(one) or not isinstance(one, Symbol) for one, _ in monomial)
            top = None if most is None else coefficient * sizes * most
            bottom: Dim | None = 0 if variable else coefficient * sizes
            if coefficient < 0 and variable:
                top, bottom = bottom, top
            low = None if low is None or bottom is None else low + bottom
            high = None if high is None or top is None else high + top
        return low, high

    def _opaque_bounds(self, one: object) -> tuple[Dim | None, Dim | None]:
        if getattr(one, "kind", None) != "floordiv":
            return None, None
        a, b = one.args  # type: ignore[attr-defined]
        low, high = self.bounds(a)
        if low is None or high is None or not isinstance(b, int):
            return (0 if low is not None and proves_le(0, low) else None), None
        return floordiv(low, b), floordiv(high, b)

    def unflatten(self, place: Dim, shape: Shape) -> tuple[Dim, ...]:
        """The index into a shape of the element at a row-major place."""
        index: list[Dim] = []
        for axis in range(len(shape) - 1, 0, -1):
            dim = shape[axis]
            if isinstance(dim, int) and dim == 1:
                index.append(0)
                continue
            quotient = self.divide(place, dim)
            index.append(place - dim * quotient)
            place = quotient
        if shape:
            index.append(place)
        return tuple(reversed(index))


def flatten(index: Sequence[Dim], shape: Shape) -> Dim:
    """The row-major place of an index into a shape."""
    place: Dim = 0
    for one, dim in zip(index, shape, strict=True):
        place = place * dim + one
    return place


def row_major(shape: Shape) -> Shape:
    """The strides of a dense array, last dim fastest."""
    return tuple(product(shape[axis + 1 :]) for axis in range(len(shape)))


def permuted(shape: Shape, order: Sequence[int]) -> Shape:
    """The strides of a dense array whose memory runs through the dims in this order, slowest first."""
    strides: list[Dim] = [0] * len(shape)
    total: Dim = 1
    for axis in reversed(order):
        strides[axis] = total
        total = total * shape[axis]
    return tuple(strides)


def linear(place: Dim, variables: Sequence[str]) -> tuple[dict[str, Dim], Dim] | None:
    """(coefficient of each variable, the rest), or None where a variable stands in more than plain products."""
    dims: dict[str, Dim] = dict.fromkeys(variables, 0)
    rest: Dim = 0
    if not isinstance(place, Expr):
        return dims, place
    wanted = set(variables)
    for monomial, coefficient in place.terms:
        term: Dim = coefficient
        mine: str | None = None
        for one, power in monomial:
            if isinstance(one, Symbol) and one.name in wanted:
                if mine is not None or power != 1:
                    return None
                mine = one.name
                continue
            if not isinstance(one, Symbol) and wanted & {symbol.name for symbol in atom(one).symbols}:
                return None
            for _ in range(power):
                term = term * atom(one)
        if mine is None:
            rest = rest + term
        else:
            dims[mine] = dims[mine] + term
    return dims, rest


def variables_in(place: Dim) -> frozenset[str]:
    """Names of the variables in an index expression."""
    if not isinstance(place, Expr):
        return frozenset()
    return frozenset(symbol.name for symbol in place.symbols if is_variable(symbol))


def renamed(place: Dim, names: Mapping[str, Dim]) -> Dim:
    """An index expression with variables replaced."""
    return substitute(place, dict(names)) if isinstance(place, Expr) else place


def _split(a: Dim, b: Dim) -> tuple[Dim, Dim]:
    """a = b * whole + rest, term by term."""
    from kernels_hub.compiler.ir.dims import _polynomial, divide_exactly

    if not isinstance(a, Expr):
        if isinstance(b, int):
            whole = a // b
            return whole, a - b * whole
        return 0, a
    whole = 0
    rest: Dim = 0
    for monomial, coefficient in a.terms:
        term = _polynomial({monomial: coefficient})
        if isinstance(b, int):
            share, left = divmod(coefficient, b)
            whole = whole + _polynomial({monomial: share})
            rest = rest + _polynomial({monomial: left})
        elif (exact := divide_exactly(term, b)) is not None:
            whole = whole + exact
        else:
            rest = rest + term
    return whole, rest
