"""From a class to its kernel: tag -> map -> resolve -> load -> validate, once per class and call.

`ClassResolver` answers for classes, not instances, so a model of 10,000 layers of four classes
resolves four times. What must be asked of every instance (a tag's condition, a mapping's `where`)
is handed on as predicates.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

from kernels_hub.errors import (
    KernelImportError,
    KernelsHubError,
    LayerContractError,
    MappingError,
    NoKernelError,
    RepositoryNotFoundError,
)
from kernels_hub.hub.references import Reference
from kernels_hub.kernelization.bind import (
    Forward,
    LoadedLayer,
    bind_class_forward,
    bind_function,
    holds_weights_twice,
    object_name,
    overlaid_forward,
    package_of,
)
from kernels_hub.kernelization.chain_heads import Followed
from kernels_hub.kernelization.chains import Place, followers_in, layer_of_both, with_chains
from kernels_hub.kernelization.compiled_layer import CompiledLayer, missing_compiler
from kernels_hub.kernelization.contract import original_function
from kernels_hub.kernelization.covered_modules import ALL
from kernels_hub.kernelization.device import Target
from kernels_hub.kernelization.fallback import KernelizeFallback
from kernels_hub.kernelization.function_places import (
    attribute_names,
    out_of_reach,
    referred,
    unseen_by_a_kernel,
)
from kernels_hub.kernelization.gain_gate import (
    GainGate,
    Sizes,
    Verdict,
    asks_for_gains,
    tries_gains,
)
from kernels_hub.kernelization.jit import AT_FIRST_CALL
from kernels_hub.kernelization.mapping_records import (
    ActiveMapping,
    Choice,
    Predicate,
    RuleDecision,
    choose_mode,
)
from kernels_hub.kernelization.mode import Mode
from kernels_hub.kernelization.native_builds import until_built
from kernels_hub.kernelization.outcome import SwapDecision
from kernels_hub.kernelization.rebind import gated_by_size, load_source
from kernels_hub.kernelization.tag import CONDITION_ATTRIBUTE, NAME_ATTRIBUTE, find_tag
from kernels_hub.kernelization.validate import has_no_forward

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Named:
    """A tagged class or function: the name to look up, and how its arguments correspond."""

    layer_name: str
    what: str
    """As messages call it."""
    positional: bool = False
    checks: tuple[Predicate, ...] = ()


@dataclass(frozen=True)
class ResolvedKernel:
    """What a name resolved to. Without `loaded`, `outcome.reason` says why not."""

    outcome: SwapDecision
    loaded: LoadedLayer | None = None
    choice: Choice | None = None


@dataclass(frozen=True)
class FunctionPlan:
    """A tagged function that a forward calls by a global name, or that an attribute holds."""

    name: str
    original: Forward
    outcome: SwapDecision
    kernel: Forward | None


@dataclass(frozen=True)
class ClassPlan:
    """What to do with every instance of a class that passes the checks."""

    own: SwapDecision | None
    """None where the class has no tag of its own."""
    forward: Forward | None = None
    loaded: LoadedLayer | None = None
    checks: tuple[Predicate, ...] = ()
    covers: tuple[str, ...] = ()
    functions: tuple[FunctionPlan, ...] = ()
    decided: Callable[[nn.Module], ClassPlan] | None = None
    """The plan for one instance, by what its kernel is known to gain; None where that does not matter."""
    idle: bool = field(init=False)
    """Nothing to do and nothing to report. A field: it is asked once a module."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "idle", self.own is None and not self.functions)


class ClassResolver:
    """Resolves the classes of one model, for one mode, on one device, under one mapping.

    dry: report every failure as a reason instead of raising, and do not import kernels for
        hardware that is not here (`explain`).
    keeps_originals: original forwards can run until the native code of their kernels is built.
    tries: kernels whose gain is unknown are tried at calls.
    frees: weights are to be held once.
    """

    def __init__(
        self,
        mapping: ActiveMapping,
        target: Target,
        mode: Mode,
        fallback: KernelizeFallback,
        *,
        dry: bool = False,
        importable: bool = True,
        keeps_originals: bool = False,
        tries: bool = False,
        frees: bool = False,
        model: nn.Module | None = None,
    ) -> None:
        self._mapping = mapping
        self._rules = mapping.rules()
        self._target = target
        self._mode = mode
        self._fallback = fallback
        self._dry = dry
        self._importable = importable
        self._keeps_originals = keeps_originals
        self._frees = frees
        is_called = Mode.INFERENCE in mode and Mode.TORCH_COMPILE not in mode
        self._tries = tries and is_called and tries_gains()
        self._followed = Followed(model) if is_called and model is not None else None
        self.gains = GainGate(model)
        """What is known of kernels that run only where they are faster, and what was missed."""
        self._plans: dict[type, ClassPlan] = {}
        self._placed: dict[type, ClassPlan] = {}
        self._by_place = next((one for rule in self._rules if (one := getattr(rule, "by_place", None))), None)
        self._kernels: dict[tuple[Any, ...], ResolvedKernel] = {}
        self._functions: dict[int, tuple[Any, FunctionPlan]] = {}

    def plan(self, cls: type[nn.Module]) -> ClassPlan:
        """The plan for a class."""
        class_plan = self._plans.get(cls)
        if class_plan is None:
            class_plan = self._plans[cls] = self._plan(cls, self._name_of_class(cls))
        return class_plan

    @property
    def levels(self) -> int:
        """How many levels of the model are tagged by their place; 0 where none is."""
        return 0 if self._by_place is None else self._by_place.levels

    def plan_by_place(self, cls: type[nn.Module]) -> ClassPlan:
        """The plan for the modules of a class on one of those levels: that of the class where it has a kernel."""
        class_plan = self.plan(cls)
        if self._by_place is None or (class_plan.own is not None and class_plan.own.swapped):
            return class_plan
        placed = self._placed.get(cls)
        if placed is None:
            named = _named(self._by_place.decide(None), object_name(cls))
            placed = self._plan(cls, named)
            if placed.own is None or not placed.own.swapped:
                placed = class_plan
            self._placed[cls] = placed
        return placed

    def _plan(self, cls: type[nn.Module], named: Named | SwapDecision | None) -> ClassPlan:
        functions = self._called_functions(cls)
        if named is None:
            return ClassPlan(None, functions=functions)
        if isinstance(named, SwapDecision):
            return ClassPlan(named, functions=functions)
        try:
            kernel = self._kernel(named)
        except KernelsHubError as error:
            if not named.checks:
                raise
            # An instance that the condition keeps out needs no kernel; all others raise.
            own = SwapDecision(named.layer_name, swapped=True)
            return ClassPlan(own, checks=named.checks, functions=functions, decided=_raising(error))
        own = replace(kernel.outcome, positional=named.positional)
        if not own.swapped:
            return ClassPlan(own, functions=functions)
        choice = kernel.choice
        assert choice is not None
        checks = (*named.checks, *((choice.where,) if choice.where else ()))
        if kernel.loaded is None:  # a dry run for hardware that is not here
            return ClassPlan(own, None, None, checks, choice.covers, functions)
        try:
            forward = bind_class_forward(kernel.loaded, cls, named.positional, str(choice.repository))
        except LayerContractError as error:
            if not self._dry:
                raise
            return ClassPlan(_kept(own, f"would raise LayerContractError: {error}"), functions=functions)
        if (
            self._keeps_originals
            and Mode.TORCH_COMPILE not in self._mode  # Dynamo traces kernels, not what is built
            and not getattr(kernel.loaded.forward, "runs_unbuilt", False)
        ):
            forward = until_built(forward, cls)
        if self._frees and choice.covers and holds_weights_twice(forward):
            reason = (
                "kept: its kernel needs its weights beside copies of them, which free_weights=True rules out"
            )
            return ClassPlan(_kept(own, reason), functions=functions)
        idle = tuple(
            replace(
                plan, kernel=None, outcome=_kept(plan.outcome, "its module's forward is replaced as a whole")
            )
            for plan in functions
        )
        plan = ClassPlan(own, forward, kernel.loaded, checks, choice.covers, idle)
        if choice.measured and asks_for_gains():
            return replace(plan, decided=self._by_gain(cls, plan, functions))
        return plan

    def _by_gain(
        self, cls: type[nn.Module], plan: ClassPlan, functions: tuple[FunctionPlan, ...]
    ) -> Callable[[nn.Module], ClassPlan]:
        """For an instance: the plan with its kernel, gated by the rows, or with the original forward."""
        own, forward = plan.own, plan.forward
        assert own is not None and forward is not None
        plans: dict[int, tuple[Verdict, ClassPlan]] = {}
        protocol = followers_in(package_of(forward))

        def decided(module: nn.Module) -> ClassPlan:
            follower = None if self._followed is None or protocol is None else self._followed.by(module)
            both = None if follower is None else layer_of_both(protocol, module, follower)
            verdict = self.gains.decide(str(own.layer_name), module, both)
            known = plans.get(id(verdict))
            if known is not None:
                return known[1]
            if verdict.reason is not None:
                tried = self._tried(cls, plan, verdict, functions)
                reason = f"{verdict.reason}; tried at its first calls" if tried else verdict.reason
                kept = replace(_kept(own, reason), gain=verdict.gain)
                found = ClassPlan(kept, tried, plan.loaded if tried else None, plan.checks, (), functions)
            elif verdict.gain is not None and verdict.gain.for_all_rows:
                found = replace(plan, own=replace(own, gain=verdict.gain), decided=None)
            else:
                swapped = replace(own, gain=verdict.gain, sizes=verdict.sizes)
                outcomes = tuple((function.name, function.outcome) for function in functions)
                gated = gated_by_size(forward, cls, verdict.sizes, outcomes)  # type: ignore[arg-type]  # a class can be hashed
                # Calls that leave a whole layer to its original run the kernels of what is inside of it.
                covers = () if ALL in plan.covers else plan.covers
                found = replace(
                    plan, own=swapped, forward=gated, covers=covers, functions=functions, decided=None
                )
            plans[id(verdict)] = (verdict, found)
            return found

        return decided

    def _tried(
        self, cls: type[nn.Module], plan: ClassPlan, verdict: Verdict, functions: tuple[FunctionPlan, ...]
    ) -> Forward | None:
        """The forward of modules whose kernel is tried at their calls; None where it is not."""
        kernel, own = plan.forward, plan.own
        inside = plan.covers or any(function.kernel is not None for function in functions)
        if verdict.unknown is None or not self._tries or inside or kernel is None or own is None:
            return None
        from kernels_hub.kernelization.gain_trial import GainTrial, tried_forward

        def gated(sizes: Sizes) -> Forward:
            return gated_by_size(kernel, cls, sizes, ())  # type: ignore[arg-type]  # a class can be hashed

        keeps = not self.gains.reads_memory
        return tried_forward(GainTrial(kernel, own, *verdict.unknown, self.gains.machine, gated, keeps), cls)

    # -- names: which tag holds ------------------------------------------------------------------

    def _name_of_class(self, cls: type[nn.Module]) -> Named | SwapDecision | None:
        """The class's name for look-ups, or the reason to leave it alone, or None without a tag."""
        what = object_name(cls)
        for rule in self._rules:
            if (decision := rule.decide_class(cls)) is not None:
                if decision.reason is None and has_no_forward(cls):
                    reason = f"{cls.__qualname__} has no forward, its instances have their own"
                    return (
                        SwapDecision(decision.layer_name, reason=reason) if decision.where is None else None
                    )
                return _named(decision, what)
        tag = find_tag(cls)
        if tag is None:
            return None
        if cls.forward is not tag.owner.forward:  # type: ignore[attr-defined]
            return SwapDecision(
                tag.layer_name,
                reason=f"{cls.__qualname__} has a forward of its own; the tag belongs to {tag.owner.__qualname__}",
            )
        return Named(tag.layer_name, what, checks=(_condition_check(tag.condition),) if tag.condition else ())

    def _called_functions(self, cls: type[nn.Module]) -> tuple[FunctionPlan, ...]:
        forward = getattr(cls, "forward", None)  # a class of TorchScript has none
        if not isinstance(forward, FunctionType):
            return ()
        plans = [
            plan
            for name, value in referred(forward)
            if _may_be_tagged(value) and (plan := self.function(name, value)) is not None
        ]
        if plans:
            attributes = attribute_names(forward)
            plans = [_without_attribute(plan) if plan.name in attributes else plan for plan in plans]
        plans += [self.kept(name, function, reason) for name, function, reason in out_of_reach(cls)]
        return tuple(plans)

    def kept(self, name: str, function: Any, reason: str) -> FunctionPlan:
        """The plan for a tagged function that no kernel can take the place of."""
        tagged = function.func if isinstance(function, partial) else function
        return FunctionPlan(
            name, function, SwapDecision(str(getattr(tagged, NAME_ATTRIBUTE)), reason=reason), None
        )

    def function(self, name: str, function: Any) -> FunctionPlan | None:
        """The plan for a function, None where it has no tag. `function` may be a wrapper module."""
        cached = self._functions.get(id(function))
        if cached is not None and cached[0] is function:
            return replace(cached[1], name=name)
        named = self._name_of_function(function)
        if named is None:
            return None
        plan = self._plan_function(name, function, named)
        self._functions[id(function)] = (function, plan)
        return plan

    def _plan_function(self, name: str, function: Any, named: Named | SwapDecision) -> FunctionPlan:
        if isinstance(named, SwapDecision):
            return FunctionPlan(name, function, named, None)
        kernel = self._kernel(named)
        outcome = replace(kernel.outcome, positional=named.positional)
        if outcome.swapped and (reason := unseen_by_a_kernel(function)) is not None:
            return FunctionPlan(name, function, _kept(outcome, reason), None)
        if kernel.loaded is None:
            return FunctionPlan(name, function, outcome, None)
        assert kernel.choice is not None
        try:
            bound = bind_function(kernel.loaded, function, named.positional, str(kernel.choice.repository))
        except LayerContractError as error:
            if not self._dry:
                raise
            return FunctionPlan(
                name, function, _kept(outcome, f"would raise LayerContractError: {error}"), None
            )
        return FunctionPlan(name, function, outcome, bound)

    def _name_of_function(self, function: Any) -> Named | SwapDecision | None:
        if isinstance(function, partial):
            return self._name_of_function(function.func)
        what = object_name(original_function(function))
        for rule in self._rules:
            if (decision := rule.decide_function(function)) is not None:
                return _named(decision, what)
        layer_name = getattr(function, NAME_ATTRIBUTE, None)
        return None if layer_name is None else Named(str(layer_name), what)

    # -- kernels: what the mapping offers --------------------------------------------------------

    def _kernel(self, named: Named) -> ResolvedKernel:
        key = (named.layer_name,)
        loaded = self._kernels.get(key)
        if loaded is None:
            loaded = self._kernels[key] = self._select(named)
        return loaded

    def _select(self, named: Named) -> ResolvedKernel:
        name, target, mode = named.layer_name, self._target, self._mode
        known = self._mapping.devices(name)
        if not known:
            return self._none(named, KernelizeFallback.NO_LAYER, f"no kernel is mapped for {name!r}")
        mapped = ", ".join(dict.fromkeys(str(entry.device) for entry in known))
        entry = self._mapping.find(name, target)
        if entry is None and all(other.device.type != target.type for other in known):
            return self._none(
                named,
                KernelizeFallback.NO_DEVICE,
                f"{name!r} has no kernel for {target.type}; it is mapped for {mapped}",
            )
        if entry is None:
            return self._none(
                named,
                KernelizeFallback.NO_COMPATIBLE_PROPERTIES,
                f"no kernel of {name!r} fits {target}; it is mapped for {mapped}",
            )
        chosen = choose_mode(entry.modes, mode)
        if chosen is None:
            offered = ", ".join(sorted(str(registered) for registered in entry.modes))
            return self._none(
                named,
                KernelizeFallback.NO_COMPATIBLE_MODE,
                f"{name!r} on {entry.device} is mapped for {offered} only, not for {mode}",
            )
        return self._load(named, str(entry.device), *chosen)

    def _load(self, named: Named, device: str, registered: Mode, choice: Choice) -> ResolvedKernel:
        source = choice.repository
        outcome = SwapDecision(
            named.layer_name,
            swapped=True,
            repository=str(source),
            device=device,
            mode=registered,
            source=source,
            target=self._target,
        )
        if isinstance(source, CompiledLayer):
            if problem := missing_compiler(self._target.type):
                return self._none(named, KernelizeFallback.NO_DEVICE, problem, outcome)
            outcome = replace(outcome, variant=f"would be {AT_FIRST_CALL}" if self._dry else AT_FIRST_CALL)
        try:
            if not self._importable:
                return ResolvedKernel(_resolved_only(outcome, source, self._target), None, choice)
            loaded = load_source(source, self._target.type)
        except (RepositoryNotFoundError, KernelImportError, OSError) as error:
            if KernelizeFallback.CANNOT_LOAD not in self._fallback:
                raise
            return ResolvedKernel(_kept(outcome, f"its kernel cannot be loaded: {error}"))
        except LayerContractError as error:
            if not self._dry:
                raise
            return ResolvedKernel(_kept(outcome, f"would raise LayerContractError: {error}"))
        if loaded.resolved is not None:
            outcome = replace(
                outcome,
                repository=loaded.resolved.repository,
                revision=loaded.resolved.revision,
                variant=loaded.resolved.files.variant,
                served_by=loaded.resolved.served_by,
            )
        if problem := _unsupported(loaded, registered):
            text = f"{source} is registered for {named.layer_name!r} with mode {registered}, but it {problem}"
            if not self._dry:
                raise MappingError(f"{text}; register it for another mode")
            return ResolvedKernel(_kept(outcome, f"would raise MappingError: {text}"))
        if problem := _unsupported(loaded, self._mode):
            return self._none(named, KernelizeFallback.NO_COMPATIBLE_MODE, f"{source} {problem}", outcome)
        return ResolvedKernel(outcome, loaded, choice)

    def _none(
        self, named: Named, case: KernelizeFallback, reason: str, outcome: SwapDecision | None = None
    ) -> ResolvedKernel:
        if case not in self._fallback:
            raise NoKernelError(
                f"{named.what}: {reason}. Map one with register_kernel_mapping, "
                f"or allow the original forward with use_fallback=True or KernelizeFallback.{case.name}"
            )
        return ResolvedKernel(_kept(outcome or SwapDecision(named.layer_name), reason))


def _raising(error: KernelsHubError) -> Callable[[nn.Module], ClassPlan]:
    def decided(_: nn.Module) -> ClassPlan:
        raise error

    return decided


def _named(decision: RuleDecision, what: str) -> Named | SwapDecision:
    if decision.reason is not None:
        return SwapDecision(decision.layer_name, reason=decision.reason)
    return Named(
        decision.layer_name,
        what,
        decision.positional,
        (decision.where,) if decision.where is not None else (),
    )


def _without_attribute(plan: FunctionPlan) -> FunctionPlan:
    reason = f"its forward has {plan.name} for the name of an attribute, too"
    return replace(plan, kernel=None, outcome=_kept(plan.outcome, reason)) if plan.kernel else plan


def _kept(outcome: SwapDecision, reason: str) -> SwapDecision:
    return replace(outcome, swapped=False, reason=reason)


def _condition_check(condition: Callable[[Any], bool]) -> Predicate:
    def check(module: nn.Module) -> str | None:
        return None if condition(module) else "the condition of its tag does not hold"

    return check


def _may_be_tagged(value: Any) -> bool:
    """A function, or an instance of a class with a tag (HF `kernels` wraps functions so); no class."""
    return inspect.isfunction(value) or (
        not inspect.isclass(value)
        and "<locals>"
        in type(value).__qualname__  # of that library's own making: no layer that a module holds
        and CONDITION_ATTRIBUTE in type(value).__dict__
        and hasattr(value, "forward")
    )


def _unsupported(loaded: LoadedLayer, mode: Mode) -> str | None:
    if Mode.TRAINING in mode and not loaded.has_backward:
        return "has no backward (has_backward is False)"
    if Mode.TORCH_COMPILE in mode and not loaded.can_torch_compile:
        return "does not support torch.compile (can_torch_compile is False)"
    return None


def _resolved_only(outcome: SwapDecision, source: Any, target: Target) -> SwapDecision:
    if not isinstance(source, Reference):
        return outcome
    found = source.preview(target.type)
    return replace(outcome, repository=found.repository, revision=found.revision, variant=found.variant)


def overlay_forward(
    cls: type[nn.Module], plans: tuple[FunctionPlan, ...], places: tuple[Place, ...] = ()
) -> Forward | None:
    """A forward of `cls` that calls the kernels of `plans`, and chains of its children as one; None without either."""
    kernels = {plan.name: plan.kernel for plan in plans if plan.kernel is not None}
    if not isinstance(cls.forward, FunctionType) or not (kernels or places):
        return None
    return overlaid_forward(cls, kernels, with_chains(cls, places) if places else None)
