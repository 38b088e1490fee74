"""Errors of recurrent cells: what operands bring and every step adds, carried from step to step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kernels_hub.compiler.ir.ops.recurrent import GATES, states
from kernels_hub.compiler.ir.types import Array
from kernels_hub.compiler.judging.computed import root_of_squares
from kernels_hub.compiler.judging.roundoff import depth


@dataclass(frozen=True)
class _Near:
    """A value, float64, and how far it may be off."""

    value: Array
    error: Array

    def through(self, function: Callable[[Array], Array], rounding: float) -> _Near:
        """A function that only grows, or only falls, of magnitude 1 at most where it is not linear."""
        value = function(self.value)
        moved = [np.abs(function(self.value + sign * self.error) - value) for sign in (-1, 1)]
        return _Near(value, np.maximum(*moved) + rounding * np.maximum(np.abs(value), 1.0))

    def plus(self, other: _Near, rounding: float) -> _Near:
        """The sum."""
        own = rounding * (np.abs(self.value) + np.abs(other.value))
        return _Near(self.value + other.value, root_of_squares(self.error, other.error, own))

    def times(self, other: _Near, rounding: float) -> _Near:
        """The product, element by element."""
        value = self.value * other.value
        brought = (self.value * other.error, other.value * self.error, self.error * other.error)
        return _Near(value, root_of_squares(*brought, rounding * np.abs(value)))

    def into(self, weight: _Near, rounding: float) -> _Near:
        """The product (batch, rows) of states (batch, hidden) and a weight (rows, hidden)."""
        columns = _Near(weight.value.T, weight.error.T)
        brought = self.error**2 @ columns.value**2 + (self.value**2 + self.error**2) @ columns.error**2
        own = rounding * depth(self.value.shape[-1]) * (np.abs(self.value) @ np.abs(columns.value))
        return _Near(self.value @ columns.value, np.sqrt(brought + own**2))

    def part(self, index: int, count: int) -> _Near:
        """One of so many equal parts of the last axis."""
        return _Near(np.split(self.value, count, -1)[index], np.split(self.error, count, -1)[index])

    def rows(self, begin: int, end: int) -> _Near:
        """Some along the first axis."""
        return _Near(self.value[begin:end], self.error[begin:end])


def recurrence_errors(
    cell: str, values: Sequence[Array], errors: Sequence[Array], rounding: float, *, reverse: bool
) -> Array:
    """Of the result of the op "recurrent", (time + 1, states, ways, batch, hidden), by those of its operands.

    rounding: of one operation, relative. Not for sequences of several lengths, and quantized weights.
    """
    x, weight, *more = (_Near(value, error) for value, error in zip(values, errors, strict=True))
    time, batch = x.value.shape[:2]
    ways, rows, hidden = weight.value.shape
    count = states(cell)
    found = np.zeros((time + 1, count, ways, batch, hidden))
    for way in range(ways):
        state = [_Near(one.value[way], one.error[way]) for one in more[:count]]
        own = _Near(weight.value[way], weight.error[way])
        bias = _Near(more[count].value[way], more[count].error[way]) if cell == "gru_after" else None
        gates = slice(way * rows, (way + 1) * rows)
        for done in range(time):
            at = time - 1 - done if reverse or way == 1 else done
            given = _Near(x.value[at, :, gates], x.error[at, :, gates])
            state = _step(cell, given, state, own, bias, rounding)
            for index, one in enumerate(state):
                found[at, index, way] = one.error
        for index, one in enumerate(state):
            found[time, index, way] = one.error
    return found


def _sigmoid(x: Array) -> Array:
    return 0.5 * np.tanh(0.5 * x) + 0.5


def _relu(x: Array) -> Array:
    return np.maximum(x, 0)


def _step(
    cell: str, x: _Near, state: Sequence[_Near], weight: _Near, bias: _Near | None, rounding: float
) -> list[_Near]:
    """As `ir.ops.recurrent.step_of`."""
    h, gates = state[0], GATES[cell]
    hidden = h.value.shape[-1]
    if gates > 1 and cell != "lstm":
        z, r = (
            x.part(gate, gates)
            .plus(h.into(weight.rows(gate * hidden, (gate + 1) * hidden), rounding), rounding)
            .through(_sigmoid, rounding)
            for gate in (0, 1)
        )
        last = weight.rows(2 * hidden, 3 * hidden)
        if bias is None:
            candidate = r.times(h, rounding).into(last, rounding)
        else:
            candidate = r.times(h.into(last, rounding).plus(bias, rounding), rounding)
        new = x.part(2, gates).plus(candidate, rounding).through(np.tanh, rounding)
        kept = _Near(1 - z.value, z.error)
        return [kept.times(new, rounding).plus(z.times(h, rounding), rounding)]
    total = x.plus(h.into(weight, rounding), rounding)
    if cell != "lstm":
        return [total.through(np.tanh if cell == "tanh" else _relu, rounding)]
    i, o, f = (total.part(index, gates).through(_sigmoid, rounding) for index in range(3))
    new = total.part(3, gates).through(np.tanh, rounding)
    c = f.times(state[1], rounding).plus(i.times(new, rounding), rounding)
    return [o.times(c.through(np.tanh, rounding), rounding), c]
