"""Plans whose kernels compare all of their copies of weights with the weights at every call."""

from __future__ import annotations

from dataclasses import replace

from kernels_hub.errors import NoKernelError
from kernels_hub.kernelization.bind import Forward, weights_protocol
from kernels_hub.kernelization.fallback import KernelizeFallback
from kernels_hub.kernelization.steps import NOTHING, Plan


def as_strict(plan: Plan, fallback: KernelizeFallback) -> Plan:
    """The plan with strict records, and without kernels that keep copies and cannot compare them at every call.

    Raises NoKernelError for one of those, where no original may be kept.
    """
    for group in plan.groups.values():
        group.record = replace(group.record, strict=True)
    groups = {key: group for key, group in plan.groups.items() if _can_be_strict(group.forward)}
    late = [step for key, group in plan.groups.items() if key not in groups for step in group.steps()]
    steps = []
    for step in (*plan.steps, *late):
        own = step.record.own
        if step.forward is None or own is None or not own.swapped or _can_be_strict(step.forward):
            record = step.record if step.record is NOTHING else replace(step.record, strict=True)
            steps.append(replace(step, record=record))
            continue
        reason = "it keeps copies of weights and was built before kernels could compare them at every call"
        if fallback is KernelizeFallback.NONE:
            raise NoKernelError(f"{own.layer_name}: {reason}; build it again, or leave strict_weights out")
        own = replace(own, swapped=False, reason=reason)
        functions = tuple(
            (name, replace(outcome, swapped=False, reason=reason) if outcome.swapped else outcome)
            for name, outcome in step.record.functions
        )
        steps.append(replace(step, forward=None, record=replace(step.record, own=own, functions=functions)))
    gone = {id(step.module) for step in late}
    kept = [
        (module, group)
        for module, group in zip(plan.order, plan.group_of, strict=True)
        if id(module) not in gone
    ]
    return Plan(groups, steps, [module for module, _ in kept], [group for _, group in kept], plan.bound)


def _can_be_strict(forward: Forward) -> bool:
    weights = weights_protocol(forward)
    return weights is None or hasattr(weights, "strict")
