"""The rewrites that lead from a nest's naive loops to a plan, one after the other.

Found backwards: what a rewrite makes is undone, until the naive loops are left. Each step is one use of one rule, but
for a block of results that is held, which three make: `hold`, `unroll` and `vectorize`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from kernels_hub.compiler.errors import CompilerError
from kernels_hub.compiler.schedule.loop_plan import LoopPlan
from kernels_hub.compiler.schedule.planned_nest import PlannedNest

MOST_STEPS = 1000


@dataclass(frozen=True)
class Step:
    """A rewrite. rules: whose it is. text: what it does, in words. plan: what it leads to."""

    rules: tuple[str, ...]
    text: str
    plan: LoopPlan

    def __str__(self) -> str:
        return f"{'+'.join(self.rules)}: {self.text}"


@dataclass(frozen=True)
class _Undone:
    rules: tuple[str, ...]
    text: str
    plan: LoopPlan


def path(nest: PlannedNest, plan: LoopPlan) -> tuple[Step, ...]:
    """The steps from `nest.naive()` to a plan that `check_plan` lets pass, in the order in which they are taken."""
    steps: list[Step] = []
    now = plan
    while now != nest.naive():
        found = _undone(nest, now)
        if found is None or len(steps) > MOST_STEPS:
            raise CompilerError(f"no rewrites lead from {nest.naive()} to {plan}")
        steps.append(Step(found.rules, found.text, now))
        now = found.plan
    return tuple(reversed(steps))


def _undone(nest: PlannedNest, plan: LoopPlan) -> _Undone | None:
    """A plan before its last rewrite; None of naive loops."""
    for undo in (_shared, _held, functools.partial(_staged, nest), _fused, _tiled):
        if (found := undo(plan)) is not None:
            return found
    return None


def _within(plan: LoopPlan, undo: Callable[[LoopPlan], _Undone | None]) -> _Undone | None:
    """The first term, from outside, that can be undone; the whole plan without it."""
    if (found := undo(plan)) is not None:
        return found
    for place, part in enumerate(plan.parts):
        if (found := _within(part, undo)) is not None:
            parts = (*plan.parts[:place], found.plan, *plan.parts[place + 1 :])
            return _Undone(found.rules, found.text, LoopPlan(plan.op, plan.numbers, parts))
    return None


def _shared(plan: LoopPlan) -> _Undone | None:
    """The innermost loop that threads share, as a plain one."""

    def undo(one: LoopPlan) -> _Undone | None:
        if one.op != "Share" or one.parts[0].op == "Share":
            return None
        axis, size, step = one.numbers
        text = f"threads share axis {axis}, {size // step} turns of {step}"
        return _Undone(("share",), text, LoopPlan("Each", one.numbers, one.parts))

    return _within(plan, undo)


def _held(plan: LoopPlan) -> _Undone | None:
    def undo(one: LoopPlan) -> _Undone | None:
        if one.op != "Hold":
            return None
        done = [f"axis {axis}" for axis in dict.fromkeys(t.numbers[0] for t in one.walk() if t.op == "Turn")]
        written = [
            f"{t.numbers[1] // t.numbers[2]} of axis {t.numbers[0]}" for t in one.walk() if t.op == "Unroll"
        ]
        lanes = [
            f"vectors of {t.numbers[1]} along axis {t.numbers[0]}" for t in one.walk() if t.op == "Lanes"
        ]
        rules = ("hold", *(["unroll"] if written else []), *(["vectorize"] if lanes else []))
        text = f"results stay in registers over {', '.join(done)}: {', '.join([*written, *lanes]) or 'one'}"
        return _Undone(rules, text, _loops(one.parts[0]))

    return _within(plan, undo)


def _loops(plan: LoopPlan) -> LoopPlan:
    """What is held, as loops."""
    if plan.op == "Tile":
        return _loops(plan.parts[0])
    if plan.op == "Point":
        return LoopPlan("Add", plan.numbers)
    numbers = (*plan.numbers, 1) if plan.op == "Lanes" else plan.numbers
    return LoopPlan("Each", numbers, (_loops(plan.parts[0]),))


def _staged(nest: PlannedNest, plan: LoopPlan) -> _Undone | None:
    """A copy that is not made; where a loop that reads other parts in each turn follows it, that loop goes in first."""

    def undo(one: LoopPlan) -> _Undone | None:
        if one.op != "Stage":
            return None
        (number,), (part,) = one.numbers, one.parts
        chain = [part]
        while chain[-1].op == "Each" and nest.operands[number].depends(chain[-1].numbers[0]):
            chain += chain[-1].parts
        if len(chain) == 1 or chain[-1].op != "Each":
            text = f"operand {number} is copied before axis {part.numbers[0]}"
            return _Undone(("stage",), text, _uncopied(part, ~(1 << number)))
        outer, inner = chain[-2:]
        turned = LoopPlan("Each", inner.numbers, (LoopPlan("Each", outer.numbers, inner.parts),))
        for above in reversed(chain[:-2]):
            turned = LoopPlan("Each", above.numbers, (turned,))
        text = f"axis {outer.numbers[0]} goes outside of axis {inner.numbers[0]}"
        return _Undone(("swap",), text, LoopPlan("Stage", one.numbers, (turned,)))

    return _within(plan, undo)


def _uncopied(plan: LoopPlan, mask: int) -> LoopPlan:
    numbers = (plan.numbers[0] & mask,) if plan.op == "Add" else plan.numbers
    return LoopPlan(plan.op, numbers, tuple(_uncopied(part, mask) for part in plan.parts))


def _fused(plan: LoopPlan) -> _Undone | None:
    def undo(one: LoopPlan) -> _Undone | None:
        if one.op != "Each" or one.parts[0].op != "Then":
            return None
        apart = tuple(LoopPlan("Each", one.numbers, (part,)) for part in one.parts[0].parts)
        return _Undone(
            ("fuse",),
            f"what follows the reduction joins it over axis {one.numbers[0]}",
            LoopPlan("Then", (), apart),
        )

    return _within(plan, undo)


def _tiled(plan: LoopPlan) -> _Undone | None:
    """Loops in the order of their axes, those of one axis as one, whole axes; from inside."""
    return _ordered(plan, frozenset())


def _ordered(plan: LoopPlan, first: frozenset[int]) -> _Undone | None:
    """first: axes that stand before all others, as the ends of peeled ones are put together there."""
    peeled = frozenset({plan.numbers[0]}) if plan.op == "Peel" else frozenset()
    for place, part in enumerate(plan.parts):
        if (found := _ordered(part, peeled or first)) is not None:
            parts = (*plan.parts[:place], found.plan, *plan.parts[place + 1 :])
            return _Undone(found.rules, found.text, LoopPlan(plan.op, plan.numbers, parts))
    if plan.op == "Peel":
        one, rest = plan.parts
        axis, at = plan.numbers
        if one.parts != rest.parts or one.numbers[0] != axis:
            return None
        text = f"{rest.numbers[1]} elements of axis {axis} are left to themselves"
        return _Undone(("peel",), text, LoopPlan("Each", (axis, at + rest.numbers[1], 1), one.parts))
    if plan.op != "Each" or plan.parts[0].op != "Each":
        return None
    (inner,) = plan.parts
    (a, n, s), (b, _, t) = plan.numbers, inner.numbers
    if a == b:
        return _Undone(
            ("split",), f"axis {a}, {n} elements in blocks of {s}", LoopPlan("Each", (a, n, t), inner.parts)
        )
    if (b not in first, b) < (a not in first, a):
        turned = LoopPlan("Each", inner.numbers, (LoopPlan("Each", plan.numbers, inner.parts),))
        return _Undone(("swap",), f"axis {a} goes outside of axis {b}", turned)
    return None
