"""Decorators around a forward: which function is inside, and the same decorators around a kernel.

A decorator such as transformers' `can_return_tuple` leaves a wrapper in a forward's place: a closure
over the function. It is that decorator's wrapper, and not another's that looks like it, when its code
is one that the decorator's own code holds.

What a decorator that a contract names adds is for the kernel to keep, or for the conditions of the
tag to rule out; the contract compares the function inside. Decorators that only pass arguments on
(`KEPT`: renamed ones are given under their new names, with a warning; gradients are checkpointed while
training) may be around any forward. They stay around its kernel: a copy of the wrapper, whose closure
holds the kernel.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType
from typing import Any

from kernels_hub.kernelization.loaded_object import find_loaded

Forward = Callable[..., Any]

KEPT = (
    "transformers.utils.deprecation:deprecate_kwarg",
    "transformers.modeling_layers:GradientCheckpointingLayer.__init_subclass__",  # from transformers 5.24 on
)


def undecorated(function: object, decorators: tuple[str, ...]) -> FunctionType | str:
    """The function inside the named decorators (outermost first), or the reason why it is not inside them."""
    function = _inside_kept(function)
    for name in decorators:
        if not isinstance(function, FunctionType):
            return f"{function!r} is not a plain function"
        decorator = find_loaded(name)
        inner = getattr(function, "__wrapped__", None)
        if not isinstance(decorator, FunctionType) or inner is None:
            return f"it is not decorated by {name}"
        if not any(code is function.__code__ for code in _nested(decorator.__code__)):
            return f"it is decorated by something else than {name}"
        if not any(_content(cell) is inner for cell in function.__closure__ or ()):
            return f"what {name} wrapped is not what it calls"
        function = _inside_kept(inner)
    return function if isinstance(function, FunctionType) else f"{function!r} is not a plain function"


def inner_function(wrapper: FunctionType) -> FunctionType | None:
    """The function that a wrapper says it wraps and has in its closure, None without one."""
    inner = getattr(wrapper, "__wrapped__", None)
    cells = wrapper.__closure__ or ()
    return (
        inner if isinstance(inner, FunctionType) and any(_content(cell) is inner for cell in cells) else None
    )


def innermost(function: FunctionType) -> FunctionType:
    """The function inside all wrappers that say what they wrap; the function itself without one."""
    while (inner := inner_function(function)) is not None:
        function = inner
    return function


def with_inner(wrapper: FunctionType, inner: FunctionType, replacement: Forward) -> FunctionType:
    """A copy of a wrapper that calls `replacement` where it calls `inner`, under the signature of `inner`."""
    cells = tuple(
        CellType(replacement) if _content(cell) is inner else cell for cell in wrapper.__closure__ or ()
    )
    copy = FunctionType(wrapper.__code__, wrapper.__globals__, wrapper.__name__, wrapper.__defaults__, cells)
    copy.__kwdefaults__ = wrapper.__kwdefaults__
    copy.__signature__ = inspect.signature(inner)  # type: ignore[attr-defined]
    return copy


def kept_around(forward: object, kernel: Forward) -> Forward:
    """`kernel` inside of those decorators of `forward` that stay around one; itself where there are none."""
    wrappers = []
    while isinstance(forward, FunctionType) and (inner := inner_function(forward)) is not None:
        if _is_kept(forward):
            wrappers.append((forward, inner))
        forward = inner
    for wrapper, inner in reversed(wrappers):
        kernel = with_inner(wrapper, inner, kernel)
    return kernel


def _inside_kept(function: object) -> object:
    while isinstance(function, FunctionType) and _is_kept(function):
        function = inner_function(function)
    return function


def _is_kept(wrapper: FunctionType) -> bool:
    if inner_function(wrapper) is None:
        return False
    for name in KEPT:
        decorator = find_loaded(name)
        if isinstance(decorator, classmethod):
            decorator = decorator.__func__
        if isinstance(decorator, FunctionType) and any(
            code is wrapper.__code__ for code in _nested(decorator.__code__)
        ):
            return True
    return False


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _nested(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _nested(constant)
