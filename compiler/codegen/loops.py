"""Prepares loop nests for a target: drops loops of one iteration, orders the others by stride, and merges them.

All here takes a nest and returns one that computes the same; the numbers that decide (strides, work) are estimates
where sizes are symbolic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kernels_hub.compiler.ir.dims import Dim, Expr, Opaque, Symbol, product
from kernels_hub.compiler.ir.extrema import substitute
from kernels_hub.compiler.schedule.index import Loop, linear, variables_in
from kernels_hub.compiler.schedule.kernel import (
    Bound,
    Compute,
    Guard,
    Load,
    Nest,
    Position,
    Reduce,
    Statement,
    Store,
    Test,
    arguments,
    dims_of,
    variables,
)

PLACES = {"argmax": "max", "argmin": "min"}
"""Reductions to a place, and to the value there. Their inner loops run in order."""

LEAST_TILED = 32
"""Turns, and elements apart, from which on tiles of a transposition pay."""

GUESS = 64
"""What a size is taken for where nothing is known of it."""


def estimate(dim: Dim) -> int:
    """A dim as a number, sizes guessed."""
    if not isinstance(dim, Expr):
        return int(dim)
    total = 0
    for monomial, coefficient in dim.terms:
        term = coefficient
        for one, power in monomial:
            if isinstance(one, Symbol):
                value = max(GUESS, one.min) if one.max is None else max(one.min, min(GUESS, one.max))
            else:
                assert isinstance(one, Opaque)
                args = [estimate(arg) for arg in one.args]
                if one.kind in {"min", "max"}:
                    value = min(args) if one.kind == "min" else max(args)
                else:
                    divisor = max(args[1], 1)
                    value = args[0] // divisor if one.kind == "floordiv" else args[0] % divisor
            term *= value**power
        total += term
    return total


def cost(one: Statement) -> int:
    """What one turn of a statement costs, an addition being 1."""
    if isinstance(one, Load):
        return 1 + len(one.guards)
    if isinstance(one, Compute):
        return one.op.cost
    return 1


def with_dims(one: Statement, change: Callable[[Dim], Dim]) -> Statement:
    """A statement with every index expression changed."""
    if isinstance(one, (Position, Store)):
        return replace(one, place=change(one.place))
    if isinstance(one, Bound):
        return replace(one, extent=change(one.extent))
    if isinstance(one, (Load, Test)):
        guards = tuple(Guard(*map(change, (guard.place, guard.low, guard.high))) for guard in one.guards)
        if isinstance(one, Test):
            return replace(one, guards=guards)
        return replace(one, place=change(one.place), guards=guards)
    return one


def simplified(nest: Nest) -> Nest:
    """A nest (without an anchor) with as few loops as may be, in the order of memory."""
    nest = without_single(nest)
    nest = replace(
        nest,
        outer=_by_strides(nest.outer, [statement for statement in nest.body if isinstance(statement, Store)]),
    )
    if not any(isinstance(statement, Reduce) and statement.kind in PLACES for statement in nest.body):
        loads = [statement for statement in nest.body if isinstance(statement, Load)]
        nest = replace(nest, inner=_by_strides(nest.inner, loads))
    outer, body = merged(nest.outer, nest.body)
    inner, body = merged(nest.inner, body)
    return replace(nest, outer=outer, inner=inner, body=body)


def turned_loop(nest: Nest) -> Loop | None:
    """The loop along which a large load is contiguous while it is far apart along the last: a transposition.

    Either from its first turn on or from its last one back.
    """
    *others, last = nest.outer or (None,)
    if last is None or estimate(last.extent) < LEAST_TILED:
        return None
    for statement in nest.body:
        if isinstance(statement, Load) and abs(stride(statement.place, last) or 0) >= LEAST_TILED:
            for loop in others:
                if stride(statement.place, loop) in {1, -1} and estimate(loop.extent) >= LEAST_TILED:
                    return loop
    return None


def is_empty(loops: Iterable[Loop]) -> bool:
    """Whether one of them is known to have no turns."""
    return any(isinstance(loop.extent, int) and loop.extent == 0 for loop in loops)


def stride(place: Dim, loop: Loop) -> int | None:
    """How far apart two turns of a loop are in memory, about; None where that changes."""
    found = linear(place, [loop.name])
    return None if found is None else estimate(found[0][loop.name])


def turns(loops: Iterable[Loop]) -> Dim:
    """How often the body of some loops runs."""
    return product(loop.extent for loop in loops)


def levels(
    body: Sequence[Statement],
    loops: Sequence[Loop],
    innermost: Callable[[Statement], bool] = lambda _: False,
    own: Mapping[str, int] | None = None,
) -> list[int]:
    """For each statement, how many of the loops it stands inside; all of them where `innermost` says so.

    own: the same for names that no statement makes.

    What divides by a size is innermost too: there are turns of every loop only where no size is 0.
    """
    depth = {loop.name: index + 1 for index, loop in enumerate(loops)}
    known = dict(own or {})
    found: list[int] = []
    for statement in body:
        level = max((depth.get(name, 0) for name in variables(statement)), default=0)
        level = max([level, *(known.get(arg, 0) for arg in arguments(statement))])
        if innermost(statement) or any(_divides_by_size(dim) for dim in dims_of(statement)):
            level = len(loops)
        found.append(level)
        if not isinstance(statement, Store):
            known[statement.name] = level
    return found


def _divides_by_size(dim: Dim) -> bool:
    if not isinstance(dim, Expr):
        return False
    opaque = [one for monomial, _ in dim.terms for one, _ in monomial if isinstance(one, Opaque)]
    return any(
        (one.kind in {"floordiv", "mod"} and isinstance(one.args[1], Expr))
        or any(map(_divides_by_size, one.args))
        for one in opaque
    )


def without_single(nest: Nest) -> Nest:
    """A nest without loops of one turn."""
    single = {
        loop.name: 0
        for loop in (*nest.outer, *nest.inner)
        if isinstance(loop.extent, int) and loop.extent == 1
    }
    body = nest.body
    if any(variables(statement) & single.keys() for statement in body):
        body = tuple(with_dims(statement, lambda dim: substitute(dim, single)) for statement in body)
    return replace(
        nest,
        outer=tuple(loop for loop in nest.outer if loop.name not in single),
        inner=tuple(loop for loop in nest.inner if loop.name not in single),
        body=body,
    )


def _by_strides(loops: tuple[Loop, ...], accesses: Sequence[Load | Store]) -> tuple[Loop, ...]:
    """Largest stride outermost, in the largest buffer that is reached linearly in all the loops.

    Loops that it does not depend on come first.
    """
    names = [loop.name for loop in loops]
    usable = [
        access
        for access in accesses
        if variables(access) & set(names) and linear(access.place, names) is not None
    ]
    if not usable:
        return loops
    largest = max(usable, key=lambda one: (_reached(one.place, loops), estimate(one.buffer.size)))
    found = linear(largest.place, names)
    assert found is not None
    strides = {name: abs(estimate(value)) for name, value in found[0].items()}
    return tuple(sorted(loops, key=lambda loop: -(strides[loop.name] or 1 << 62)))


def _reached(place: Dim, loops: Sequence[Loop]) -> int:
    """How many elements the turns of the loops reach, about."""
    mine = variables_in(place)
    return estimate(product(loop.extent for loop in loops if loop.name in mine))


def merged(
    loops: Sequence[Loop], body: tuple[Statement, ...]
) -> tuple[tuple[Loop, ...], tuple[Statement, ...]]:
    """Neighbouring loops as one wherever all index expressions allow it."""
    loops = list(loops)
    at = 0
    while at + 1 < len(loops):
        one = _merge(loops[at], loops[at + 1], body)
        if one is None:
            at += 1
            continue
        loop, body = one
        loops[at : at + 2] = [loop]
    return tuple(loops), body


@dataclass(frozen=True)
class _Pair:
    """Two loops that are to become one."""

    slow: Loop
    fast: Loop
    both: Loop

    def change(self, dim: Dim) -> Dim | None:
        """An index expression over the one loop; None where it needs the two."""
        found = linear(dim, [self.slow.name, self.fast.name])
        if found is None:
            return None
        strides, rest = found
        if strides[self.slow.name] != strides[self.fast.name] * self.fast.extent:
            return None
        return rest + strides[self.fast.name] * self.both.index


def _merge(slow: Loop, fast: Loop, body: tuple[Statement, ...]) -> tuple[Loop, tuple[Statement, ...]] | None:
    both = Loop(f"{slow.name}_{fast.name.removeprefix('$')}", slow.extent * fast.extent)
    pair = _Pair(slow, fast, both)
    mine = {slow.name, fast.name}
    changed: list[Statement] = []
    for statement in body:
        if not variables(statement) & mine:
            changed.append(statement)
            continue
        new: dict[Dim, Dim] = {}
        for dim in dims_of(statement):
            value = pair.change(dim)
            if value is None:
                return None
            new[dim] = value
        changed.append(with_dims(statement, new.__getitem__))
    return both, tuple(changed)
