"""Inputs made for a graph, so that a program that computes something else shows it.

    for one in judging_inputs(graph, sizes={"n": 16}):
        print(one.name, evaluate(graph, one.arrays))

Besides ordinary numbers: positive ones (no sum cancels), every magnitude, numbers on both sides of what the graph
compares with and right beside it (propagated back to its inputs where they lead there, looked for by scaling where
not), whole and half numbers, signed zeros, equal ones, NaN, infinities, the ends of the dtype; all ids of a lookup;
masks of every kind; and other sizes of symbolic dims: none, one, an odd number.
"""

from __future__ import annotations

import itertools
import math
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kernels_hub.compiler.errors import CompilerError, DimError
from kernels_hub.compiler.ir.dims import dim_symbols
from kernels_hub.compiler.ir.extrema import substitute
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.ops.conversion import convert, of_parts
from kernels_hub.compiler.ir.types import Array, DType
from kernels_hub.compiler.judging.decisions import Decision, decisions, observe, thresholds
from kernels_hub.compiler.judging.roles import Role, role_of
from kernels_hub.compiler.judging.roundoff import largest, least

MOST_SETS_OF_IDS = 4
"""Sets that run through the ids of a lookup: where these are more, the first and last ones and some between."""
MOST_TURNS = 8
"""Sets that run through what the graph compares with, where inputs are small."""
PATIENCE_S = 5.0
"""Seconds in which sides of comparisons are looked for that no other set reaches."""


@dataclass(frozen=True, eq=False)
class InputSet:
    """An array for each input. sizes: of the symbols."""

    name: str
    arrays: Mapping[str, Array]
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class JudgingInputs:
    """Input sets, those that show most first. missed: sides of comparisons, and ids, that none of them reaches."""

    sets: tuple[InputSet, ...]
    missed: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[InputSet]:
        return iter(self.sets)

    def __len__(self) -> int:
        return len(self.sets)


def judging_inputs(
    graph: Graph,
    *,
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
    weights: Mapping[str, Array] | None = None,
    patience: float = PATIENCE_S,
    other_sizes: bool = True,
) -> JudgingInputs:
    """Input sets for a graph; see the module. A function of graph, seed and sizes, but for how far `patience` reaches.

    sizes: of all symbols that shapes of inputs have. weights: of parameters that the graph has no arrays for. patience:
    seconds in which sides of comparisons are looked for; 0: none are. other_sizes: with sets of other sizes.
    Raises DimError where a symbol of an input's shape has no size.
    """
    given = {name: size for name, size in (sizes or {}).items() if name in graph.symbols}
    made = _Made(graph, seed, given)
    sets = list(made.sets())
    missed = list(made.missed)
    if patience > 0:
        found, sides = _reached(made, sets, dict(weights or {}), patience)
        sets += found
        missed += sides
    if other_sizes:
        sets += _of_other_sizes(graph, seed, given)
    return JudgingInputs(tuple(sets), tuple(missed))


# -- numbers ----------------------------------------------------------------------------------------

Fill = Callable[[np.random.Generator, tuple[int, ...], DType, Sequence[float]], Array]


def _span(row: DType) -> float:
    """Decades of magnitudes whose products stay in range."""
    return 2.0 if largest(row) < 1e6 else 6.0


def _normal(random: np.random.Generator, shape: tuple[int, ...], _: DType, __: Sequence[float]) -> Array:
    return random.standard_normal(shape)


def _positive(random: np.random.Generator, shape: tuple[int, ...], _: DType, __: Sequence[float]) -> Array:
    return random.uniform(0.5, 2.0, shape)


def _decades(random: np.random.Generator, shape: tuple[int, ...], row: DType, _: Sequence[float]) -> Array:
    span = _span(row)
    magnitudes: Array = 10 ** random.uniform(-span, span, shape)
    signs: Array = random.choice((-1.0, 1.0), shape)
    return np.asarray(magnitudes * signs)


def _rows(random: np.random.Generator, shape: tuple[int, ...], row: DType, _: Sequence[float]) -> Array:
    """Each row of a magnitude of its own: what an epsilon is small or large beside."""
    scales = 10 ** random.uniform(-1.5 * _span(row), 0.5 * _span(row), (*shape[:-1], 1) if shape else ())
    return random.standard_normal(shape) * scales


def _scaled(scale: Callable[[DType], float]) -> Fill:
    def fill(random: np.random.Generator, shape: tuple[int, ...], row: DType, _: Sequence[float]) -> Array:
        return random.standard_normal(shape) * scale(row)

    return fill


def _equal(random: np.random.Generator, shape: tuple[int, ...], _: DType, __: Sequence[float]) -> Array:
    of = (*shape[:-1], 1) if shape else ()
    return np.broadcast_to(
        np.rint(8 * random.standard_normal(of)) / 8, shape
    ).copy()  # sums of few bits are exact


def _constant(number: float) -> Fill:
    return lambda _, shape, __, ___: np.full(shape, number)


def _one_of(numbers: Callable[[DType], Sequence[float]]) -> Fill:
    def fill(random: np.random.Generator, shape: tuple[int, ...], row: DType, _: Sequence[float]) -> Array:
        return random.choice(numbers(row), shape)

    return fill


def _sparse(special: float) -> Fill:
    """Ordinary numbers, one in 16 of them special, and at least one."""

    def fill(random: np.random.Generator, shape: tuple[int, ...], _: DType, __: Sequence[float]) -> Array:
        array = random.standard_normal(shape)
        if array.size:
            array.reshape(-1)[random.permutation(array.size)[: max(1, array.size // 16)]] = special
        return array

    return fill


def _at_points(turn: int, *, rows: bool = False) -> Fill:
    """What the graph compares with, and its neighbours; where there is none, ordinary numbers."""

    def fill(random: np.random.Generator, shape: tuple[int, ...], _: DType, points: Sequence[float]) -> Array:
        if not points:
            return random.standard_normal(shape)
        of = (*shape[:-1], 1) if rows and shape else shape
        count = math.prod(of)
        start = turn * count
        chosen = np.asarray([points[(start + index) % len(points)] for index in range(count)])
        return np.broadcast_to(random.permutation(chosen).reshape(of), shape).copy()

    return fill


FILLS: Mapping[str, Fill] = {
    "ordinary": _normal,
    "positive": _positive,
    "at what is compared with": _at_points(0),
    "whole and half numbers": _one_of(lambda _: [one / 2 for one in range(-7, 8)]),
    "rows of every magnitude": _rows,
    "large": _scaled(lambda row: 10 ** (0.75 * _span(row))),
    "every magnitude": _decades,
    "equal in a row": _equal,
    "zeros of both signs": _one_of(lambda _: (0.0, -0.0)),
    "NaN": _sparse(math.nan),
    "infinity": _sparse(math.inf),
    "minus infinity": _sparse(-math.inf),
    "at what is compared with, in rows": _at_points(0, rows=True),
    "ones": _constant(1.0),
    "minus ones": _constant(-1.0),
    "tiny": _scaled(lambda row: max(1e-12, least(row) * 16)),
    "huge": _scaled(lambda row: largest(row) ** 0.4),
    "ends of the dtype": _one_of(
        lambda row: (largest(row), -largest(row), least(row), -least(row), least(row) / 4, 1.0)
    ),
}
"""Of floats; with each, other inputs are ordinary, but for integers."""

_WHOLE: Mapping[str, Callable[[DType], Sequence[int]]] = {
    "whole and half numbers": lambda row: range(-9 if row.kind == "int" else 0, 10),
    "every magnitude": lambda row: [one for one in range(-9 if row.kind == "int" else 0, 10) if one],
    "zeros of both signs": lambda _: (0,),
    "ones": lambda _: (1,),
    "minus ones": lambda row: (-1,) if row.kind == "int" else (1,),
    "ends of the dtype": lambda row: (
        int(row.limits[0]), int(row.limits[1]), int(row.limits[1]) // 2 + 1, 1, -1 if row.kind == "int" else 2,
    ),
}  # fmt: skip

MASKS = ("all", "none", "causal", "random", "the first alone", "all but the first")


def _mask(kind: str, random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """True where it lets through."""
    if kind in {"all", "none"}:
        return np.full(shape, kind == "all")
    if kind == "random":
        return random.integers(0, 2, shape).astype(bool)
    if kind == "causal":
        whole = np.tril(np.ones(shape[-2:], bool)) if len(shape) > 1 else np.arange(math.prod(shape)) % 2 == 0
        return np.broadcast_to(whole.reshape(shape[-2:]), shape).copy()
    first = np.zeros(shape, bool)
    if first.size:
        first[(..., slice(1)) if shape else ()] = True
    return first if kind == "the first alone" else ~first


@dataclass
class _Made:
    """All sets of one size."""

    graph: Graph
    seed: int
    sizes: Mapping[str, int]
    missed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.base = self.graph.dummy_inputs(self.seed, self.sizes)
        self.roles = {name: role_of(value) for name, value in self.graph.inputs.items()}
        self.points = thresholds(self.graph)

    def of(self, role: Role) -> list[str]:
        return [name for name, one in self.roles.items() if one is role]

    def filled(self, label: str, fill: Fill) -> dict[str, Array]:
        """Floats by a fill, integers as its name says, all else ordinary."""
        arrays = dict(self.base)
        for name in self.of(Role.NUMBER):
            value, base = self.graph.inputs[name], self.base[name]
            random = self.random(label, name)
            if value.dtype.is_float:
                numbers = fill(random, base.shape, value.dtype, self.points.get(name, ()))
                arrays[name] = convert(np.asarray(numbers, np.float64), value.dtype)
            elif value.dtype.is_complex:
                parts = [fill(random, base.shape, value.dtype, ()) for _ in range(2)]
                arrays[name] = of_parts(*parts).astype(base.dtype)
            elif label in _WHOLE:
                choices = np.asarray(_WHOLE[label](value.dtype), object)
                arrays[name] = random.choice(choices, base.shape).astype(base.dtype)
            elif self.points.get(name) and "compared" in label:
                low, high = value.dtype.limits
                whole = fill(random, base.shape, value.dtype, self.points[name])
                arrays[name] = convert(np.clip(np.rint(whole), low, high).astype(np.int64), value.dtype)
        return arrays

    def random(self, label: str, name: str) -> np.random.Generator:
        """A function of the seed, the set and the input."""
        return np.random.default_rng([self.seed, zlib.crc32(label.encode()), zlib.crc32(name.encode())])

    def sets(self) -> Iterator[InputSet]:
        yield InputSet("ordinary", self.base, self.sizes)
        if self.of(Role.NUMBER):
            for label, fill in FILLS.items():
                if label != "ordinary" and ("compared" not in label or self.points):
                    yield InputSet(label, self.filled(label, fill), self.sizes)
            for turn in range(1, self.turns()):
                label = f"at what is compared with, part {turn + 1}"
                yield InputSet(label, self.filled(label, _at_points(turn)), self.sizes)
        yield from self.masked()
        yield from self.looked_up()

    def turns(self) -> int:
        """Sets that it takes until each point of each input was there."""
        each = [math.ceil(len(points) / max(self.base[name].size, 1)) for name, points in self.points.items()]
        return min(max(each, default=0), MOST_TURNS)

    def masked(self) -> Iterator[InputSet]:
        names = [*self.of(Role.MASK), *self.of(Role.ADDED)]
        lowest = (False, True) if self.of(Role.ADDED) else (False,)
        for kind, finite in itertools.product(MASKS if names else (), lowest):
            label = f"mask of {kind}" + (", the least number where it hides" if finite else "")
            arrays = dict(self.base)
            for name in names:
                row, base = self.graph.inputs[name].dtype, self.base[name]
                mask = _mask(kind, self.random(label, name), base.shape)
                if row.is_float:
                    hidden = -largest(row) if finite else -math.inf
                    arrays[name] = convert(np.where(mask, 0.0, hidden), row)
                else:
                    arrays[name] = mask.astype(base.dtype)
            yield InputSet(label, arrays, self.sizes)

    def looked_up(self) -> Iterator[InputSet]:
        """All ids; and, of signed ones, those that count from the end."""
        names = self.of(Role.INDEX)
        limits = {name: self.graph.inputs[name].index_limit(self.sizes) or 0 for name in names}
        for name in list(names):
            if limits[name] < 1 or not self.base[name].size:
                names.remove(name)
        if not names:
            return
        wanted = max(math.ceil(limits[name] / self.base[name].size) for name in names)
        for turn in range(min(wanted, MOST_SETS_OF_IDS)):
            arrays = dict(self.base)
            for name in names:
                ids = _ids(limits[name], self.base[name].size, turn, self.random("ids", name))
                arrays[name] = ids.reshape(self.base[name].shape).astype(self.base[name].dtype)
            yield InputSet(f"ids, part {turn + 1}", arrays, self.sizes)
        if wanted > MOST_SETS_OF_IDS:
            self.missed += [
                f"input {name!r}: {MOST_SETS_OF_IDS} sets do not hold all of {limits[name]} ids"
                for name in names
                if limits[name] > MOST_SETS_OF_IDS * self.base[name].size
            ]
        signed = [name for name in names if self.graph.inputs[name].dtype.kind == "int"]
        if signed:
            arrays = dict(self.base)
            for name in signed:
                ids = -1 - np.arange(self.base[name].size) % limits[name]
                arrays[name] = ids.reshape(self.base[name].shape).astype(self.base[name].dtype)
            yield InputSet("ids from the end", arrays, self.sizes)


def _ids(limit: int, count: int, turn: int, random: np.random.Generator) -> Array:
    """Ids in order, part by part; where they are too many, ends and powers of two first."""
    if math.ceil(limit / count) <= MOST_SETS_OF_IDS:
        return (turn * count + np.arange(count)) % limit
    powers = [1 << bit for bit in range(1, limit.bit_length())]
    ends = sorted({0, 1, limit - 1, limit - 2, *(power + by for power in powers for by in (-1, 0))})
    ends = [end for end in ends if 0 <= end < limit]
    order = [*ends, *random.permutation(limit)[: MOST_SETS_OF_IDS * count].tolist()]
    return np.asarray(order[turn * count : (turn + 1) * count])


# -- sides of comparisons ---------------------------------------------------------------------------


def _reached(
    made: _Made, sets: Sequence[InputSet], weights: Mapping[str, Array], patience: float
) -> tuple[list[InputSet], list[str]]:
    """Sets that reach sides of comparisons that those do not, and what is left."""
    open_ = decisions(made.graph)
    if not open_:
        return [], []
    end = time.monotonic() + patience
    for one in sets:
        if not any(each.open for each in open_) or time.monotonic() > end:
            break
        _observe(open_, made, one, weights)
    found: list[InputSet] = []
    for each in open_:
        if each.open and made.of(Role.NUMBER) and time.monotonic() < end:
            found += _looked_for(each, open_, made, weights, end)
    return found, [text for each in open_ for text in each.missed()]


def _observe(open_: Sequence[Decision], made: _Made, one: InputSet, weights: Mapping[str, Array]) -> bool:
    """Note which sides a set reaches; whether a new one is among them."""
    try:
        return observe(open_, made.graph, one.arrays, one.sizes, weights)
    except CompilerError:
        return False


def _looked_for(
    each: Decision, open_: Sequence[Decision], made: _Made, weights: Mapping[str, Array], end: float
) -> Iterator[InputSet]:
    """Ordinary, positive and negative numbers, of one scale after the other."""
    scales = sorted(range(-8, 9), key=abs)
    for power, sign in itertools.product(scales, (0.0, 1.0, -1.0)):
        if not each.open or time.monotonic() > end:
            return

        def fill(
            random: np.random.Generator, shape: tuple[int, ...], row: DType, points: Sequence[float],
            sign: float = sign, power: int = power,
        ) -> Array:  # fmt: skip
            numbers = (
                sign * _positive(random, shape, row, points) if sign else _normal(random, shape, row, points)
            )
            return numbers * 10.0**power

        one = InputSet(
            f"to a side of %{each.value.id} ({each.value.op_name}), scale {sign or 'of both signs'} 1e{power}",
            made.filled("scaled", fill), made.sizes,
        )  # fmt: skip
        before = set(each.sides)
        _observe(open_, made, one, weights)
        if each.sides > before:
            yield one


# -- sizes ------------------------------------------------------------------------------------------


def _of_other_sizes(graph: Graph, seed: int, sizes: Mapping[str, int]) -> list[InputSet]:
    """Nothing, one, and an odd number, where the bounds of symbols allow it and the shapes come out."""
    symbols = sorted(dim_symbols(dim for value in graph.inputs.values() for dim in value.shape))
    if not symbols:
        return []
    sets: list[InputSet] = []
    seen = [dict(sizes)]
    for label, size in (("no element", 0), ("one element", 1), ("an odd size", 7), ("an odd size", 33)):
        one = {
            symbol.name: max(symbol.min, size if symbol.max is None else min(size, symbol.max))
            for symbol in symbols
        }
        if one in seen:
            continue
        seen.append(one)
        try:
            for name, expr in graph.symbols.items():
                if name in one:
                    substitute(expr, {name: one[name]})
            shown = ", ".join(f"{name} = {number}" for name, number in one.items())
            sets.append(InputSet(f"{label}: {shown}", graph.dummy_inputs(seed, one), one))
        except DimError:
            continue
    return sets
