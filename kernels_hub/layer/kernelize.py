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
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from kernels_hub.errors import NoKernelError
from kernels_hub.layer.bind import Forward, KernelForward, KernelFunction, kernel_function, weights_protocol
from kernels_hub.layer.compile_on_call import CompileOnCall
from kernels_hub.layer.device import Device, as_target, is_here
from kernels_hub.layer.fallback import KernelizeFallback, as_fallback
from kernels_hub.layer.function_places import held_out_of_reach
from kernels_hub.layer.mapping import active_mapping
from kernels_hub.layer.mode import Mode, check_kernelize_mode
from kernels_hub.layer.outcome import RECORD_ATTRIBUTE, Outcome, Record, record_of
from kernels_hub.layer.report import Report, Row, row_of
from kernels_hub.layer.resolve import ClassPlan, ClassResolver, FunctionPlan, overlay_forward
from kernels_hub.layer.verify import verify_steps

if TYPE_CHECKING:
    import torch
    from torch import nn

logger = logging.getLogger("kernels_hub")

T = TypeVar("T")

_ANY_STRICT = threading.Event()
"""Whether weights of any model were ever to be compared at every call: those of the others are told otherwise then."""

_CHANGING = threading.RLock()
"""Held while forwards of modules are changed: layers that are compiled at their first call come from any thread."""


@dataclass(slots=True)
class Step:
    """What will be done to one module. `forward` None: it runs its class's own."""

    module: nn.Module
    record: Record
    forward: Forward | None
    functions: tuple[FunctionPlan, ...] = ()
    """Kernels inside `forward`, where that is the class's own forward over other globals."""
    attributes: tuple[FunctionPlan, ...] = ()


@dataclass(slots=True)
class Group:
    """Modules of one class that all get the same: the common case, kept free of per-module objects."""

    record: Record
    forward: Forward
    modules: list[nn.Module] = field(default_factory=list)

    def steps(self) -> Iterator[Step]:
        """One step a module."""
        return (Step(module, self.record, self.forward) for module in self.modules)


@dataclass(slots=True)
class Plan:
    """Everything that one `kernelize` call will do."""

    groups: dict[type, Group]
    """By the class of their modules."""
    steps: list[Step]
    order: list[nn.Module] = field(default_factory=list)
    """The modules of all groups as the model has them, which is how they lie in memory."""
    bound: list[nn.Module] = field(default_factory=list)
    """Modules with a record of before."""

    def all_steps(self) -> list[Step]:
        """Groups and steps alike, one step a module."""
        return [*(step for group in self.groups.values() for step in group.steps()), *self.steps]


def kernelize(
    model: nn.Module,
    *,
    mode: Mode,
    device: str | torch.device | Device | None = None,
    use_fallback: bool | KernelizeFallback = True,
    verify: Any = None,
    free_weights: bool = False,
    strict_weights: bool = False,
) -> nn.Module:
    """Replace the forward of every tagged layer by the kernel that the active mapping gives for it.

    model: changed in place, all of its layers or (on an error) none, and returned. Only the
        instances' `forward` changes: hooks, state_dict, deepcopy, pickle, DDP, torch.compile and
        autograd keep working. Run it again for another mode; `restore(model)` undoes it.
    mode: Mode.INFERENCE or Mode.TRAINING, with | Mode.TORCH_COMPILE for a model to be compiled.
    device: what it will run on; inferred from its parameters and buffers when None.
    use_fallback: True keeps the original forward where nothing fits (see `report(model)` for the
        reasons), False raises NoKernelError instead; `KernelizeFallback` flags choose case by case.
    verify: example inputs (a tensor, a tuple of arguments or a dict of keyword arguments). The
        model is run on them once; every layer's kernel is given the inputs that the layer really
        gets, and the original is kept where they disagree (VerificationError instead if
        `use_fallback` is False).
    free_weights: kernels that keep packed copies of weights free the originals; `restore` unpacks
        them. Without it both are kept, and `report` states the extra memory.
    strict_weights: kernels that keep copies of weights compare all of them with the weights at every
        call. Without it, a change that PyTorch counts (in-place operations, optimizers,
        `load_state_dict`, another parameter or storage) is seen at once, and one that it does not
        count (through `.data`, NumPy, DLPack) at the latest within 16 calls or 2 s of calls,
        whichever is later; `refresh(model)` makes copies right at once. See docs/weights.md.

    Raises ModeError, DeviceError, NoKernelError (all ValueErrors), LayerContractError (a TypeError,
    whatever `use_fallback` says), RepositoryNotFoundError (a FileNotFoundError), KernelImportError.

    >>> model = kernelize(model, mode=Mode.INFERENCE)
    >>> print(report(model))
    """
    mode = check_kernelize_mode(mode)
    fallback = as_fallback(use_fallback)
    if os.environ.get("DISABLE_KERNEL_MAPPING", "0") not in ("", "0"):
        logger.info("DISABLE_KERNEL_MAPPING is set: every layer keeps its original forward")
        return restore(model)
    resolver = ClassResolver(active_mapping(), as_target(device, model), mode, fallback)
    plan = _plan(model, resolver)
    _begin_to_compile(plan, strict=fallback is KernelizeFallback.NONE)
    if verify is not None:
        verified = verify_steps(model, plan.all_steps(), verify, mode, fallback)
        plan = Plan({}, [_as_compiled(step) for step in verified], bound=plan.bound)
    if strict_weights:
        plan = _as_strict(plan, fallback)
    with _CHANGING:
        _apply(plan, prepare=Mode.INFERENCE in mode, free=free_weights)
    _log(plan)
    return model


def refresh(model: T) -> T:
    """Make all that kernels keep of a model's weights right, now; returns the model.

    To be called after weights were written in a way that PyTorch does not count: `weight.data[5] = 3.0`,
    a mask through `.data`, a NumPy or DLPack view. All copies are compared with their weights, and those
    that are of other values are made again. Does nothing to modules without kernels.

    model: any module, or what `kernels_hub.compiler.compile` gave (`Executable.refresh`).
    """
    from torch import nn

    if not isinstance(model, nn.Module):
        cast("Any", model).refresh()
        return model
    with _CHANGING:
        for module in model.modules():
            bound = module.__dict__.get("forward")
            if type(bound) is KernelForward and (weights := weights_protocol(bound.func)) is not None:
                if hasattr(weights, "refresh"):
                    weights.refresh(module)
                else:  # it was built before there was a refresh: all is made again
                    weights.release(module)
                    weights.prepare(module)
    return model


def restore(model: nn.Module) -> nn.Module:
    """Give every module of a model its original forward back (and its freed weights); returns the model."""
    with _CHANGING:
        for module in model.modules():
            _unbind(module)
    return model


def settle(module: nn.Module, pending: Forward, forward: Forward | None, outcome: Outcome) -> None:
    """Put what a pending forward came to in its place: a forward, or None for the class's own, and the outcome.

    Nothing happens where something else is bound meanwhile.
    """
    with _CHANGING:
        state = module.__dict__
        bound, record = state.get("forward"), record_of(module)
        if type(bound) is not KernelForward or bound.func is not pending or record is None:
            return
        if forward is None:
            del state["forward"]
        else:
            state["forward"] = KernelForward(forward, module)
            _release_inside(module)
        state[RECORD_ATTRIBUTE] = replace(record, own=outcome)


def _release_inside(module: nn.Module) -> None:
    """Drop the packed weights of kernels that another one runs in place of; a call that needs them packs them again."""
    for one in module.modules():
        bound = one.__dict__.get("forward")
        if one is not module and type(bound) is KernelForward and (weights := weights_protocol(bound.func)):
            weights.release(one)


def explain(model: nn.Module, *, mode: Mode, device: str | torch.device | Device | None = None) -> Report:
    """What `kernelize` would do, without doing it: a row a module.

    device: may name hardware that is not here, as in `Device("cuda", CUDAProperties(90, 90))`;
        kernels are then chosen but not imported.

    Raises ModeError and DeviceError; everything else becomes a row's reason.
    """
    mode = check_kernelize_mode(mode)
    target = as_target(device, model)
    resolver = ClassResolver(
        active_mapping(), target, mode, KernelizeFallback.ALL, dry=True, importable=is_here(target)
    )
    steps = {id(step.module): step for step in _plan(model, resolver).all_steps()}
    rows: list[Row] = []
    for path, module in model.named_modules():
        step = steps.get(id(module))
        name = type(module).__qualname__
        own = step.record.own if step else None
        rows.append(row_of(path, name, own or Outcome(None, reason="no tag: nothing maps this class")))
        if step:
            rows.extend(
                row_of(f"{path}:{function}", function, outcome)
                for function, outcome in (*step.record.functions, *step.record.attributes)
            )
    return Report(tuple(rows))


# -- plan ----------------------------------------------------------------------------------------


def _plan(model: nn.Module, resolver: ClassResolver) -> Plan:
    """What to do with every module that has, or had, something to do. Nothing changes."""
    from torch import nn

    found = Plan({}, [])
    groups, steps, order = found.groups, found.steps, found.order
    plans: dict[type, ClassPlan] = {}
    covered: dict[int, Outcome] = {}
    parameter, bare = nn.Parameter, len(nn.Module().__dict__)
    seen: set[int] = set()
    stack = [model]
    while stack:  # every module once, parents before children
        module = stack.pop()
        if (number := id(module)) in seen:
            continue
        seen.add(number)
        cls, state = type(module), module.__dict__
        if children := module._modules:
            stack.extend(child for child in reversed(children.values()) if child is not None)
        plan = plans.get(cls)
        if plan is None:
            plan = plans[cls] = resolver.plan(cls)
        if RECORD_ATTRIBUTE in state:
            found.bound.append(module)
        attributes = _attribute_plans(state, resolver, plan.functions) if len(state) > bare else ()
        if plan.idle and not attributes:
            if RECORD_ATTRIBUTE in state:
                steps.append(Step(module, NOTHING, None))
            continue
        asks = plan.checks or plan.covers or state.get("_parameters", True) or "forward" in state
        reason = _obstacle(module, state, plan, parameter) if asks else None
        if (
            reason is None
            and plan.forward is not None
            and not attributes
            and not (covered and number in covered)
        ):
            group = groups.get(cls)
            if group is None:
                group = groups[cls] = Group(Record(plan.own, _outcomes(plan.functions)), plan.forward)
            group.modules.append(module)
            order.append(module)
            if plan.covers:
                covered.update(_covered(module, plan))
        else:
            step = _special_step(module, plan, attributes, covered.get(id(module)), reason)
            steps.append(step)
            if plan.covers and step.record.own is not None and step.record.own.swapped:
                covered.update(_covered(module, plan))
    return found


NOTHING = Record(None)
"""Record of a module that had one and needs none any more."""


def _covered(module: nn.Module, plan: ClassPlan) -> Iterator[tuple[int, Outcome]]:
    """The children whose own forwards the module's kernel makes idle."""
    assert plan.own is not None
    outcome = Outcome(None, reason=f"idle: its parent's kernel {plan.own.layer_name} computes it")
    for name in plan.covers:
        child = module._modules.get(name)
        if child is not None:
            yield id(child), outcome


def _obstacle(module: nn.Module, state: dict[str, Any], plan: ClassPlan, parameter: type) -> str | None:
    """Why this instance must keep its forward although its class has a kernel; None if nothing."""
    forward = state.get("forward")
    ours = type(forward) is KernelForward
    if forward is not None and not ours:
        return "its forward was already replaced on this instance, for example by hooks of another library"
    if not ours:  # a kernel of ours may have freed its weights: those are no obstacle
        if (reason := _unusual_parameter(module, parameter)) is not None:
            return f"its {reason}"
        for name in plan.covers:
            child = module._modules.get(name)
            if child is not None and (reason := _must_run_itself(child, parameter)) is not None:
                return f"its {name} must run itself: {reason}"
    for check in plan.checks:
        if (reason := check(module)) is not None:
            return reason
    return None


def _unusual_parameter(module: nn.Module, parameter: type) -> str | None:
    for name, value in module._parameters.items():
        if value is not None and type(value) is not parameter:
            return f"parameter {name!r} is a {type(value).__name__}, not a plain torch.nn.Parameter"
    return None


def _must_run_itself(child: nn.Module, parameter: type) -> str | None:
    """Why a block's kernel may not compute what its child does; None if it may."""
    if child._forward_hooks or child._forward_pre_hooks or child._backward_hooks or child._backward_pre_hooks:
        return "it has hooks"
    if type(child.__dict__.get("forward")) not in (KernelForward, type(None)):
        return "its forward was already replaced on this instance"
    reason = _unusual_parameter(child, parameter)
    return f"its {reason}" if reason else None


def _special_step(
    module: nn.Module,
    plan: ClassPlan,
    attributes: tuple[FunctionPlan, ...],
    covered: Outcome | None,
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
    record = Record(own, _outcomes(functions), _outcomes(attributes))
    return Step(module, record, forward, functions if own is None or not own.swapped else (), attributes)


def _without_kernel(plan: FunctionPlan, reason: str) -> FunctionPlan:
    return replace(plan, kernel=None, outcome=replace(plan.outcome, swapped=False, reason=reason))


def _outcomes(plans: tuple[FunctionPlan, ...]) -> tuple[tuple[str, Outcome], ...]:
    return tuple((plan.name, plan.outcome) for plan in plans)


def _attribute_plans(
    state: dict[str, Any], resolver: ClassResolver, called: tuple[FunctionPlan, ...]
) -> tuple[FunctionPlan, ...]:
    """Tagged functions that the instance holds: as attributes, or elsewhere, where no kernel replaces them."""
    found: list[FunctionPlan] = []
    for name, value in state.items():
        kind = value.__class__
        if kind is FunctionType or kind is partial or kind is MethodType:
            plan = resolver.function(name, value)
        elif kind is KernelFunction:
            plan = resolver.function(name, value.original)
        else:
            continue
        if plan is not None:
            found.append(plan)
    held = held_out_of_reach(state, [one.original for one in (*called, *found)])
    found += [resolver.kept(*place) for place in held]
    return tuple(found)


# -- weights that are compared at every call -------------------------------------------------------


def _as_strict(plan: Plan, fallback: KernelizeFallback) -> Plan:
    """The plan with strict records, and without kernels that keep copies and cannot compare them at every call.

    Raises NoKernelError for one of those, where no original may be kept.
    """
    for group in plan.groups.values():
        group.record = replace(group.record, strict=True)
    groups = {cls: group for cls, group in plan.groups.items() if _can_be_strict(group.forward)}
    late = [step for cls, group in plan.groups.items() if cls not in groups for step in group.steps()]
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
        steps.append(replace(step, forward=None, record=replace(step.record, own=own)))
    gone = {id(step.module) for step in late}
    return Plan(groups, steps, [one for one in plan.order if id(one) not in gone], plan.bound)


def _can_be_strict(forward: Forward) -> bool:
    weights = weights_protocol(forward)
    return weights is None or hasattr(weights, "strict")


# -- layers that are compiled ----------------------------------------------------------------------


def _begin_to_compile(plan: Plan, *, strict: bool) -> None:
    work: list[tuple[Forward | None, Sequence[nn.Module]]] = [
        *((group.forward, group.modules) for group in plan.groups.values()),
        *((step.forward, (step.module,)) for step in plan.steps),
    ]
    for forward, modules in work:
        if isinstance(forward, CompileOnCall):
            for module in modules:
                forward.begin(module, strict=strict)


def _as_compiled(step: Step) -> Step:
    """The step with what `verify`'s call has compiled."""
    own = step.record.own
    if isinstance(step.forward, CompileOnCall) and own is not None:
        decided = step.forward.decided(step.module, own)
        if decided is not None:
            forward, outcome = decided
            return replace(step, forward=forward, record=replace(step.record, own=outcome))
    return step


# -- apply ---------------------------------------------------------------------------------------


def _apply(plan: Plan, *, prepare: bool, free: bool) -> None:
    """Bind every kernel; on any error unbind what was bound and put back what was there before."""
    before = [
        (module, {name: module.__dict__.get(name) for name in ("forward", RECORD_ATTRIBUTE)})
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
    groups = {cls: (group.forward, group.record) for cls, group in plan.groups.items()}
    for module in plan.order:
        forward, record = groups[type(module)]
        state = module.__dict__
        current = state.get("forward")
        if current is not None and current.func is not forward:  # another kernel of ours
            _unbind(module)
            current = None
        if current is None:
            state["forward"] = KernelForward(forward, module)
        state[RECORD_ATTRIBUTE] = record


def _prepare_weights(plan: Plan, *, prepare: bool, free: bool) -> None:
    """Let kernels that pack weights pack them now, so that time and memory are spent where it shows."""
    work = [(group.forward, group.modules, group.record.strict) for group in plan.groups.values()]
    work += [
        (step.forward, [step.module], step.record.strict) for step in plan.steps if step.forward is not None
    ]
    if any(strict for _, _, strict in work):
        _ANY_STRICT.set()
    for forward, modules, strict in work:
        weights = weights_protocol(forward)
        if weights is None:
            continue
        for module in modules:
            if _ANY_STRICT.is_set() and hasattr(weights, "strict"):
                weights.strict(module, strict)
            if prepare:
                weights.prepare(module)
            (weights.free_originals if prepare and free else weights.restore_originals)(module)


def _bind(step: Step) -> None:
    state = step.module.__dict__
    current = state.get("forward")
    if type(current) is KernelForward and current.func is not step.forward:
        _unbind(step.module)
        current = None
    if step.forward is not None and current is None:
        state["forward"] = KernelForward(step.forward, step.module)
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
        del state["forward"]
    record = record_of(module)
    if record is not None:
        for name, _ in record.attributes:
            held = state.get(name)
            if type(held) is KernelFunction:
                state[name] = held.original
    state.pop(RECORD_ATTRIBUTE, None)


def _log(plan: Plan) -> None:
    """One INFO line a layer name, however many modules it serves."""
    used: Counter[Outcome] = Counter()
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
