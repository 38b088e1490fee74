"""Finds the tagged functions that a module calls: in what its forward refers to, in its attributes, and out of reach.

A kernel takes the place of a function that the forward calls by a global name or through a closure, and of one that an
attribute of the module holds, a `functools.partial` of it included. Everywhere else the function stays as it is, and
the report says why.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from kernels_hub.kernelization.decoration import inner_function
from kernels_hub.kernelization.tag import FUNCTIONS_ATTRIBUTE, NAME_ATTRIBUTE

_MOST_HELD = 1024
"""Elements of a container that are looked at."""
_CODE = (ModuleType, FunctionType, BuiltinFunctionType, MethodType, type, CellType)


def called_names(function: FunctionType) -> set[str]:
    """Global names that a function's code, nested code included, refers to."""
    names: set[str] = set()
    pending: list[CodeType] = [function.__code__]
    while pending:
        code = pending.pop()
        names.update(code.co_names)
        pending.extend(constant for constant in code.co_consts if isinstance(constant, CodeType))
    return names


def with_names(code: CodeType, names: Mapping[str, str]) -> CodeType:
    """A code, nested code included, under other names for some globals. None of them may be in `attribute_names`."""
    if not names:
        return code
    return code.replace(
        co_names=tuple(names.get(name, name) for name in code.co_names),
        co_consts=tuple(
            with_names(constant, names) if isinstance(constant, CodeType) else constant
            for constant in code.co_consts
        ),
    )


def attribute_names(function: FunctionType) -> set[str]:
    """Names that a function's code, nested code included, uses for other things than globals that it reads."""
    names: set[str] = set()
    pending: list[CodeType] = [function.__code__]
    while pending:
        code = pending.pop()
        names.update(
            str(step.argval)
            for step in dis.get_instructions(code)
            if step.opcode in dis.hasname and step.opname not in ("LOAD_GLOBAL", "LOAD_NAME")
        )
        pending.extend(constant for constant in code.co_consts if isinstance(constant, CodeType))
    inner = inner_function(function)
    return names if inner is None else names | attribute_names(inner)


def referred(forward: FunctionType) -> Iterator[tuple[str, Any]]:
    """(name, value) of what a forward's code refers to: global names, and variables of functions around it.

    Of a decorated one, what the function inside refers to as well, where the decorator's wrapper has it in its closure
    and does not use the name for something else.
    """
    inner = inner_function(forward)
    names = set()
    for name, value in referred_by_itself(forward):
        names.add(name)
        if inner is None or value is not inner:
            yield name, value
    if inner is not None:
        yield from ((name, value) for name, value in referred(inner) if name not in names)


def referred_by_itself(function: FunctionType) -> Iterator[tuple[str, object]]:
    """`referred`, without what a function inside refers to."""
    for name in sorted(called_names(function)):
        if (value := function.__globals__.get(name)) is not None:
            yield name, value
    yield from captured(function)


def referred_as(forward: FunctionType, name: str) -> Any:
    """What a name means in a forward. Raises KeyError where it means nothing."""
    return dict(referred(forward))[name]


def captured(function: FunctionType) -> list[tuple[str, Any]]:
    """(name, value) of the variables of functions around it that a function uses."""
    found = []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found.append((name, cell.cell_contents))
        except ValueError:  # not assigned yet
            continue
    return found


def unseen_by_a_kernel(function: object) -> str | None:
    """Why a kernel cannot stand for a function: it computes with more than its arguments. None where it can."""
    if isinstance(function, MethodType):
        return f"it is a method, and a kernel would not see its {type(function.__self__).__qualname__}"
    if isinstance(function, functools.partial):
        return unseen_by_a_kernel(function.func)
    if not isinstance(function, FunctionType):
        return None
    values = [name for name, value in captured(function) if not isinstance(value, _CODE)]
    if values:
        return f"it is a closure over {', '.join(values)}, which a kernel would not see"
    return None


def out_of_reach(cls: type) -> Iterator[tuple[str, Any, str]]:
    """(name, tagged function, why no kernel takes its place) of functions that a forward gets at in other ways."""
    forward = getattr(cls, "forward", None)
    if not isinstance(forward, FunctionType):
        return
    names = called_names(forward)
    globals_ = forward.__globals__
    for name in sorted(names):
        value = globals_.get(name)
        if isinstance(value, ModuleType):
            for inner in sorted(names):
                if is_tagged(function := vars(value).get(inner)):
                    yield f"{name}.{inner}", function, f"its forward calls it through the module {name}"
        elif value is not None:
            yield from _held(name, value, "its forward")
        elif (method := inspect.getattr_static(cls, name, None)) is not None:
            function = method.__func__ if isinstance(method, staticmethod | classmethod) else method
            if is_tagged(function):
                yield name, function, "it is a method of the module's class"
    wrapped = getattr(forward, "__wrapped__", None)
    if isinstance(wrapped, FunctionType) and inner_function(forward) is None:
        for name, value in referred(wrapped):
            if is_tagged(value):
                yield (
                    name,
                    value,
                    "its forward is decorated, and a kernel would have to get into what it decorates",
                )


def held_out_of_reach(
    attributes: Sequence[tuple[str, object]], reached: Sequence[object]
) -> Iterator[tuple[str, Any, str]]:
    """The same of what a module's attributes hold, by name. reached: functions whose places are known."""
    for name, value in attributes:
        if type(value) in _CONTAINERS and value:
            if name != FUNCTIONS_ATTRIBUTE or not isinstance(value, dict):
                yield from _held(name, value, "the module")
                continue
            for declared, function in value.items():
                if not any(function is one for one in reached):
                    yield (
                        declared,
                        function,
                        "use_kernelized_func names it, but its forward does not call it by a name",
                    )


_CONTAINERS = (list, tuple, dict, set, frozenset)


def _held(name: str, value: Any, by: str) -> Iterator[tuple[str, Any, str]]:
    """Tagged functions in a list, tuple or dict."""
    if type(value) in (list, tuple, set, frozenset):
        items: Any = enumerate(value)
    elif type(value) is dict:
        items = value.items()
    else:
        return
    for index, (key, one) in enumerate(items):
        if index == _MOST_HELD:
            return
        if is_tagged(one):
            yield f"{name}[{key!r}]", one, f"{by} gets it from a {type(value).__name__}"


def is_tagged(value: object) -> bool:
    """Whether a value is a function with a tag of its own, or a partial or method of one."""
    if isinstance(value, functools.partial):
        value = value.func
    return isinstance(value, FunctionType | MethodType) and getattr(value, NAME_ATTRIBUTE, None) is not None
