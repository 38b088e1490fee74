"""Tags: the name under which kernels for a class or a function are looked up.

A tag is one class attribute, `kernel_layer_name`, the same that HF `kernels` sets, so classes that
either library tagged work with both. Tagging changes nothing else: not the class, not its
instances, not its speed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from kernels_hub.errors import MappingError

if TYPE_CHECKING:
    from torch import nn

NAME_ATTRIBUTE = "kernel_layer_name"
CONDITION_ATTRIBUTE = "kernel_condition"
FUNCTIONS_ATTRIBUTE = "_kernel_funcs"

T = TypeVar("T")
Condition = Callable[["nn.Module"], bool]


def use_kernel_forward_from_hub(layer_name: str, condition: Condition | None = None) -> Callable[[T], T]:
    """Decorator: make an `nn.Module` class, or a function, replaceable by kernels named `layer_name`.

    layer_name: name that mappings use.
    condition: called with each instance by `kernelize`; where it returns False the instance keeps
        its forward and the report says so, whether there is a kernel or not. The class has it as
        `kernel_condition`, True for every instance by default.

    A decorated function stays the same function. `kernelize` reaches it through the modules whose
    forward calls it: decorate their class with `use_kernelized_func(function)`.

    Raises TypeError on anything but a class or a function.

    >>> @use_kernel_forward_from_hub("SiluAndMul")
    ... class SiluAndMul(nn.Module):
    ...     def forward(self, input):
    ...         gate, up = input.chunk(2, dim=-1)
    ...         return F.silu(gate) * up
    """
    _check_name(layer_name)

    def decorate(target: T) -> T:
        if not (inspect.isclass(target) or inspect.isfunction(target)):
            raise TypeError(
                f"@use_kernel_forward_from_hub({layer_name!r}) tags nn.Module classes and functions, got {target!r}"
            )
        _tag(target, layer_name, condition)
        return target

    return decorate


def use_kernel_func_from_hub(func_name: str) -> Callable[[T], T]:
    """Decorator: make a function replaceable by kernels named `func_name`.

    The name that Hugging Face's `kernels` gave `use_kernel_forward_from_hub` for functions; the two are the same.

    Raises TypeError on anything but a class or a function.

    >>> @use_kernel_func_from_hub("silu_and_mul")
    ... def silu_and_mul(input):
    ...     gate, up = input.chunk(2, dim=-1)
    ...     return F.silu(gate) * up
    """
    return use_kernel_forward_from_hub(func_name)


def replace_kernel_forward_from_hub(cls: type, layer_name: str, condition: Condition | None = None) -> None:
    """Tag a class that someone else owns; as `use_kernel_forward_from_hub`, without the decorator.

    Prefer tags in a mapping file (`[[tag]]`) where the tag should hold in one scope only.

    >>> class Gate(nn.Module):
    ...     def forward(self, x):
    ...         return x.sigmoid() * x
    >>> replace_kernel_forward_from_hub(Gate, "SiLU")
    >>> Gate.kernel_layer_name
    'SiLU'
    """
    _check_name(layer_name)
    if not inspect.isclass(cls):
        raise TypeError(f"replace_kernel_forward_from_hub tags nn.Module classes, got {cls!r}")
    _tag(cls, layer_name, condition)


def use_kernelized_func(*functions: Callable[..., Any]) -> Callable[[type[T]], type[T]]:
    """Class decorator: the class's forward calls these tagged functions, by name.

    Makes them visible to `kernelize`, which gives each instance a forward that calls the kernel in
    the function's place. The function itself stays as it is, for every other model.

    Raises MappingError (a ValueError) for a function without a tag.

    >>> @use_kernel_forward_from_hub("silu_and_mul")
    ... def silu_and_mul(input):
    ...     gate, up = input.chunk(2, dim=-1)
    ...     return F.silu(gate) * up
    >>> @use_kernelized_func(silu_and_mul)
    ... class MLP(nn.Module):
    ...     def forward(self, x):
    ...         return silu_and_mul(x)
    """
    listed = [f for group in functions for f in (group if isinstance(group, list | tuple) else (group,))]
    for function in listed:
        if getattr(function, NAME_ATTRIBUTE, None) is None:
            raise MappingError(
                f"Function `{getattr(function, '__name__', function)}` is not decorated: "
                "tag it with @use_kernel_forward_from_hub(name) first"
            )

    def decorate(cls: type[T]) -> type[T]:
        original: Any = cls.__init__

        @functools.wraps(original)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            attached = self.__dict__.setdefault(FUNCTIONS_ATTRIBUTE, {})
            for function in listed:
                attached[getattr(function, "__name__", getattr(function, NAME_ATTRIBUTE))] = function

        cls.__init__ = init  # type: ignore[method-assign]
        return cls

    return decorate


@dataclass(frozen=True)
class Tag:
    """The tag of a class: its name, its condition, and the class of the hierarchy that set it."""

    layer_name: str
    condition: Condition | None
    owner: type


def find_tag(cls: type) -> Tag | None:
    """The tag of a class, set on it or inherited; None without one."""
    layer_name = getattr(cls, NAME_ATTRIBUTE, None)
    if layer_name is None:
        return None
    owner = next(base for base in cls.__mro__ if NAME_ATTRIBUTE in base.__dict__)
    condition = getattr(cls, CONDITION_ATTRIBUTE, None)
    return Tag(str(layer_name), None if condition is _always else condition, owner)


def _always(_: nn.Module) -> bool:
    """The condition of tags without one."""
    return True


def _tag(target: Any, layer_name: str, condition: Condition | None) -> None:
    setattr(target, NAME_ATTRIBUTE, layer_name)
    if condition is not None and not callable(condition):
        raise TypeError(f"condition of {layer_name!r} must be callable with the module, got {condition!r}")
    # A staticmethod on classes, so that access through an instance does not bind the condition.
    value = staticmethod(condition or _always) if inspect.isclass(target) else condition
    setattr(target, CONDITION_ATTRIBUTE, value)


def _check_name(layer_name: object) -> None:
    if not isinstance(layer_name, str) or not layer_name:
        raise TypeError(f"a layer name is a non-empty string, got {layer_name!r}")
