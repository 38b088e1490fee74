"""The layer contract: what a kernel's layer class must be, and which forward it may stand in for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kernels_hub.errors import LayerContractError
from kernels_hub.repository.layer_flags import LAYER_FLAGS

if TYPE_CHECKING:
    from torch import nn

_CLASS_FURNITURE = frozenset(
    {
        "__module__",
        "__qualname__",
        "__doc__",
        "__annotations__",
        "__annotate__",
        "__annotate_func__",
        "__annotations_cache__",
        "__firstlineno__",
        "__static_attributes__",
        "__parameters__",
        "__orig_bases__",
        "__abstractmethods__",
        "_abc_impl",
        "__dict__",
        "__weakref__",
    }
)
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

Forwards = type[Any] | Callable[..., Any]
"""A class, which stands for its forward, or a function."""


@lru_cache(maxsize=4096)
def check_layer_class(layer: Any, name: str) -> None:
    """Raise LayerContractError unless `layer` is a stateless nn.Module with nothing but a forward.

    Its forward will run with `self` bound to a module of another class, so anything that it adds
    (a constructor, attributes, methods) would not be there.
    """
    from torch import nn

    if not (inspect.isclass(layer) and issubclass(layer, nn.Module)):
        raise LayerContractError(f"layer {name}: expected a torch.nn.Module class, got {layer!r}")
    if layer.__init__ is not nn.Module.__init__:
        raise LayerContractError(
            f"layer {name} defines __init__: a layer is stateless, its forward reads the attributes of the "
            "module that it replaces; remove the constructor"
        )
    added = sorted(
        member
        for base in layer.__mro__[: layer.__mro__.index(nn.Module)]
        for member in base.__dict__
        if member != "forward" and member not in LAYER_FLAGS and member not in _CLASS_FURNITURE
    )
    if added:
        raise LayerContractError(
            f"layer {name} has members besides forward: {', '.join(added)}; "
            f"a layer may define forward and the flags {', '.join(sorted(LAYER_FLAGS))} only"
        )
    if has_no_forward(layer):
        raise LayerContractError(f"layer {name} defines no forward")


def has_no_forward(cls: type[nn.Module]) -> bool:
    """Whether a class leaves `forward` to its instances (`self.forward = self.forward_features`), or has none."""
    from torch import nn

    return cls.forward is nn.Module.forward


def check_signature(layer: Forwards, target: Forwards, name: str, replaced: str) -> None:
    """Raise LayerContractError unless both take the same arguments.

    Compared: number, names, kinds, order and defaults. The module, a forward's first argument
    whatever its name, is passed over, as is a function's leading `self`. Annotations do not matter.
    """
    ours, theirs = parameters_of(layer), parameters_of(target)
    problem = _difference(ours, theirs)
    if problem:
        raise LayerContractError(
            f"layer {name} cannot replace {replaced}: {problem}\n"
            f"  kernel:   forward({', '.join(map(_show, ours))})\n"
            f"  replaced: forward({', '.join(map(_show, theirs))})"
        )


def same_arity(layer: Forwards, target: Forwards, name: str, replaced: str) -> None:
    """As `check_signature`, for arguments that a mapping rule has proven to correspond by position.

    The kernel may have defaults where the other requires an argument: every call gives it.
    """
    ours, theirs = parameters_of(layer), parameters_of(target)
    if len(ours) != len(theirs):
        check_signature(layer, target, name, replaced)
    renamed = [
        parameter.replace(
            name=other.name, default=parameter.default if _has_default(other) else inspect.Parameter.empty
        )
        for parameter, other in zip(ours, theirs, strict=True)
    ]
    if problem := _difference(renamed, theirs):
        raise LayerContractError(f"layer {name} cannot replace {replaced} by position: {problem}")


def parameters_of(of: Forwards) -> tuple[inspect.Parameter, ...]:
    """What a caller gives: the arguments of a class's forward or of a function, without the module."""
    if not inspect.isclass(of):
        parameters = _parameters(of)  # type: ignore[arg-type]  # functions can be hashed
        return parameters[1:] if parameters and parameters[0].name == "self" else parameters
    cls: Any = of
    parameters = _parameters(cls.forward)
    static = isinstance(inspect.getattr_static(of, "forward"), staticmethod)
    takes_module = not static and parameters and parameters[0].kind in _BY_POSITION
    return parameters[1:] if takes_module else parameters


@lru_cache(maxsize=4096)
def _parameters(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    return tuple(inspect.signature(function).parameters.values())


def _difference(ours: Sequence[inspect.Parameter], theirs: Sequence[inspect.Parameter]) -> str | None:
    if len(ours) != len(theirs):
        return f"it takes {len(ours)} arguments where {len(theirs)} are expected"
    for index, (our, their) in enumerate(zip(ours, theirs, strict=True), start=1):
        if our.name != their.name:
            return f"argument {index} is named {our.name!r} where {their.name!r} is expected"
        if our.kind is not their.kind:
            return (
                f"argument {our.name!r} is {our.kind.description} where {their.kind.description} is expected"
            )
        if not _same_default(our.default, their.default):
            return (
                f"argument {our.name!r} has the default {_default(our)} where {_default(their)} is expected"
            )
    return None


def _has_default(parameter: inspect.Parameter) -> bool:
    return parameter.default is not inspect.Parameter.empty


def _same_default(ours: object, theirs: object) -> bool:
    if ours is theirs:
        return True
    if type(ours) is not type(theirs):
        return False
    try:
        return bool(ours == theirs)
    except (TypeError, ValueError, RuntimeError):  # an array-like default: only identity would do
        return False


def _default(parameter: inspect.Parameter) -> str:
    return "none at all" if parameter.default is inspect.Parameter.empty else repr(parameter.default)


def _show(parameter: inspect.Parameter) -> str:
    return str(parameter.replace(annotation=inspect.Parameter.empty))
