"""Operators and methods of values, each of which appends ops to the value's graph.

This is the convenience that the IR itself does without: Python numbers become constants of the value's
dtype, shapes are broadcast by NumPy's rule, and both show up as ops of their own. Dtypes are never converted;
`cast` does that. Axes may be negative. `==` compares identity (values are dict keys): elementwise it is `eq`.

Views are kept in normal form as they are built: identities vanish, a reshape of a reshape, a permute of a
permute, and a broadcast of a broadcast are one op, and a broadcast dim of size 1 is dropped first. So
reduce(keepdims) -> broadcast and reduce -> broadcast are the same graph, whoever spelled it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Self, TypeVar

import numpy as np

from kernels_hub.compiler.errors import ShapeError, TypeRuleError
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import Dim, divide_exactly, product
from kernels_hub.compiler.ir.extrema import dim_max, dim_min
from kernels_hub.compiler.ir.op import Shape, show
from kernels_hub.compiler.ir.proofs import proves_equal, proves_le
from kernels_hub.compiler.ir.types import DType, dtype

Number = bool | int | float | complex
_Value = TypeVar("_Value", bound="Operators")


class Operators:
    """The mixin of `Value`: see the module."""

    __slots__ = ()

    # What `Value` has. Abstract for the type checker alone: a metaclass would make isinstance slow.

    @property
    @abstractmethod
    def graph(self) -> Any:
        """The graph that it belongs to."""

    @property
    @abstractmethod
    def op_name(self) -> str:
        """The name of the op that makes it."""

    @property
    @abstractmethod
    def operands(self) -> tuple[Self, ...]:
        """What that op is applied to."""

    @property
    @abstractmethod
    def attrs(self) -> dict[str, Any]:
        """That op's attributes."""

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """Its dims."""

    @property
    @abstractmethod
    def dtype(self) -> DType:
        """Of its elements."""

    @property
    def rank(self) -> int:
        """How many dims it has."""
        return len(self.shape)

    def apply(self, op: str, *operands: Self, **attrs: Any) -> Self:
        """An op with one result, of this value's graph."""
        result: Self = self.graph.apply(op, *operands, **attrs)
        return result

    # -- pointwise

    def unary(self, op: str, **attrs: Any) -> Self:
        """A pointwise op of this value alone."""
        return self.apply(op, self, **attrs)

    def binary(self, op: str, other: Self | Number, *, reverse: bool = False) -> Self:
        """A pointwise op of two, broadcast to one shape; a number becomes a constant of this dtype."""
        right = other if isinstance(other, Operators) else self.like(other)
        a, b = (right, self) if reverse else (self, right)
        shape = broadcast_shapes(a.shape, b.shape)
        return self.apply(op, a.broadcast_to(shape), b.broadcast_to(shape))

    def like(self, number: Number) -> Self:
        """A scalar constant of this value's dtype. Raises TypeRuleError where that cannot hold the number."""
        constant: Self = self.graph.constant(number, self.dtype)
        return constant

    def __add__(self, other: Self | Number) -> Self:
        return self.binary("add", other)

    def __radd__(self, other: Number) -> Self:
        return self.binary("add", other, reverse=True)

    def __sub__(self, other: Self | Number) -> Self:
        return self.binary("sub", other)

    def __rsub__(self, other: Number) -> Self:
        return self.binary("sub", other, reverse=True)

    def __mul__(self, other: Self | Number) -> Self:
        return self.binary("mul", other)

    def __rmul__(self, other: Number) -> Self:
        return self.binary("mul", other, reverse=True)

    def __truediv__(self, other: Self | Number) -> Self:
        return self.binary("div", other)

    def __rtruediv__(self, other: Number) -> Self:
        return self.binary("div", other, reverse=True)

    def __floordiv__(self, other: Self | Number) -> Self:
        return self.binary("floordiv", other)

    def __mod__(self, other: Self | Number) -> Self:
        return self.binary("mod", other)

    def __pow__(self, other: Self | Number) -> Self:
        return self.binary("pow", other)

    def __rpow__(self, other: Number) -> Self:
        return self.binary("pow", other, reverse=True)

    def __and__(self, other: Self | Number) -> Self:
        return self.binary("bitand", other)

    def __or__(self, other: Self | Number) -> Self:
        return self.binary("bitor", other)

    def __xor__(self, other: Self | Number) -> Self:
        return self.binary("bitxor", other)

    def __lshift__(self, other: Self | Number) -> Self:
        return self.binary("shl", other)

    def __rshift__(self, other: Self | Number) -> Self:
        return self.binary("shr", other)

    def __lt__(self, other: Self | Number) -> Self:
        return self.binary("lt", other)

    def __le__(self, other: Self | Number) -> Self:
        return self.binary("le", other)

    def __gt__(self, other: Self | Number) -> Self:
        return self.binary("lt", other, reverse=True)

    def __ge__(self, other: Self | Number) -> Self:
        return self.binary("le", other, reverse=True)

    def __neg__(self) -> Self:
        return self.unary("neg")

    def __abs__(self) -> Self:
        return self.unary("abs")

    def __invert__(self) -> Self:
        return self.unary("bitnot")

    def __bool__(self) -> bool:
        raise TypeRuleError(
            "a value of a graph is neither true nor false while the graph is built; use select"
        )

    def eq(self, other: Self | Number) -> Self:
        """Elementwise equality."""
        return self.binary("eq", other)

    def ne(self, other: Self | Number) -> Self:
        """Elementwise inequality."""
        return self.binary("ne", other)

    def maximum(self, other: Self | Number) -> Self:
        """The greater of each two; NaN if either is."""
        return self.binary("maximum", other)

    def minimum(self, other: Self | Number) -> Self:
        """The lesser of each two; NaN if either is."""
        return self.binary("minimum", other)

    def clamp(self, low: Self | Number | None = None, high: Self | Number | None = None) -> Self:
        """Between low and high; high where low > high (ONNX Clip, torch.clamp)."""
        result = self if low is None else self.maximum(low)
        return result if high is None else result.minimum(high)

    def relu(self) -> Self:
        """max(x, 0)."""
        return self.maximum(0)

    def exp(self) -> Self:
        """e to the x."""
        return self.unary("exp")

    def log(self) -> Self:
        """Natural logarithm."""
        return self.unary("log")

    def sqrt(self) -> Self:
        """Square root."""
        return self.unary("sqrt")

    def rsqrt(self) -> Self:
        """1 / sqrt(x)."""
        return self.unary("rsqrt")

    def tanh(self) -> Self:
        """Hyperbolic tangent."""
        return self.unary("tanh")

    def erf(self) -> Self:
        """The error function."""
        return self.unary("erf")

    def sigmoid(self) -> Self:
        """1 / (1 + exp(-x))."""
        return self.unary("sigmoid")

    def select(self, a: Self | Number, b: Self | Number) -> Self:
        """a where this (bool) holds, else b; one of them is a value."""
        example = next((one for one in (a, b) if isinstance(one, Operators)), None)
        if example is None:
            raise TypeRuleError(
                "select needs a value of which to take the dtype: make one of them a constant"
            )
        chosen = [one if isinstance(one, Operators) else example.like(one) for one in (a, b)]
        shape = broadcast_shapes(broadcast_shapes(self.shape, chosen[0].shape), chosen[1].shape)
        three = [one.broadcast_to(shape) for one in (self, *chosen)]
        return self.apply("select", *three)

    def cast(self, to: DType | str, *, saturate: bool = False) -> Self:
        """The same numbers in another dtype; itself if it has that already."""
        row = dtype(to)
        return self if row is self.dtype else self.unary("cast", dtype=row, saturate=saturate)

    def bitcast(self, to: DType | str) -> Self:
        """The same bits in another dtype."""
        return self if dtype(to) is self.dtype else self.unary("bitcast", dtype=dtype(to))

    # -- views

    def reshape(self, *shape: Dim | str | Sequence[Dim | str]) -> Self:
        """The same elements in row-major order; one dim may be -1, which is what remains."""
        dims = self.graph.dims(shape[0] if len(shape) == 1 and _is_sequence(shape[0]) else shape)
        dims = _resolve_rest(dims, self.shape)
        source: Self = self.operands[0] if self.op_name == "reshape" else self
        if same_shapes(dims, source.shape):
            return source
        return self.apply("reshape", source, shape=dims)

    def flatten(self, start: int = 0, end: int = -1) -> Self:
        """Dims start..end (inclusive) as one."""
        start, end = self.axis(start), self.axis(end)
        middle = product(self.shape[start : end + 1])
        return self.reshape((*self.shape[:start], middle, *self.shape[end + 1 :]))

    def unsqueeze(self, *axes: int) -> Self:
        """New dims of 1 at places of the result. Raises ShapeError for a place that it has not, or twice."""
        rank = self.rank + len(axes)
        places = {axis + rank if axis < 0 else axis for axis in axes}
        if len(places & set(range(rank))) < len(axes):
            raise ShapeError(f"{show(axes)} are no {len(axes)} different axes of a result of rank {rank}")
        dims = iter(self.shape)
        return self.reshape(tuple(1 if index in places else next(dims) for index in range(rank)))

    def squeeze(self, *axes: int) -> Self:
        """Without these dims, which are 1; without all that are the number 1, if none are given."""
        places = {self.axis(axis) for axis in axes} or {i for i, dim in enumerate(self.shape) if dim == 1}
        if any(not proves_equal(self.shape[place], 1) for place in places):
            raise ShapeError(f"dims {sorted(places)} of {show(self.shape)} are not all 1")
        return self.reshape(tuple(dim for index, dim in enumerate(self.shape) if index not in places))

    def broadcast_to(self, *shape: Dim | str | Sequence[Dim | str]) -> Self:
        """Repeated to a shape by NumPy's rule: aligned at the last dim, dims of 1 repeat."""
        dims = self.graph.dims(shape[0] if len(shape) == 1 and _is_sequence(shape[0]) else shape)
        if same_shapes(dims, self.shape):
            return self
        first = len(dims) - self.rank
        if first < 0:
            raise ShapeError(f"{show(self.shape)} has more dims than {show(dims)}, to which it is broadcast")
        kept = [i for i, dim in enumerate(self.shape) if not (dim == 1 and dims[first + i] != 1)]
        source = self.reshape(tuple(self.shape[i] for i in kept))
        return source.broadcast(dims, tuple(first + i for i in kept))

    def broadcast(self, shape: Sequence[Dim | str], axes: Sequence[int]) -> Self:
        """Dims added: dim i of this is dim axes[i] of the shape."""
        dims, places = self.graph.dims(shape), tuple(axes)
        source: Self = self
        if self.op_name == "broadcast" and len(places) == self.rank:
            source, places = self.operands[0], tuple(places[axis] for axis in self.attrs["axes"])
        if (
            len(dims) == source.rank
            and places == tuple(range(source.rank))
            and same_shapes(dims, source.shape)
        ):
            return source
        return self.apply("broadcast", source, shape=dims, axes=places)

    def permute(self, *order: int) -> Self:
        """Dim i of the result is dim order[i] of this."""
        places = [self.axis(axis) for axis in order]
        source: Self = self
        if self.op_name == "permute" and len(places) == self.rank:
            source, places = self.operands[0], [self.attrs["order"][axis] for axis in places]
        if places == list(range(source.rank)):
            return source
        return self.apply("permute", source, order=places)

    def transpose(self, a: int = -2, b: int = -1) -> Self:
        """Two dims exchanged."""
        order = list(range(self.rank))
        a, b = self.axis(a), self.axis(b)
        order[a], order[b] = b, a
        return self.permute(*order)

    def slice(self, axis: int, start: Dim | None = None, stop: Dim | None = None, step: int = 1) -> Self:
        """As x[start:stop:step] at one axis in Python: negative places from the end, clamped, step may be negative."""
        axis = self.axis(axis)
        size = self.shape[axis]
        if step < 0:
            flipped = self.flip(axis)
            first = None if start is None else size - 1 - _from_end(start, size)
            last = None if stop is None else size - 1 - _from_end(stop, size)
            return flipped.slice(axis, _clamp(first, 0, size), _clamp(last, size, size), -step)
        low = 0 if start is None else _clamp(_from_end(start, size), 0, size)
        high = size if stop is None else _clamp(_from_end(stop, size), size, size)
        high = high if proves_le(low, high) else dim_max(low, high)
        if step == 1 and proves_equal(low, 0) and proves_equal(high, size):
            return self
        starts, stops, steps = [0] * self.rank, list(self.shape), [1] * self.rank
        starts[axis], stops[axis], steps[axis] = low, high, step
        return self.apply("slice", self, starts=starts, stops=stops, steps=steps)

    def split(self, sizes: Sequence[Dim], axis: int) -> list[Self]:
        """Consecutive parts of these sizes along an axis."""
        axis, parts, start = self.axis(axis), [], 0
        for size in sizes:
            parts.append(self.slice(axis, start, start + size))
            start = start + size
        if not proves_equal(start, self.shape[axis]):
            raise ShapeError(f"parts {list(sizes)} do not make up dim {axis} of {show(self.shape)}")
        return parts

    def flip(self, *axes: int) -> Self:
        """These dims backwards."""
        return self.apply("flip", self, axes=sorted(self.axis(a) for a in axes))

    def parts(self) -> tuple[Self, Self]:
        """The real and the imaginary parts of a value (…, 2 n), which has a pair for each complex number."""
        pairs = self.reshape((*self.shape[:-1], self.shape[-1] // 2, 2))
        return pairs.part(0), pairs.part(1)

    def part(self, which: int) -> Self:
        """One part of pairs (…, 2): 0 the real one, 1 the imaginary."""
        return self.slice(-1, which, which + 1).squeeze(-1)

    def paired(self, imaginary: Self) -> Self:
        """The pairs (…, 2) of these real parts and of imaginary ones; those that both are parts of."""
        pairs = _cut_pairs(self, 0)
        if pairs is not None and pairs is _cut_pairs(imaginary, 1):
            return pairs
        return self.apply("concat", self.unsqueeze(-1), imaginary.unsqueeze(-1), axis=self.rank)

    def pad(
        self, padding: Sequence[tuple[Dim, Dim]], value: Self | Number = 0, *, mode: str = "constant"
    ) -> Self:
        """More elements before and after each dim; itself if none."""
        if all(proves_equal(one, 0) for pair in padding for one in pair):
            return self
        if mode != "constant":
            return self.apply("pad", self, padding=padding, mode=mode)
        fill = value if isinstance(value, Operators) else self.like(value)
        return self.apply("pad", self, fill, padding=padding)

    def windows(self, axis: int, size: int, step: int = 1) -> Self:
        """Overlapping windows along an axis: their number in its place, and a last dim of their size."""
        axis = self.axis(axis)
        strides = [product(self.shape[i + 1 :]) for i in range(self.rank)]
        shape = [*self.shape, size]
        shape[axis] = (self.shape[axis] - size) // step + 1
        strides.append(strides[axis])
        strides[axis] = strides[axis] * step
        return self.apply("strided", self, shape=shape, strides=strides)

    # -- reductions and the like

    def reduce(self, kind: str, axes: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Self:
        """reduce_<kind> over axes (all by default): sum mean prod max min any all."""
        given = range(self.rank) if axes is None else (axes,) if isinstance(axes, int) else axes
        places = sorted({self.axis(axis) for axis in given})
        result = self.apply(f"reduce_{kind}", self, axes=places)
        return result.unsqueeze(*places) if keepdims and places else result

    def sum(self, axes: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Self:
        """The sum over axes."""
        return self.reduce("sum", axes, keepdims=keepdims)

    def mean(self, axes: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Self:
        """The mean over axes."""
        return self.reduce("mean", axes, keepdims=keepdims)

    def max(self, axes: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Self:
        """The greatest over axes."""
        return self.reduce("max", axes, keepdims=keepdims)

    def min(self, axes: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Self:
        """The least over axes."""
        return self.reduce("min", axes, keepdims=keepdims)

    def along(self, op: str, axis: int, **attrs: Any) -> Self:
        """An op with an axis: softmax log_softmax cumsum cumprod cummax cummin argmax argmin argsort argtopk."""
        return self.apply(op, self, axis=self.axis(axis), **attrs)

    def softmax(self, axis: int = -1) -> Self:
        """exp(x) over its sum along an axis."""
        return self.along("softmax", axis)

    def cumulate(self, kind: str, axis: int, *, exclusive: bool = False, reverse: bool = False) -> Self:
        """cum<kind> (sum, prod); exclusive: of all before, without this; reverse: from the end."""
        axis = self.axis(axis)
        x = self.flip(axis) if reverse else self
        if exclusive:
            padding = [(1, 0) if i == axis else (0, 0) for i in range(self.rank)]
            x = x.pad(padding, {"sum": 0, "prod": 1}[kind]).slice(axis, 0, self.shape[axis])
        x = x.along(f"cum{kind}", axis)
        return x.flip(axis) if reverse else x

    def sort(self, axis: int = -1, *, descending: bool = False) -> tuple[Self, Self]:
        """(values, places), stable, NaN the greatest."""
        order = self.along("argsort", axis, descending=descending)
        return self.gather_elements(order, axis), order

    def topk(self, k: Dim, axis: int = -1, *, largest: bool = True) -> tuple[Self, Self]:
        """(values, places) of the k greatest or least, in order."""
        order = self.along("argtopk", axis, k=k, largest=largest)
        return self.gather_elements(order, axis), order

    def gather(self, indices: Self, axis: int = 0) -> Self:
        """x[…, indices, …] at an axis."""
        return self.apply("gather", self, indices, axis=self.axis(axis))

    def gather_elements(self, indices: Self, axis: int) -> Self:
        """numpy.take_along_axis."""
        return self.apply("gather_elements", self, indices, axis=self.axis(axis))

    # -- contractions

    def __matmul__(self, other: Self) -> Self:
        return self.matmul(other)

    def matmul(
        self, other: Self, *, to: DType | str | None = None, accumulate: DType | str | None = None
    ) -> Self:
        """numpy.matmul: batch dims broadcast, a vector is a row on the left and a column on the right."""
        a = self.unsqueeze(0) if self.rank == 1 else self
        b = other.unsqueeze(1) if other.rank == 1 else other
        batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a, b = a.broadcast_to((*batch, *a.shape[-2:])), b.broadcast_to((*batch, *b.shape[-2:]))
        result = self.apply("matmul", a, b, dtype=to, accumulate=accumulate)
        dropped = ([result.rank - 2] if self.rank == 1 else []) + (
            [result.rank - 1] if other.rank == 1 else []
        )
        return result.squeeze(*dropped) if dropped else result

    def axis(self, axis: int) -> int:
        """An axis counted from the first. Raises ShapeError where there is none."""
        if not -self.rank <= axis < self.rank:
            raise ShapeError(f"axis {axis} is not one of {show(self.shape)}")
        return axis + self.rank if axis < 0 else axis


def same_shapes(a: Shape, b: Shape) -> bool:
    """Whether two shapes are provably equal."""
    return a == b or (len(a) == len(b) and all(proves_equal(x, y) for x, y in zip(a, b, strict=True)))


def broadcast_shapes(a: Shape, b: Shape) -> Shape:
    """The shape that both broadcast to by NumPy's rule. Raises ShapeError, with both shapes."""
    if a == b:
        return a
    rank = max(len(a), len(b))
    dims: list[Dim] = []
    for x, y in zip((1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b), strict=True):
        if y in (1, x):
            dims.append(x)
        elif x == 1:
            dims.append(y)
        elif proves_equal(x, y):
            dims.append(x)
        else:
            raise ShapeError(f"{show(a)} and {show(b)} do not broadcast: {x} against {y}")
    return tuple(dims)


def scalar_array(number: Number, row: DType) -> types.Array:
    """A 0-d array of a dtype. Raises TypeRuleError where the dtype cannot hold the kind or size of number."""
    if isinstance(number, complex) and not row.is_complex:
        raise TypeRuleError(f"{number!r} is no {row}: cast first")
    if isinstance(number, float) and not (row.is_float or row.is_complex):
        if not number.is_integer():
            raise TypeRuleError(f"{number!r} is no {row}: cast first")
        number = int(number)
    if row.is_integer and not row.limits[0] <= int(number.real) <= row.limits[1]:
        raise TypeRuleError(f"{number!r} is out of range of {row}")
    if row.kind == "bool" and number not in {0, 1}:
        raise TypeRuleError(f"{number!r} is no bool")
    with np.errstate(over="ignore"):
        return np.asarray(number).astype(row.numpy)


def _cut_pairs(part: _Value, which: int) -> _Value | None:
    """The pairs that a value is one part of, as `part` cuts it out."""
    cut = part.operands[0] if part.op_name == "reshape" else part
    if cut.op_name != "slice" or not cut.rank:
        return None
    pairs = cut.operands[0]
    begins = all(start == 0 for start in cut.attrs["starts"][:-1]) and cut.attrs["starts"][-1] == which
    is_whole = same_shapes(pairs.shape, (*part.shape, 2)) and same_shapes(cut.shape, (*part.shape, 1))
    return pairs if begins and is_whole else None


def _is_sequence(value: object) -> bool:
    return isinstance(value, (tuple, list))


def _resolve_rest(dims: Shape, old: Shape) -> Shape:
    rest = [i for i, dim in enumerate(dims) if isinstance(dim, int) and dim == -1]
    if not rest:
        return dims
    if len(rest) > 1:
        raise ShapeError(f"more than one dim of {show(dims)} is -1")
    known, total = product(dim for i, dim in enumerate(dims) if i != rest[0]), product(old)
    if isinstance(known, int) and known == 0:
        raise ShapeError(f"-1 in {show(dims)} could be anything")
    found = divide_exactly(total, known)
    if found is None and isinstance(total, int) and isinstance(known, int):
        raise ShapeError(f"{show(old)} does not split into {show(dims)}")
    return (*dims[: rest[0]], total // known if found is None else found, *dims[rest[0] + 1 :])


def _from_end(place: Dim, size: Dim) -> Dim:
    """A place from the start; negative numbers count from the end. Symbolic ones are from the start."""
    return place + size if isinstance(place, int) and place < 0 else place


def _clamp(place: Dim | None, default: Dim, size: Dim) -> Dim:
    if place is None:
        return default
    low = place if proves_le(0, place) else dim_max(0, place)
    return low if proves_le(low, size) else dim_min(low, size)
