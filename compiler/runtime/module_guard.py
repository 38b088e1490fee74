"""Module guard: detects that a module, its parts or its weights changed since a program was made for them.

    what                                                         at each use
    tables of the module and its parts hold the very objects     all of them, by their versions where there are some
    parts are of the same classes, have the same tables, and
    have no hooks; cells of closures hold what they held         all of them
    weights lie where they lay, with the same version counter,
    shape, strides and dtype                                     all of them
    copied weights hold what they held                           some elements, and a part in turns: see `weight_guard`

With native code (module_guard.h) that takes 6 us for 36 weights where Python takes 22 (Zen 4, in the caches).

The module's own table comes with every question. Through its forward it holds the module, which would never end if this
held the table.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

import torch
from torch import nn

from ..native.dict_version import place_of_versions
from ..native.tensor_state import KnownTensors
from ..native.weight_guard import ONE_ARGUMENT, Content, Native, NativeContent, content_of, tell
from .facts import OF_FUNCTIONS, CellHolds, FunctionHolds, HasKeys, Held
from .function_fields import offset_of_content, offsets_of_functions

_SAME, _WRITTEN, _TENSOR = 1, 2, 3
"""What kh_module_guard_asked says."""
_LINE = 64


class _Held(ctypes.Structure):
    _fields_ = (("table", ctypes.c_void_p), ("name", ctypes.c_void_p), ("value", ctypes.c_void_p))


class _Version(ctypes.Structure):
    """KhVersion of module_guard.h."""

    _fields_ = (("place", ctypes.c_void_p), ("known", ctypes.c_uint64))


class _Table(ctypes.Structure):
    _fields_ = (("begin", ctypes.c_int64), ("end", ctypes.c_int64))


class _Typed(ctypes.Structure):
    _fields_ = (("object", ctypes.c_void_p), ("type", ctypes.c_void_p), ("attributes", ctypes.c_void_p))


class _Cell(ctypes.Structure):
    _fields_ = (("content", ctypes.c_void_p), ("value", ctypes.c_void_p))


class _Ordered(ctypes.Structure):
    _fields_ = (("dict", ctypes.c_void_p), ("keys", ctypes.c_void_p), ("count", ctypes.c_int64))


_PARTS = len(OF_FUNCTIONS)


class _Function(ctypes.Structure):
    _fields_ = (("object", ctypes.c_void_p), ("parts", ctypes.c_void_p * _PARTS))


class _Span(ctypes.Structure):
    _fields_ = (("first", ctypes.c_void_p), ("count", ctypes.c_int64))


class _ModuleGuardStruct(ctypes.Structure):
    """KhModuleGuard of module_guard.h."""

    _fields_ = (
        *((name, _Span) for name in ("own", "tables", "held", "typed", "cells", "ordered")),
        *((name, _Span) for name in ("versions", "functions", "next")),
        ("state", ctypes.c_void_p),
        ("guard", ctypes.c_void_p),
        ("module", ctypes.c_void_p),
        ("own_version", _Version),
        ("offsets", ctypes.c_int64 * _PARTS),
    )


class ModuleGuard:
    """See the module. Loops run in C and look at nothing twice: none of it is in the cache when a call begins.

    own: the module's `__dict__`. held: what tables hold. modules: the parts. placed: tensors that must stay where they
    are. counted: those of them whose versions matter. copied: weights of which copies are made, after this.
    same: questions about what lists, sets and closures hold, which are no dicts.
    library: with the functions of module_guard.h; without it, and on other Pythons than CPython, which have no address
    of an object, Python and PyTorch compare.
    """

    def __init__(
        self,
        own: dict[str, Any],
        held: Sequence[Held],
        modules: Sequence[nn.Module],
        placed: Sequence[torch.Tensor],
        counted: Sequence[torch.Tensor],
        copied: Sequence[torch.Tensor],
        library: ctypes.CDLL | None = None,
        same: Sequence[Callable[[], bool]] = (),
    ) -> None:
        is_native = Native.of(library) is not None
        cells = list({id(one.cell): one for one in same if isinstance(one, CellHolds)}.values())
        functions = [one for one in same if isinstance(one, FunctionHolds)]
        self._cells = cells if is_native and offset_of_content() is not None else []
        self._functions = functions if is_native and offsets_of_functions() else []
        self._same = [one for one in same if not isinstance(one, (HasKeys, CellHolds, FunctionHolds))]
        self._same += () if self._cells else cells
        self._same += () if self._functions else functions
        hooks = [
            Held(module.__dict__, name, module.__dict__[name])
            for module in modules
            for name in ("_forward_hooks", "_forward_pre_hooks")
        ]
        rows = {(id(one.holder), one.name): one for one in (*held, *hooks)}.values()
        self.held = [row for row in rows if row.holder is not own]
        self.own = [
            row._replace(holder={row.name: row.value} if row.name in own else {})
            for row in rows
            if row.holder is own
        ]
        ordered = [HasKeys(hook.value, ()) for hook in hooks]
        ordered += [one for one in same if isinstance(one, HasKeys)]
        by_table = {id(one.table): one for one in ordered}.values()
        self.ordered = [one for one in by_table if not _has_own_order(one.table)]
        self._same += [one for one in by_table if _has_own_order(one.table)]
        self.modules, self.kinds = list(modules), list(map(type, modules))
        self.tables = list(map(vars, modules))
        native = Native.of(library)
        self.placed = list(placed)
        versions = {id(tensor) for tensor in counted}
        self._known = KnownTensors(
            placed, [id(tensor) in versions for tensor in placed], is_native=native is not None
        )
        self.weights = list(copied)
        self._copied = [tensor.detach() for tensor in copied]
        """Their memory stays while it may be compared, also that of one that lies elsewhere now."""
        self.content: Content | None = content_of(self._copied, native) if copied else None
        self._asked: Callable[[dict[str, object]], int] | None = None
        if native is not None:
            self._asked = self._natively(native, own)
            return
        self._holders, self._names, self._values = (
            map(list, zip(*self.held, strict=True)) if self.held else ([], [], [])
        )
        self._own_names, self._own_values = [one.name for one in self.own], [one.value for one in self.own]

    def holds(self, own: dict[str, Any]) -> bool:
        """Whether all is as it was, as far as is compared now. own: the module's `__dict__`."""
        if self._same and not all(question() for question in self._same):
            return False
        if self._asked is None:
            is_same, is_written = self._asked_of_python(own)
        else:
            outcome = self._asked(own)
            if outcome == _TENSOR and self._known.same_after_all(self.placed):
                self._record.state = _state_address(self._known)
                outcome = self._asked(own)
            is_same, is_written = outcome == _SAME, outcome == _WRITTEN
            if is_same and self.content is not None and self.content.strict:
                is_written = not self.content.holds()
        if self._known.state is None and not self._known.same(self.placed):
            return False
        if is_written:
            tell(self.weights)
        return is_same and not is_written

    def holds_all(self, own: dict[str, Any]) -> bool:
        """Whether all is as it was; all that weights hold is compared."""
        return self.holds(own) and (self.content is None or self.content.holds(whole=True))

    def took(self, elapsed: int) -> None:
        """A call took so many nanoseconds: what weights hold is compared for a share of them."""
        if self.content is not None:
            self.content.took(elapsed)

    def be_strict(self, on: bool) -> None:
        """Compare all that weights hold at every question, or no more."""
        if self.content is not None:
            self.content.strict = on

    def _natively(self, native: Native, own: dict[str, object]) -> Callable[[dict[str, object]], int]:
        """The native comparison. Objects are known by their addresses, which are theirs while this holds them."""
        place = place_of_versions(native.library)

        def version(table: dict[str, object]) -> _Version:
            return _Version(None if place is None else place(table), 0)

        asked = self.placed if self._known.state is None else []
        self.held.sort(key=lambda row: id(row.holder))
        holders = [id(row.holder) for row in self.held]
        tables = {id(row.holder): row.holder for row in self.held}
        begins = [(holders.index(key), holders.count(key)) for key in tables]
        self._keys = [_array(ctypes.c_void_p, [*map(id, one.keys)]) for one in self.ordered]
        dicts = [*tables.values(), *(one.table for one in self.ordered)]
        self._arrays = [
            _array(_Held, [_Held(None, id(one.name), _value(one)) for one in self.own]),
            _array(_Table, [_Table(begin, begin + count) for begin, count in begins]),
            _array(_Held, [_Held(id(one.holder), id(one.name), _value(one)) for one in self.held]),
            _array(
                _Typed,
                [
                    _Typed(id(module), id(kind), id(table))
                    for module, kind, table in zip(self.modules, self.kinds, self.tables, strict=True)
                ],
            ),
            _array(
                _Cell,
                [_Cell(id(one.cell) + (offset_of_content() or 0), id(one.value)) for one in self._cells],
            ),
            _array(
                _Ordered,
                [
                    _Ordered(id(one.table), ctypes.addressof(keys), len(keys))
                    for one, keys in zip(self.ordered, self._keys, strict=True)
                ],
            ),
            _array(_Version, [version(one) for one in dicts]),
            _array(_Function, [_function(one) for one in self._functions]),
            _array(ctypes.c_void_p, [ctypes.c_void_p(line) for one in asked for line in _lines(one)]),
        ]
        self._record = _ModuleGuardStruct(
            *(_Span(ctypes.addressof(array), len(array)) for array in self._arrays),
            _state_address(self._known),
            self.content.address if isinstance(self.content, NativeContent) else None,
            id(own),
            version(own),
            (ctypes.c_int64 * _PARTS)(*offsets_of_functions()),
        )
        self._native = native
        return native.bound("kh_module_guard_asked", self._record, ONE_ARGUMENT)

    def _asked_of_python(self, own: dict[str, Any]) -> tuple[bool, bool]:
        """Whether tables, classes and hooks are as they were; whether what weights hold is found to be another."""
        is_same = self._parts_look_the_same(own)
        return is_same, is_same and self.content is not None and not self.content.holds()

    def _parts_look_the_same(self, own: dict[str, Any]) -> bool:
        return (
            all(map(is_, map(dict.get, self._holders, self._names), self._values))
            and all(map(is_, map(own.get, self._own_names), self._own_values))
            and all(map(is_, map(type, self.modules), self.kinds))
            and all(map(is_, map(vars, self.modules), self.tables))
            and all(one() for one in self.ordered)
        )


def _function(one: FunctionHolds) -> _Function:
    parts = (None if part is None else id(part) for part in one.parts)
    return _Function(id(one.function), (ctypes.c_void_p * _PARTS)(*parts))


def _state_address(known: KnownTensors) -> int | None:
    return None if known.state is None else ctypes.addressof(known.state)


def _has_own_order(table: dict[str, object]) -> bool:
    """Whether keys may be in another order than in the dict that it is: moving one to an end changes no dict."""
    return isinstance(table, OrderedDict) and len(table) > 1


def _value(held: Held) -> int | None:
    """The address of what a table holds under a name; None for nothing."""
    return id(held.value) if held.name in held.holder else None


def _array(kind: Any, rows: Sequence[Any]) -> ctypes.Array[Any]:
    array: ctypes.Array[Any] = (kind * len(rows))(*rows)
    return array


def _lines(tensor: torch.Tensor) -> Sequence[int]:
    """Where PyTorch is going to look for a tensor's address and version; only asked for ahead, never read here."""
    begin, storage = tensor._cdata, tensor.untyped_storage()._cdata
    return [id(tensor), *range(begin, begin + 3 * _LINE, _LINE), storage, storage + _LINE]
