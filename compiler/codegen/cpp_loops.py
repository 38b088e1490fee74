"""Loop nests made ready for C++: loops of one turn dropped, the rest ordered by strides, and merged where they run on.

All here takes a nest and returns one that computes the same; the numbers that decide (strides, work) are estimates
where sizes are symbolic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kernels_hub.compiler.codegen.cpp_accumulate import PLACES
from kernels_hub.compiler.ir.dims import Dim, Expr, Opaque, Symbol, product, substitute
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
    variables,
)

GUESS = 64
"""What a size is taken for where nothing is known of it."""

EXPENSIVE = {
    "div": 4, "floordiv": 8, "mod": 8, "fmod": 12, "pow": 20, "sqrt": 4, "rsqrt": 6, "exp": 8, "exp2": 8, "expm1": 10,
    "log": 10, "log2": 10, "log1p": 12, "sin": 16, "cos": 16, "tan": 30, "asin": 30, "acos": 30, "atan": 30,
    "sinh": 30, "cosh": 30, "tanh": 10, "asinh": 40, "acosh": 40, "atanh": 40, "erf": 12, "sigmoid": 10, "atan2": 40,
}  # fmt: skip
"""What an op costs, an addition being 1."""


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
        return EXPENSIVE.get(one.op.name, 1)
    return 1


def dims_of(one: Statement) -> list[Dim]:
    """Every index expression in a statement."""
    found: list[Dim] = []
    if isinstance(one, (Load, Position, Store)):
        found.append(one.place)
    if isinstance(one, Bound):
        found.append(one.extent)
    if isinstance(one, (Load, Test)):
        for guard in one.guards:
            found += [guard.place, guard.low, guard.high]
    return found


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
    """A nest (without a root) with as few loops as may be, in the order of memory."""
    nest = without_single(nest)
    nest = replace(nest, outer=_by_strides(nest.outer, [one for one in nest.body if isinstance(one, Store)]))
    if not any(isinstance(one, Reduce) and one.kind in PLACES for one in nest.body):
        loads = [one for one in nest.body if isinstance(one, Load)]
        nest = replace(nest, inner=_by_strides(nest.inner, loads))
    outer, body = merged(nest.outer, nest.body)
    inner, body = merged(nest.inner, body)
    return replace(nest, outer=outer, inner=inner, body=body)


def is_empty(loops: Iterable[Loop]) -> bool:
    """Whether one of them is known to have no turns."""
    return any(isinstance(one.extent, int) and one.extent == 0 for one in loops)


def stride(place: Dim, loop: Loop) -> int | None:
    """How far apart two turns of a loop are in memory, about; None where that changes."""
    found = linear(place, [loop.name])
    return None if found is None else estimate(found[0][loop.name])


def turns(loops: Iterable[Loop]) -> Dim:
    """How often the body of some loops runs."""
    return product(one.extent for one in loops)


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
    depth = {loop.name: place + 1 for place, loop in enumerate(loops)}
    known = dict(own or {})
    found: list[int] = []
    for one in body:
        level = max((depth.get(name, 0) for name in variables(one)), default=0)
        level = max([level, *(known.get(arg, 0) for arg in arguments(one))])
        if innermost(one) or any(_divides_by_size(dim) for dim in dims_of(one)):
            level = len(loops)
        found.append(level)
        if not isinstance(one, Store):
            known[one.name] = level
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
        one.name: 0 for one in (*nest.outer, *nest.inner) if isinstance(one.extent, int) and one.extent == 1
    }
    body = nest.body
    if any(variables(one) & single.keys() for one in body):
        body = tuple(with_dims(one, lambda dim: substitute(dim, single)) for one in body)
    return replace(
        nest,
        outer=tuple(one for one in nest.outer if one.name not in single),
        inner=tuple(one for one in nest.inner if one.name not in single),
        body=body,
    )


def _by_strides(loops: tuple[Loop, ...], accesses: Sequence[Load | Store]) -> tuple[Loop, ...]:
    """Largest stride outermost, in the largest buffer that is reached linearly in all the loops.

    Loops that it does not depend on come first.
    """
    names = [one.name for one in loops]
    usable = [one for one in accesses if variables(one) & set(names) and linear(one.place, names) is not None]
    if not usable:
        return loops
    largest = max(usable, key=lambda one: (_reached(one.place, loops), estimate(one.buffer.size)))
    found = linear(largest.place, names)
    assert found is not None
    strides = {name: abs(estimate(value)) for name, value in found[0].items()}
    return tuple(sorted(loops, key=lambda one: -(strides[one.name] or 1 << 62)))


def _reached(place: Dim, loops: Sequence[Loop]) -> int:
    """How many elements the turns of the loops reach, about."""
    mine = variables_in(place)
    return estimate(product(one.extent for one in loops if one.name in mine))


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
    for one in body:
        if not variables(one) & mine:
            changed.append(one)
            continue
        new: dict[Dim, Dim] = {}
        for dim in dims_of(one):
            value = pair.change(dim)
            if value is None:
                return None
            new[dim] = value
        changed.append(with_dims(one, new.__getitem__))
    return both, tuple(changed)
