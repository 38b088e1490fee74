"""What a state was made of, looked at by native code: a third of what Python takes with cold caches."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

import torch

from .modules import Held
from .native import Native
from .watched import Watched
from .weight_guard import NativeContent

_PYTHON = ("PyDict_GetItemWithError", "PyDict_Size", "PyObject_Type", "Py_DecRef")
_SAME, _WRITTEN = 1, 2
"""What kh_unchanged says."""
_IS_CPYTHON = sys.implementation.name == "cpython"
_LINE = 64


class _Held(ctypes.Structure):
    _fields_ = (("table", ctypes.c_void_p), ("name", ctypes.c_void_p), ("value", ctypes.c_void_p))


class _Version(ctypes.Structure):
    _fields_ = (("now", ctypes.c_void_p), ("seen", ctypes.c_uint64))


class _Typed(ctypes.Structure):
    _fields_ = (("object", ctypes.c_void_p), ("type", ctypes.c_void_p))


class _Span(ctypes.Structure):
    _fields_ = (("first", ctypes.c_void_p), ("count", ctypes.c_int64))


class _Watched(ctypes.Structure):
    """KhWatched of unchanged.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _PYTHON),
        *((name, _Span) for name in ("own", "held", "versions", "typed", "empty", "next")),
        ("guard", ctypes.c_void_p),
        ("version_at", ctypes.c_int64),
        ("own_seen", ctypes.c_uint64),
    )


class NativeWatched(Watched):
    """See `Watched`. Objects are known by their addresses, which are theirs while this holds them."""

    def __init__(self, native: Native, *what: Any) -> None:
        self._native, self.guard = native, native.guard
        super().__init__(*what)

    def begin(self) -> None:
        """See `Watched`. Other Pythons than CPython have no address of an object: there, all is looked at in Python."""
        if not _IS_CPYTHON:
            super().begin()
            return
        own = [_Held(None, id(one.name), _value(one)) for one in self.own]
        held = [_Held(id(one.holder), id(one.name), _value(one)) for one in self.held]
        tables = {id(one.holder) for one in self.held}
        versions = [_Version(table + _VERSION_AT, 0) for table in tables if _VERSION_AT]
        typed = [_Typed(id(one), id(kind)) for one, kind in zip(self.modules, self.kinds, strict=True)]
        empty = [ctypes.c_void_p(id(one)) for one in self.empty]
        ahead = [ctypes.c_void_p(place) for one in self.placed for place in _lines(one)]
        self._arrays = [
            _array(_Held, own),
            _array(_Held, held),
            _array(_Version, versions),
            _array(_Typed, typed),
            _array(ctypes.c_void_p, empty),
            _array(ctypes.c_void_p, ahead),
        ]
        functions = (ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p) for name in _PYTHON)
        self._all = _Watched(
            *functions,
            *(_Span(ctypes.addressof(one), len(one)) for one in self._arrays),
            self.content.address if isinstance(self.content, NativeContent) else None,
            _VERSION_AT,
        )
        kind = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        function = kind(self._native.unchanged)
        self._unchanged, self._argument = function, ctypes.addressof(self._all)

    def looks_the_same(self, own: dict[str, Any]) -> bool:
        """See `Watched`."""
        if not _IS_CPYTHON:
            return super().looks_the_same(own)
        content, elapsed = self.content, 0
        if content is not None:
            elapsed, content.elapsed = content.elapsed, 0
        outcome = self._unchanged(self._argument, id(own), elapsed)
        self._is_written = outcome == _WRITTEN
        if outcome == _SAME and content is not None and content.strict:
            self._is_written = not content.holds()
        return outcome == _SAME and not self._is_written


def _value(one: Held) -> int | None:
    """The address of what a table holds under a name; None for nothing."""
    return id(one.value) if one.name in one.holder else None


def _version_at() -> int:
    """Bytes from the beginning of a dict to the number that tells its states apart; 0 where there is none.

    CPython 3.8 to 3.12 count the changes of dicts, for guards like these, in a field that is private (PEP 509, taken
    back by PEP 699); it is used where it does what that says. Elsewhere every table is looked into.
    """
    if not _IS_CPYTHON or sys.version_info >= (3, 13):
        return 0
    place = 3 * ctypes.sizeof(ctypes.c_void_p)  # count of references, class, length
    table: dict[str, object] = {"a": object()}
    field = ctypes.c_uint64.from_address(id(table) + place)
    seen = [field.value]
    for names in ("a", "ab", "b", ""):
        for gone in table.keys() - set(names):
            del table[gone]
        table.update((name, object()) for name in names)
        seen.append(field.value)
    return place if len(set(seen)) == len(seen) else 0


_VERSION_AT = _version_at()


def _array(kind: Any, rows: Sequence[Any]) -> ctypes.Array[Any]:
    array: ctypes.Array[Any] = (kind * len(rows))(*rows)
    return array


def _lines(tensor: torch.Tensor) -> Sequence[int]:
    """Where PyTorch is going to look for a tensor's address and version; only asked for ahead, never read here."""
    begin, storage = tensor._cdata, tensor.untyped_storage()._cdata
    return [id(tensor), *range(begin, begin + 3 * _LINE, _LINE), storage, storage + _LINE]
