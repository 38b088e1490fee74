"""Bounds of whole numbers that a graph computes: of an index that was clamped, say, so that nothing checks it again.

What lies between is followed through ops that round nothing: clamps, roundings to whole numbers, casts of these, sums
and products of integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.op import Trait

Range = tuple[float, float]
"""The least and the greatest number that an element can be; no element is NaN."""

_DEPTH = 24
_UNKNOWN = (-math.inf, math.inf)


def is_index(value: Value, extent: int) -> bool:
    """Whether every element of an integer tensor is known to lie in 0 .. extent - 1."""
    found = _bounds(value, _DEPTH, {})
    return found is not None and found[0] >= 0 and found[1] < extent


def _bounds(value: Value, depth: int, known: dict[Value, Range | None]) -> Range | None:
    """The range of numbers; None where it is not known, or an element may be NaN."""
    if value not in known:
        known[value] = _found(value, depth, known) if depth else None
    return known[value]


def _found(value: Value, depth: int, known: dict[Value, Range | None]) -> Range | None:
    if value.array is not None:
        return _of_array(value)
    if Trait.VIEW in value.op.traits:
        return _bounds(value.operands[0], depth - 1, known)
    follow = _FOLLOWED.get(value.op_name)
    found = None
    if follow is not None and (value.dtype.is_float or value.dtype.is_integer):
        found = follow(value, lambda one: _bounds(one, depth - 1, known))
    if value.dtype.is_integer and (found is None or not _fits(found, value)):
        return _all_of(value)
    return found


def _of_array(value: Value) -> Range | None:
    array = value.array
    assert array is not None
    if not array.size or array.dtype.kind not in "iuf":
        return None
    low, high = float(array.min()), float(array.max())
    return None if math.isnan(low) or math.isnan(high) else (low, high)


def _all_of(value: Value) -> Range:
    """The range of the dtype, of integers."""
    signed = value.dtype.kind == "int"
    most = 2.0 ** (value.dtype.bits - signed)
    return (-most if signed else 0.0, most if most > _EXACT else most - 1)


def _fits(found: Range, value: Value) -> bool:
    """Whether integers of a range are numbers of the dtype, so that none wraps, and what they are of is exact here."""
    low, high = _all_of(value)
    exact = value.op_name not in _ARITHMETIC or max(map(abs, found)) <= _EXACT
    return exact and low <= found[0] and found[1] <= high


_ARITHMETIC = frozenset({"add", "sub", "mul"})
_EXACT = 2.0**53
"""Up to it every whole number is a float."""

_Of = Callable[[Value], Range | None]


def _combined(value: Value, of: _Of, combine: Callable[[Range, Range], Range]) -> Range | None:
    a, b = (of(one) for one in value.operands)
    return None if a is None or b is None else combine(a, b)


def _clamped(value: Value, of: _Of) -> Range | None:
    """Of a maximum or minimum, which a number that is not NaN bounds on one side whatever the other is."""
    pick = max if value.op_name == "maximum" else min
    a, b = (of(one) or (_UNKNOWN if _is_number(one) else None) for one in value.operands)
    return None if a is None or b is None else (pick(a[0], b[0]), pick(a[1], b[1]))


def _is_number(value: Value) -> bool:
    """Whether no float is NaN, since another number stands wherever it was."""
    while Trait.VIEW in value.op.traits:
        value = value.operands[0]
    if value.op_name != "select":
        return False
    asked, instead, other = value.operands
    return asked.op_name == "isnan" and asked.operands[0] is other and _is_finite(instead)


def _is_finite(value: Value) -> bool:
    number = value.scalar
    return number is not None and math.isfinite(number)


def _selected(value: Value, of: _Of) -> Range | None:
    a, b = (of(one) for one in value.operands[1:])
    return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))


def _sum(value: Value, of: _Of) -> Range | None:
    if value.dtype.is_float:
        return None
    return _combined(value, of, lambda a, b: (a[0] + b[0], a[1] + b[1]))


def _difference(value: Value, of: _Of) -> Range | None:
    if value.dtype.is_float:
        return None
    return _combined(value, of, lambda a, b: (a[0] - b[1], a[1] - b[0]))


def _product(value: Value, of: _Of) -> Range | None:
    if value.dtype.is_float:
        return None

    def combine(a: Range, b: Range) -> Range:
        corners = [x * y for x in a for y in b]
        return min(corners), max(corners)

    return _combined(value, of, combine)


def _rounded(value: Value, of: _Of) -> Range | None:
    """Of a number that becomes a whole one: a half goes either way."""
    found = of(value.operands[0])
    if found is None:
        return None
    down, up = _ROUNDINGS.get(value.op_name, (math.floor, math.ceil))
    return _whole(down, found[0]), _whole(up, found[1])


def _whole(to: Callable[[float], int], number: float) -> float:
    return number if math.isinf(number) else float(to(number))


_ROUNDINGS: dict[str, tuple[Callable[[float], int], Callable[[float], int]]] = {
    "floor": (math.floor, math.floor),
    "ceil": (math.ceil, math.ceil),
    "trunc": (math.trunc, math.trunc),
    "cast": (math.trunc, math.trunc),
}


def _cast(value: Value, of: _Of) -> Range | None:
    return _rounded(value, of) if value.dtype.is_integer else None  # a float may round


_FOLLOWED: dict[str, Callable[[Value, _Of], Range | None]] = {
    "add": _sum,
    "sub": _difference,
    "mul": _product,
    "maximum": _clamped,
    "minimum": _clamped,
    "select": _selected,
    "floor": _rounded,
    "ceil": _rounded,
    "round": _rounded,
    "trunc": _rounded,
    "cast": _cast,
}
"""Op -> the range of what it computes, given those of its operands."""
