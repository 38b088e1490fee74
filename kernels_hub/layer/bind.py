"""Bind a kernel to one module: the forward that `kernelize` puts there, and nothing else.

Only the instance changes: its `__dict__["forward"]`. The class, other instances and other models
never do, functions included: a module whose forward calls a replaced function gets a copy of that
forward over globals in which the function's name means the kernel.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from kernels_hub.errors import KernelsHubError, LayerContractError
from kernels_hub.layer.contract import original_function
from kernels_hub.layer.mapping import LayerSource
from kernels_hub.layer.outcome import Outcome, Record
from kernels_hub.layer.validate import check_layer_class, check_signature, parameters_of, same_arity
from kernels_hub.repository.compiled import CompiledLayer
from kernels_hub.repository.refs import Reference, find_layer
from kernels_hub.repository.resolved import ResolvedKernel

if TYPE_CHECKING:
    from torch import nn

    from kernels_hub.layer.compile_on_call import PendingLayer

logger = logging.getLogger("kernels_hub")

Forward = Callable[..., Any]


@dataclass(frozen=True)
class LoadedLayer:
    """A layer that was imported and passed the layer contract."""

    layer: Any
    """An nn.Module class, or a plain function."""
    forward: Forward
    """Takes the module first, where the layer is a class."""
    package: ModuleType | None
    resolved: ResolvedKernel | None

    @property
    def has_backward(self) -> bool:
        """Its flag; a layer that does not say has one."""
        return bool(getattr(self.layer, "has_backward", True))

    @property
    def can_torch_compile(self) -> bool:
        """Its flag; a layer that does not say cannot."""
        return bool(getattr(self.layer, "can_torch_compile", False))

    @property
    def pending(self) -> PendingLayer | None:
        """What stands for the layer until a module is called; None where the layer is there."""
        from kernels_hub.layer.compile_on_call import PendingLayer

        return self.layer if isinstance(self.layer, PendingLayer) else None

    @property
    def is_class(self) -> bool:
        """Whether it is a layer class, not a plain function."""
        return inspect.isclass(self.layer)


def load_layer(source: LayerSource, backend: str) -> LoadedLayer:
    """Import a layer for a device type and check its class. The signature is the caller's to check.

    Sources of other libraries, which only have `load()`, work as well.
    """
    if isinstance(source, CompiledLayer):
        from kernels_hub.layer.compile_on_call import PendingLayer

        return LoadedLayer(PendingLayer(source, backend), source.load, None, None)
    if isinstance(source, Reference):
        resolved = source.resolve(backend)
        package = resolved.load()
        layer = find_layer(package, source.layer_name, resolved.repository)
    else:
        resolved, package, layer = None, None, source.load()
    if inspect.isfunction(layer):
        return LoadedLayer(layer, layer, package, resolved)
    check_layer_class(layer, str(source))
    return LoadedLayer(layer, layer.forward, package, resolved)


class KernelForward(functools.partial):  # type: ignore[type-arg]
    """A forward bound to its module: as cheap to call as a bound method, and it pickles.

    It pickles as its module and the record of the decision; unpickling loads the kernel again.
    """

    lost: str | None = None
    """Why the kernel could not be loaded again after unpickling; the original forward runs then."""

    # What libraries that wrap a forward (accelerate, PEFT) ask a bound method for.

    @property
    def __self__(self) -> nn.Module:
        """The module that it is bound to."""
        module: nn.Module = self.args[0]
        return module

    @property
    def __func__(self) -> Forward:
        """The kernel, which takes the module first."""
        function: Forward = self.func
        return function

    @property
    def __name__(self) -> str:
        return "forward"

    @property
    def __wrapped__(self) -> Forward:
        """What the kernel wraps, as a bound method answers; AttributeError where it wraps nothing."""
        function: Any = self.func
        wrapped: Forward = function.__wrapped__
        return wrapped

    def __reduce__(self) -> tuple[Any, ...]:
        from kernels_hub.layer.outcome import record_of

        return _rebind, (self.args[0], record_of(self.args[0]))


class KernelFunction(functools.partial):  # type: ignore[type-arg]
    """A kernel in the place of a function that a module holds as an attribute; it pickles as well."""

    original: Forward
    outcome: Outcome

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebind_function, (self.original, self.outcome)


def bind_class_forward(loaded: LoadedLayer, cls: type[nn.Module], positional: bool, name: str) -> Forward:
    """The kernel's forward with the signature of `cls.forward`. Raises LayerContractError."""
    if (pending := loaded.pending) is not None:
        return pending.forward_for(cls)
    replaced = f"{cls.__module__}.{cls.__qualname__}.forward"
    (same_arity if positional else check_signature)(loaded.layer, cls, name, replaced)
    forward = loaded.forward if loaded.is_class else _with_self(loaded.forward)
    same_names = [one.name for one in parameters_of(cls)] == [one.name for one in parameters_of(loaded.layer)]
    return forward if same_names else _renamed(forward, cls)  # type: ignore[arg-type]  # a class can be hashed


def bind_function(loaded: LoadedLayer, function: Forward, positional: bool, name: str) -> Forward:
    """The kernel as a function with the signature of `function`. Raises LayerContractError."""
    if isinstance(function, functools.partial):
        kernel = bind_function(loaded, function.func, positional, name)
        return functools.partial(kernel, *function.args, **function.keywords)
    target = original_function(function)
    replaced = object_name(target)
    if loaded.pending is not None:
        raise LayerContractError(
            f"{name} cannot replace the function {replaced}: modules are compiled, not functions"
        )
    (same_arity if positional else check_signature)(loaded.layer, target, name, replaced)
    return functools.partial(loaded.forward, loaded.layer()) if loaded.is_class else loaded.forward


def object_name(value: Any) -> str:
    """Where a class, a function, or the class of another object was defined."""
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def called_names(function: FunctionType) -> set[str]:
    """Global names that a function's code, nested code included, refers to."""
    names: set[str] = set()
    pending: list[CodeType] = [function.__code__]
    while pending:
        code = pending.pop()
        names.update(code.co_names)
        pending.extend(constant for constant in code.co_consts if isinstance(constant, CodeType))
    return names


def overlay_globals(forward: FunctionType, replacements: Mapping[str, Forward]) -> FunctionType:
    """A copy of `forward` that sees `replacements` in place of the globals and closed-over variables of those names."""
    globals_ = {**forward.__globals__, **replacements}
    # torch.compile looks globals up in the module that `__name__` names; without it, in this dict.
    globals_.pop("__name__", None)
    copy = FunctionType(
        forward.__code__,
        globals_,
        forward.__name__,
        forward.__defaults__,
        _overlay_cells(forward, replacements),
    )
    copy.__kwdefaults__ = forward.__kwdefaults__
    _label(copy, forward)
    return copy


def _overlay_cells(forward: FunctionType, replacements: Mapping[str, Forward]) -> tuple[CellType, ...] | None:
    if forward.__closure__ is None:
        return None
    named = zip(forward.__code__.co_freevars, forward.__closure__, strict=True)
    return tuple(CellType(replacements[name]) if name in replacements else cell for name, cell in named)


def _with_self(function: Forward) -> Forward:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG001
        return function(*args, **kwargs)

    _label(forward, function)
    return forward


@functools.lru_cache(maxsize=4096)
def _renamed(forward: Forward, cls: type[nn.Module]) -> Forward:
    """`forward` under the argument names of a class's, so that calls by keyword keep working."""
    namespace: dict[str, Any] = {"kernel_forward": forward}
    signature, arguments = [], []
    for index, parameter in enumerate(parameters_of(cls)):
        default = ""
        if parameter.default is not inspect.Parameter.empty:
            namespace[f"default_{index}"] = parameter.default
            default = f"=default_{index}"
        signature.append(parameter.name + default)
        arguments.append(parameter.name)
    exec(  # noqa: S102 - the names come from a real signature, so they are identifiers
        f"def forward(self, {', '.join(signature)}):\n    return kernel_forward(self, {', '.join(arguments)})\n",
        namespace,
    )
    renamed: Forward = namespace["forward"]
    _label(renamed, forward)
    return renamed


def _label(function: Any, original: Forward) -> None:
    """Give `function` the names of `original`; without `__wrapped__`, which torch.compile would follow."""
    function.__module__, function.__qualname__ = original.__module__, original.__qualname__
    function.__doc__ = original.__doc__


@functools.lru_cache(maxsize=4096)
def _loaded_again(source: Any, backend: str) -> LoadedLayer:
    return load_layer(source, backend)


def _rebind(module: nn.Module, record: Record | None) -> Any:
    """Unpickle a KernelForward. `module` is still empty here: only its class may be used."""
    cls = type(module)
    try:
        if record is None:
            raise KernelsHubError("its record of the decision is gone")
        forward = forward_of_record(record, cls)
        weights = weights_protocol(forward)
        if record.strict and weights is not None and hasattr(weights, "strict"):
            weights.strict(module, True)
        return KernelForward(forward, module)
    except (KernelsHubError, ImportError) as error:
        bound = KernelForward(cls.forward, module)
        bound.lost = f"the kernel could not be loaded again: {error}"
        logger.warning("%s keeps its original forward: %s", cls.__qualname__, bound.lost)
        return bound


def forward_of_record(record: Record, cls: type[nn.Module]) -> Forward:
    """Load what a record refers to and bind it for a class again."""
    own = record.own
    if own is not None and own.swapped:
        assert own.source is not None and own.target is not None
        return bind_class_forward(
            _loaded_again(own.source, own.target.type), cls, own.positional, str(own.source)
        )
    from kernels_hub.layer.function_places import referred_as

    forward = cls.forward
    assert isinstance(forward, FunctionType)
    kernels = {
        name: _function_of_outcome(referred_as(forward, name), outcome)
        for name, outcome in record.functions
        if outcome.swapped
    }
    return overlay_globals(forward, kernels)


def _function_of_outcome(function: Forward, outcome: Outcome) -> Forward:
    assert outcome.source is not None and outcome.target is not None
    loaded = _loaded_again(outcome.source, outcome.target.type)
    return bind_function(loaded, function, outcome.positional, str(outcome.source))


def _rebind_function(original: Forward, outcome: Outcome) -> Forward:
    try:
        return kernel_function(_function_of_outcome(original, outcome), original, outcome)
    except (KernelsHubError, ImportError) as error:
        logger.warning(
            "function %s stays as it was: its kernel could not be loaded again: %s", original, error
        )
        return original


def kernel_function(kernel: Forward, original: Forward, outcome: Outcome) -> KernelFunction:
    """A KernelFunction that runs `kernel`."""
    function = KernelFunction(kernel)
    function.original, function.outcome = original, outcome
    return function


def weights_protocol(forward: Forward) -> Any | None:
    """The `weights` module of the kernel that a forward belongs to; None where it packs nothing.

    A kernel that keeps packed copies of weights exports a module `weights` with the functions
    `prepare(module)`, `packed_nbytes(module)`, `free_originals(module)`, `restore_originals(module)`
    and `release(module)`, which restores and drops the copies; and, from release 0.2 on, `refresh(module)`, which
    compares all copies with the weights and makes them again where they differ, and `strict(module, on)`, which has
    that done at every call, and takes a module that is still empty as well. A forward that stands for several kernels
    has them in `kernel_weights`.
    """
    if (own := getattr(forward, "kernel_weights", None)) is not None:
        return own
    package = sys.modules.get(getattr(forward, "__module__", "").partition(".")[0])
    weights = getattr(package, "weights", None)
    return weights if hasattr(weights, "packed_nbytes") else None
