"""A node that was computed, with bounds and magnitudes of its operands; what every error rule is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.graph import Node
from kernels_hub.compiler.ir.op import ReferenceCall, TensorType
from kernels_hub.compiler.ir.ops.conversion import made_once
from kernels_hub.compiler.ir.types import FLOAT64, Array, DType
from kernels_hub.compiler.judging.roundoff import least, program_tolerance

SAFETY = 8.0
"""Units of roundoff that an op may be off, in place of one half."""

Pair = tuple[Array, Array]
"""Bounds and magnitudes, float64."""


@dataclass(frozen=True)
class At:
    """A node that was computed, the pairs of its operands, and its result. Values are made float64 when asked for."""

    node: Node
    step: ReferenceCall
    errors: list[Array]
    sizes: list[Array]
    computed: Array

    @cached_property
    def values(self) -> list[Array]:
        """Of the operands."""
        return [_float64(operand) for operand in self.step.operands]

    @cached_property
    def result(self) -> Array:
        """The result."""
        return _float64(self.computed)

    @property
    def row(self) -> DType:
        """Of the result."""
        return self.node.results[0].dtype

    def run(self, *operands: Array) -> Array:
        """The op, of other operands, in float64."""
        of = tuple(TensorType(FLOAT64, result.shape) for result in self.step.results)
        step = ReferenceCall(list(operands), _wide_attrs(self.step.attrs), of, self.step.run)
        return np.asarray(self.node.op.numpy(step), np.float64)


def _float64(array: Array) -> Array:
    if array.dtype.kind == "c" or array.dtype == np.float64:
        return array
    return made_once(array, lambda one: one.astype(np.float64))


def _wide_attrs(attrs: Mapping[str, object]) -> dict[str, Any]:
    return {name: FLOAT64 if isinstance(one, DType) else one for name, one in attrs.items()}


def magnitude_of(array: Array) -> Array:
    """Of each element, complex ones included."""
    wide = np.complex128 if array.dtype.kind == "c" else np.float64
    return made_once(array, lambda one: np.abs(one.astype(wide, copy=False)))


def root_of_squares(*parts: Array) -> Array:
    """Of errors that have nothing to do with each other."""
    return np.sqrt(sum((part * part for part in parts), start=np.zeros(())))


def loose(pairs: Sequence[Pair], step: ReferenceCall, array: Array) -> Pair:
    """An op without a rule: a share of the largest magnitude, and the operands' relative errors."""
    row = types.dtype(array.dtype)
    if not (row.is_float or row.is_complex):
        exact = not any(error.any() for error, _ in pairs)
        return np.full(array.shape, 0.0 if exact else np.inf), magnitude_of(array)
    magnitude = magnitude_of(array)
    top = float(np.max(magnitude[np.isfinite(magnitude)], initial=0.0))
    relative = 0.0
    for (error, _), given in zip(pairs, step.operands, strict=True):
        # Of what is there, not of what it would be without cancelling: a result is no larger than that makes it.
        sizes = magnitude_of(given)
        whole = float(np.max(np.where(np.isfinite(sizes), sizes, 0.0), initial=0.0))
        worst = float(np.max(error, initial=0.0))
        if worst and types.dtype(given.dtype).is_float:
            relative += worst / whole if whole else math.inf
        elif worst:
            relative = math.inf
    share = program_tolerance(row.name)
    passed_on = math.inf if math.isinf(relative) else relative * top * 4
    error = np.full(array.shape, share * top + passed_on + least(row))
    return np.where(np.isfinite(magnitude), error, np.inf if relative else 0.0), magnitude
