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
these, and objects that hold nothing else. Of modules of Python, of classes, and of the classes of objects, what the
code names counts:

    return settings.SCALE * Limits.TOP             "….__globals__.settings.SCALE", "….__globals__.Limits.__mro__.0.TOP"

So does what there is none of, where code goes on without it: `globals().get("SCALE")`, `hasattr(settings, "SCALE")`, a
global in a `try`.
"""

from __future__ import annotations

import builtins
import collections
import dis
import functools
import logging
import types
from collections.abc import Collection, Iterator, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from kernels_hub.compiler.importers.known_code import is_known
from kernels_hub.compiler.importers.torch_autograd import ASKED_TO_CHECKPOINT, is_checkpointing
from kernels_hub.compiler.runtime.facts import attributes, is_filled, looked_into

_IMPLICIT = ("__call__", "__getitem__", "__iter__", "__len__", "__contains__", "__bool__", "__eq__")
"""Methods that run without being named."""
_MOST = 200
"""Values inside of one that is data."""


class Outside(NamedTuple):
    """Paths as `facts.at` has them from a module of the class, in the order in which code names what is there."""

    data: tuple[str, ...]
    functions: tuple[str, ...]
    """Methods among them, and the forward."""
    names: frozenset[str] = frozenset()
    """What the code names."""
    names_to_checkpoint: frozenset[str] = frozenset()
    """What code names that runs only where a layer is computed again in the backward pass."""


def outer_data(kind: type[nn.Module]) -> Outside:
    """Where the data and the functions are."""
    return _outer_data(kind)  # type: ignore[arg-type]  # a class can be hashed


@lru_cache(maxsize=4096)
def _outer_data(kind: type[nn.Module]) -> Outside:
    walk = _Walk(kind)
    walk.member("forward")
    return walk.outside()


def outer_data_of_object(value: object, path: str, names: Collection[str]) -> Outside:
    """Where those are that an object comes to which is under a path from the module. names: what is read of it."""
    walk = _Walk(type(value), f"{path}.")
    walk.of_value(value, path, names)
    return walk.outside()


def names_of_code(module: nn.Module) -> frozenset[str]:
    """What the code of a module's forwards names, and that of functions which modules hold."""
    found: set[str] = set()
    for one in module.modules():
        names = outer_data(type(one)).names
        found |= names
        for name, value in vars(one).items():
            if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
                found |= outer_data_of_object(value, name, names).names
    return frozenset(found)


class _Walk:
    """found, functions: see `Outside`. kind: the class whose methods the code names; prefix: of paths of its object."""

    def __init__(self, kind: type, prefix: str = "") -> None:
        self._kind, self._prefix = kind, prefix
        self._seen: set[int] = set()
        self.found: dict[str, None] = {}
        self.functions: list[str] = []
        self._named: set[str] = set()
        self._members: set[str] = set()
        self._named_to_checkpoint: set[str] = set()
        self._looked_up: set[str] = set()
        self._globals: set[tuple[int, str]] = set()

    def outside(self) -> Outside:
        """What was found."""
        named, to_checkpoint = frozenset(self._named), frozenset(self._named_to_checkpoint)
        return Outside(tuple(self.found), tuple(self.functions), named, to_checkpoint - named)

    def member(self, name: str) -> None:
        """Look at what classes of the module have under a name."""
        if name in self._members:
            return
        self._members.add(name)
        for index, base in enumerate(self._kind.__mro__):
            if is_known(base.__module__) or name not in vars(base):
                continue
            self._of_class(vars(base)[name], f"{self._prefix}__class__.__mro__.{index}.{name}", ())
            return  # what bases have under this name is not seen

    def of_class(self, kind: type, path: str, names: Collection[str]) -> None:
        """Look at what a class has under some names."""
        if issubclass(kind, (Enum, dict, tuple, BaseException)):
            return
        for name in names:
            for index, base in enumerate(kind.__mro__):
                if name in vars(base):
                    if not is_known(base.__module__) and self._is_new(base, name):
                        self._of_class(vars(base)[name], f"{path}.__mro__.{index}.{name}", names)
                    break

    def _of_class(self, value: object, path: str, names: Collection[str]) -> None:
        """Look at what a class has under a name."""
        if isinstance(value, property):
            self._function(value.fget, f"{path}.fget")
        elif isinstance(value, functools.cached_property):
            self._function(value.func, f"{path}.func")
        elif isinstance(value, (classmethod, staticmethod)):
            self._function(value.__func__, f"{path}.__func__")
        else:
            self.of_value(value, path, names)

    def _is_new(self, holder: object, name: str) -> bool:
        place = (id(holder), name)
        is_new = place not in self._globals
        self._globals.add(place)
        return is_new

    def _function(self, function: object, path: str) -> None:
        if not isinstance(function, types.FunctionType) or id(function) in self._seen:
            return
        self._seen.add(id(function))
        self.functions.append(path)
        if is_known(function.__module__ or ""):
            wrapped = getattr(function, "__wrapped__", None)  # a decorator of PyTorch's around it
            self._function(wrapped, f"{path}.__wrapped__")
            return
        code = function.__code__
        looked_up = {name for one in codes_in(code) for name in looked_up_in(one)}
        self._looked_up |= looked_up
        of_globals, names = self._names_of(function, looked_up)
        if any(asks_for_identity(one, function) for one in codes_in(code)):
            self._named.add(IDENTITY)
        for name in absent_globals(function, looked_up):
            if self._is_new(function.__globals__, name):
                self.found[f"{path}.__globals__.{name}"] = None
        for index, cell in enumerate(function.__closure__ or ()):
            if is_filled(cell):
                self.of_value(cell.cell_contents, f"{path}.__closure__.{index}.cell_contents", names)
        for name in names:
            self.member(name)
        for name in of_globals:
            if name in function.__globals__ and not name.startswith("__"):
                value = function.__globals__[name]
                if value is nn.Parameter:
                    self._named.add("Parameter")  # whatever the code calls it
                # What is named of these differs from function to function.
                if isinstance(value, (types.ModuleType, type)) or self._is_new(function.__globals__, name):
                    self.of_value(value, f"{path}.__globals__.{name}", names)

    def _names_of(self, function: types.FunctionType, looked_up: Collection[str]) -> Names:
        """Note the names in a function's code, those that it looks up as strings among them."""
        named, strings = names_in(function.__code__), sorted(looked_up)
        of_globals = {*named.globals, *(strings if looks_up_globals(function.__code__) else ())}
        attributes = {*named.attributes, *strings}
        if ASKED_TO_CHECKPOINT in of_globals | attributes and is_checkpointing(function):
            self._named_to_checkpoint.add(ASKED_TO_CHECKPOINT)
            of_globals.discard(ASKED_TO_CHECKPOINT)
            attributes.discard(ASKED_TO_CHECKPOINT)
        self._named |= of_globals | attributes
        in_order = dict.fromkeys((*named.globals, *named.attributes, *strings))
        return Names(
            tuple(name for name in in_order if name in of_globals),
            tuple(name for name in in_order if name in attributes),
        )

    def of_value(self, value: object, path: str, names: Collection[str]) -> None:
        """Look at a value. names: what the code reads of it, if that is not all that it holds."""
        if isinstance(value, types.FunctionType):
            self._function(value, path)
        elif isinstance(value, types.ModuleType):
            for name in () if is_known(value.__name__) else names:
                if name in vars(value) and self._is_new(value, name):
                    self.of_value(vars(value)[name], f"{path}.{name}", names)
                elif name in self._looked_up and not hasattr(value, name) and self._is_new(value, name):
                    self.found[f"{path}.{name}"] = None
        elif isinstance(value, type):
            if not issubclass(value, nn.Module):
                self.of_class(value, path, names)
        elif isinstance(value, functools.partial):
            if looked_into(value)[1] is None:
                self.found[path] = None
            self.of_value(value.func, f"{path}.func", names)
        elif isinstance(value, types.MethodType):
            self.of_value(value.__func__, f"{path}.__func__", names)
            self.of_value(value.__self__, f"{path}.__self__", names)
        elif isinstance(value, functools._lru_cache_wrapper):
            self.of_value(value.__wrapped__, f"{path}.__wrapped__", names)
        else:
            if is_data(value) or (
                isinstance(value, types.BuiltinFunctionType) and looked_into(value)[1] is None
            ):
                self.found[path] = None
            if not isinstance(value, (nn.Module, torch.Tensor)) and not is_known(type(value).__module__):
                self.of_class(type(value), f"{path}.__class__", (*names, *_IMPLICIT))


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
            or is_known(kind.__module__)
            or looked_into(one)[1] is not None
        ):
            return False
        else:
            waiting += (inner for _, inner in attributes(one))
    return not waiting


class Names(NamedTuple):
    """Names in a function's code and in that of functions within it: of globals, and of attributes.

    An import is both. The name of an attribute says nothing of a global that happens to have it.
    """

    globals: tuple[str, ...]
    attributes: tuple[str, ...]


def names_in(code: types.CodeType) -> Names:
    """The names of globals and attributes in a function's code, in the order of their first use."""
    found = [_names_in(one) for one in codes_in(code)]
    of_globals = (name for names in found for name in names.globals)
    return Names(
        tuple(dict.fromkeys(of_globals)),
        tuple(dict.fromkeys(name for names in found for name in names.attributes)),
    )


@lru_cache(maxsize=16384)
def _names_in(code: types.CodeType) -> Names:
    steps = [step for step in dis.get_instructions(code) if step.opcode in _NAMING]
    return Names(
        tuple(dict.fromkeys(step.argval for step in steps if step.opname not in _OF_ATTRIBUTES)),
        tuple(dict.fromkeys(step.argval for step in steps if step.opname not in _OF_GLOBALS)),
    )


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code, and that of functions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_in(constant)


IDENTITY = "is "
"""In `Outside.names`: the code asks whether two things are the same object."""
_BY_NAME = frozenset({"globals", "vars", "hasattr", "getattr"})
"""Functions by which code looks up what it has the name of as a string."""
_GLOBALS_BY_NAME = frozenset({"globals", "modules", "import_module"})
"""What such code looks a global up by: globals()["SCALE"], getattr(sys.modules[__name__], "SCALE")."""
_IS = dis.opmap["IS_OP"]
_NO_TENSORS = (type, types.FunctionType, types.BuiltinFunctionType, Enum)
_NAMING = frozenset(dis.hasname)
_OF_GLOBALS = frozenset({"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL"})
# LOAD_METHOD is Python 3.11's.
_OF_ATTRIBUTES = frozenset({"LOAD_ATTR", "STORE_ATTR", "DELETE_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"})


def looked_up_in(code: types.CodeType) -> Iterator[str]:
    """Strings of a code by which it may look up an attribute or a global."""
    if not _BY_NAME.isdisjoint(code.co_names):
        yield from (one for one in code.co_consts if isinstance(one, str) and one.isidentifier())


def looks_up_globals(code: types.CodeType) -> bool:
    """Whether a code, or one within it, may look up a global by its name as a string."""
    return any(not _GLOBALS_BY_NAME.isdisjoint(one.co_names) for one in codes_in(code))


def absent_globals(function: types.FunctionType, looked_up: Collection[str]) -> Iterator[str]:
    """Globals that there are none of and that code reads in a `try`, or looks up by their names."""
    known = function.__globals__.keys() | vars(builtins).keys()
    for code in codes_in(function.__code__):
        if "globals" in code.co_names:
            yield from (name for name in looked_up if name not in known)
        if code.co_exceptiontable and not known.issuperset(code.co_names):
            for step in dis.get_instructions(code):
                if step.opname in {"LOAD_GLOBAL", "LOAD_NAME"} and step.argval not in known:
                    yield step.argval


def asks_for_identity(code: types.CodeType, function: types.FunctionType) -> bool:
    """Whether a code of a function, or of one within it, compares by `is` with something that may be a tensor."""
    if not {"id", "is_"}.isdisjoint(code.co_names):
        return True
    if _IS not in code.co_code[::2]:
        return False
    steps = [*dis.get_instructions(code)]
    return any(
        step.opname == "IS_OP" and not _is_no_tensor(steps[:index], function)
        for index, step in enumerate(steps)
    )


def _is_no_tensor(steps: Sequence[dis.Instruction], function: types.FunctionType) -> bool:
    """Whether the last of some steps load none: a constant, a global, the module itself, a class or function."""
    *_, last = steps
    if last.opname in {"LOAD_CONST", "LOAD_GLOBAL"} or last.argval == "self":
        return True
    if last.opname == "LOAD_DEREF":
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        cell = cells.get(last.argval)
        return cell is not None and is_filled(cell) and isinstance(cell.cell_contents, _NO_TENSORS)
    count = next((n for n, step in enumerate(reversed(steps)) if step.opname != "LOAD_ATTR"), 0)
    first = steps[-1 - count]
    if first.opname != "LOAD_GLOBAL":
        return False
    value = function.__globals__.get(first.argval)
    for step in steps[len(steps) - count :]:
        value = vars(value).get(step.argval) if isinstance(value, (types.ModuleType, type)) else None
    return isinstance(value, _NO_TENSORS)
