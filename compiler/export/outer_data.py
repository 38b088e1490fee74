"""What is outside of a module and its forward names: data, and functions. Globals, attributes of classes, closures.

    SCALE = 2.0                                    "__class__.forward.__globals__.SCALE"

    class Scaled(nn.Module):
        BIAS = 1.0                                 "__class__.__mro__.0.BIAS"
        def forward(self, x):
            return self.shifted(x) * SCALE
        def shifted(self, x):
            return x + self.BIAS

Found by the names in the bytecode of forwards, of the methods and functions that they name, and so on; code of
PyTorch, NumPy and the standard library is not looked into. Data are numbers, strings, arrays, tensors, containers of
these, and objects that hold nothing else; classes and modules are not.
"""

from __future__ import annotations

import collections
import logging
import sys
import types
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from kernels_hub.compiler.runtime.facts import attributes, is_filled, looked_into

KNOWN = frozenset({"torch", "builtins", "typing", "numpy", *sys.stdlib_module_names} - {"__main__"})
"""Packages whose release says all there is to say of their code."""
_MOST = 200
"""Values inside of one that is data."""


class Outside(NamedTuple):
    """Paths as `facts.at` has them from a module of the class, in the order in which code names what is there."""

    data: tuple[str, ...]
    functions: tuple[str, ...]
    """Methods among them, and the forward."""


def outer_data(kind: type[nn.Module]) -> Outside:
    """Where the data and the functions are."""
    return _outer_data(kind)  # type: ignore[arg-type]  # a class can be hashed


@lru_cache(maxsize=4096)
def _outer_data(kind: type[nn.Module]) -> Outside:
    walk = _Walk(kind)
    walk.member("forward")
    return Outside(tuple(walk.found), tuple(walk.functions))


class _Walk:
    """found, functions: see `Outside`."""

    def __init__(self, kind: type[nn.Module]) -> None:
        self._kind = kind
        self._seen: set[int] = set()
        self.found: dict[str, None] = {}
        self.functions: list[str] = []
        self._named: set[str] = set()
        self._globals: set[tuple[int, str]] = set()

    def member(self, name: str) -> None:
        """Look at what classes of the module have under a name."""
        if name in self._named:
            return
        self._named.add(name)
        for index, base in enumerate(self._kind.__mro__):
            if _is_known(base.__module__) or name not in vars(base):
                continue
            value = vars(base)[name]
            path = f"__class__.__mro__.{index}.{name}"
            if isinstance(value, property):
                self._function(value.fget, f"{path}.fget")
            elif isinstance(value, types.FunctionType):
                self._function(value, path)
            elif isinstance(value, (classmethod, staticmethod)):
                self._function(value.__func__, f"{path}.__func__")
            elif is_data(value):
                self.found[path] = None
            return  # what bases have under this name is not seen

    def _function(self, function: object, path: str) -> None:
        if not isinstance(function, types.FunctionType) or id(function) in self._seen:
            return
        self._seen.add(id(function))
        self.functions.append(path)
        if _is_known(function.__module__ or ""):
            wrapped = getattr(function, "__wrapped__", None)  # a decorator of PyTorch's around it
            self._function(wrapped, f"{path}.__wrapped__")
            return
        for index, cell in enumerate(function.__closure__ or ()):
            if is_filled(cell):
                self._value(cell.cell_contents, f"{path}.__closure__.{index}.cell_contents")
        for name in dict.fromkeys(names_in(function.__code__)):
            self.member(name)
            place = (id(function.__globals__), name)
            if name in function.__globals__ and not name.startswith("__") and place not in self._globals:
                self._globals.add(place)
                self._value(function.__globals__[name], f"{path}.__globals__.{name}")

    def _value(self, value: object, path: str) -> None:
        if isinstance(value, types.FunctionType):
            self._function(value, path)
        elif is_data(value):
            self.found[path] = None


def is_data(value: object) -> bool:
    """Whether a value holds nothing but numbers, text, arrays and tensors."""
    left = _MOST
    waiting: list[Any] = [value]
    while waiting and left > 0:
        left -= 1
        one = waiting.pop()
        kind = type(one)
        if one is None or isinstance(
            one, (bool, int, float, complex, str, bytes, np.generic, np.ndarray, torch.Tensor)
        ):
            continue
        if isinstance(one, (list, tuple, set, frozenset, collections.deque)):
            waiting += one
        elif isinstance(one, dict):
            waiting += (*dict.keys(one), *dict.values(one))
        elif (
            isinstance(one, (nn.Module, logging.Logger))
            or _is_known(kind.__module__)
            or looked_into(one)[1] is not None
        ):
            return False
        else:
            waiting += (inner for _, inner in attributes(one))
    return not waiting


def names_in(code: types.CodeType) -> Iterator[str]:
    """The names of attributes and globals in a function's code, and in that of functions within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)


def _is_known(module: str) -> bool:
    return module.partition(".")[0] in KNOWN
