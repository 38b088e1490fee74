"""From a class to its kernel: tag -> map -> resolve -> load -> validate, once per class and call.

`ClassResolver` answers for classes, not instances, so a model of 10,000 layers of four classes
resolves four times. What must be asked of every instance (a tag's condition, a mapping's `where`)
is handed on as predicates.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

from kernels_hub.errors import (
    KernelImportError,
    LayerContractError,
    MappingError,
    NoKernelError,
    RepositoryNotFoundError,
)
from kernels_hub.layer.bind import (
    Forward,
    LoadedLayer,
    bind_class_forward,
    bind_function,
    load_layer,
    object_name,
    overlay_globals,
)
from kernels_hub.layer.compile_on_call import AT_FIRST_CALL
from kernels_hub.layer.contract import original_function
from kernels_hub.layer.device import Target
from kernels_hub.layer.fallback import KernelizeFallback
from kernels_hub.layer.function_places import out_of_reach, referred, unseen_by_a_kernel
from kernels_hub.layer.mapping import ActiveMapping, Choice, Predicate, RuleDecision, choose_mode
from kernels_hub.layer.mode import Mode
from kernels_hub.layer.outcome import Outcome
from kernels_hub.layer.tag import CONDITION_ATTRIBUTE, NAME_ATTRIBUTE, find_tag
from kernels_hub.repository.compiled import CompiledLayer, missing_compiler
from kernels_hub.repository.refs import Reference

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
class Kernel:
    """What a name resolved to. Without `loaded`, `outcome.reason` says why not."""

    outcome: Outcome
    loaded: LoadedLayer | None = None
    choice: Choice | None = None


@dataclass(frozen=True)
class FunctionPlan:
    """A tagged function that a forward calls by a global name, or that an attribute holds."""

    name: str
    original: Forward
    outcome: Outcome
    kernel: Forward | None


@dataclass(frozen=True)
class ClassPlan:
    """What to do with every instance of a class that passes the checks."""

    own: Outcome | None
    """None where the class has no tag of its own."""
    forward: Forward | None = None
    loaded: LoadedLayer | None = None
    checks: tuple[Predicate, ...] = ()
    covers: tuple[str, ...] = ()
    functions: tuple[FunctionPlan, ...] = ()

    @property
    def idle(self) -> bool:
        """Nothing to do and nothing to report."""
        return self.own is None and not self.functions


class ClassResolver:
    """Resolves the classes of one model, for one mode, on one device, under one mapping.

    dry: report every failure as a reason instead of raising, and do not import kernels for
        hardware that is not here (`explain`).
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
    ) -> None:
        self._mapping = mapping
        self._rules = mapping.rules()
        self._target = target
        self._mode = mode
        self._fallback = fallback
        self._dry = dry
        self._importable = importable
        self._plans: dict[type, ClassPlan] = {}
        self._kernels: dict[tuple[Any, ...], Kernel] = {}
        self._functions: dict[int, tuple[Any, FunctionPlan]] = {}

    def plan(self, cls: type[nn.Module]) -> ClassPlan:
        """The plan for a class."""
        found = self._plans.get(cls)
        if found is None:
            found = self._plans[cls] = self._plan(cls)
        return found

    def _plan(self, cls: type[nn.Module]) -> ClassPlan:
        functions = self._called_functions(cls)
        named = self._name_of_class(cls)
        if named is None:
            return ClassPlan(None, functions=functions)
        if isinstance(named, Outcome):
            return ClassPlan(named, functions=functions)
        kernel = self._kernel(named)
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
        idle = tuple(
            replace(
                plan, kernel=None, outcome=_kept(plan.outcome, "its module's forward is replaced as a whole")
            )
            for plan in functions
        )
        return ClassPlan(own, forward, kernel.loaded, checks, choice.covers, idle)

    # -- names: which tag holds ------------------------------------------------------------------

    def _name_of_class(self, cls: type[nn.Module]) -> Named | Outcome | None:
        """The class's name for look-ups, or the reason to leave it alone, or None without a tag."""
        what = object_name(cls)
        for rule in self._rules:
            if (decision := rule.decide_class(cls)) is not None:
                return _named(decision, what)
        tag = find_tag(cls)
        if tag is None:
            return None
        if cls.forward is not tag.owner.forward:  # type: ignore[attr-defined]
            return Outcome(
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
        plans += [self.kept(name, function, reason) for name, function, reason in out_of_reach(cls)]
        return tuple(plans)

    def kept(self, name: str, function: Any, reason: str) -> FunctionPlan:
        """The plan for a tagged function that no kernel can take the place of."""
        tagged = function.func if isinstance(function, partial) else function
        return FunctionPlan(
            name, function, Outcome(str(getattr(tagged, NAME_ATTRIBUTE)), reason=reason), None
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

    def _plan_function(self, name: str, function: Any, named: Named | Outcome) -> FunctionPlan:
        if isinstance(named, Outcome):
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

    def _name_of_function(self, function: Any) -> Named | Outcome | None:
        if isinstance(function, partial):
            return self._name_of_function(function.func)
        what = object_name(original_function(function))
        for rule in self._rules:
            if (decision := rule.decide_function(function)) is not None:
                return _named(decision, what)
        layer_name = getattr(function, NAME_ATTRIBUTE, None)
        return None if layer_name is None else Named(str(layer_name), what)

    # -- kernels: what the mapping offers --------------------------------------------------------

    def _kernel(self, named: Named) -> Kernel:
        key = (named.layer_name,)
        found = self._kernels.get(key)
        if found is None:
            found = self._kernels[key] = self._select(named)
        return found

    def _select(self, named: Named) -> Kernel:
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

    def _load(self, named: Named, device: str, registered: Mode, choice: Choice) -> Kernel:
        source = choice.repository
        outcome = Outcome(
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
                return Kernel(_resolved_only(outcome, source, self._target), None, choice)
            loaded = load_layer(source, self._target.type)
        except (RepositoryNotFoundError, KernelImportError, OSError) as error:
            if KernelizeFallback.CANNOT_LOAD not in self._fallback:
                raise
            return Kernel(_kept(outcome, f"its kernel cannot be loaded: {error}"))
        except LayerContractError as error:
            if not self._dry:
                raise
            return Kernel(_kept(outcome, f"would raise LayerContractError: {error}"))
        if loaded.resolved is not None:
            outcome = replace(
                outcome,
                repository=loaded.resolved.repository,
                revision=loaded.resolved.revision,
                variant=loaded.resolved.files.variant,
            )
        if problem := _unsupported(loaded, registered):
            text = f"{source} is registered for {named.layer_name!r} with mode {registered}, but it {problem}"
            if not self._dry:
                raise MappingError(f"{text}; register it for another mode")
            return Kernel(_kept(outcome, f"would raise MappingError: {text}"))
        if problem := _unsupported(loaded, self._mode):
            return self._none(named, KernelizeFallback.NO_COMPATIBLE_MODE, f"{source} {problem}", outcome)
        return Kernel(outcome, loaded, choice)

    def _none(
        self, named: Named, case: KernelizeFallback, reason: str, outcome: Outcome | None = None
    ) -> Kernel:
        if case not in self._fallback:
            raise NoKernelError(
                f"{named.what}: {reason}. Map one with register_kernel_mapping, "
                f"or allow the original forward with use_fallback=True or KernelizeFallback.{case.name}"
            )
        return Kernel(_kept(outcome or Outcome(named.layer_name), reason))


def _named(decision: RuleDecision, what: str) -> Named | Outcome:
    if decision.reason is not None:
        return Outcome(decision.layer_name, reason=decision.reason)
    return Named(
        decision.layer_name,
        what,
        decision.positional,
        (decision.where,) if decision.where is not None else (),
    )


def _kept(outcome: Outcome, reason: str) -> Outcome:
    return replace(outcome, swapped=False, reason=reason)


def _condition_check(condition: Callable[[Any], bool]) -> Predicate:
    def check(module: nn.Module) -> str | None:
        return None if condition(module) else "the condition of its tag does not hold"

    return check


def _may_be_tagged(value: Any) -> bool:
    """A function, or an instance of a class with a tag (HF `kernels` wraps functions so); no class."""
    return inspect.isfunction(value) or (
        not inspect.isclass(value)
        and CONDITION_ATTRIBUTE in type(value).__dict__
        and hasattr(value, "forward")
    )


def _unsupported(loaded: LoadedLayer, mode: Mode) -> str | None:
    if Mode.TRAINING in mode and not loaded.has_backward:
        return "has no backward (has_backward is False)"
    if Mode.TORCH_COMPILE in mode and not loaded.can_torch_compile:
        return "does not support torch.compile (can_torch_compile is False)"
    return None


def _resolved_only(outcome: Outcome, source: Any, target: Target) -> Outcome:
    if not isinstance(source, Reference):
        return outcome
    found = source.preview(target.type)
    return replace(outcome, repository=found.repository, revision=found.revision, variant=found.variant)


def overlay_forward(cls: type[nn.Module], plans: tuple[FunctionPlan, ...]) -> Forward | None:
    """A forward of `cls` that calls the kernels of `plans`; None where none has one."""
    kernels = {plan.name: plan.kernel for plan in plans if plan.kernel is not None}
    forward = cls.forward
    return overlay_globals(forward, kernels) if kernels and isinstance(forward, FunctionType) else None
