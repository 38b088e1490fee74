"""Error rules of ops: bound and magnitude of a result from those of the operands. See `bounds`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.op import Formulas, Op, ReferenceCall, Trait
from kernels_hub.compiler.ir.ops.conversion import made_once
from kernels_hub.compiler.ir.ops.few_bits import weight_of
from kernels_hub.compiler.ir.types import Array, DType
from kernels_hub.compiler.judging.computed import SAFETY, At, Pair, loose, root_of_squares
from kernels_hub.compiler.judging.recurrent_errors import recurrence_errors
from kernels_hub.compiler.judging.roundoff import depth as sum_depth
from kernels_hub.compiler.judging.roundoff import largest, least, unit

_WINOGRAD = 5
"""Places around an element of a convolution whose magnitudes its error may be of: tiles of Winograd's algorithm."""


Rule = Callable[[At], Pair]


# -- rules ------------------------------------------------------------------------------------------


def _times(error: Array, factor: Array) -> Array:
    """error * |factor|; nothing stays nothing, whatever it is multiplied by."""
    return np.where(error == 0, 0.0, error * np.abs(factor))


def _propagated(at: At, error: Array) -> Array:
    """Arithmetic: what is not finite is judged where an operand brought it, not where it came about here."""
    special = ~np.isfinite(at.result)
    if not special.any():
        return error
    lost = np.logical_or.reduce([np.isinf(error) for error in at.errors])
    if at.result.shape and any(value.shape != at.result.shape for value in at.values):
        return np.where(special, np.inf, error)
    nan = np.logical_or.reduce([np.isnan(value) for value in at.values])
    infinite = np.logical_or.reduce([np.isinf(value) for value in at.values])
    brought = np.where(np.isnan(at.result), nan, infinite) & ~lost
    return np.where(special, np.where(brought, 0.0, np.inf), error)


def _sum_of_two(at: At) -> Pair:
    (a, b), u = at.errors, unit(at.row)
    size = at.sizes[0] + at.sizes[1]
    same = at.node.operands[0] is at.node.operands[1]
    brought = a + b if same else root_of_squares(a, b)
    # -0.0 + 0.0 is 0.0, and rewrites may leave out what adds 0.0: of that zero either sign is right.
    tiny = np.where(
        (size < 2 * least(at.row)) & ((size > 0) | (at.node.op.name == "add")), least(at.row), 0.0
    )
    return _propagated(at, root_of_squares(brought, SAFETY * u * size) + tiny), size


def _product(at: At) -> Pair:
    (x, y), (a, b), u = at.values, at.errors, unit(at.row)
    size = np.where((at.sizes[0] == 0) | (at.sizes[1] == 0), 0.0, at.sizes[0] * at.sizes[1])
    one = (np.abs(x) == 1) & (a == 0) | (np.abs(y) == 1) & (b == 0)
    own = np.where(one, 0.0, SAFETY * u * size + least(at.row))
    first, second = _times(a, y), _times(b, x)
    brought = first + second if at.node.operands[0] is at.node.operands[1] else root_of_squares(first, second)
    return _propagated(at, root_of_squares(brought, own) + _times(a, b)), size


def _quotient(at: At) -> Pair:
    (_, y), (a, b), u = at.values, at.errors, unit(at.row)
    away = np.abs(y) - b
    lost = (away <= 0) & (b > 0) | (np.abs(y) < 4 * least(at.row)) & (y != 0)
    size = np.where(y == 0, np.abs(at.result), at.sizes[0] / np.where(y == 0, 1.0, np.abs(y)))
    own = np.where((np.abs(y) == 1) & (b == 0), 0.0, SAFETY * u * size + least(at.row))
    safe = np.where(away > 0, away, 1.0)
    error = root_of_squares(a / safe, _times(b, at.result) / safe, own)
    error = np.where(y == 0, np.where(a > 0, np.inf, 0.0), error)
    by_zero = (y == 0) & (b == 0) & (a == 0)
    return np.where(by_zero, 0.0, np.where(lost, np.inf, _propagated(at, error))), size


def _chosen(at: At) -> Pair:
    """maximum, minimum: of zeros either may come."""
    (x, y), (a, b) = at.values, at.errors
    sign = 1.0 if at.node.op.name == "maximum" else -1.0
    first, second = sign * (x - y) > a + b, sign * (y - x) > a + b
    error = np.where(first, a, np.where(second, b, np.maximum(a, b)))
    size = np.where(first, at.sizes[0], np.where(second, at.sizes[1], np.maximum(*at.sizes)))
    zeros = (x == 0) & (y == 0) & (np.signbit(x) != np.signbit(y))
    if at.row.is_float:
        error = np.where(zeros, np.maximum(error, least(at.row)), error)
    lost = np.isinf(a) | np.isinf(b)
    return np.where(lost, np.inf, error), size


def _select(at: At) -> Pair:
    _, x, y = at.values
    unsure, a, b = at.errors
    holds = at.values[0] != 0
    error, size = np.where(holds, a, b), np.where(holds, at.sizes[1], at.sizes[2])
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    either = np.where(same, 0.0, np.abs(x - y)) + np.maximum(a, b)
    return np.where(unsure > 0, either, error), np.where(unsure > 0, np.maximum(*at.sizes[1:]), size)


def _compared(at: At) -> Pair:
    (x, y), (a, b) = at.values, at.errors
    unsure = (a + b > 0) & (~(np.abs(x - y) > a + b) | np.isinf(a + b)) & ~(np.isnan(x) | np.isnan(y))
    unsure |= np.isinf(a) | np.isinf(b)
    return unsure.astype(np.float64), np.ones(at.result.shape)


def _predicate(at: At) -> Pair:
    return np.isinf(at.errors[0]).astype(np.float64), np.ones(at.result.shape)


def _through(at: At) -> Pair:
    """neg, abs: exact."""
    return at.errors[0], at.sizes[0]


def _clipped(at: At, array: Array) -> Array:
    limit = largest(at.row)
    return np.where(np.abs(array) > limit, np.copysign(np.inf, array), array)


def _change(at: At, moves: Sequence[Array]) -> Array:
    """How much the result changes where operands move by so much, each apart."""
    total = np.zeros(at.result.shape)
    centre = _clipped(at, at.run(*at.values))
    for index, move in enumerate(moves):
        if not move.any():
            continue
        for sign in (1.0, -1.0):
            operands = list(at.values)
            operands[index] = at.values[index] + sign * move
            there = _clipped(at, at.run(*operands))
            same = (there == centre) | (np.isnan(there) & np.isnan(centre)) | (move == 0)
            change = np.where(same, 0.0, np.abs(there - centre))
            total = np.maximum(total, np.where(np.isnan(change), np.inf, change))
        total = np.where(np.isinf(move), np.inf, total)  # it may be NaN
    return total


def _function(at: At) -> Pair:
    u = unit(at.row)
    moves = [
        root_of_squares(error, SAFETY * u * np.where(np.isfinite(value), np.abs(value), 0.0))
        for error, value in zip(at.errors, at.values, strict=True)
    ]
    size = np.abs(at.result)
    own = SAFETY * u * np.where(np.isfinite(size), size, 0.0) + least(at.row)
    special = ~np.isfinite(at.result)
    return np.where(special, 0.0, own) + _change(at, moves), size


def _remainder(at: At) -> Pair:
    error, _ = _function(at)
    size = np.abs(at.values[0]) + np.abs(at.values[1])
    return _propagated(at, error + SAFETY * unit(at.row) * size), size


def _stepped(at: At) -> Pair:
    """floor, ceil, trunc, round, sign: exact, and what they jump at is known to the operand's error."""
    error = _change(at, at.errors)
    if at.node.op.name == "sign":
        error = np.where(at.result == 0, np.maximum(error, least(at.row)), error)
    return error, np.abs(at.result)


def _cast(at: At) -> Pair:
    """Exact of what is exact. Out of an integer's range, and not a number as one, programs differ."""
    (x,), (e,), source, row = at.values, at.errors, at.node.operands[0].dtype, at.row
    if row.kind == "bool":
        return ((e > 0) & (np.abs(x) <= e)).astype(np.float64), np.ones(x.shape)
    if row.is_integer:
        if not source.is_float:
            return np.where(e > 0, np.where(source.kind == "bool", e, np.inf), 0.0), np.abs(x)
        low, high = row.limits
        inside = (x > float(low) - 1) & (x < float(high) + 1) & np.isfinite(x)
        jumps = np.maximum(np.abs(np.trunc(x + e) - np.trunc(x)), np.abs(np.trunc(x - e) - np.trunc(x)))
        outside = 0.0 if at.step.attrs["saturate"] else np.inf
        known = at.step.attrs["saturate"] and ~np.isnan(x)
        return np.where(inside, jumps, np.where(known, outside, np.inf)), np.abs(x)
    size = at.sizes[0]
    if not e.any():
        wide = not source.is_float and source.kind != "bool"
        return (2 * unit(row) * np.abs(x) if wide and row.bits < 32 else np.zeros(x.shape)), size
    if unit(row) <= unit(source):
        return e, size
    there = [_narrow(at, x + sign * e) for sign in (1.0, -1.0)]
    moved = [np.where(one == at.result, 0.0, np.abs(one - at.result)) for one in there]
    return np.where(np.isinf(e), np.inf, np.maximum(*moved)), size


def _narrow(at: At, array: Array) -> Array:
    given = array.astype(types.dtype(at.step.operands[0].dtype).compute.numpy)
    step = ReferenceCall([given], at.step.attrs, at.step.results, at.step.run)
    return np.asarray(at.node.op.numpy(step)).astype(np.float64)


def whole(at: At) -> Pair:
    """Integers and bools: exact of what is exact, else anything; of bools, one that is not sure."""
    unsure = np.zeros(at.result.shape)
    for error in at.errors:
        if error.any():
            if error.shape != at.result.shape:
                unsure = np.full(at.result.shape, np.inf)
            else:
                unsure = np.maximum(
                    unsure, np.where(error > 0, 1.0 if at.row.kind == "bool" else np.inf, 0.0)
                )
    return unsure, np.abs(at.result)


def moved(at: At) -> Pair:
    """Views, and rows that integers name."""
    data = [index for index, operand in enumerate(at.node.operands) if operand.dtype is at.row]
    given = list(at.step.operands)
    pairs = []
    for arrays in (at.errors, at.sizes):
        for place in data:
            given[place] = arrays[place]
        pairs.append(at.run(*given))
    error, size = pairs
    return error, size


def _gathered(at: At) -> Pair:
    data, indices = at.node.operands[:2]
    unsure = at.errors[1] > 0
    own = indices.op_name in {"argsort", "argtopk"} and indices.operands[0] is data
    given = [at.step.operands[1], *at.step.operands[2:]]
    error, size = at.run(at.errors[0], *given), at.run(at.sizes[0], *given)
    if unsure.any() and not own:
        if at.node.op.name == "gather_elements":
            error = np.where(unsure, np.inf, error)
        elif at.node.op.name == "gather":
            axis = at.step.attrs["axis"]
            places = (np.newaxis,) * (axis % at.values[0].ndim) + (...,)
            behind = at.values[0].ndim - axis % at.values[0].ndim - 1
            error = np.where(unsure[(*places, *(np.newaxis,) * behind)], np.inf, error)
        else:
            error = np.full(error.shape, np.inf)
    return error, size


def _over(at: At) -> tuple[tuple[int, ...], int]:
    axes = tuple(at.step.attrs["axes"])
    shape = at.values[0].shape
    return axes, math.prod(shape[axis] for axis in axes)


def _summed(at: At) -> Pair:
    axes, terms = _over(at)
    (x,), (e,), u = at.values, at.errors, unit(at.row)
    share = 1.0 / max(terms, 1) if at.node.op.name == "reduce_mean" else 1.0
    size = np.sum(at.sizes[0], axes) * share
    # Of equal terms, added one after the other, all roundoffs are of one sign.
    spread = np.max(x, axes) - np.min(x, axes) if terms else np.zeros(at.result.shape)
    depth = np.where(spread * terms <= 1e-3 * size / share, 1 + terms / 4, sum_depth(terms))
    own = SAFETY * (unit(at.row.compute) * depth * size + (u if terms > 1 else 0.0) * np.abs(at.result))
    error = root_of_squares(np.sqrt(np.sum(e * e, axes)) * share, own) + least(at.row)
    nan = np.isnan(x).any(axes)
    within = _sum_is_within(at, size / share)
    error = np.where(nan & ~np.isinf(e).any(axes), 0.0, np.where(within, error, np.inf))
    return (
        np.where(np.isfinite(at.result) | nan, error, np.inf) if terms else np.zeros(at.result.shape)
    ), size


def _sum_is_within(at: At, size: Array) -> Array:
    """Whether sums of a magnitude overflow in no order of their terms: a mean may be finite whose sum is not."""
    return np.asarray(size <= (largest(at.row.compute) / 4 if at.row.is_float else np.inf)) & np.isfinite(
        size
    )


def _extreme(at: At) -> Pair:
    axes, terms = _over(at)
    if not terms:
        return np.zeros(at.result.shape), np.zeros(at.result.shape)
    zero = least(at.row) if at.row.is_float else 0.0
    return np.max(at.errors[0], axes) + np.where(at.result == 0, zero, 0.0), np.max(at.sizes[0], axes)


def _multiplied(at: At) -> Pair:
    axes, terms = _over(at)
    (x,), (e,) = at.values, at.errors
    relative = np.where(e == 0, 0.0, e / np.abs(x))
    share = root_of_squares(np.sqrt(np.sum(relative**2, axes)), np.asarray(SAFETY * unit(at.row) * terms))
    lost = (np.abs(at.result) < least(at.row)) & (at.result != 0) | ~np.isfinite(at.result)
    return np.where(lost, np.inf, np.abs(at.result) * share + least(at.row)), np.abs(at.result)


def _any_all(at: At) -> Pair:
    axes, _ = _over(at)
    decides = at.values[0] != 0 if at.node.op.name == "reduce_any" else at.values[0] == 0
    sure = (decides & (at.errors[0] == 0)).any(axes)
    return np.where(sure, 0.0, (at.errors[0] > 0).any(axes).astype(np.float64)), np.ones(at.result.shape)


def _soft(at: At) -> Pair:
    (x,), (e,), axis, u = at.values, at.errors, at.step.attrs["axis"], unit(at.row)
    size = np.abs(at.result)
    if not x.size:
        return np.zeros(x.shape), size
    top = np.max(x, axis, keepdims=True)
    shifted = x - top
    powers = np.exp(shifted)
    share = powers / np.sum(powers, axis, keepdims=True)
    around = np.sqrt(np.sum(_times(e, share) ** 2, axis, keepdims=True))
    depth = SAFETY * unit(at.row.compute) * sum_depth(x.shape[axis])
    finite = np.where(np.isfinite(shifted), np.abs(shifted), 0.0)
    if at.node.op.name == "log_softmax":
        size = size + np.where(np.isfinite(x), np.abs(x), 0.0) + np.where(np.isfinite(top), np.abs(top), 0.0)
        return np.where(
            np.isfinite(at.result), root_of_squares(e, around) + SAFETY * u * size + depth, 0.0
        ), size
    relative = root_of_squares(e, around) + SAFETY * unit(at.row.compute) * finite + depth + SAFETY * u
    error = np.where(share == 0, least(at.row), share * np.expm1(np.minimum(relative, 700.0))) + least(at.row)
    lost = np.isinf(e).any(axis, keepdims=True)
    return np.where(lost, np.inf, np.where(np.isnan(at.result), 0.0, error)), size


def _contracted(at: At) -> Pair:
    x, y = at.values[:2]
    more = at.step.operands[2:]
    name = at.node.op.name
    errors, sizes = at.errors[:2], at.sizes[:2]
    if name == "matmul_few_bits":
        if any(error.any() for error in at.errors[1:]):
            return loose(list(zip(at.errors, at.sizes, strict=True)), at.step, at.computed)
        y = weight_of(at.step)
        errors, sizes = [errors[0], np.zeros(y.shape)], [sizes[0], np.abs(y)]
    if name == "conv":
        terms = math.prod(y.shape[1:])
    elif name == "conv_transpose":
        terms = math.prod((y.shape[0], *y.shape[2:])) // int(at.step.attrs["groups"])
    else:
        terms = int(x.shape[-1])

    def run(a: Array, b: Array) -> Array:
        return a @ b if name == "matmul_few_bits" else at.run(a, b, *more)

    a, b = errors
    size = run(sizes[0], sizes[1])
    finite = bool(np.isfinite(size).all())  # then all that it is made of is
    brought = np.zeros(at.result.shape)
    if a.any():
        brought = brought + run(a * a, made_once(y, lambda one: _finite(one, known=finite) ** 2))
    if made_once(b, np.abs).any():
        brought = brought + run(_finite(x, known=finite) ** 2, b * b)
    accumulate = at.step.attrs.get("accumulate")
    u = unit(accumulate if isinstance(accumulate, DType) else at.row.compute)
    around, depth = size, sum_depth(terms)
    if at.node.op.name == "conv" and y.ndim > 2 and max(y.shape[2:], default=1) in {3, 5}:
        around, depth = _around(size), max(depth, 8.0)
    own = SAFETY * (u * depth * around + unit(at.row) * np.abs(at.result)) + (least(at.row) if terms else 0.0)
    error = root_of_squares(np.sqrt(brought), own)
    if finite and np.isfinite(at.result).all():
        return error, size
    flags = [np.isnan(one).astype(np.float64) for one in (x, y)]
    nan = (run(flags[0], np.ones(y.shape)) + run(np.ones(x.shape), flags[1])) > 0
    nan &= np.isnan(at.result) & np.isfinite(brought)
    return np.where(nan, 0.0, np.where(np.isfinite(size) & np.isfinite(at.result), error, np.inf)), size


def _dequantized(at: At) -> Pair:
    """A difference and a product of what is known to the bit; else all that is known is a share of the largest."""
    size = np.abs(at.result)
    if any(error.any() for error in at.errors):
        return loose(list(zip(at.errors, at.sizes, strict=True)), at.step, at.computed)
    error = SAFETY * unit(at.row) * size + least(at.row)
    return np.where(np.isfinite(at.result), error, 0.0), size


def _finite(array: Array, *, known: bool) -> Array:
    """An array with zeros for what is not finite. known: whether all of it is."""
    return array if known else np.where(np.isfinite(array), array, 0.0)


def _around(size: Array) -> Array:
    """The largest of the places around each, along spatial dims."""
    found = size
    for axis in range(2, size.ndim):
        best = found
        for shift in range(1, min(_WINOGRAD, size.shape[axis] - 1) + 1):
            ahead: list[Any] = [slice(None)] * size.ndim
            behind: list[Any] = [slice(None)] * size.ndim
            ahead[axis], behind[axis] = slice(shift, None), slice(None, -shift)
            best = best.copy()
            best[tuple(behind)] = np.maximum(best[tuple(behind)], found[tuple(ahead)])
            best[tuple(ahead)] = np.maximum(best[tuple(ahead)], found[tuple(behind)])
        found = best
    return found


def _linear(at: At) -> Pair:
    """sum_pool, avg_pool, cumsum: sums of some of the elements, without signs."""
    (e,), name = at.errors, at.node.op.name
    terms = (
        at.values[0].shape[at.step.attrs["axis"]] if name == "cumsum" else math.prod(at.step.attrs["kernel"])
    )
    known = np.where(np.isfinite(e), e, 0.0)
    size = at.run(at.sizes[0])
    own = SAFETY * (unit(at.row.compute) * sum_depth(terms) * size + unit(at.row) * np.abs(at.result))
    error = at.run(known) + own + least(at.row)
    reached = _sum_is_within(at, size * terms if name == "avg_pool" else size) & np.isfinite(at.result)
    if np.isinf(e).any():
        reached &= at.run(np.isinf(e).astype(np.float64)) == 0
    return np.where(reached, error, np.inf), size


def _windows(at: At) -> Pair:
    """max_pool, cummax, cummin: one of the elements."""
    if at.node.op.name == "max_pool":
        error, size = at.run(at.errors[0]), at.run(at.sizes[0])
    else:
        error, size = (np.maximum.accumulate(one[0], at.step.attrs["axis"]) for one in (at.errors, at.sizes))
    return np.maximum(error, 0.0) + np.where(at.result == 0, least(at.row), 0.0), np.maximum(size, 0.0)


def _places(at: At) -> Pair:
    """argmax, argmin, argsort, argtopk: not known between elements that are closer than their errors."""
    (x,), (e,), axis, name = at.values, at.errors, at.step.attrs["axis"], at.node.op.name
    if not e.any():
        return np.zeros(at.result.shape), np.abs(at.result)
    order = np.argsort(x, axis, kind="stable")
    if (
        name == "argmax"
        or (name == "argtopk" and at.step.attrs["largest"])
        or at.step.attrs.get("descending")
    ):
        order = np.flip(order, axis)
    values, errors = (np.moveaxis(np.take_along_axis(one, order, axis), axis, -1) for one in (x, e))
    gap = np.abs(np.diff(values, axis=-1))
    room = errors[..., 1:] + errors[..., :-1]
    close = ~(gap > room) & ((room > 0) | np.isnan(gap))
    unsure = np.zeros(values.shape, bool)
    unsure[..., 1:] |= close
    unsure[..., :-1] |= close
    count = at.result.shape[axis] if name in {"argsort", "argtopk"} else 1
    unsure = np.moveaxis(unsure[..., :count], -1, axis)
    if name in {"argmax", "argmin"}:
        unsure = np.squeeze(unsure, axis)
    return np.where(unsure, np.inf, 0.0), np.abs(at.result)


def _decided(at: At) -> Pair:
    """What all elements of a row decide together: unknown where one has an error."""
    unknown = any(error.any() for error in at.errors)
    return np.full(at.result.shape, np.inf if unknown else 0.0), np.abs(at.result)


_MOST_OF_TAPS = 4.0
"""The weights of a cubic's taps add up, without their signs, to 1.375 for each dim at most, and to this for three."""


def _resized(at: At) -> Pair:
    """resize: a share of the largest magnitude and the taps' own errors, but where a sum of taps may overflow."""
    (x,), (error,), (size,) = at.values, at.errors, at.sizes
    own, sizes = loose([(np.zeros_like(error), size)], at.step, at.computed)
    unknown = np.isinf(error)
    total = own + _MOST_OF_TAPS * float(np.max(error[~unknown], initial=0.0))
    if at.step.attrs["mode"] != "nearest":
        unknown = unknown | (np.isfinite(x) & (np.abs(x) > largest(at.row.compute) / 8))
    if unknown.any():
        total = np.where(at.run(unknown.astype(np.float64)) != 0, np.inf, total)
    return total, sizes


def _recurrent(at: At) -> Pair:
    """recurrent: a step after the other; for sequences of several lengths and weights of bytes, a share."""
    attrs = at.step.attrs
    if attrs["lengths"] or attrs["quantized"]:
        return loose(list(zip(at.errors, at.sizes, strict=True)), at.step, at.computed)
    rounding = SAFETY * unit(at.row.compute)
    error = recurrence_errors(attrs["cell"], at.values, at.errors, rounding, reverse=attrs["reverse"])
    size = np.abs(at.result)
    error = error + SAFETY * unit(at.row) * size + least(at.row)
    return np.where(np.isfinite(at.result) & np.isfinite(error), error, np.inf), size


OF_FLOATS: frozenset[Rule] = frozenset({
    _sum_of_two, _product, _quotient, _function, _remainder, _stepped, _summed, _multiplied, _soft, _contracted,
    _linear, _resized, _recurrent,
})  # fmt: skip
"""Rules of floats: the same ops of integers are exact."""

RULES: dict[str, Rule] = {
    **dict.fromkeys(("add", "sub"), _sum_of_two),
    "mul": _product,
    "div": _quotient,
    **dict.fromkeys(("maximum", "minimum"), _chosen),
    "select": _select,
    **dict.fromkeys(("eq", "ne", "lt", "le"), _compared),
    **dict.fromkeys(("isnan", "isinf"), _predicate),
    **dict.fromkeys(("neg", "abs", "define_size", "stop_gradient", "with_derivative"), _through),
    "pow": _function,
    **dict.fromkeys(("floordiv", "mod", "fmod"), _remainder),
    "cast": _cast,
    **dict.fromkeys(("gather", "gather_elements", "gather_nd"), _gathered),
    **dict.fromkeys(("reduce_sum", "reduce_mean"), _summed),
    **dict.fromkeys(("reduce_max", "reduce_min"), _extreme),
    "reduce_prod": _multiplied,
    **dict.fromkeys(("reduce_any", "reduce_all"), _any_all),
    **dict.fromkeys(("softmax", "log_softmax"), _soft),
    **dict.fromkeys(
        ("matmul", "conv", "conv_transpose", "grouped_matmul", "matmul_few_bits"), _contracted
    ),
    "dequantize": _dequantized,
    "resize": _resized,
    "recurrent": _recurrent,
    **dict.fromkeys(("sum_pool", "avg_pool", "cumsum"), _linear),
    **dict.fromkeys(("max_pool", "cummax", "cummin"), _windows),
    **dict.fromkeys(("argmax", "argmin", "argsort", "argtopk"), _places),
    **dict.fromkeys(("argkth", "argmedian", "argmode", "searchsorted"), _decided),
}  # fmt: skip
"""Of ops that `rule_of` cannot judge by their rows alone."""


def rule_of(op: Op) -> Rule | None:
    """The rule of an op; None where all that is known is that it may be off by a share of the largest magnitude."""
    if (rule := RULES.get(op.name)) is not None:
        return rule
    if op.traits & (Trait.VIEW | Trait.COPY):
        return moved
    if Trait.STEP in op.traits:
        return _stepped
    return _function if isinstance(op.derivative, Formulas) else None
