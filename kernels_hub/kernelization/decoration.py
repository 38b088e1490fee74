"""Unwraps functions from the decorators that a contract names.

A decorator such as transformers' `can_return_tuple` leaves a wrapper in a forward's place: a closure
over the function. It is that decorator's wrapper, and not another's that looks like it, when its code
is one that the decorator's own code holds. What the wrapper adds is for the kernel to keep, or for
the conditions of the tag to rule out; the contract compares the function inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from kernels_hub.kernelization.loaded_object import find_loaded


def undecorated(function: Any, decorators: tuple[str, ...]) -> FunctionType | str:
    """The function inside the named decorators (outermost first), or the reason why it is not inside them."""
    for name in decorators:
        if not isinstance(function, FunctionType):
            return f"{function!r} is not a plain function"
        decorator = find_loaded(name)
        inner = getattr(function, "__wrapped__", None)
        if not isinstance(decorator, FunctionType) or inner is None:
            return f"it is not decorated by {name}"
        if not any(code is function.__code__ for code in _nested(decorator.__code__)):
            return f"it is decorated by something else than {name}"
        if not any(cell.cell_contents is inner for cell in function.__closure__ or ()):
            return f"what {name} wrapped is not what it calls"
        function = inner
    return function if isinstance(function, FunctionType) else f"{function!r} is not a plain function"


def _nested(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _nested(constant)
