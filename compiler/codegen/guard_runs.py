"""Runs of turns in which guards hold: loop bounds in place of a question at every element.

A guard low <= c * variable + rest < high holds in one run of the turns of a loop. Where padding changes nothing of what
is reduced (0 of a sum, -inf of a maximum), the loop is the run. Where it is what is stored, the loop is three: before
the run, the run, behind it. Either way no guard is left in a loop that is vectorized.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from kernels_hub.compiler.codegen.loops import PLACES
from kernels_hub.compiler.ir.dims import Dim, ceildiv
from kernels_hub.compiler.ir.proofs import proves_le
from kernels_hub.compiler.ir.types import BOOL, DType
from kernels_hub.compiler.schedule.index import Loop, Ranges, linear, variables_in
from kernels_hub.compiler.schedule.kernel import (
    Bound,
    Compute,
    Constant,
    Guard,
    Load,
    Reduce,
    Statement,
    Store,
    Test,
)

LARGEST_BODY = 48
"""Statements of a loop that may be written three times."""

_NEUTRAL: Mapping[str, float] = {"sum": 0, "prod": 1, "any": False, "all": True}


@dataclass(frozen=True)
class Run:
    """The turns of a loop that are not before any of `firsts` and before all of `ends`.

    whole: guards of the outer loops alone; where one does not hold, there are no such turns.
    """

    firsts: tuple[Dim, ...]
    ends: tuple[Dim, ...]
    whole: tuple[Guard, ...] = ()


def run_of(guards: Sequence[Guard], loop: Loop, ranges: Ranges) -> Run | None:
    """The turns in which guards hold; None where that is no run with bounds that are index expressions."""
    firsts: dict[Dim, None] = {}
    ends: dict[Dim, None] = {}
    whole: list[Guard] = []
    for guard in guards:
        if any(name.startswith("$v") for one in _dims(guard) for name in variables_in(one)):
            return None
        found = linear(guard.place, [loop.name])
        if found is None or loop.name in variables_in(guard.low) | variables_in(guard.high):
            return None
        step, rest = found[0][loop.name], found[1]
        if not isinstance(step, int) or step < 0:
            return None
        if step == 0:
            whole.append(guard)
            continue
        least, greatest = ranges.bounds(guard.place)
        if least is None or not proves_le(guard.low, least):
            firsts[ceildiv(guard.low - rest, step)] = None
        if greatest is None or not proves_le(greatest, guard.high - 1):
            ends[ceildiv(guard.high - rest, step)] = None
    return Run(tuple(firsts), tuple(ends), tuple(whole))


def narrowed(
    body: Sequence[Statement],
    everything: Sequence[Statement],
    fed: Sequence[Reduce],
    loops: Sequence[Loop],
    fixed: Collection[str],
    ranges: Ranges,
) -> tuple[list[Statement], dict[str, Run]]:
    """The statements of a pass without those guards that bounds of its loops replace, and these bounds.

    everything: of the nest. fed: all that the pass is for. loops: outermost first. fixed: names of loops that keep all
    of their turns.
    """
    taken: dict[str, list[Guard]] = {}
    for guard in _guards(body):
        mine = [loop for loop in loops if loop.name in variables_in(guard.place)]
        if not mine or mine[-1].name in fixed or run_of([guard], mine[-1], ranges) is None:
            continue
        if fed and all(_is_neutral(one, _outside(everything, guard)) for one in fed):
            taken.setdefault(mine[-1].name, []).append(guard)
    runs = {}
    for loop in loops:
        run = run_of(taken.get(loop.name, ()), loop, ranges)
        if run is not None and (run.firsts or run.ends):
            runs[loop.name] = run
    gone = frozenset(guard for guards in taken.values() for guard in guards)
    return _decided([_without(one, gone) for one in body]), runs


def parted(
    body: Sequence[Statement], loop: Loop, ranges: Ranges
) -> tuple[Run, list[Statement], list[Statement]] | None:
    """Of a pointwise body: the run of the loop in which its guards hold, the body there, and the body elsewhere.

    None where it has no guards of this loop, or has several.
    """
    if len(body) > LARGEST_BODY:
        return None
    found = {one.guards for one in body if isinstance(one, (Load, Test)) and one.guards}
    if len(found) != 1:
        return None
    (guards,) = found
    run = run_of(guards, loop, ranges)
    if run is None or not (run.firsts or run.ends or run.whole):
        return None
    inside = [_without(one, frozenset(guards)) for one in body]
    return run, _decided(inside), _decided([_failed(one) for one in body])


def _dims(guard: Guard) -> tuple[Dim, Dim, Dim]:
    return guard.place, guard.low, guard.high


def _guards(body: Sequence[Statement]) -> dict[Guard, None]:
    return dict.fromkeys(guard for one in body if isinstance(one, (Load, Test)) for guard in one.guards)


def _without(one: Statement, gone: frozenset[Guard]) -> Statement:
    if not isinstance(one, (Load, Test)):
        return one
    return replace(one, guards=tuple(guard for guard in one.guards if guard not in gone))


def _failed(one: Statement) -> Statement:
    """A statement where its guards do not hold."""
    if not isinstance(one, (Load, Test)) or not one.guards:
        return one
    return Constant(one.name, one.dtype, 0)


def _decided(body: Sequence[Statement]) -> list[Statement]:
    """A body without tests that are decided, and what they choose from."""
    known: dict[str, bool] = {}
    chosen: dict[str, str] = {}
    found: list[Statement] = []
    for one in body:
        if isinstance(one, Compute) and one.op.name == "select" and one.args[0] in known:
            taken = one.args[1 if known[one.args[0]] else 2]
            chosen[one.name] = chosen.get(taken, taken)
            continue
        if isinstance(one, Test) and not one.guards:
            known[one.name] = True
            one = Constant(one.name, one.dtype, True)  # noqa: PLW2901
        elif isinstance(one, Constant) and one.dtype is BOOL:
            known[one.name] = bool(one.value)
        elif isinstance(one, Compute) and not chosen.keys().isdisjoint(one.args):
            one = replace(one, args=tuple(chosen.get(arg, arg) for arg in one.args))  # noqa: PLW2901
        elif isinstance(one, (Bound, Reduce, Store)) and one.arg in chosen:
            one = replace(one, arg=chosen[one.arg])  # noqa: PLW2901
        found.append(one)
    return found


def _outside(body: Sequence[Statement], guard: Guard) -> dict[str, float]:
    """What is known of values where a guard does not hold."""
    known: dict[str, float] = {}
    for one in body:
        if isinstance(one, Constant):
            known[one.name] = one.value
        elif isinstance(one, (Load, Test)) and guard in one.guards:
            known[one.name] = 0
        elif isinstance(one, Compute) and one.args[0] in known:
            first = known[one.args[0]]
            if one.op.name == "select":
                chosen = one.args[1 if first else 2]
                if chosen in known:
                    known[one.name] = known[chosen]
            elif first == 0 and (one.op.name in {"cast", "abs", "neg"} or _is_square(one)):
                known[one.name] = 0
    return known


def _is_square(one: Compute) -> bool:
    return one.op.name == "mul" and one.args[0] == one.args[1]


def _is_neutral(reduce: Reduce, known: Mapping[str, float]) -> bool:
    """Whether what a reduction is fed changes nothing."""
    if reduce.arg not in known or reduce.kind in PLACES:
        return False
    return bool(known[reduce.arg] == _neutral(reduce.kind, reduce.dtype))


def _neutral(kind: str, dtype: DType) -> float:
    if kind in _NEUTRAL:
        return _NEUTRAL[kind]
    if dtype.is_float:
        return -math.inf if kind == "max" else math.inf
    return dtype.limits[0 if kind == "max" else 1]
