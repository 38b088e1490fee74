"""Nests that a plan of loops (`loop_plan`) may run, and whether a plan is one of a nest."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.schedule.index import Loop, linear
from kernels_hub.compiler.schedule.kernel import (
    Compute,
    Constant,
    Definition,
    Kernel,
    Load,
    Nest,
    Reduce,
    Store,
    variables,
)
from kernels_hub.compiler.schedule.loop_plan import LoopPlan

LANES = (4, 8, 16)
"""Elements of a vector."""
MOST_STAGED = 1 << 16
"""Elements of a copy."""
MOST_POINTS = 64
"""Results, or vectors of them, that are written out."""

_KINDS = frozenset({"sum", "prod", "max", "min"})
_VECTOR_OPS = frozenset({"add", "sub", "mul", "div", "neg"})


def places(kernels: Iterable[Kernel]) -> list[Nest]:
    """The nests that the choice "nests" counts: those with a reduction and without an anchor, in order."""
    return [nest for kernel in kernels for nest in kernel.nests if nest.reduces and nest.anchor is None]


def with_plans(kernels: Sequence[Kernel], plans: Mapping[int, LoopPlan]) -> tuple[Kernel, ...]:
    """The kernels, with plans for some of their nests, by place; a number that is no place has no effect."""
    if not plans:
        return tuple(kernels)
    numbers = {id(nest): number for number, nest in enumerate(places(kernels))}

    def planned(nest: Nest) -> Nest:
        plan = plans.get(numbers.get(id(nest), -1))
        return nest if plan is None else replace(nest, plan=plan)

    return tuple(replace(kernel, nests=tuple(map(planned, kernel.nests))) for kernel in kernels)


@dataclass(frozen=True)
class Operand:
    """A load that feeds the reduction. strides: elements from one element of each axis to the next."""

    load: Load
    strides: tuple[int, ...]

    def depends(self, axis: int) -> bool:
        """Whether it reads other elements as an axis goes on."""
        return self.strides[axis] != 0


@dataclass(frozen=True)
class PlannedNest:
    """A nest that plans are for.

    loops: all axes, those that it reduces over last. extents: their elements. before, after: statements that make what
    is reduced, and that follow. result: where a result lies, as `Operand.strides`.
    """

    loops: tuple[Loop, ...]
    extents: tuple[int, ...]
    parallel: int
    operands: tuple[Operand, ...]
    before: tuple[Definition, ...]
    reduce: Reduce
    after: tuple[Definition, ...]
    store: Store
    result: tuple[int, ...]

    @property
    def axes(self) -> range:
        """All of them."""
        return range(len(self.loops))

    def reduces(self, axis: int) -> bool:
        """Whether turns of an axis meet in one result: they may change places, but not run at once."""
        return axis >= self.parallel

    @property
    def ends(self) -> bool:
        """Whether something follows the reduction but storing it."""
        return self.store.arg != self.reduce.name

    def naive(self) -> LoopPlan:
        """Its loops as they are written."""
        adding = self._around(LoopPlan("Add", (0,)), self.axes)
        if not self.ends:
            return adding
        return LoopPlan("Then", (), (adding, self._around(LoopPlan("End"), range(self.parallel))))

    def _around(self, plan: LoopPlan, axes: range) -> LoopPlan:
        for axis in reversed(axes):
            plan = LoopPlan("Each", (axis, self.extents[axis], 1), (plan,))
        return plan


def planned_nest(nest: Nest) -> PlannedNest | None:
    """A nest (as `codegen.loops.simplified` leaves it) as plans see it; None where they cannot serve.

    They serve one sum, product, maximum or minimum of float32, made by arithmetic of loads whose places are linear in
    the loops, of static sizes, with one result for each turn of the outer loops.
    """
    loops = (*nest.outer, *nest.inner)
    extents = tuple(loop.extent for loop in loops if isinstance(loop.extent, int))
    reductions = [one for one in nest.body if isinstance(one, Reduce)]
    stores = [one for one in nest.body if isinstance(one, Store)]
    if len(extents) < len(loops) or not nest.inner or not nest.outer or 0 in extents or nest.scatters:
        return None
    if len(reductions) != 1 or len(stores) != 1 or nest.anchor is not None:
        return None
    (reduce,), (store,) = reductions, stores
    at = nest.body.index(reduce)
    before = tuple(one for one in nest.body[:at] if not isinstance(one, Store))
    after = tuple(one for one in nest.body[at + 1 :] if not isinstance(one, Store))
    mine = frozenset(loop.name for loop in nest.inner)
    if reduce.kind not in _KINDS or any(variables(one) & mine for one in (*after, store)):
        return None
    if str(store.buffer.dtype) != "float32" or any(str(one.dtype) != "float32" for one in (reduce, *before)):
        return None
    operands: list[Operand] = []
    for one in before:
        if isinstance(one, Load):
            strides = _strides(one.place, loops)
            if one.guards or strides is None or one.buffer is store.buffer:
                return None
            operands.append(Operand(one, strides))
        elif not (isinstance(one, Constant) or (isinstance(one, Compute) and one.op.name in _VECTOR_OPS)):
            return None
    result = _strides(store.place, loops)
    used = {argument for one in after if isinstance(one, Compute) for argument in one.args} | {store.arg}
    if (
        result is None
        or used & {one.name for one in before if not isinstance(one, Constant)}
        or not operands
        or _overlaps(result, extents, nest)
    ):
        return None
    if any(isinstance(one, Load) and one.buffer is store.buffer for one in after):
        return None
    return PlannedNest(loops, extents, len(nest.outer), tuple(operands), before, reduce, after, store, result)


def _overlaps(result: tuple[int, ...], extents: tuple[int, ...], nest: Nest) -> bool:
    """Whether two turns of the outer loops may have one result."""
    below = 1
    for stride, extent in sorted(zip(result, extents, strict=True))[len(nest.inner) :]:
        if extent > 1 and stride < below:
            return True
        below = stride * extent
    return False


def _strides(place: Dim, loops: tuple[Loop, ...]) -> tuple[int, ...] | None:
    found = linear(place, [loop.name for loop in loops])
    if found is None or any(not isinstance(stride, int) or stride < 0 for stride in found[0].values()):
        return None
    return tuple(int(found[0][loop.name]) for loop in loops)


def check_plan(plan: LoopPlan, nest: PlannedNest) -> None:
    """Raises EngineError unless a plan runs each turn of a nest once, every result's own in one thread."""
    _Check(nest).plan(plan, _Left(nest.extents))


@dataclass(frozen=True)
class _Left:
    """What a part of a plan has to cover. sizes: elements of each axis. copied: bits of the operands that are copied.

    ending: whether it is of what follows the reduction. within: whether that is somebody else's. shared: whether
    nothing but loops that threads share stands around it.
    """

    sizes: tuple[int, ...]
    copied: int = 0
    ending: bool = False
    within: bool = False
    shared: bool = True

    def of(self, axis: int, size: int, *, shared: bool = False) -> _Left:
        """With so many elements of an axis."""
        return replace(self, sizes=(*self.sizes[:axis], size, *self.sizes[axis + 1 :]), shared=shared)


class _Check:
    def __init__(self, nest: PlannedNest) -> None:
        self.nest = nest

    @staticmethod
    def fail(plan: LoopPlan, why: str) -> EngineError:
        return EngineError(f"the plan of loops does not fit its nest at {str(plan)[:60]}: {why}")

    def plan(self, plan: LoopPlan, left: _Left) -> None:
        """Of the sort of plans."""
        checks = {
            "Each": self._each, "Share": self._each, "Peel": self._peel, "Stage": self._stage, "Then": self._then,
        }  # fmt: skip
        if plan.op in checks:
            checks[plan.op](plan, left)
        elif self.nest.ends and not left.within:
            raise self.fail(plan, "results are left without what follows their reduction")
        elif plan.op == "Hold" and not left.ending:
            self._held(plan.parts[0], left)
        elif plan.op == ("End" if left.ending else "Add"):
            axes = range(self.nest.parallel) if left.ending else self.nest.axes
            more = [axis for axis in axes if left.sizes[axis] != 1]
            if more or (not left.ending and plan.numbers[0] != left.copied):
                raise self.fail(
                    plan, f"of axes {more} more than one element is left, or an operand lies elsewhere"
                )
        else:
            raise self.fail(plan, f"{plan.op} does not stand here")

    def _is_axis(self, axis: int, left: _Left) -> bool:
        return axis < (self.nest.parallel if left.ending else len(self.nest.loops))

    def _each(self, plan: LoopPlan, left: _Left) -> None:
        axis, size, step = plan.numbers
        if not self._is_axis(axis, left) or left.sizes[axis] != size or not _divides(step, size):
            raise self.fail(
                plan, f"there are no {size} elements of axis {axis} left, to be taken {step} at a time"
            )
        if plan.op == "Share" and (not left.shared or self.nest.reduces(axis)):
            raise self.fail(
                plan, "threads share turns that have results of their own, outside of other loops"
            )
        self.plan(plan.parts[0], left.of(axis, step, shared=plan.op == "Share"))

    def _peel(self, plan: LoopPlan, left: _Left) -> None:
        axis, first = plan.numbers
        if not self._is_axis(axis, left) or not 0 < first < left.sizes[axis]:
            raise self.fail(plan, f"axis {axis} has no elements behind {first}")
        self.plan(plan.parts[0], left.of(axis, first))
        self.plan(plan.parts[1], left.of(axis, left.sizes[axis] - first))

    def _then(self, plan: LoopPlan, left: _Left) -> None:
        reduced = [axis for axis in self.nest.axes if self.nest.reduces(axis)]
        if (
            not self.nest.ends
            or left.within
            or any(left.sizes[one] != self.nest.extents[one] for one in reduced)
        ):
            raise self.fail(plan, "results end once, where their reduction is whole")
        left = replace(left, within=True, shared=False)
        self.plan(plan.parts[0], left)
        self.plan(plan.parts[1], replace(left, ending=True))

    def _stage(self, plan: LoopPlan, left: _Left) -> None:
        (number,) = plan.numbers
        if number >= len(self.nest.operands) or left.copied >> number & 1 or left.ending:
            raise self.fail(plan, f"there is no operand {number} to copy")
        operand = self.nest.operands[number]
        elements = math.prod(size for axis, size in enumerate(left.sizes) if operand.depends(axis))
        if elements > MOST_STAGED:
            raise self.fail(plan, f"a copy has at most {MOST_STAGED} elements, this one {elements}")
        self.plan(plan.parts[0], replace(left, copied=left.copied | 1 << number, shared=False))

    def _held(self, plan: LoopPlan, left: _Left) -> None:
        if plan.op == "Tile":
            self._written(plan.parts[0], left, 1)
            return
        axis, size, step = plan.numbers
        reduced = self._is_axis(axis, left) and self.nest.reduces(axis)
        if not reduced or left.sizes[axis] != size or not _divides(step, size):
            raise self.fail(plan, f"axis {axis} has no {size} elements in steps of {step} to be reduced over")
        self._held(plan.parts[0], left.of(axis, step))

    def _written(self, plan: LoopPlan, left: _Left, points: int) -> None:
        if plan.op == "Point":
            if any(size != 1 for size in left.sizes) or plan.numbers[0] != left.copied:
                raise self.fail(plan, "more than one element is left, or an operand lies elsewhere")
            return
        axis, size, step = (*plan.numbers, 1)[:3]
        if axis >= self.nest.parallel or left.sizes[axis] != size or not _divides(step, size):
            raise self.fail(plan, f"axis {axis} has no {size} results to be written out")
        if plan.op == "Lanes":
            fit = size in LANES and plan.parts[0].op == "Point" and lanes_fit(self.nest, axis, left.copied)
            if not fit:
                raise self.fail(plan, f"axis {axis} has no {size} elements beside each other")
        else:
            points *= size // step
        if points > MOST_POINTS:
            raise self.fail(plan, f"more than {MOST_POINTS} results are written out")
        self._written(plan.parts[0], left.of(axis, step), points)


def _divides(step: int, size: int) -> bool:
    """Whether a loop over `size` elements may take `step` of them in a turn."""
    return 0 < step < max(size, 2) and size % step == 0


def lanes_fit(nest: PlannedNest, axis: int, staged: int) -> bool:
    """Whether elements along an axis lie beside each other, in all operands that are not copied, and in the result."""
    return nest.result[axis] == 1 and all(
        staged >> number & 1 or operand.strides[axis] in {0, 1}
        for number, operand in enumerate(nest.operands)
    )
