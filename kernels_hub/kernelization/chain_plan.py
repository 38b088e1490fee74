"""Plans chains: which modules' forwards call children as one, once it is known what every module gets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import FunctionType
from typing import TYPE_CHECKING

from kernels_hub.kernelization.bind import KernelForward
from kernels_hub.kernelization.chain_syntax import Names
from kernels_hub.kernelization.chains import may_follow, protocol_of, runs_in
from kernels_hub.kernelization.mode import Mode
from kernels_hub.kernelization.outcome import Chain, ModuleRecord, SwapDecision
from kernels_hub.kernelization.resolve import overlay_forward
from kernels_hub.kernelization.steps import NOTHING, Plan, Step

if TYPE_CHECKING:
    from torch import nn

_Decisions = Mapping[int, SwapDecision]
"""What modules get, by identity; those that get nothing are missing."""


def plan_chains(model: nn.Module, plan: Plan, mode: Mode) -> None:
    """Have the modules of a plan that keep their own forwards call chains of their children as one, for inference.

    A compiler sees the children: it fuses them itself.
    """
    if Mode.INFERENCE not in mode or Mode.TORCH_COMPILE in mode:
        return
    decisions = _decisions(plan)
    heads = _heads(decisions)
    if not heads:
        return
    steps = {id(step.module): index for index, step in enumerate(plan.steps)}
    in_groups = set(map(id, plan.order))
    for parent in _modules(model):
        children = parent._modules.values()
        if id(parent) in in_groups or not any(id(child) in heads for child in children):
            continue
        index = steps.get(id(parent))
        step = Step(parent, NOTHING, None) if index is None else plan.steps[index]
        if not _keeps_its_forward(step) or not (chains := _chains_in(parent, heads, decisions)):
            continue
        before = ModuleRecord(None) if step.record is NOTHING else step.record
        forward = overlay_forward(type(parent), step.functions, chains)
        chained = replace(step, record=replace(before, chains=chains), forward=forward)
        if index is None:
            plan.steps.append(chained)
        else:
            plan.steps[index] = chained


def _decisions(plan: Plan) -> dict[int, SwapDecision]:
    decisions = {
        id(module): group.record.own
        for module, group in zip(plan.order, plan.group_of, strict=True)
        if group.record.own is not None
    }
    decisions.update((id(step.module), step.record.own) for step in plan.steps if step.record.own is not None)
    return decisions


def _heads(decisions: _Decisions) -> set[int]:
    """The modules whose kernels compute what follows."""
    computes: dict[int, bool] = {}
    heads = set()
    for number, decision in decisions.items():
        known = computes.get(id(decision))
        if known is None:
            known = computes[id(decision)] = protocol_of(decision) is not None
        if known:
            heads.add(number)
    return heads


def _modules(model: nn.Module) -> Iterator[nn.Module]:
    """Each module once, as `model.modules()`, at a third of the cost."""
    seen = {id(model)}
    waiting = [model]
    while waiting:
        module = waiting.pop()
        yield module
        for child in module._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                waiting.append(child)


def _keeps_its_forward(step: Step) -> bool:
    """Whether a module runs the forward of its class, with kernels for functions at most."""
    from torch import nn

    module, own, cls = step.module, step.record.own, type(step.module)
    if own is not None and own.swapped:
        return False
    if step.forward is not None and not any(plan.kernel is not None for plan in step.functions):
        return False  # a kernel is tried there
    return (
        isinstance(cls.forward, FunctionType)
        and type(module.__dict__.get("forward")) in (KernelForward, type(None))
        and cls.__getattr__ is nn.Module.__getattr__
        and cls.__getattribute__ is object.__getattribute__
    )


def _chains_in(parent: nn.Module, heads: set[int], decisions: _Decisions) -> tuple[Chain, ...]:
    """The chains that a module's forward calls, each with the decision for its first module."""
    found: dict[Names, SwapDecision] = {}
    for run in runs_in(parent):
        begin = 0
        while begin < len(run) - 1:
            chain = _chain_at(parent, run[begin:], heads, decisions)
            if chain:
                found.setdefault(chain, decisions[id(parent._modules[chain[0]])])
            begin += max(1, len(chain))
    return tuple(found.items())


def _chain_at(parent: nn.Module, names: Names, heads: set[int], decisions: _Decisions) -> Names:
    """As many names, from the first on, as are a chain; none where they are not two at least."""
    children: list[nn.Module] = []
    for name in names:
        child = parent._modules.get(name)
        if child is None or name in parent.__dict__ or hasattr(type(parent), name):
            break
        if not children and id(child) not in heads:
            return ()
        if children and not _may_follow(child, decisions.get(id(child))):
            break
        children.append(child)
    if len(children) < 2:
        return ()
    protocol = protocol_of(decisions[id(children[0])])
    assert protocol is not None
    followers = protocol.count(children[0], children[1:])
    return names[: 1 + followers] if followers else ()


def _may_follow(child: nn.Module, decision: SwapDecision | None) -> bool:
    is_own = type(child.__dict__.get("forward")) in (KernelForward, type(None))
    return is_own and may_follow(decision)
