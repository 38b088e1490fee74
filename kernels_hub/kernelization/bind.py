"""Bind a kernel to one module: the forward that `kernelize` puts there, and nothing else.

Only the instance changes: its `__dict__["forward"]`, and how it is copied (`copying`). The class, other instances and
other models never do, functions included: a module whose forward calls a replaced function gets a copy of that
forward over globals in which the function's name means the kernel.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CellType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from kernels_hub.errors import LayerContractError
from kernels_hub.hub.references import Reference, find_layer
from kernels_hub.kernelization.contract import original_function
from kernels_hub.kernelization.decoration import inner_function, kept_around, with_inner
from kernels_hub.kernelization.function_places import referred_by_itself
from kernels_hub.kernelization.mapping_records import LayerSource
from kernels_hub.kernelization.outcome import SwapDecision
from kernels_hub.kernelization.validate import check_layer_class, check_signature, parameters_of, same_arity
from kernels_hub.repository.resolved import ResolvedKernel

if TYPE_CHECKING:
    from torch import nn

logger = logging.getLogger(__name__)

Forward = Callable[..., Any]


@runtime_checkable
class Pending(Protocol):
    """Stands for a layer that is made when a module of a class is called."""

    def forward_for(self, cls: type[nn.Module]) -> Forward:
        """The forward of a class's modules until then; the same for the same class."""


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
    def pending(self) -> Pending | None:
        """What stands for the layer until a module is called; None where the layer is there."""
        return self.layer if isinstance(self.layer, Pending) and not self.is_class else None

    @property
    def is_class(self) -> bool:
        """Whether it is a layer class, not a plain function."""
        return inspect.isclass(self.layer)


def load_layer(source: LayerSource, backend: str) -> LoadedLayer:
    """Import a layer for a device type and check its class. The signature is the caller's to check.

    Sources of other libraries, which only have `load()`, work as well.
    """
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

    It pickles as its module and the record of the decision; unpickling loads the kernel again, see `rebind`.
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


class KernelFunction(functools.partial):  # type: ignore[type-arg]
    """A kernel in the place of a function that a module holds as an attribute; it pickles as well."""

    original: Forward
    outcome: SwapDecision


def bind_class_forward(loaded: LoadedLayer, cls: type[nn.Module], positional: bool, name: str) -> Forward:
    """The kernel's forward with the signature of `cls.forward`. Raises LayerContractError."""
    if (pending := loaded.pending) is not None:
        return pending.forward_for(cls)
    replaced = f"{cls.__module__}.{cls.__qualname__}.forward"
    (same_arity if positional else check_signature)(loaded.layer, cls, name, replaced)
    forward = loaded.forward if loaded.is_class else _with_self(loaded.forward)
    same_names = [own.name for own in parameters_of(cls)] == [
        theirs.name for theirs in parameters_of(loaded.layer)
    ]
    if not same_names:
        forward = _renamed(forward, cls)  # type: ignore[arg-type]  # a class can be hashed
    return _inside_what_stays(forward, cls)  # type: ignore[arg-type]


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


def overlay_globals(forward: FunctionType, replacements: Mapping[str, Forward]) -> FunctionType:
    """A copy of `forward` that sees `replacements` in place of the globals and closed-over variables of those names.

    Of a decorated forward, the function inside sees them as well.
    """
    if (inner := inner_function(forward)) is None:
        return _overlaid(forward, replacements)
    names = {name for name, _ in referred_by_itself(forward)}
    inside = overlay_globals(inner, {name: of for name, of in replacements.items() if name not in names})
    outside = _overlaid(forward, {name: of for name, of in replacements.items() if name in names})
    copy = with_inner(outside, inner, inside)
    _label(copy, forward)
    return copy


def _overlaid(forward: FunctionType, replacements: Mapping[str, Forward]) -> FunctionType:
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


_STARS: Mapping[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


@functools.lru_cache(maxsize=4096)
def _renamed(forward: Forward, cls: type[nn.Module]) -> Forward:
    """`forward` under the argument names of a class's, so that calls by keyword keep working."""
    namespace: dict[str, Any] = {"kernel_forward": forward}
    signature: list[str] = []
    arguments: list[str] = []
    for index, parameter in enumerate(parameters_of(cls)):
        default, stars = "", _STARS.get(parameter.kind, "")
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            if "*" not in "".join(signature):
                signature.append("*")
            arguments.append(f"{parameter.name}={parameter.name}")
        else:
            arguments.append(stars + parameter.name)
        if parameter.default is not inspect.Parameter.empty:
            namespace[f"default_{index}"] = parameter.default
            default = f"=default_{index}"
        signature.append(stars + parameter.name + default)
    exec(  # noqa: S102 - the names come from a real signature, so they are identifiers
        f"def forward(self, {', '.join(signature)}):\n    return kernel_forward(self, {', '.join(arguments)})\n",
        namespace,
    )
    renamed: Forward = namespace["forward"]
    _label(renamed, forward)
    return renamed


@functools.lru_cache(maxsize=4096)
def _inside_what_stays(forward: Forward, cls: type[nn.Module]) -> Forward:
    """`forward` inside of the decorators of a class's that stay around a kernel."""
    decorated = kept_around(cls.forward, forward)
    if decorated is not forward:
        _label(decorated, forward)
    return decorated


def _label(function: Any, original: Forward) -> None:
    """Give `function` the names of `original`; without `__wrapped__`, which torch.compile would follow."""
    function.__module__, function.__qualname__ = original.__module__, original.__qualname__
    function.__doc__ = original.__doc__


def kernel_function(kernel: Forward, original: Forward, outcome: SwapDecision) -> KernelFunction:
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
