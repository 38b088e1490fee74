"""What a handler of an ATen op gets, and the table that handlers are in.

A handler takes an `AtenCall` and the op's arguments, bound by its schema with defaults filled in: tensors as values
of the graph, sizes as dims, dtypes as rows of `types`; keyword-only ones by keyword. It returns the op's value,
or a tuple of them. What dtype and shape each result has is known (torch.export says so) and checked after it.

ATen promotes dtypes; the IR never does. `AtenCall.tensor` and `Call.promoted` make the casts explicit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from kernels_hub.compiler.errors import TypeRuleError
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import Expr
from kernels_hub.compiler.ir.graph import Graph, Value
from kernels_hub.compiler.ir.op import Op, Shape, TensorType, Trait, same_shape
from kernels_hub.compiler.ir.ops import OPS
from kernels_hub.compiler.ir.types import DType

Handler = Callable[..., Any]
_H = TypeVar("_H", bound=Handler)
Scalar = Any
"""A Python number or a dim, where ATen takes a Scalar or SymInt."""
Layout = tuple[Sequence[Scalar], Scalar]
"""Strides and offset of a tensor in its memory."""
Axes = int | Sequence[int] | None
"""Axes of a reduction, as ATen takes them: None and an empty list are all of them."""

HANDLERS: dict[str, Handler] = {}
"""Name of an ATen overload ("add.Tensor") -> what imports it, where that is more than one pointwise op."""


class UnsupportedArgumentsError(Exception):
    """What a handler raises of arguments that it does not take; the importer lists it with all others.

    of_sizes: whether it would take them if sizes were numbers.
    """

    def __init__(self, message: str, *, of_sizes: bool = False) -> None:
        super().__init__(message)
        self.of_sizes = of_sizes


def aten(*names: str) -> Callable[[_H], _H]:
    """Enter a handler under these overloads."""

    def enter(handler: _H) -> _H:
        for name in names:
            if name in HANDLERS:
                raise ValueError(f"aten.{name} has a handler already")
            HANDLERS[name] = handler
        return handler

    return enter


def handler_of(name: str) -> Handler | None:
    """What imports an ATen overload: its handler, or the row of the op table that names it.

    A view as a copy (`permute_copy`) is the view: whether values share memory is decided where results are handed on.
    """
    known = HANDLERS.get(name)
    if known is not None:
        return known
    if "_copy." in name:
        return handler_of(name.replace("_copy.", ".", 1))
    row = next((row for row in OPS.values() if name in row.torch), None)
    if row is None:
        return None
    elementwise = Trait.POINTWISE in row.traits or (row.shape is same_shape and not row.attrs)
    return _handler_of_row(row) if elementwise else _handler_of_structured(row)


def _handler_of_structured(row: Op) -> Handler:
    """Takes the operands, then the attributes in the order of the row."""
    count, _ = row.bounds

    def handler(call: AtenCall, *arguments: Any) -> Value:
        operands = [call.tensor(operand) for operand in arguments[:count]]
        attrs = dict(zip((attr.name for attr in row.attrs), arguments[count:], strict=False))
        if "axis" in attrs:
            attrs["axis"] %= max(1, operands[0].rank)
        return call.graph.apply(row.name, *operands, **attrs)

    return handler


def _handler_of_row(row: Op) -> Handler:
    """Promotes the operands to the result's dtype. Whole numbers are what rounding gives of integers."""

    def handler(call: AtenCall, *operands: Value | Scalar) -> Value:
        first = operands[0]
        if Trait.STEP in row.traits and isinstance(first, Value) and first.dtype.is_integer:
            return first
        a, *others = map(call.tensor, operands)
        return a.binary(row.name, *others) if others else a.unary(row.name)

    return handler


@dataclass(frozen=True)
class AtenCall:
    """One op of the exported program: the graph under construction, and what its results are to be."""

    graph: Graph
    name: str
    results: tuple[TensorType | None, ...]
    sizes: tuple[Any, ...] = ()
    """The dims that its results are, where they are sizes and no tensors (`item`)."""
    layout: Layout | None = None
    """Strides and offset of the first operand of `as_strided`; None where another call may have others."""
    asserted: list[Value] = field(default_factory=list)
    """0-d bools that a handler adds: PyTorch raises where one does not hold, and the graph is of no use."""

    @property
    def dtype(self) -> DType:
        """Of the first result."""
        return self._first.dtype

    @property
    def shape(self) -> Shape:
        """Of the first result."""
        return self._first.shape

    @property
    def _first(self) -> TensorType:
        if not self.results or self.results[0] is None:
            raise UnsupportedArgumentsError("its result is no tensor")
        return self.results[0]

    def tensor(self, value: Value | Scalar, dtype: DType | None = None) -> Value:
        """A value of a dtype (by default the result's): cast if it is a tensor, else a constant or a size."""
        row = dtype or self.dtype
        if isinstance(value, Value):
            return value.cast(row)
        if isinstance(value, Expr):
            return self.graph.size(value).cast(row)
        if row.is_integer and isinstance(value, (bool, int)):
            low, high = (int(limit) for limit in row.limits)
            # ATen wraps scalars into the tensor's dtype, as casts in C do.
            value = (int(value) - low) % (high - low + 1) + low
        if row is types.BOOL:
            value = bool(value)
        return self.graph.constant(value, row)

    def promoted(self, *operands: Value | Scalar) -> DType:
        """The dtype in which ATen computes a pointwise op of these: `torch.result_type`."""
        tiers: list[DType | None] = [None, None, None]
        for operand in operands:
            tier = 2 if not isinstance(operand, Value) else 0 if operand.rank else 1
            row = operand.dtype if isinstance(operand, Value) else _of_scalar(operand)
            before = tiers[tier]
            tiers[tier] = row if before is None else _promote(before, row)
        result = _combine(tiers[0], _combine(tiers[1], tiers[2]))
        assert result is not None
        return result

    def pair(self, a: Value | Scalar, b: Value | Scalar) -> tuple[Value, Value]:
        """Both in the dtype that ATen computes in."""
        row = self.promoted(a, b)
        return self.tensor(a, row), self.tensor(b, row)

    def rounded_once(
        self, op: Callable[[Value, Value], Value], a: Value | Scalar, b: Value | Scalar
    ) -> Value:
        """A product or quotient as ATen computes it on a CPU of narrow floats and a number: in float32.

        A number, or a tensor without dims, is not rounded to the narrow dtype there. Sums, comparisons and powers do
        round it: for those, `tensor` is right.
        """
        row = self.dtype
        if row.compute is row or not any(map(self._is_finer, (a, b))):
            return op(self.tensor(a), self.tensor(b))
        wide = row.compute
        left, right = (
            self.tensor(one, wide) if self._is_number(one) else self.tensor(one).cast(wide) for one in (a, b)
        )
        return op(left, right).cast(row)

    @staticmethod
    def _is_number(operand: Value | Scalar) -> bool:
        return not isinstance(operand, Value) or (operand.rank == 0 and operand.dtype.is_float)

    def _is_finer(self, operand: Value | Scalar) -> bool:
        """Whether an operand is a number that the dtype of the result may not hold."""
        if isinstance(operand, (bool, int, float)):
            with np.errstate(over="ignore"):
                held = np.asarray(float(operand)).astype(self.dtype.numpy)
            return math.isfinite(operand) and float(held) != operand
        is_held = isinstance(operand, Value) and operand.dtype is self.dtype
        return self._is_number(operand) and not is_held

    def refuse_unless(self, holds: bool, what: str, *, of_sizes: bool = False) -> None:
        """Raise UnsupportedArgumentsError with the reason unless it holds. of_sizes: whether it would of numbers."""
        if not holds:
            raise UnsupportedArgumentsError(what, of_sizes=of_sizes)


def _of_scalar(number: Scalar) -> DType:
    return types.INT64 if isinstance(number, Expr) else types.of_python(number)


_TIER = {"bool": 0, "uint": 1, "int": 1, "float": 2, "complex": 3}


def _promote(a: DType, b: DType) -> DType:
    try:
        return types.promote(a, b)
    except TypeRuleError as error:
        raise UnsupportedArgumentsError(str(error)) from error


def _combine(higher: DType | None, lower: DType | None) -> DType | None:
    """c10's `combine_categories`: a tensor's dtype wins over a 0-d one's or a number's of no higher category."""
    if higher is None or lower is None:
        return higher or lower
    if higher.is_complex:
        return higher
    if higher.is_float:
        if lower.is_complex:
            return types.COMPLEX128 if higher is types.FLOAT64 else types.COMPLEX64
        return higher
    if higher.kind == "bool" or _TIER[lower.kind] >= 2:
        return _promote(higher, lower)
    return higher


def unfollowed(x: Value, where: Value) -> Value:
    """x, whose gradient is zero where a condition holds."""
    return where.select(x.unary("stop_gradient"), x)


def axes_of(value: Value, dims: Axes) -> list[int]:
    """Axes counted from the first; all, where none are given. A 0-d tensor has the axes 0 and -1 in ATen."""
    given = range(value.rank) if dims is None or dims == [] else (dims,) if isinstance(dims, int) else dims
    return [value.axis(axis) for axis in given] if value.rank else []


def spread(numbers: Sequence[int] | int, count: int) -> list[int]:
    """One number a spatial dim: a single one holds for all."""
    given = [numbers] if isinstance(numbers, int) else list(numbers)
    return given * count if len(given) == 1 else given
