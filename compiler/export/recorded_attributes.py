"""Records the attributes that a module's forwards read while an example runs; its result depends on them.

Attributes of modules, and of plain objects that modules hold (a config), are noted as they are read, and so is that
there is none of a name ("?extra") and that all weights, buffers or modules were asked for ("_parameters"). What a
forward never reads (`layer_idx`, where there is no cache) may differ in another module. Data that its code names
outside of the module (a number among a file's globals or a class's attributes, what a closure holds) counts whether it
is read or not.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from kernels_hub.compiler.errors import CompilerError
from kernels_hub.compiler.export.recorded_output import spoken
from kernels_hub.compiler.export.recorded_surroundings import (
    UNFOLLOWED,
    Asked,
    asked,
    default_dtype,
    named_answers,
)
from kernels_hub.compiler.export.source import Example
from kernels_hub.compiler.importers.brief_run import briefly
from kernels_hub.compiler.importers.outer_data import outer_data, outer_data_of_object
from kernels_hub.compiler.runtime.facts import at, kind_of, looked_into, places
from kernels_hub.compiler.runtime.modules import forward_digest
from kernels_hub.compiler.runtime.parts import Module

_REGISTRIES = ("_parameters", "_buffers", "_modules")
_FURNITURE = frozenset(vars(nn.Module())) - {"training", *_REGISTRIES}

Reads = dict[int, set[str]]
Names = dict[str, list[str] | None]
"""What is read of a module: a name -> what is read of the plain object that it holds, None where it holds none."""
Recorded = tuple[dict[str, Names], Asked, list[str]]


def recorded(
    example: Example, *, by_layout: bool = False, remembered: Collection[tuple[str, str]] = ()
) -> tuple[Module, ...]:
    """The module and all inside of it, with the attributes that a run of the example reads.

    by_layout: what its results share, or what it writes to, depends on strides of its arguments. remembered: attributes
    for which the program does not ask: see `importers.asked_tensors.Asks`.
    """
    read, around, said = _run(example)
    if said and (said := _run(example)[2]):  # what is said once is no part of a call
        raise CompilerError(
            f"the forward {said[0]}, at each call, which a program does not; leave that out, or compile its layers"
        )
    if (what := around.pop(UNFOLLOWED, None)) is not None:
        raise CompilerError(
            f"the forward {what}, and a program does not; leave that out, or compile its layers"
        )
    around |= default_dtype()
    around |= {"@layout": "plain"} if by_layout else {}
    if "@layout" in around and not all(
        map(_is_contiguous, pytree.tree_leaves((example.args, dict(example.kwargs))))
    ):
        raise CompilerError(
            "what the forward computes depends on strides of its arguments, and the example has some that is not "
            "contiguous: give one that is"
        )
    inside = places(example.module)
    unasked = {(id(example.module.get_submodule(path)), name) for path, name in remembered}
    modules: list[Module] = []
    for path, module in example.module.named_modules(remove_duplicate=False):
        names: list[str] = []
        functions: list[str] = []
        for name, inner in read[path].items():
            if (id(module), name) in unasked:
                continue
            if name == "training" and isinstance(module, nn.modules.dropout._DropoutNd) and module.p == 0:
                continue
            names += [name] if inner is None else [f"{name}.{loop}" for loop in inner]
            held = at(module, name)
            if inner is None and not _runs_code(held):
                continue
            outside = outer_data_of_object(held, name, inner or outer_data(type(module)).names)
            if outside.data or outside.functions:
                names += (f"{name}.__class__", *outside.data)
                functions += outside.functions
            around |= named_answers(outside.names)
        kind = type(module)
        if not any(one.kind == kind_of(kind) for one in modules):
            outside = outer_data(kind)
            names += outside.data
            functions = [*outside.functions, *functions]
            around |= named_answers(outside.names)
        if getattr(module, "gradient_checkpointing", False) and module.training:
            around |= named_answers(outer_data(kind).names_to_checkpoint)
        facts = {name: _fact_at(module, path, name, inside) for name in names}
        modules.append(Module(path, kind_of(kind), forward_digest(kind), facts, tuple(functions)))
    modules[0] = replace(modules[0], facts={**modules[0].facts, **dict(sorted(around.items()))})
    return tuple(modules)


def _is_contiguous(value: object) -> bool:
    return not isinstance(value, torch.Tensor) or value.is_contiguous()


def _fact_at(module: nn.Module, path: str, name: str, inside: Mapping[int, str]) -> Any:
    found, kind = looked_into(at(module, name), inside)
    if kind is not None:
        raise CompilerError(
            f"the forward of {path or 'the module'} reads {name}, which is or holds a {kind}: whether that stays "
            "what it was cannot be asked at later calls; let the module hold the numbers or tensors that it needs"
        )
    return found


def _run(example: Example) -> Recorded:
    return briefly(lambda: _recorder(_copied(example)), _recorder(example))


def _recorder(example: Example) -> Callable[[], Recorded]:
    """A run of the example, which returns what it reads of each module, by path, what it asks for around them, and what
    it says."""

    def run() -> Recorded:
        with _recording(example.module) as (reads, kinds), asked() as around, spoken() as said:
            example.run()
        read = {}
        for path, module in example.module.named_modules(remove_duplicate=False):
            values = {name: module.__dict__.get(name) for name in sorted(reads.get(id(module), ()))}
            read[path] = {
                name: sorted(reads[id(value)])
                if id(value) in kinds and id(value) in reads and "__dict__" not in reads[id(value)]
                else None
                for name, value in values.items()
            }
        return read, around, said

    return run


def _copied(example: Example) -> Example:
    """The example of a copy of the module, which shares its parameters."""
    memo: dict[int, object] = {id(one): one for one in example.module.parameters()}
    return replace(example, module=copy.deepcopy(example.module, memo))


@contextmanager
def _recording(module: nn.Module) -> Iterator[tuple[Reads, dict[int, type]]]:
    reads: Reads = {}
    before: list[tuple[Any, type]] = []
    objects: dict[int, type] = {}
    try:
        for one in [*module.modules()]:
            for value in list(vars(one).values()):
                if _is_plain_object(value) and id(value) not in objects and _swap(value, reads, before):
                    objects[id(value)] = before[-1][1]
            _swap(one, reads, before)
        yield reads, objects
    finally:
        for one, kind in reversed(before):
            object.__setattr__(one, "__class__", kind)


def _swap(one: Any, reads: Reads, before: list[tuple[Any, type]]) -> bool:
    """Give an object a class that notes what is read of it; False where it cannot have another."""
    kind = type(one)
    noted = reads.setdefault(id(one), set())
    names = vars(one)

    is_module = isinstance(one, nn.Module)

    def get(self: Any, name: str) -> Any:
        if name in names:
            if name not in _FURNITURE:
                noted.add(name)
        elif is_module:
            if (registry := _registry(names, name)) is not None:
                if registry[name] is None:
                    noted.add(name)
            elif not name.startswith("__") and not any(name in vars(base) for base in kind.__mro__):
                noted.add(f"?{name}")
        elif not name.startswith("__") or name == "__dict__":
            try:
                value = kind.__getattribute__(self, name)  # type: ignore[call-arg]
            except AttributeError:
                if not hasattr(kind, "__getattr__"):
                    noted.add(f"?{name}")
                raise
            noted.add(name)
            return value
        return kind.__getattribute__(self, name)  # type: ignore[call-arg]

    body = {"__getattribute__": get, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    try:
        object.__setattr__(one, "__class__", type(kind.__name__, (kind,), body))
    except Exception:  # noqa: BLE001 - a metaclass has rules of its own
        return False
    before.append((one, kind))
    return True


def _registry(table: Mapping[str, Mapping[str, object]], name: str) -> Mapping[str, object] | None:
    """What of the registries in a module's table has a name."""
    registries = (table[registry] for registry in _REGISTRIES)
    return next((registry for registry in registries if name in registry), None)


def _runs_code(value: object) -> bool:
    """Whether what a forward does with a value may be in code that belongs to the value."""
    return callable(value) or isinstance(value, types.ModuleType)


def _is_plain_object(value: object) -> bool:
    return (
        hasattr(value, "__dict__")
        and not isinstance(value, (nn.Module, torch.Tensor, type, dict, list, tuple, set, Enum))
        and not callable(value)
        and type(value).__module__ != "builtins"
    )
