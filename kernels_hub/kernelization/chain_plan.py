"""Plans chains: which modules' forwards call children as one, once it is known what every module gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import FunctionType
from typing import TYPE_CHECKING

from kernels_hub.hub.references import Reference
from kernels_hub.kernelization.bind import Forward, KernelForward, package_of
from kernels_hub.kernelization.chain_heads import each_module, module_called
from kernels_hub.kernelization.chain_syntax import Names
from kernels_hub.kernelization.chains import Followers, Place, followers_in, may_follow, runs_in
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
    protocols = _protocols(plan)
    if not protocols:
        return
    decisions = _decisions(plan)
    steps = {id(step.module): index for index, step in enumerate(plan.steps)}
    in_groups = set(map(id, plan.order))
    forwards: dict[tuple[object, ...], Forward | None] = {}  # thousands of parents may be alike
    for parent in each_module(model):
        children = parent._modules.values()
        if id(parent) in in_groups or not any(id(child) in protocols for child in children):
            continue
        index = steps.get(id(parent))
        step = Step(parent, NOTHING, None) if index is None else plan.steps[index]
        if not _keeps_its_forward(step) or not (chains := _chains_in(parent, protocols, decisions)):
            continue
        before = ModuleRecord(None) if step.record is NOTHING else step.record
        alike = (type(parent), step.functions, *((names, id(decision.source)) for names, decision in chains))
        if alike not in forwards:
            places = tuple(_place(parent, chain, protocols) for chain in chains)
            forwards[alike] = overlay_forward(type(parent), step.functions, places)
        chained = replace(step, record=replace(before, chains=chains), forward=forwards[alike])
        if index is None:
            plan.steps.append(chained)
        else:
            plan.steps[index] = chained


def _place(parent: nn.Module, chain: Chain, protocols: Mapping[int, Followers]) -> Place:
    names, decision = chain
    assert isinstance(decision.source, Reference)
    return names, decision.source, protocols[id(parent._modules[names[0]])]


def _decisions(plan: Plan) -> dict[int, SwapDecision]:
    decisions = {
        id(module): group.record.own
        for module, group in zip(plan.order, plan.group_of, strict=True)
        if group.record.own is not None
    }
    decisions.update((id(step.module), step.record.own) for step in plan.steps if step.record.own is not None)
    return decisions


def _protocols(plan: Plan) -> dict[int, Followers]:
    """The modules whose kernels compute what follows, by identity, and what does."""
    found: dict[int, Followers] = {}
    for group in plan.groups.values():
        if (protocol := _protocol_of(group.record.own, group.forward)) is not None:
            found.update((id(module), protocol) for module in group.modules)
    for step in plan.steps:
        if (protocol := _protocol_of(step.record.own, step.forward)) is not None:
            found[id(step.module)] = protocol
    return found


def _protocol_of(decision: SwapDecision | None, forward: Forward | None) -> Followers | None:
    if decision is None or forward is None or not (decision.swapped and decision.copies):
        return None
    return followers_in(package_of(forward)) if isinstance(decision.source, Reference) else None


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


def _chains_in(
    parent: nn.Module, protocols: Mapping[int, Followers], decisions: _Decisions
) -> tuple[Chain, ...]:
    """The chains that a module's forward calls, each with the decision for its first module."""
    found: dict[Names, SwapDecision] = {}
    for run in runs_in(parent):
        begin = 0
        while begin < len(run) - 1:
            chain = _chain_at(parent, run[begin:], protocols, decisions)
            if chain:
                found.setdefault(chain, decisions[id(parent._modules[chain[0]])])
            begin += max(1, len(chain))
    return tuple(found.items())


def _chain_at(
    parent: nn.Module, names: Names, protocols: Mapping[int, Followers], decisions: _Decisions
) -> Names:
    """As many names, from the first on, as are a chain; none where they are not two at least."""
    children: list[nn.Module] = []
    for name in names:
        child = module_called(parent, name)
        if child is None:
            break
        if not children and id(child) not in protocols:
            return ()
        if children and not _may_follow(child, decisions.get(id(child))):
            break
        children.append(child)
    if len(children) < 2:
        return ()
    followers = protocols[id(children[0])].count(children[0], children[1:])
    return names[: 1 + followers] if followers else ()


def _may_follow(child: nn.Module, decision: SwapDecision | None) -> bool:
    is_own = type(child.__dict__.get("forward")) in (KernelForward, type(None))
    return is_own and may_follow(decision)
