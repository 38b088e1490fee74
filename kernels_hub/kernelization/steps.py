"""Records of a planned `kernelize` call: made by the plan, checked by `verify`, carried out by `apply`."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernels_hub.kernelization.bind import Forward
from kernels_hub.kernelization.outcome import ModuleRecord, SwapDecision
from kernels_hub.kernelization.resolve import FunctionPlan

if TYPE_CHECKING:
    from torch import nn


NOTHING = ModuleRecord(None)
"""Record of a module that had one and needs none any more."""


@dataclass(slots=True)
class Step:
    """What will be done to one module. `forward` None: it runs its class's own."""

    module: nn.Module
    record: ModuleRecord
    forward: Forward | None
    functions: tuple[FunctionPlan, ...] = ()
    """Kernels inside `forward`, where that is the class's own forward over other globals."""
    attributes: tuple[FunctionPlan, ...] = ()


@dataclass(slots=True)
class Group:
    """Modules of one class that all get the same: the common case, kept free of per-module objects."""

    record: ModuleRecord
    forward: Forward
    modules: list[nn.Module] = field(default_factory=list)

    def steps(self) -> Iterator[Step]:
        """One step a module."""
        return (Step(module, self.record, self.forward) for module in self.modules)


@dataclass(slots=True)
class Plan:
    """Everything that one `kernelize` call will do."""

    groups: dict[int, Group]
    """By the identity of what was decided for them."""
    steps: list[Step]
    order: list[nn.Module] = field(default_factory=list)
    """The modules of all groups as the model has them, which is how they lie in memory."""
    group_of: list[Group] = field(default_factory=list)
    """Their groups. A list of its own: thousands of pairs would set the garbage collector going."""
    bound: list[nn.Module] = field(default_factory=list)
    """Modules with a record of before."""

    def add(self, module: nn.Module, group: Group) -> None:
        """Have a module get what its group gets."""
        group.modules.append(module)
        self.order.append(module)
        self.group_of.append(group)

    def all_steps(self) -> list[Step]:
        """Groups and steps alike, one step a module."""
        return [*(step for group in self.groups.values() for step in group.steps()), *self.steps]


def log_plan(plan: Plan, logger: logging.Logger) -> None:
    """One INFO line a layer name, however many modules it serves."""
    used: Counter[SwapDecision] = Counter()
    for record, count in (
        *((group.record, len(group.modules)) for group in plan.groups.values()),
        *((step.record, 1) for step in plan.steps),
    ):
        for outcome in (record.own, *(outcome for _, outcome in (*record.functions, *record.attributes))):
            if outcome is not None and outcome.swapped:
                used[outcome] += count
    for outcome, count in sorted(used.items(), key=lambda item: str(item[0].layer_name)):
        logger.info(
            "%s: %s%s, %s, in %d module%s",
            outcome.layer_name,
            outcome.repository,
            f"@{outcome.revision}" if outcome.revision else "",
            outcome.variant or outcome.device,
            count,
            "" if count == 1 else "s",
        )
