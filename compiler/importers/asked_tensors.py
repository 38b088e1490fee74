"""What a forward asks beside what tensors hold, while torch.export traces it, and what it keeps from call to call.

    lin(x) if x.is_contiguous() else slow(x)      strides, gradients, whether a tensor is a Parameter
    x if a is b else a + b                        whether things are the same object
    x * x._version                                what tells one call from another: refused
    self.calls += 1; return x * self.calls        attributes that a call leaves changed: refused where it matters

A program has the answers that the example got. Calls have to be such that they would get the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from kernels_hub.compiler.errors import ImportFailure
from kernels_hub.compiler.importers.known_code import is_of_model
from kernels_hub.compiler.importers.outer_data import IDENTITY, names_of_code
from kernels_hub.compiler.importers.remembered_tensors import (
    REGISTRIES,
    are_left_by_all,
    are_of_module,
    has_remembered,
    has_tensors,
    tables_of,
)
from kernels_hub.compiler.importers.tensor_facts import OF_ONE_CALL
from kernels_hub.compiler.importers.torch_autograd import items_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram


@dataclass(frozen=True)
class Asks:
    """layout: strides, gradients, or whether a tensor is a Parameter. identity: whether things are the same object.

    remembered: (path of a module, attribute) of tensors that a call leaves for later ones, and a program computes.
    """

    layout: bool = False
    identity: bool = False
    remembered: frozenset[tuple[str, str]] = frozenset()


@dataclass
class Asking:
    """Notes what one forward asks. changed: the attributes that the last trace of it left changed, as it left them."""

    module: nn.Module
    layout: bool = False
    changed: dict[tuple[str, str], _Attribute] = field(default_factory=dict)
    remembered: frozenset[tuple[str, str]] = frozenset()

    def note(self, func: object, frame: FrameType) -> None:
        """One of `tensor_facts` was asked from a frame. Raises ImportFailure for what is of one call."""
        if not is_of_model(frame):
            return
        if func in OF_ONE_CALL:
            raise ImportFailure(
                f"the forward asks a tensor for its {OF_ONE_CALL[func]}, which is of one call, and a program is of "
                "all; leave that out, or compile its layers"
            )
        self.layout = True

    def asks(self) -> Asks:
        """All that is asked: by what was noted, and by what the code says."""
        names = names_of_code(self.module)
        return Asks(self.layout or "Parameter" in names, IDENTITY in names, self.remembered)

    @contextmanager
    def kept_attributes(self) -> Iterator[None]:
        """While it is open the module may be changed by its forward; then it is as it was, and `changed` says how."""
        before = {
            path: [_attributes(table) for table in tables_of(one)]
            for path, one in self.module.named_modules()
        }
        try:
            yield
        finally:
            self.changed = {}
            for path, one in self.module.named_modules():
                for table, was in zip(tables_of(one), before.get(path, ()), strict=False):
                    self._restore(path, table, was)

    def _restore(self, path: str, table: dict[str, object], before: Mapping[str, _Attribute]) -> None:
        for name in [*before, *(name for name in table if name not in before and name not in REGISTRIES)]:
            was = before.get(name, _ABSENT)
            if was.holds(table.get(name, _NOTHING)):
                continue
            self.changed[path, name] = _Attribute.of(table.get(name, _NOTHING))
            was.put(table, name)

    @contextmanager
    def as_left(self) -> Iterator[None]:
        """With the attributes as the last trace left them."""
        modules = dict(self.module.named_modules())
        undo: list[tuple[dict[str, object], str, _Attribute]] = []
        for (path, name), left in self.changed.items():
            attributes, buffers = tables_of(modules[path])
            table = buffers if name in buffers else attributes
            undo.append((table, name, _Attribute.of(table.get(name, _NOTHING))))
            left.put(table, name)
        try:
            yield
        finally:
            for table, name, was in undo:
                was.put(table, name)


_NOTHING = object()
_Items = list[object] | dict[object, object] | set[object]


@dataclass(frozen=True)
class _Attribute:
    """An attribute's value, and what a list, dict or set has in it."""

    value: object
    items: _Items | None = None

    @classmethod
    def of(cls, value: object) -> _Attribute:
        return cls(value, value.copy() if isinstance(value, (list, dict, set)) else None)

    def holds(self, value: object) -> bool:
        if value is not self.value:
            return type(value) is type(self.value) and isinstance(value, _SCALARS) and value == self.value
        return self.items is None or _are_same(self.items, value)

    def put(self, table: dict[str, object], name: str) -> None:
        value: Any = self.value
        if value is _NOTHING:
            table.pop(name, None)
            return
        if self.items is not None and not _are_same(self.items, value):
            value.clear()
            value.extend(self.items) if isinstance(value, list) else value.update(self.items)
        table[name] = value


_SCALARS = (bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_ABSENT = _Attribute(_NOTHING)


def _attributes(table: Mapping[str, object]) -> dict[str, _Attribute]:
    return {name: _Attribute.of(value) for name, value in table.items() if name not in REGISTRIES}


def _are_same(items: _Items, others: object) -> bool:
    """Whether two containers hold the same objects, in order."""
    if not isinstance(others, (list, dict, set)) or len(items) != len(others):
        return False
    pairs = zip(items_of(items), items_of(others), strict=True)
    return all(a is b or (type(a) is type(b) and isinstance(a, _SCALARS) and a == b) for a, b in pairs)


def settled(
    program: ExportedProgram,
    asking: Asking,
    again: Callable[[], ExportedProgram],
    *,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
) -> ExportedProgram:
    """The program, where the next call would be traced to the same one, or would compute the same from tensors that
    this one left in the module. again: traces the next call; args, kwargs: of the call.

    Raises ImportFailure with the attributes that make it another.
    """
    if not asking.changed:
        return program
    names = [f"{path}.{name}" if path else name for path, name in asking.changed]
    found = [left.value if left.items is None else left.items for left in asking.changed.values()]
    if has_tensors(found) and not are_left_by_all(asking.module, args, kwargs):
        raise ImportFailure(
            f"the forward leaves {', '.join(names[:3])} in its module, of which tensors depend on its arguments; a "
            "program leaves the module as it was: return them, or compile its layers"
        )
    if has_remembered(found):
        is_same = are_of_module(asking.module, args, kwargs)
        asking.remembered = frozenset(asking.changed) if is_same else frozenset()
    else:
        with asking.as_left():
            is_same = _is_same_program(program, again())
    if not is_same:
        raise ImportFailure(
            f"the forward changes {', '.join(names[:3])} of its module at each call, and computes something else then; "
            "a program does not: keep that in a buffer or among the arguments, or compile its layers"
        )
    return program


def _is_same_program(one: ExportedProgram, other: ExportedProgram) -> bool:
    if str(one.graph) != str(other.graph) or one.constants.keys() != other.constants.keys():
        return False
    pairs = ((value, other.constants[name]) for name, value in one.constants.items())
    return all(
        a is b or (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and torch.equal(a, b))
        for a, b in pairs
    )
