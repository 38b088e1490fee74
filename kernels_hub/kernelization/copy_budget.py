"""Keeps the copies that kernels make of weights within a budget, spent on the modules that gain most.

A kernel's `weights` module may say with `most_nbytes(module)` what its copies take at most; of one that does not, a
copy of every parameter is assumed, its sizes rounded up to whole blocks. What does not fit runs the kernel without
copies, where it gains then, or the original.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kernels_hub.calibration.gain_table import LEAST_GAIN
from kernels_hub.errors import CopyBudgetError, NoKernelError
from kernels_hub.kernelization.bind import Forward, weights_protocol, without_copies
from kernels_hub.kernelization.fallback import KernelizeFallback
from kernels_hub.kernelization.outcome import ModuleRecord, SwapDecision
from kernels_hub.kernelization.steps import Group, Plan

if TYPE_CHECKING:
    from torch import Tensor, nn

_BLOCK = 16
"""Rows and columns of a packed matrix come in multiples of it."""


def budget_in_bytes(copy_budget: float | None, model: nn.Module) -> int | None:
    """The bytes of a `copy_budget`: an int is one of bytes, a float a share of the parameters' bytes; None: no limit.

    Raises CopyBudgetError for what is neither.
    """
    if copy_budget is None:
        return None
    known = isinstance(copy_budget, int | float) and not isinstance(copy_budget, bool)
    if not known or not 0 <= copy_budget < math.inf:
        raise CopyBudgetError(
            f"copy_budget is {copy_budget!r}; give bytes as an int (64 << 20), or a share of the parameters' bytes "
            "as a float (0.25); 0 allows no copies"
        )
    if isinstance(copy_budget, int):
        return copy_budget
    return int(copy_budget * sum(parameter.nbytes for parameter in model.parameters()))


_WITHOUT_COPIES = 0.85
"""What is left of a kernel's gain without copies: in whole models 0.8 to 0.97 was measured (Zen 5)."""


@dataclass
class OverBudget:
    """Modules whose copies do not fit, by identity. kept: why they keep their original forward. uncopied: their
    kernels run without copies. fitting: all others."""

    kept: dict[int, str] = field(default_factory=dict)
    uncopied: set[int] = field(default_factory=set)
    fitting: set[int] = field(default_factory=set)


def over_budget(
    plan: Plan, budget: int, fallback: KernelizeFallback, fitted: AbstractSet[int] = frozenset()
) -> OverBudget:
    """The modules whose copies do not fit into a budget.

    Those with the highest gain for a byte come first, then those first in the model: equal plans give equal choices.
    fitted: what did fit before the children of other blocks were planned, which come after it.
    Raises NoKernelError where no original may be kept.
    """
    candidates = [
        (id(module) not in fitted, -_saving(own), most_nbytes(weights, module), module, own, weights)
        for module, forward, own in _swapped(plan)
        if (weights := weights_protocol(forward)) is not None
    ]
    found = OverBudget()
    left = budget
    for *_, nbytes, module, own, weights in sorted(candidates, key=lambda each: each[:2]):
        if nbytes <= left:
            left -= nbytes
            found.fitting.add(id(module))
            continue
        if _works_without_copies(weights, module, own):
            found.uncopied.add(id(module))
            continue
        reason = f"kept: its copies of up to {_in_words(nbytes)} do not fit into copy_budget"
        if fallback is KernelizeFallback.NONE:
            raise NoKernelError(f"{own.layer_name}: {reason}; raise it, or allow the original forward")
        found.kept[id(module)] = reason
    return found


def _works_without_copies(weights: object, module: nn.Module, own: SwapDecision) -> bool:
    asks = getattr(weights, "works_without_copies", None)
    gains = own.gain is None or own.gain.ratio * _WITHOUT_COPIES >= LEAST_GAIN
    return gains and asks is not None and bool(asks(module))


def with_uncopied(plan: Plan, uncopied: AbstractSet[int]) -> Plan:
    """The plan with these modules' kernels running without copies. uncopied: identities of modules."""
    if not uncopied:
        return plan
    twins: dict[int, Group] = {}
    group_of = []
    for module, group in zip(plan.order, plan.group_of, strict=True):
        if id(module) not in uncopied:
            group_of.append(group)
            continue
        twin = twins.get(id(group))
        if twin is None:
            twin = twins[id(group)] = Group(_without_copies(group.record), without_copies(group.forward))
        twin.modules.append(module)
        group_of.append(twin)
    for group in plan.groups.values():
        group.modules[:] = [module for module in group.modules if id(module) not in uncopied]
    steps = [
        replace(step, record=_without_copies(step.record), forward=without_copies(step.forward))
        if id(step.module) in uncopied and step.forward is not None
        else step
        for step in plan.steps
    ]
    groups = {id(group): group for group in (*plan.groups.values(), *twins.values()) if group.modules}
    return Plan(groups, steps, plan.order, group_of, plan.bound)


def _without_copies(record: ModuleRecord) -> ModuleRecord:
    assert record.own is not None
    reason = "without copies of its weights, which do not fit into copy_budget"
    return replace(record, own=replace(record.own, copies=False, reason=reason))


def most_nbytes(weights: object, module: nn.Module) -> int:
    """What the copies of a module's weights take at most. weights: the `weights` module of its kernel."""
    told = getattr(weights, "most_nbytes", None)
    if told is not None:
        return int(told(module))
    return sum(_padded_nbytes(parameter) for parameter in module.parameters() if parameter.dim() > 1)


def _padded_nbytes(weight: Tensor) -> int:
    rows, columns = weight.shape[-2:]
    blocks = math.ceil(rows / _BLOCK) * math.ceil(columns / _BLOCK)
    return math.prod(weight.shape[:-2]) * blocks * _BLOCK * _BLOCK * weight.element_size()


def _swapped(plan: Plan) -> Iterator[tuple[nn.Module, Forward, SwapDecision]]:
    """Modules that get a kernel, with its forward; those of groups in the model's order."""
    for module, group in zip(plan.order, plan.group_of, strict=True):
        if group.record.own is not None:
            yield module, group.forward, group.record.own
    for step in plan.steps:
        if step.forward is not None and step.record.own is not None and step.record.own.swapped:
            yield step.module, step.forward, step.record.own


def _saving(own: SwapDecision) -> float:
    """The share of the original's time that the kernel saves; 0 where that is not known.

    A product's time is that of its weights' bytes, for any number of rows, so this orders by what a byte saves.
    """
    return 0.0 if own.gain is None else 1 - 1 / own.gain.ratio


def _in_words(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB" if nbytes >= 1 << 20 else f"{nbytes / 2**10:.1f} KiB"
