"""Weight guards of layers that keep copies of weights, with the native comparison where it can be built."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from torch import Tensor

from . import weight_guard
from .native import load
from .weight_guard import Native, WeightGuard, finished

__all__ = ["WeightGuard", "finished", "guard", "is_strict", "mark_strict"]


def guard(tensors: Sequence[Tensor]) -> WeightGuard:
    """A guard of tensors as they are now."""
    return WeightGuard(tensors, _native())


@lru_cache(maxsize=1)
def _native() -> Native | None:
    library = load(
        Path(__file__).with_name("weight_guard.cpp"),
        Path(weight_guard.__file__).parent,
        at_once=True,
        is_extra=True,
    )
    return Native.of(library)


_STRICT: dict[int, tuple[weakref.ref[Tensor], bool]] = {}
_any_strict = False


def mark_strict(weight: Tensor | None, on: bool) -> None:
    """Have all of a weight compared at every use of its copies, or no more; guards ask `is_strict` when they are made.

    Once that was asked for any, or for None, weights of which nothing was said are strict, too: a parameter that takes
    the place of a strict one is unknown.
    """
    global _any_strict
    _any_strict = _any_strict or on
    if weight is not None:
        key = id(weight)
        _STRICT[key] = (weakref.ref(weight, lambda one: _forget(key, one)), on)


def is_strict(weight: Tensor) -> bool:
    """Whether all of a weight is to be compared at every use of its copies."""
    known = _STRICT.get(id(weight))
    return known[1] if known is not None and known[0]() is weight else _any_strict


def _forget(key: int, reference: weakref.ref[Tensor]) -> None:
    known = _STRICT.get(key)
    if known is not None and known[0] is reference:
        del _STRICT[key]
