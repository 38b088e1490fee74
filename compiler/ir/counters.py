"""Counters of loops: integers that are a start plus a step for each turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernels_hub.compiler.ir.graph import Value


@dataclass(frozen=True)
class Counter:
    """`start` + `step` * the number of the turn."""

    start: int
    step: int


def step_of(inside: Value, after: Value) -> int | None:
    """What each turn adds to a scalar integer that it carries; None where it does something else.

    inside: the value in a turn; after: what the turn hands on.
    """
    if inside.rank or not inside.dtype.is_integer or after.op_name not in {"add", "sub"}:
        return None
    a, b = after.operands
    if after.op_name == "add" and b is inside:
        a, b = b, a
    if a is not inside or b.scalar is None:
        return None
    return int(b.scalar) if after.op_name == "add" else -int(b.scalar)


def counter_of(value: Value, counters: Mapping[Value, Counter], *, as_float: bool = False) -> Counter | None:
    """A value of a turn as a counter; None where it is none. counters: those that are known.

    as_float: a float of a counter counts as well: exact up to 2 ** 24.
    """
    while value.op_name == "cast" and (value.dtype.is_integer or as_float):
        (value,) = value.operands
    if value in counters:
        return counters[value]
    if value.op_name not in {"add", "sub", "mul"} or not value.dtype.is_integer:
        return None
    a, b = value.operands
    known, other = (b.scalar, a) if b.scalar is not None else (a.scalar, b)
    before = counter_of(other, counters) if known is not None else None
    if before is None:
        return None
    if value.op_name == "mul":
        return Counter(before.start * int(known), before.step * int(known))
    if value.op_name == "add":
        return Counter(before.start + int(known), before.step)
    if other is a:
        return Counter(before.start - int(known), before.step)
    return Counter(int(known) - before.start, -before.step)
