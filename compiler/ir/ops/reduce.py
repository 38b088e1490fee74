"""Reductions, softmax and running reductions along an axis.

A reduction drops the dims that it reduces; to keep them as 1 is a reshape. The reference sums in float64
(complex128, 64-bit integers), so that its own error does not hide that of what it judges, and rounds once.
Reductions over nothing give the identity; the largest and smallest of nothing are those of the dtype's
range (minus infinity, infinity), and of the place of nothing there is none: that is an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from kernels_hub.compiler.errors import EvaluateError
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.flops import per_operand_element
from kernels_hub.compiler.ir.op import (  # fmt: skip
    INT,
    INTS,
    Attr,
    Attrs,
    Op,
    Operands,
    ReferenceCall,
    Shape,
    Trait,
    axes_in,
    axis_in,
    gives,
    same,
    shape_along_axis,
)
from kernels_hub.compiler.ir.ops.conversion import accumulator, widened
from kernels_hub.compiler.ir.types import NUMBERS, REALS, Array, DType


def _without_axes(operands: Operands, attrs: Attrs) -> Shape:
    axes = axes_in(attrs["axes"], operands[0].rank)
    return tuple(dim for axis, dim in enumerate(operands[0].shape) if axis not in axes)


def _without_axis(operands: Operands, attrs: Attrs) -> Shape:
    axis = axis_in(attrs["axis"], operands[0].rank)
    return (*operands[0].shape[:axis], *operands[0].shape[axis + 1 :])


def _lowest(row: DType) -> Any:
    return -math.inf if row.is_float else row.limits[0]


def _highest(row: DType) -> Any:
    return math.inf if row.is_float else row.limits[1]


def _reduction(
    name: str, doc: str, function: Callable[..., Any], kinds: tuple[str, ...],
    identity: Callable[[DType], Any] | None, *, sums: bool = False, initial: bool = False,
) -> Op:  # fmt: skip
    """sums: accumulate in the widest dtype. initial: NumPy needs to be told the identity."""

    def reference(step: ReferenceCall) -> Array:
        array = (accumulator if sums else widened)(step.operands[0])
        more = {}
        if initial and identity is not None:
            start = identity(step.results[0].dtype)
            more = {"initial": start if array.dtype.kind == "f" else array.dtype.type(start)}
        return np.asarray(function(array, axis=step.attrs["axes"], **more)).astype(step.dtype)

    return Op(
        f"reduce_{name}", doc, 1, reference, same(*kinds), _without_axes, attrs=(Attr("axes", INTS),),
        traits=Trait.REDUCTION, identity=identity, source=f"numpy.{name}",
    )  # fmt: skip


def _mean(array: Array, axis: tuple[int, ...]) -> Any:
    count = math.prod(array.shape[number] for number in axis)
    total = np.sum(array, axis)
    return total / count if count else total * math.nan


def _place(function: Callable[..., Any]) -> Callable[[ReferenceCall], Array]:
    def reference(step: ReferenceCall) -> Array:
        array, axis = widened(step.operands[0]), step.attrs["axis"]
        if array.shape[axis] == 0:
            raise EvaluateError(
                f"argmax or argmin over axis {axis} of shape {list(array.shape)}: there is no element"
            )
        return np.asarray(function(array, axis)).astype(np.int64)

    return reference


def _softmax(step: ReferenceCall) -> Array:
    return _log_or_softmax(step, log=False)


def _log_softmax(step: ReferenceCall) -> Array:
    return _log_or_softmax(step, log=True)


def _log_or_softmax(step: ReferenceCall, *, log: bool) -> Array:
    x, axis = accumulator(step.operands[0]), step.attrs["axis"]
    if x.size == 0:
        return x.astype(step.dtype)
    shifted = x - np.max(x, axis, keepdims=True)
    powers = np.exp(shifted)
    total = np.sum(powers, axis, keepdims=True)
    return np.asarray(shifted - np.log(total) if log else powers / total).astype(step.dtype)


def _running(name: str, doc: str, function: Callable[..., Any], kinds: tuple[str, ...]) -> Op:
    def reference(step: ReferenceCall) -> Array:
        return np.asarray(function(accumulator(step.operands[0]), axis=step.attrs["axis"])).astype(step.dtype)

    return Op(
        f"cum{name}", doc, 1, reference, same(*kinds), shape_along_axis, attrs=(Attr("axis", INT),),
        flops=per_operand_element(1), source=f"torch.cum{name}",
    )  # fmt: skip


_AXIS = (Attr("axis", INT),)

ROWS = (
    _reduction("sum", "The sum over axes; integers wrap.", np.sum, NUMBERS, lambda _: 0, sums=True),
    _reduction("mean", "The mean over axes; NaN of nothing.", _mean, ("float", "complex"), None, sums=True),
    _reduction("prod", "The product over axes; integers wrap.", np.prod, NUMBERS, lambda _: 1, sums=True),
    _reduction("max", "The greatest over axes; NaN if one is.", np.max, REALS, _lowest, initial=True),
    _reduction("min", "The least over axes; NaN if one is.", np.min, REALS, _highest, initial=True),
    _reduction("any", "Whether one over axes holds.", np.any, ("bool",), lambda _: False),
    _reduction("all", "Whether all over axes hold.", np.all, ("bool",), lambda _: True),
    Op("argmax", "The place of the greatest along an axis, the first of equals; NaN is greatest.", 1,
       _place(np.argmax), gives(types.INT64, *REALS), _without_axis, attrs=_AXIS, flops=per_operand_element(1),
       source="numpy.argmax"),
    Op("argmin", "The place of the least along an axis, the first of equals; NaN is least.", 1,
       _place(np.argmin), gives(types.INT64, *REALS), _without_axis, attrs=_AXIS, flops=per_operand_element(1),
       source="numpy.argmin"),
    Op("softmax", "exp(x - max) / sum(exp(x - max)) along an axis.", 1, _softmax, same("float"), shape_along_axis,
       attrs=_AXIS, flops=per_operand_element(5), source="torch.softmax"),
    Op("log_softmax", "x - max - log(sum(exp(x - max))) along an axis.", 1, _log_softmax, same("float"),
       shape_along_axis, attrs=_AXIS, flops=per_operand_element(5), source="torch.log_softmax"),
    _running("sum", "The sum of this and all before along an axis.", np.cumsum, NUMBERS),
    _running("prod", "The product of this and all before along an axis.", np.cumprod, NUMBERS),
    _running("max", "The greatest of this and all before along an axis.", np.maximum.accumulate, REALS),
    _running("min", "The least of this and all before along an axis.", np.minimum.accumulate, REALS),
)  # fmt: skip
