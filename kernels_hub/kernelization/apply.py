"""Swap the forwards of a model: plan everything, then apply everything. The only module that mutates a model.

    walk the modules  ->  plan (resolve, load, validate; nothing changes)  ->  verify  ->  apply  ->  log

Planning may raise at any point and leaves the model as it was. Applying only writes to the
modules' `__dict__`; where packing weights fails half-way it is rolled back.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import FunctionType, MappingProxyType, MethodType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from kernels_hub.calibration.background import measure_beside
from kernels_hub.kernelization.bind import (
    COPIED,
    Forward,
    KernelForward,
    KernelFunction,
    bind_forward,
    kernel_function,
    unbind_forward,
    weights_protocol,
)
from kernels_hub.kernelization.chain_plan import plan_chains
from kernels_hub.kernelization.copy_budget import OverBudget, budget_in_bytes, over_budget, with_uncopied
from kernels_hub.kernelization.covered_modules import covered_modules, must_run_itself, unusual_parameter
from kernels_hub.kernelization.device import Device, as_target, is_here
from kernels_hub.kernelization.fallback import KernelizeFallback, as_fallback
from kernels_hub.kernelization.freed_memory import keep_freed_memory
from kernels_hub.kernelization.function_places import held_out_of_reach
from kernels_hub.kernelization.gain_gate import multiplies_few_rows_only
from kernels_hub.kernelization.jit import JitForward
from kernels_hub.kernelization.mapping import active_mapping
from kernels_hub.kernelization.mode import Mode, check_kernelize_mode
from kernels_hub.kernelization.native_builds import build_at_once
from kernels_hub.kernelization.outcome import RECORD_ATTRIBUTE, ModuleRecord, SwapDecision, record_of
from kernels_hub.kernelization.report import (
    Chains,
    Report,
    Row,
    note_chains,
    row_of,
    told_of_chains,
    told_of_parts,
    untagged_row,
)
from kernels_hub.kernelization.resolve import ClassPlan, ClassResolver, FunctionPlan, overlay_forward
from kernels_hub.kernelization.settle import CHANGING
from kernels_hub.kernelization.steps import NOTHING, Group, Plan, Step, log_plan
from kernels_hub.kernelization.strict_weights import as_strict
from kernels_hub.kernelization.tag_rule import on_levels
from kernels_hub.kernelization.verify import verify_steps

if TYPE_CHECKING:
    import torch
    from torch import nn

logger = logging.getLogger(__name__)

T = TypeVar("T")
ModuleT = TypeVar("ModuleT", bound="nn.Module")

_ANY_STRICT = threading.Event()
"""Whether weights of any model were ever to be compared at every call: those of the others are told otherwise then."""


def kernelize(
    model: ModuleT,
    *,
    mode: Mode,
    device: str | torch.device | Device | None = None,
    use_fallback: bool | KernelizeFallback = True,
    verify: Any = None,
    free_weights: bool = False,
    strict_weights: bool = False,
    copy_budget: float | None = None,
    wait: bool = False,
) -> ModuleT:
    """Replace the forward of every tagged layer by the kernel that the active mapping gives for it.

    model: changed in place, all of its layers or (on an error) none, and returned. Only the
        instances' `forward` changes: hooks, state_dict, deepcopy, pickle, DDP, torch.compile and
        autograd keep working. Run it again for another mode; `restore(model)` undoes it.
    mode: Mode.INFERENCE or Mode.TRAINING, with | Mode.TORCH_COMPILE for a model to be compiled.
    device: what it will run on; inferred from its parameters and buffers when None.
    use_fallback: True keeps the original forward where nothing fits (`report(model)` has the reasons), False raises
        NoKernelError instead; `KernelizeFallback` flags choose case by case.
    verify: example inputs (a tensor, a tuple of arguments or a dict of keyword arguments). The model is run on them
        once; every layer's kernel is given the inputs that the layer really gets, and the original is kept where they
        disagree (VerificationError instead if `use_fallback` is False).
    free_weights: kernels that keep packed copies of weights free the originals; `restore` unpacks
        them. Blocks whose kernels need both leave their children their kernels. Without it both are kept, and `report`
        states the extra memory.
    strict_weights: kernels that keep copies of weights compare all of them with the weights at every call. Without it,
        a change that PyTorch counts (in-place operations, optimizers, `load_state_dict`, another parameter or storage)
        is seen at once, and one that it does not count (through `.data`, NumPy, DLPack) at the latest within 16 calls
        or 2 s of calls, whichever is later; `refresh(model)` makes copies right at once. See docs/weights.md.
    copy_budget: what the copies of weights that kernels keep may take together, for inputs of one size: bytes as an
        int, or a share of the parameters' bytes as a float (0.25). It is spent on the layers that are known to
        gain most; the others keep their original forward, and `report` says so. None: no limit.
    wait: calls wait for layers that are compiled for them. Without it they are compiled in the background, and the
        original forwards run meanwhile; see `wait_until_compiled`, and docs/mappings.md for KERNELS_HUB_JIT.

    Raises ModeError, DeviceError, CopyBudgetError, NoKernelError (all ValueErrors), LayerContractError (a TypeError,
    whatever `use_fallback` says), RepositoryNotFoundError (a FileNotFoundError), KernelImportError.

    >>> model = kernelize(nn.Sequential(nn.SiLU()), mode=Mode.INFERENCE, device="cpu")
    >>> print(report(model))
    module  class  layer  count  kernel ...
    """
    mode = check_kernelize_mode(mode)
    fallback = as_fallback(use_fallback)
    if os.environ.get("DISABLE_KERNEL_MAPPING", "0") not in ("", "0"):
        logger.info("DISABLE_KERNEL_MAPPING is set: every layer keeps its original forward")
        return restore(model)
    originals = not (wait or free_weights or verify is not None)
    tries = not (free_weights or strict_weights or verify is not None) and copy_budget is None
    target = as_target(device, model)
    where = active_mapping(), target, mode, fallback
    resolver = ClassResolver(*where, keeps_originals=originals, tries=tries, frees=free_weights, model=model)
    plan = _plan_within(budget_in_bytes(copy_budget, model), model, resolver, fallback)
    if verify is None:  # which gives every kernel what its own module gets
        plan_chains(model, plan, mode)
    if wait:
        build_at_once()
    _begin_to_compile(plan, strict=fallback is KernelizeFallback.NONE, waits=wait or verify is not None)
    if verify is not None:
        verified = verify_steps(model, plan.all_steps(), verify, mode, fallback)
        plan = Plan({}, [_as_compiled(step, waits=wait) for step in verified], bound=plan.bound)
    if strict_weights:
        plan = as_strict(plan, fallback)
    keep_freed_memory(target.type)
    with CHANGING:
        _apply(plan, prepare=Mode.INFERENCE in mode, free=free_weights)
    log_plan(plan, logger)
    if resolver.gains.unknown:
        measure_beside(resolver.gains.unknown, resolver.gains.machine)
    return model


def refresh(model: T) -> T:
    """Make all that kernels keep of a model's weights right, now; returns the model.

    To be called after weights were written in a way that PyTorch does not count: `weight.data[5] = 3.0`,
    a mask through `.data`, a NumPy or DLPack view. All copies are compared with their weights, and those
    that are of other values are made again. Does nothing to modules without kernels.

    model: any module, or what `kernels_hub.compiler.compile` gave (`Executable.refresh`).

    >>> model = kernelize(nn.Sequential(nn.Linear(8, 8)), mode=Mode.INFERENCE, device="cpu")
    >>> model[0].weight.data[5] = 3.0
    >>> refresh(model) is model
    True
    """
    from torch import nn

    if not isinstance(model, nn.Module):
        cast("Any", model).refresh()
        return model
    with CHANGING:
        for module in model.modules():
            bound = module.__dict__.get("forward")
            if type(bound) is KernelForward and (weights := weights_protocol(bound.func)) is not None:
                if hasattr(weights, "refresh"):
                    weights.refresh(module)
                else:  # it was built before there was a refresh: all is made again
                    weights.release(module)
                    weights.prepare(module)
    return model


def restore(model: ModuleT) -> ModuleT:
    """Give every module of a model its original forward back (and its freed weights); returns the model.

    >>> model = kernelize(nn.Sequential(nn.SiLU()), mode=Mode.INFERENCE, device="cpu")
    >>> any(row.swapped for row in report(restore(model)).rows)
    False
    """
    with CHANGING:
        for module in model.modules():
            _unbind(module)
    return model


def explain(model: nn.Module, *, mode: Mode, device: str | torch.device | Device | None = None) -> Report:
    """What `kernelize` would do, without doing it: a row a module.

    device: may name hardware that is not here, as in `Device("cuda", CUDAProperties(90, 90))`;
        kernels are then chosen but not imported.

    Raises ModeError and DeviceError; everything else becomes a row's reason.

    >>> row = explain(nn.Sequential(nn.SiLU()), mode=Mode.INFERENCE, device="cpu").rows[1]
    >>> row.path, row.layer_name
    ('0', 'SiLU')
    """
    mode = check_kernelize_mode(mode)
    target = as_target(device, model)
    resolver = ClassResolver(
        active_mapping(),
        target,
        mode,
        KernelizeFallback.ALL,
        dry=True,
        importable=is_here(target),
        model=model,
    )
    plan = _plan(model, resolver)
    if is_here(target):
        plan_chains(model, plan, mode)
    steps = {id(step.module): step for step in plan.all_steps()}
    rows: list[Row] = []
    chains: Chains = {}
    for path, module in model.named_modules():
        step = steps.get(id(module))
        name = type(module).__qualname__
        own = step.record.own if step else None
        rows.append(untagged_row(path, name) if own is None else row_of(path, name, own))
        if step:
            note_chains(chains, path, step.record)
            rows.extend(
                row_of(f"{path}:{function}", function, outcome)
                for function, outcome in (*step.record.functions, *step.record.attributes)
            )
    return Report(told_of_parts(told_of_chains(rows, chains)))


# -- plan ----------------------------------------------------------------------------------------


def _plan_within(
    budget: int | None, model: nn.Module, resolver: ClassResolver, fallback: KernelizeFallback
) -> Plan:
    """The plan whose copies of weights fit into a budget; where a block's do not, its children's may."""
    over, reasons = OverBudget(), dict[int, str]()
    while True:
        plan = _plan(model, resolver, reasons)
        if budget is None:
            return plan
        over = over_budget(plan, budget, fallback, over.fitting)
        if not over.kept:
            return with_uncopied(plan, over.uncopied)
        reasons |= over.kept


def _plan(model: nn.Module, resolver: ClassResolver, kept: Mapping[int, str] = MappingProxyType({})) -> Plan:
    """What to do with every module that has, or had, something to do. Nothing changes.

    kept: why modules keep their original forward whatever their class has, by their identity.
    """
    from torch import nn

    model_plan = Plan({}, [])
    plans: dict[type, ClassPlan] = {}
    covered: dict[int, SwapDecision] = {}
    parameter = nn.Parameter
    bare = frozenset(nn.Module().__dict__)
    usual = bare.union(COPIED, (RECORD_ATTRIBUTE,))
    placed = on_levels(model, resolver.levels)
    alike = _Alike(len(bare), parameter, covered)
    group: tuple[ClassPlan, Group] | None = None
    for module in _not_alike(model, alike, model_plan):
        number, cls, state = id(module), type(module), module.__dict__
        plan = plans.get(cls)
        if plan is None:
            plan = plans[cls] = resolver.plan(cls)
        for_all = not (placed or kept or plan.checks or plan.covers)
        if placed and number in placed:
            plan = resolver.plan_by_place(cls)
        if RECORD_ATTRIBUTE in state:
            model_plan.bound.append(module)
        attributes: tuple[FunctionPlan, ...] = ()
        if len(state) > len(bare) and (own := _own_attributes(state, usual)):
            attributes = _attribute_plans(own, resolver, plan.functions)
        if plan.idle and not attributes:
            if RECORD_ATTRIBUTE in state:
                model_plan.steps.append(Step(module, NOTHING, None))
            if for_all:
                alike.groups[cls] = None
            continue
        asks = plan.checks or plan.covers or state.get("_parameters", True) or "forward" in state
        reason = (_obstacle(module, state, plan, parameter) if asks else None) or kept.get(number)
        is_plain = reason is None and not (covered and number in covered)
        if is_plain and plan.decided is not None:
            plan, for_all = plan.decided(module), False
        if is_plain and not attributes and plan.forward is not None:
            if group is None or plan is not group[0]:  # nearly always that of the module before
                group = plan, _group_of(plan, plan.forward, model_plan.groups)
            model_plan.add(module, group[1])
            if for_all:
                alike.groups[cls] = group[1]
            swaps = True
        else:
            step = _special_step(module, plan, attributes, covered.get(number), reason)
            model_plan.steps.append(step)
            swaps = step.record.own is not None and step.record.own.swapped
        if plan.covers and swaps:
            assert plan.own is not None
            reason = f"idle: its parent's kernel {plan.own.layer_name} computes it"
            outcome = SwapDecision(None, reason=reason)
            covered.update((id(child), outcome) for _, child in covered_modules(module, plan.covers))
    return model_plan


@dataclass(slots=True)
class _Alike:
    """The classes whose every instance gets the same, as long as nothing was done to it."""

    as_new: int
    """How many attributes a module has that nothing was done to."""
    parameter: type
    covered: Mapping[int, SwapDecision]
    groups: dict[type, Group | None] = field(default_factory=dict)
    """By class; None: nothing."""


def _not_alike(model: nn.Module, alike: _Alike, model_plan: Plan) -> Iterator[nn.Module]:
    """The modules that must be asked one by one, parents first; the others are added to their groups. Each once."""
    as_new, parameter, covered, groups = alike.as_new, alike.parameter, alike.covered, alike.groups
    order, group_of = model_plan.order, model_plan.group_of
    seen: set[int] = set()
    within: list[Iterator[nn.Module | None]] = [iter((model,))]
    while within:
        for module in within[-1]:
            if module is None or (number := id(module)) in seen:
                continue
            seen.add(number)
            state = module.__dict__
            if (cls := type(module)) not in groups or len(state) != as_new or "forward" in state:
                yield module
            elif (group := groups[cls]) is not None:
                parameters = state["_parameters"]
                if (parameters and unusual_parameter(parameters, parameter)) or number in covered:
                    yield module
                else:  # as Plan.add: a call less for each of thousands
                    group.modules.append(module)
                    order.append(module)
                    group_of.append(group)
            if children := module._modules:
                within.append(iter(children.values()))
                break
        else:
            within.pop()


def _group_of(plan: ClassPlan, forward: Forward, groups: dict[int, Group]) -> Group:
    group = groups.get(id(plan))
    if group is None:
        group = groups[id(plan)] = Group(ModuleRecord(plan.own, _outcomes(plan.functions)), forward)
    return group


def _obstacle(module: nn.Module, state: dict[str, Any], plan: ClassPlan, parameter: type) -> str | None:
    """Why this instance must keep its forward although its class has a kernel; None if nothing."""
    forward = state.get("forward")
    ours = type(forward) is KernelForward
    if forward is not None and not ours:
        return "its forward was already replaced on this instance, for example by hooks of another library"
    if not ours:  # a kernel of ours may have freed its weights: those are no obstacle
        if (reason := unusual_parameter(module._parameters, parameter)) is not None:
            return f"its {reason}"
        for path, child in covered_modules(module, plan.covers):
            if (reason := must_run_itself(child, parameter)) is not None:
                return f"its {path} must run itself: {reason}"
    for check in plan.checks:
        if (reason := check(module)) is not None:
            return reason
    return None


def _special_step(
    module: nn.Module,
    plan: ClassPlan,
    attributes: tuple[FunctionPlan, ...],
    covered: SwapDecision | None,
    reason: str | None,
) -> Step:
    """The step of an instance that is not like every other of its class."""
    own = plan.own
    if covered is not None:
        own = replace(covered, layer_name=own.layer_name if own else None)
    elif reason is not None and own is not None:
        own = replace(own, swapped=False, reason=reason) if own.swapped else own
    forward = plan.forward if own is not None and own.swapped else None
    functions = plan.functions
    if forward is None and functions:
        if type(module.__dict__.get("forward")) not in (KernelForward, type(None)):
            functions = tuple(_without_kernel(function, str(reason)) for function in functions)
        forward = overlay_forward(type(module), functions)
    record = ModuleRecord(own, _outcomes(functions), _outcomes(attributes))
    return Step(module, record, forward, functions if own is None or not own.swapped else (), attributes)


def _without_kernel(plan: FunctionPlan, reason: str) -> FunctionPlan:
    return replace(plan, kernel=None, outcome=replace(plan.outcome, swapped=False, reason=reason))


def _outcomes(plans: tuple[FunctionPlan, ...]) -> tuple[tuple[str, SwapDecision], ...]:
    return tuple((plan.name, plan.outcome) for plan in plans)


def _own_attributes(state: dict[str, object], usual: AbstractSet[str]) -> list[tuple[str, object]]:
    """What not every module has: the rest is of nn.Module, or what `kernelize` has put there."""
    return [item for item in state.items() if item[0] not in usual and type(item[1]) is not KernelForward]


def _attribute_plans(
    own: Sequence[tuple[str, object]], resolver: ClassResolver, called: tuple[FunctionPlan, ...]
) -> tuple[FunctionPlan, ...]:
    """Tagged functions that an instance holds: as attributes, or elsewhere, where no kernel replaces them.

    own: the attributes that not every module has, by name.
    """
    attribute_plans: list[FunctionPlan] = []
    for name, value in own:
        kind = type(value)
        if kind is FunctionType or kind is partial or kind is MethodType:
            plan = resolver.function(name, value)
        elif isinstance(value, KernelFunction):
            plan = resolver.function(name, value.original)
        else:
            continue
        if plan is not None:
            attribute_plans.append(plan)
    unreachable = held_out_of_reach(
        own, [called_plan.original for called_plan in (*called, *attribute_plans)]
    )
    attribute_plans += [resolver.kept(*attribute) for attribute in unreachable]
    return tuple(attribute_plans)


# -- layers that are compiled ----------------------------------------------------------------------


def _begin_to_compile(plan: Plan, *, strict: bool, waits: bool) -> None:
    work: list[tuple[Forward | None, Sequence[nn.Module]]] = [
        *((group.forward, group.modules) for group in plan.groups.values()),
        *((step.forward, (step.module,)) for step in plan.steps),
    ]
    for forward, modules in work:
        if isinstance(forward, JitForward):
            for module in modules:
                forward.begin(module, strict=strict, waits=waits)


def _as_compiled(step: Step, *, waits: bool) -> Step:
    """The step with what `verify`'s call has compiled. waits: later calls wait as well."""
    own = step.record.own
    if isinstance(step.forward, JitForward) and own is not None:
        if not waits:
            step.forward.waits_no_more(step.module)
        outcome = step.forward.decided(step.module, own)
        if outcome is not None:
            return replace(step, record=replace(step.record, own=outcome))
    return step


# -- apply ---------------------------------------------------------------------------------------


def _apply(plan: Plan, *, prepare: bool, free: bool) -> None:
    """Bind every kernel; on any error unbind what was bound and put back what was there before."""
    before = [
        (module, {name: module.__dict__.get(name) for name in ("forward", RECORD_ATTRIBUTE, *COPIED)})
        for module in plan.bound
    ]
    try:
        with _collector_paused():
            _bind_groups(plan)
        for step in plan.steps:
            _bind(step)
        _prepare_weights(plan, prepare=prepare, free=free)
    except BaseException:
        for module in (*plan.order, *(step.module for step in plan.steps)):
            _unbind(module)
        for module, state in before:
            module.__dict__.update((name, value) for name, value in state.items() if value is not None)
        raise


@contextmanager
def _collector_paused() -> Iterator[None]:
    """No garbage collection while thousands of objects are made that all stay.

    Each would count towards the next collection, which walks the whole model and frees nothing:
    with it, the cost of a module grew with the size of its model.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _bind_groups(plan: Plan) -> None:
    for module, group in zip(plan.order, plan.group_of, strict=True):
        state = module.__dict__
        current = state.get("forward")
        if current is None:  # as bind_forward: a call less for each of thousands
            bound = state["forward"] = KernelForward(group.forward, module)
            copied = bound.copied
            state.setdefault("__reduce_ex__", copied)
            state.setdefault("_replicate_for_data_parallel", copied)
        elif current.func is not group.forward:  # another kernel of ours
            _unbind(module)
            bind_forward(module, group.forward)
        state[RECORD_ATTRIBUTE] = group.record


def _prepare_weights(plan: Plan, *, prepare: bool, free: bool) -> None:
    """Let kernels that pack weights pack them now, so that time and memory are spent where it shows."""
    work = [(group.forward, group.modules, group.record) for group in plan.groups.values()]
    work += [(step.forward, [step.module], step.record) for step in plan.steps if step.forward is not None]
    if any(record.strict for _, _, record in work):
        _ANY_STRICT.set()
    for forward, modules, record in work:
        weights = weights_protocol(forward)
        if weights is None:
            continue
        few = record.own is not None and multiplies_few_rows_only(record.own.gain)
        for module in modules:
            if _ANY_STRICT.is_set() and hasattr(weights, "strict"):
                weights.strict(module, record.strict)
            copies = record.own is None or record.own.copies
            if hasattr(weights, "keep_copies"):
                weights.keep_copies(module, copies)
            if prepare and copies and not few:
                weights.prepare(module)
            (weights.free_originals if prepare and free else weights.restore_originals)(module)


def _bind(step: Step) -> None:
    state = step.module.__dict__
    current = state.get("forward")
    if type(current) is KernelForward and current.func is not step.forward:
        _unbind(step.module)
        current = None
    if step.forward is not None and current is None:
        bind_forward(step.module, step.forward)
    for plan in step.attributes:
        if plan.kernel is not None:
            state[plan.name] = kernel_function(plan.kernel, plan.original, plan.outcome)
        elif plan.name in state:
            state[plan.name] = plan.original
    if step.record is NOTHING:
        state.pop(RECORD_ATTRIBUTE, None)
    else:
        state[RECORD_ATTRIBUTE] = step.record


def _unbind(module: nn.Module) -> None:
    state = module.__dict__
    forward = state.get("forward")
    if type(forward) is KernelForward:
        weights = weights_protocol(forward.func)
        if weights is not None:
            weights.release(module)
        unbind_forward(module)
    record = record_of(module)
    if record is not None:
        for name, _ in record.attributes:
            bound = state.get(name)
            if type(bound) is KernelFunction:
                state[name] = bound.original
    state.pop(RECORD_ATTRIBUTE, None)
