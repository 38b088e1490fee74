"""Bind a kernel to one module: the forward that `kernelize` puts there, and nothing else.

Only the instance changes: its `__dict__["forward"]`, and how it is copied. The class, other instances and
other models never do, functions included: a module whose forward calls a replaced function gets a copy of that
forward, which calls the kernel by a name of its own.
"""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
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
from kernels_hub.kernelization.forward_guard import (
    guarded_attribute,
    guarded_forward,
    guarded_function,
    label,
    renamed_forward,
)
from kernels_hub.kernelization.function_places import referred_by_itself, with_names
from kernels_hub.kernelization.mapping_records import LayerSource
from kernels_hub.kernelization.outcome import SwapDecision
from kernels_hub.kernelization.validate import check_layer_class, check_signature, same_arity
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
        return self.layer if not self.is_class and isinstance(self.layer, Pending) else None

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

    It pickles as its module and the record of the decision; unpickling loads the kernel again, see `rebind`. deepcopy
    does as well. `copy.copy` and torch.nn.parallel.replicate copy the module's `__dict__`, where it lies, so these ask
    it (`copied`) how its module is copied.
    """

    lost: str | None = None
    """Why the kernel could not be loaded again after unpickling; the original forward runs then."""
    computes_original = True
    """What kernels of blocks ask: one may compute what its child does although the child has a kernel of its own."""

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
    def __globals__(self) -> dict[str, object]:
        """What torch.jit.script asks of a forward whose source it reads; a kernel has none: AttributeError."""
        raise AttributeError(
            f"the forward of {type(self.__self__).__qualname__} is a kernel, without source text that torch.jit.script "
            "could compile; call kernels_hub.restore(model) first, or use torch.jit.trace or torch.export"
        )

    @property
    def __wrapped__(self) -> Forward:
        """What the kernel wraps, as a bound method answers; AttributeError where it wraps nothing."""
        function: Any = self.func
        wrapped: Forward = function.__wrapped__
        return wrapped

    def copied(self, protocol: int | None = None) -> object:
        """What the module's `__reduce_ex__(protocol)` or `_replicate_for_data_parallel()` returns.

        It lies beside the forward under these names (`COPIED`): such copies run the kernel on themselves.
        """
        module = self.__self__
        kind: Any = type(module)
        if protocol is None:
            return _bound_again(kind._replicate_for_data_parallel(module), module)
        if sys._getframe(1).f_code is copy.copy.__code__:
            return _shallow, (module,)
        return kind.__reduce_ex__(module, protocol)


COPIED = ("__reduce_ex__", "_replicate_for_data_parallel")
"""What `copy.copy` and `replicate` ask a module for."""


def bind_forward(module: nn.Module, forward: Forward) -> KernelForward:
    """Have a module run on a kernel, and its copies likewise."""
    state = module.__dict__
    bound = state["forward"] = KernelForward(forward, module)
    copied = bound.copied
    state.setdefault("__reduce_ex__", copied)
    state.setdefault("_replicate_for_data_parallel", copied)
    return bound


def unbind_forward(module: nn.Module) -> None:
    """Have a module run its class's forward."""
    del module.__dict__["forward"]
    _forget_copied(module)


def _forget_copied(module: nn.Module) -> None:
    state = module.__dict__
    for name in COPIED:
        if type(getattr(state.get(name), "__self__", None)) is KernelForward:
            del state[name]


def _shallow(module: nn.Module) -> nn.Module:
    """What `copy.copy` makes of a module of this class."""
    reduced: Any = type(module).__reduce_ex__(module, 4)
    if isinstance(reduced, str):  # there is one of it
        return module
    make, arguments, *rest = reduced
    made: nn.Module = make(*arguments)
    if rest and rest[0] is not None:
        made.__setstate__(rest[0])
    return _bound_again(made, module)


def _bound_again(made: nn.Module, module: nn.Module) -> nn.Module:
    _forget_copied(made)
    bound = made.__dict__.get("forward")
    if type(bound) is KernelForward and bound.__self__ is module:
        bind_forward(made, bound.func).lost = bound.lost
    return made


class KernelFunction(functools.partial):  # type: ignore[type-arg]
    """A kernel in the place of a function that a module holds as an attribute; it pickles as well."""

    original: Forward
    outcome: SwapDecision


def bind_class_forward(
    loaded: LoadedLayer, cls: type[nn.Module], positional: bool, name: str, *, guards: bool = True
) -> Forward:
    """The kernel's forward with the signature of `cls.forward`. Raises LayerContractError.

    guards: leave calls to the original as `forward_guard` has it; not for a kernel that does so itself.
    """
    if (pending := loaded.pending) is not None:
        return pending.forward_for(cls)
    replaced = f"{cls.__module__}.{cls.__qualname__}.forward"
    (same_arity if positional else check_signature)(loaded.layer, cls, name, replaced)
    forward = loaded.forward if loaded.is_class else _with_self(loaded.forward)
    bound = guarded_forward(forward, cls) if guards else renamed_forward(forward, cls)
    return _inside_what_stays(bound, cls.forward)


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
    return _as_function(loaded.layer) if loaded.is_class else loaded.forward


@functools.lru_cache(maxsize=4096)
def _as_function(layer: type[nn.Module]) -> Forward:
    return functools.partial(layer.forward, layer())


def object_name(value: Any) -> str:
    """Where a class, a function, or the class of another object was defined."""
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def overlaid_forward(
    cls: type[nn.Module], replacements: Mapping[str, Forward], written: FunctionType | None = None
) -> Forward:
    """`overlay_globals` of a class's forward, as long as the class has it and no mode sees its calls.

    written: takes the place of that forward, and refers to what it refers to.
    """
    forward = cls.forward if written is None else written
    assert isinstance(forward, FunctionType)
    if replacements:
        forward = overlay_globals(forward, replacements)
    elif written is not None:
        label(forward, cls.forward)
    return guarded_forward(forward, cls, passes_on=True)


def overlay_globals(forward: FunctionType, replacements: Mapping[str, Forward]) -> FunctionType:
    """A copy of `forward` that calls `replacements` in place of the functions that it calls by those names.

    Globals, and variables of functions around it. It has the same globals, and sees what becomes of them: once a name
    means another function, that one is called. Of a decorated forward, the function inside is copied as well.
    """
    if (inner := inner_function(forward)) is None:
        return _overlaid(forward, replacements)
    names = {name for name, _ in referred_by_itself(forward)}
    inside = overlay_globals(inner, {name: of for name, of in replacements.items() if name not in names})
    outside = _overlaid(forward, {name: of for name, of in replacements.items() if name in names})
    copy = with_inner(outside, inner, inside)
    label(copy, forward)
    return copy


def _overlaid(forward: FunctionType, replacements: Mapping[str, Forward]) -> FunctionType:
    closed = set(forward.__code__.co_freevars)
    meant: dict[str, Any] = dict(referred_by_itself(forward))
    calls = {name: guarded_function(of, meant[name], (forward, name)) for name, of in replacements.items()}
    names = {name: _placed(call, forward, name) for name, call in calls.items() if name not in closed}
    copy = FunctionType(
        with_names(forward.__code__, names),
        forward.__globals__,
        forward.__name__,
        forward.__defaults__,
        _overlay_cells(forward, calls),
    )
    copy.__kwdefaults__ = forward.__kwdefaults__
    label(copy, forward)
    return copy


_COUNT = itertools.count()


@functools.lru_cache(maxsize=4096)
def _placed(call: Forward, forward: FunctionType, name: str) -> str:
    """A global name for `call` beside the one that it stands for, which keeps its meaning: nobody else has it."""
    own = f"_kernel_{next(_COUNT)}_of_{name}"
    forward.__globals__[own] = call
    return own


def _overlay_cells(forward: FunctionType, replacements: Mapping[str, Forward]) -> tuple[CellType, ...] | None:
    if forward.__closure__ is None:
        return None
    named = zip(forward.__code__.co_freevars, forward.__closure__, strict=True)
    return tuple(CellType(replacements[name]) if name in replacements else cell for name, cell in named)


def _with_self(function: Forward) -> Forward:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG001
        return function(*args, **kwargs)

    label(forward, function)
    return forward


@functools.lru_cache(maxsize=4096)
def _inside_what_stays(forward: Forward, original: Forward) -> Forward:
    """`forward` inside of the decorators of an original that stay around a kernel."""
    decorated = kept_around(original, forward)
    if decorated is not forward:
        label(decorated, forward)
    return decorated


def kernel_function(kernel: Forward, original: Forward, outcome: SwapDecision) -> KernelFunction:
    """A KernelFunction that runs `kernel`, or `original` as `forward_guard` has it."""
    function = KernelFunction(guarded_attribute(kernel, original))
    function.original, function.outcome = original, outcome
    return function


@functools.lru_cache(maxsize=4096)
def without_copies(kernel: Forward) -> Forward:
    """A kernel's forward that has its `weights` keep no copies for its module, nor for copies of that."""
    from torch.compiler import is_compiling

    weights = weights_protocol(kernel)
    assert weights is not None

    @functools.wraps(kernel)
    def forward(self: nn.Module, *args: object, **kwargs: object) -> object:
        if not is_compiling():
            weights.keep_copies(self, False)
        return kernel(self, *args, **kwargs)

    forward.__signature__ = inspect.signature(kernel)  # type: ignore[attr-defined]
    del forward.__wrapped__
    return forward


def weights_protocol(forward: Forward) -> Any | None:
    """The `weights` module of the kernel that a forward belongs to; None where it packs nothing.

    A kernel that keeps packed copies of weights exports a module `weights` with the functions
    `prepare(module)`, `packed_nbytes(module)`, `free_originals(module)`, `restore_originals(module)`
    and `release(module)`, which restores and drops the copies; and, from release 0.2 on, `refresh(module)`, which
    compares all copies with the weights and makes them again where they differ, and `strict(module, on)`, which has
    that done at every call, and takes a module that is still empty as well. A kernel that runs without copies, too, has
    `works_without_copies(module)`, whether it gains then, and `keep_copies(module, on)`. One that needs the originals
    beside the copies says `holds_both = True`. A forward that stands for several kernels has them in `kernel_weights`.
    """
    if (own := getattr(forward, "kernel_weights", None)) is not None:
        return own
    weights = getattr(package_of(forward), "weights", None)
    return weights if hasattr(weights, "packed_nbytes") else None


def holds_weights_twice(forward: Forward) -> bool:
    """Whether a forward's kernel needs the original weights beside its copies, whatever it is asked."""
    return bool(getattr(weights_protocol(forward), "holds_both", False))


def package_of(forward: Forward) -> ModuleType | None:
    """The package of the kernel that a forward belongs to."""
    return sys.modules.get(getattr(forward, "__module__", "").partition(".")[0])
