"""Binding of shapes: the sizes of symbols, told by the shapes that a call's inputs have.

A symbol is solved from a dim in which it is the only one left, and linear. Then every dim is compared with its size.
Graphs, plans and exported layers bind by this alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .errors import ShapeMisfit, SizeMisfit

Size = Any
"""An int; where a graph is written out in another, a dim of that."""


Place = tuple[int, int]
"""The number of an input, and an axis of it."""


class SymbolicDim(NamedTuple):
    """A dim that depends on symbols. value: its size, from those of `symbols` in this order.

    linear: the symbols that it is linear in, whatever the others are.
    """

    text: str
    symbols: tuple[str, ...]
    linear: tuple[str, ...]
    value: Callable[..., Size]

    def of(self, sizes: Mapping[str, Size]) -> Size:
        """Its size. Raises KeyError where that of a symbol is missing."""
        return self.value(*[sizes[name] for name in self.symbols])

    def __str__(self) -> str:
        return self.text


def named(symbol: str) -> SymbolicDim:
    """The dim that is a symbol."""
    return SymbolicDim(symbol, (symbol,), (symbol,), _same)


def _same(size: Size) -> Size:
    return size


class Bound(NamedTuple):
    """The smallest and the largest size of a symbol, None for no largest; and how messages say that."""

    smallest: int
    largest: int | None
    text: str


class Declared(NamedTuple):
    """An input. text: how messages begin that are about it."""

    name: str
    text: str
    shape: tuple[int | SymbolicDim, ...]


class Equation(NamedTuple):
    """A dim, and its size where it stands."""

    dim: SymbolicDim
    size: Size
    place: Place


class Solution(NamedTuple):
    """`factor` times the size of a symbol is `multiple`, by an equation."""

    symbol: str
    multiple: Size
    factor: int
    equation: Equation


def solutions(equations: Sequence[Equation], sizes: Mapping[str, Size]) -> Iterator[Solution]:
    """What equations tell of symbols, one after the other: of those that have no size yet.

    sizes: those that are known; the caller adds one for each solution, or leaves it out.
    """
    rest = equations
    while rest:
        count = len(sizes)
        waiting = []
        for equation in rest:
            dim = equation.dim
            missing = [name for name in dim.symbols if name not in sizes]
            if not missing:
                continue
            if len(missing) == 1 and missing[0] in dim.linear:
                (symbol,) = missing
                constant = dim.of({**sizes, symbol: 0})
                factor = dim.of({**sizes, symbol: 1}) - constant
                if isinstance(factor, int) and factor:
                    yield Solution(symbol, equation.size - constant, factor, equation)
            waiting.append(equation)
        if len(sizes) == count:
            return
        rest = waiting


class ShapeBinder:
    """Binds the symbols of some inputs to the shapes of a call. bounds: of every symbol of these inputs.

    what: what messages call an input.
    """

    def __init__(self, inputs: Sequence[Declared], bounds: Mapping[str, Bound], what: str = "input") -> None:
        self._inputs, self._bounds, self._what = list(inputs), bounds, what
        self._ranks = [len(declared.shape) for declared in inputs]
        self._numbers: list[tuple[int, int, int]] = []
        """(input, axis, size) of dims that are numbers."""
        places: dict[int, tuple[SymbolicDim, list[tuple[int, int]]]] = {}
        for position, declared in enumerate(inputs):
            for axis, dim in enumerate(declared.shape):
                if isinstance(dim, SymbolicDim):
                    places.setdefault(id(dim), (dim, []))[1].append((position, axis))
                else:
                    self._numbers.append((position, axis, dim))
        self._symbolic = list(places.values())
        self._named = [(dim.text, *at[0]) for dim, at in self._symbolic if dim.value is _same]
        """(symbol, input, axis) of symbols that are dims by themselves."""
        self._others = sorted(
            (row for row in self._symbolic if row[0].value is not _same), key=lambda row: len(row[0].symbols)
        )

    def of(self, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
        """The size of each symbol.

        Raises ShapeMisfit where shapes do not fit, naming both that contradict each other, or tell too little;
        SizeMisfit where a size is out of the bounds of its symbol.
        """
        for position, rank in enumerate(self._ranks):
            if len(shapes[position]) != rank:
                has = f", which has rank {len(shapes[position])}, not {rank}"
                raise self._misfit(position, shapes, has)
        for position, axis, size in self._numbers:
            if shapes[position][axis] != size:
                is_other = f": dim {axis} is {shapes[position][axis]}, expected {size}"
                raise self._misfit(position, shapes, is_other)
        sizes: dict[str, int] = {}
        for symbol, position, axis in self._named:
            size = shapes[position][axis]
            smallest, largest, _ = self._bounds[symbol]
            if size < smallest or (largest is not None and size > largest):
                raise self._out_of_bounds(symbol, size, (position, axis), shapes)
            sizes[symbol] = size
        sources = self._solve(shapes, sizes) if self._others else {}
        for dim, places in self._symbolic:
            try:
                size = dim.of(sizes)
            except KeyError:
                raise self._untold(dim, places[0], shapes, sizes) from None
            for position, axis in places:
                if shapes[position][axis] != size:
                    raise self._contradiction(dim, (position, axis), shapes, sizes, sources)
        return sizes

    def _solve(self, shapes: Sequence[Sequence[int]], sizes: dict[str, int]) -> dict[str, Place]:
        """Add the sizes that dims tell which are more than a symbol; where each was told."""
        sources: dict[str, Place] = {}
        equations = [
            Equation(dim, shapes[position][axis], (position, axis))
            for dim, ((position, axis), *_) in self._others
        ]
        for symbol, multiple, factor, equation in solutions(equations, sizes):
            size, remainder = divmod(multiple, factor)
            if remainder:
                is_no_multiple = f", but no {symbol} makes {equation.dim} that"
                raise ShapeMisfit(*self._about(equation.place, shapes, is_no_multiple))
            smallest, largest, _ = self._bounds[symbol]
            if size < smallest or (largest is not None and size > largest):
                raise self._out_of_bounds(symbol, size, equation.place, shapes)
            sizes[symbol], sources[symbol] = size, equation.place
        return sources

    def _out_of_bounds(
        self, symbol: str, size: int, place: Place, shapes: Sequence[Sequence[int]]
    ) -> SizeMisfit:
        _, text = self._about(place, shapes, f": {symbol} = {size} contradicts {self._bounds[symbol].text}")
        return SizeMisfit(f"size {symbol}", text)

    def _untold(
        self, dim: SymbolicDim, place: Place, shapes: Sequence[Sequence[int]], sizes: Mapping[str, int]
    ) -> ShapeMisfit:
        unknown = ", ".join(name for name in dim.symbols if name not in sizes)
        kind, _ = self._about(place, shapes, "")
        text = f"{self._at(place, shapes)} is {dim}, which does not tell {unknown}; no other {self._what} does either"
        return ShapeMisfit(kind, text)

    def _contradiction(
        self,
        dim: SymbolicDim,
        place: Place,
        shapes: Sequence[Sequence[int]],
        sizes: Mapping[str, int],
        sources: Mapping[str, Place],
    ) -> ShapeMisfit:
        told = {**{name: (position, axis) for name, position, axis in self._named}, **sources}
        because = "; ".join(
            f"{name} = {sizes[name]} by {self._at(told[name], shapes)}" for name in dim.symbols
        )
        return ShapeMisfit(*self._about(place, shapes, f", but {dim} is {dim.of(sizes)} ({because})"))

    def _misfit(self, position: int, shapes: Sequence[Sequence[int]], text: str) -> ShapeMisfit:
        return ShapeMisfit(self._kind(position), f"{self._got(position, shapes)}{text}")

    def _about(self, place: Place, shapes: Sequence[Sequence[int]], text: str) -> tuple[str, str]:
        """The kind and the text of a misfit, which says what the dim at a place is."""
        position, axis = place
        return self._kind(position), f"{self._at(place, shapes)} is {shapes[position][axis]}{text}"

    def _kind(self, position: int) -> str:
        return f"shape {self._inputs[position].name}"

    def _at(self, place: Place, shapes: Sequence[Sequence[int]]) -> str:
        return f"{self._got(place[0], shapes)}: dim {place[1]}"

    def _got(self, position: int, shapes: Sequence[Sequence[int]]) -> str:
        return f"{self._inputs[position].text} got [{', '.join(map(str, shapes[position]))}]"
