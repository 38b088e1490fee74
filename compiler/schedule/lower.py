"""Lowering: the loads and computations of one element of a value, at an index.

`Body.at(value, index)` appends what is missing to make one element of a value, and gives its name. Views, pads,
concats and gathers become index arithmetic; it ends at values that lie in memory, or that the same nest has made
at this very index already. What is asked for twice is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kernels_hub.compiler.ir import ops, types
from kernels_hub.compiler.ir.dims import Dim, ceildiv, divide_exactly, symbol
from kernels_hub.compiler.ir.extrema import dim_max, dim_min
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.op import Trait
from kernels_hub.compiler.ir.proofs import proves_le
from kernels_hub.compiler.ir.types import BOOL, INT64, DType
from kernels_hub.compiler.ir.value_ranges import is_index
from kernels_hub.compiler.schedule.index import Ranges
from kernels_hub.compiler.schedule.kernel import (
    Bound,
    Buffer,
    Compute,
    Constant,
    Guard,
    Load,
    Position,
    Reduce,
    Scan,
    Statement,
    Test,
)
from kernels_hub.compiler.schedule.views import Index, step

Element = tuple[Value, Index]


class NotHere(Exception):
    """A value of the nest's own group was asked for at another index than the one it is made at."""


@dataclass
class Body:
    """The statements of a nest, growing.

    buffer_of: the memory of a value that lies in some. own: values that this nest makes, at the index that it makes
    them at, or None where no index is known yet. aliases: inputs of a callee -> values of the graph.
    """

    ranges: Ranges
    buffer_of: Callable[[Value], Buffer | None]
    own: dict[Value, Index] = field(default_factory=dict)
    names: dict[tuple[Any, ...], str] = field(default_factory=dict)
    statements: list[Statement] = field(default_factory=list)
    aliases: Mapping[Value, Value] = field(default_factory=dict)
    guards: tuple[Guard, ...] = ()
    prefix: str = "v"
    folds: tuple[Guard, ...] = ()
    """Ranges in each of which padding reads along a line of its own: in a loop that is cut there, without questions."""

    def copy(self) -> Body:
        """Another that starts as this one is."""
        return Body(
            self.ranges, self.buffer_of, dict(self.own), dict(self.names), list(self.statements), self.aliases,
            self.guards, self.prefix, self.folds,
        )  # fmt: skip

    def fresh(self) -> str:
        """A name that is not taken."""
        return f"{self.prefix}{len(self.statements)}"

    def emit(self, kind: type[Any], dtype: DType, *fields: Any) -> str:
        """Append a statement, or find the one that is there."""
        key = (kind, dtype, repr(fields) if kind is Constant else fields)
        name = self.names.get(key)
        if name is None:
            name = self.names[key] = self.fresh()
            self.statements.append(kind(name, dtype, *fields))
        return name

    def compute(
        self, op: str, dtype: DType, *args: str, origin: str = "", attrs: Mapping[str, Any] | None = None
    ) -> str:
        """A pointwise op of values that are there."""
        attrs = attrs or {}
        row = ops.op(op)
        key = (Compute, op, dtype, args, tuple(attrs.items()))
        name = self.names.get(key)
        if name is None:
            name = self.names[key] = self.fresh()
            self.statements.append(Compute(name, dtype, row, args, attrs, origin))
        return name

    def define_at(self, value: Value, index: Index, name: str) -> None:
        """Say that this nest makes a value at this index, under this name."""
        index = canonical(value, index)
        self.own[value] = index
        self.names[value, index, ()] = name

    def at(self, value: Value, index: Index) -> str:
        """The name of an element. Raises NotHere: see there."""
        value = self.aliases.get(value, value)
        index = tuple(
            0 if isinstance(dim, int) and dim == 1 else one
            for one, dim in zip(index, value.shape, strict=True)
        )
        own = self.own.get(value)
        if own is not None:
            if own != index:
                raise NotHere(value)
            return self.names[value, own, ()]
        key = (value, index, self.guards)
        name = self.names.get(key)
        if name is None:
            name = self.names[key] = self._read(value, index)
        return name

    def _read(self, value: Value, index: Index) -> str:
        if value.array is None or value.array.size != 1:
            buffer = self.buffer_of(value)
            if buffer is not None:
                return self.load(buffer, buffer.place(index))
        return self.make(value, index)

    def make(self, value: Value, index: Index) -> str:
        """An element of a value, made here even if it lies in memory."""
        if value.array is not None:
            return self.emit(Constant, value.dtype, _number(value.array))
        if Trait.POINTWISE in value.op.traits:
            args = tuple(self.at(operand, index) for operand in value.operands)
            return self.compute(
                value.op_name, value.dtype, *args, origin=value.node.origin, attrs=value.attrs
            )
        if Trait.VIEW in value.op.traits:
            return self.at(*step(value, index, self.ranges))
        make = _MAKERS.get(value.op_name)
        assert make is not None, f"{value!r} ({value.op_name}) was not given memory"
        return make(self, value, index)

    def load(self, buffer: Buffer, place: Dim) -> str:
        """An element of memory, under the guards of where we are."""
        return self.emit(Load, buffer.dtype, buffer, place, self.guards)

    def within(self, guards: tuple[Guard, ...], value: Value, index: Index) -> str:
        """An element that is only read where guards hold; 0 (or anything) elsewhere."""
        before = self.guards
        self.guards = (*before, *(guard for guard in guards if guard not in before))
        try:
            return self.at(value, index)
        finally:
            self.guards = before

    def cast(self, name: str, source: DType, to: DType) -> str:
        """A value in another dtype."""
        attrs = {"dtype": to, "saturate": False}
        return name if source is to else self.compute("cast", to, name, attrs=attrs)

    def holds(self, guards: tuple[Guard, ...]) -> bool | None:
        """Whether guards hold for all turns of the loops, or for none; None where for some."""
        answers = [self.ranges.holds(guard.place, guard.low, guard.high) for guard in guards]
        if False in answers:
            return False
        return None if None in answers else True

    def bound(self, indices: Value, index: Index, extent: Dim, what: str) -> Dim:
        """An index that data give, as an expression: checked, and counted from the start.

        One that is known to lie in the dim, as clamped ones are, is not checked.
        """
        known = isinstance(extent, int) and is_index(indices, extent)
        if known and (number := indices.scalar) is not None:
            return int(number)
        name = self.at(indices, index)
        if known:
            name = self.cast(name, indices.dtype, INT64)
            self.ranges.extents.setdefault(f"${name}", extent)
            return symbol(f"${name}")
        name = self.emit(Bound, INT64, name, extent, f"{what}: an index is out of range of a dim of {extent}")
        self.ranges.extents.setdefault(f"${name}", extent)
        return symbol(f"${name}")


def canonical(value: Value, index: Index) -> Index:
    """An index with 0 along dims of 1."""
    return tuple(
        0 if isinstance(dim, int) and dim == 1 else one for one, dim in zip(index, value.shape, strict=True)
    )


def _number(array: Any) -> Any:
    row = types.dtype(array.dtype)
    if row.is_float and row.compute is not row:
        return float(array.astype("float32").reshape(()))
    return array.reshape(()).item()


def _pad(body: Body, value: Value, index: Index) -> str:
    operand, mode = value.operands[0], value.attrs["mode"]
    guards: list[Guard] = []
    source: list[Dim] = []
    for one, dim, (low, high) in zip(index, operand.shape, value.attrs["padding"], strict=True):
        if isinstance(low, int) and isinstance(high, int) and low == high == 0:
            source.append(one)
        elif mode == "constant":
            guards.append(Guard(one - low, 0, dim))
            source.append(one - low)
        else:
            source.append(_folded(body, one, dim, (low, high), mode))
    known = body.holds(tuple(guards))
    if known:
        return body.at(operand, tuple(source))
    outside = body.at(value.operands[1], ())
    if known is False:
        return outside
    inside = body.emit(Test, BOOL, tuple(guards))
    held = body.within(tuple(guards), operand, tuple(source))
    return body.compute("select", value.dtype, inside, held, outside, origin=value.node.origin)


def _folded(body: Body, place: Dim, dim: Dim, padding: tuple[Dim, Dim], mode: str) -> Dim:
    """Where in a dim the element lies that stands at a place of the padded one."""
    low, high = padding
    inside = place - low
    before, behind = {
        "edge": (0, dim - 1),
        "wrap": (inside + dim, inside - dim),
        "reflect": (-inside, 2 * (dim - 1) - inside),
    }[mode]
    reach = dim - 1 if mode == "reflect" else dim
    if mode == "edge" or (proves_le(low, reach) and proves_le(high, reach)):
        ranges = Guard(place, 0, low), Guard(place, low, low + dim), Guard(place, low + dim, low + dim + high)
        for guard, line in zip(ranges, (before, inside, behind), strict=True):
            if body.holds((guard,)):
                return line
        body.folds = (*body.folds, *ranges)
    if mode == "edge":
        return dim_min(dim_max(inside, 0), dim - 1)
    if mode == "wrap":
        return body.ranges.remainder(inside + dim * ceildiv(low, dim), dim)
    period = dim_max(2 * (dim - 1), 1)
    folded = body.ranges.remainder(inside + period * ceildiv(low, period), period)
    return dim_min(folded, period - folded)


def _concat(body: Body, value: Value, index: Index) -> str:
    axis = value.attrs["axis"]
    parts: list[tuple[Guard, Value, Index]] = []
    start: Dim = 0
    for operand in value.operands:
        guard = Guard(index[axis], start, start + operand.shape[axis])
        parts.append((guard, operand, (*index[:axis], index[axis] - start, *index[axis + 1 :])))
        start = start + operand.shape[axis]
    known = [body.holds((guard,)) for guard, _, _ in parts]
    if True in known:
        _, operand, where = parts[known.index(True)]
        return body.at(operand, where)
    parts = [part for part, answer in zip(parts, known, strict=True) if answer is None]
    if not parts:  # all are empty: nothing is ever read
        return body.emit(Constant, value.dtype, 0)
    names = [body.within((guard,), operand, where) for guard, operand, where in parts]
    result = names[-1]
    for (guard, _, _), name in reversed(list(zip(parts[:-1], names[:-1], strict=True))):
        test = body.emit(Test, BOOL, (guard,))
        result = body.compute("select", value.dtype, test, name, result, origin=value.node.origin)
    return result


def _gather(body: Body, value: Value, index: Index) -> str:
    (x, indices), axis = value.operands, value.attrs["axis"]
    place = body.bound(
        indices, index[axis : axis + indices.rank], x.shape[axis], value.node.origin or "gather"
    )
    return body.at(x, (*index[:axis], place, *index[axis + indices.rank :]))


def _gather_elements(body: Body, value: Value, index: Index) -> str:
    (x, indices), axis = value.operands, value.attrs["axis"]
    place = body.bound(indices, index, x.shape[axis], value.node.origin or "gather_elements")
    return body.at(x, (*index[:axis], place, *index[axis + 1 :]))


def _gather_nd(body: Body, value: Value, index: Index) -> str:
    (x, indices), batch = value.operands, value.attrs["batch_dims"]
    depth, lead = indices.shape[-1], indices.rank - 1
    places = tuple(
        body.bound(indices, (*index[:lead], one), x.shape[batch + one], value.node.origin or "gather_nd")
        for one in range(depth)
    )
    return body.at(x, (*index[:batch], *places, *index[lead:]))


def repeats(value: Value) -> tuple[int, ...] | None:
    """How often a resize repeats each element along each axis; None where it does anything else."""
    attrs, factors = value.attrs, []
    for axis, (size, count) in enumerate(zip(value.operands[0].shape, value.shape, strict=True)):
        factor = divide_exactly(count, size) if not (isinstance(size, int) and size == 0) else None
        scale = attrs["scales"][axis] if attrs["scales"] else None
        if not isinstance(factor, int) or factor != float(factor if scale is None else scale):
            return None
        factors.append(factor)
    rounded = (attrs["coordinates"], attrs["nearest"]) == ("asymmetric", "floor") or (
        attrs["coordinates"] == "half_pixel" and attrs["nearest"].startswith("round")
    )
    return tuple(factors) if attrs["mode"] == "nearest" and rounded else None


def _resize(body: Body, value: Value, index: Index) -> str:
    factors = repeats(value)
    assert factors is not None
    place = tuple(body.ranges.divide(one, factor) for one, factor in zip(index, factors, strict=True))
    return body.at(value.operands[0], place)


def _iota(body: Body, value: Value, index: Index) -> str:
    return body.cast(body.emit(Position, INT64, index[0]), INT64, value.dtype)


def _size(body: Body, value: Value, _: Index) -> str:
    return body.cast(body.emit(Position, INT64, value.attrs["value"]), INT64, value.dtype)


_MAKERS: dict[str, Callable[[Body, Value, Index], str]] = {
    "pad": _pad,
    "concat": _concat,
    "gather": _gather,
    "gather_elements": _gather_elements,
    "gather_nd": _gather_nd,
    "iota": _iota,
    "resize": _resize,
    "size": _size,
}
"""Op -> how an element of it is made, for ops that are neither pointwise nor views, and need no memory."""

INLINE = frozenset(_MAKERS)

REDUCTIONS = {f"reduce_{kind}": kind for kind in ("sum", "prod", "max", "min", "any", "all")} | {
    "argmax": "argmax",
    "argmin": "argmin",
}
SCANS = {f"cum{kind}": kind for kind in ("sum", "prod", "max", "min")}
ORDERS = frozenset({"argsort", "argtopk", "argkth"})
SCATTERS = frozenset({"scatter_elements", "scatter_nd"})
POOLS = {"max_pool": "max", "sum_pool": "sum", "avg_pool": "sum"}


def reduction_axes(value: Value) -> tuple[int, ...]:
    """The axes of its operand that a reduction drops."""
    return (value.attrs["axis"],) if value.op_name in {"argmax", "argmin"} else tuple(value.attrs["axes"])


def reduce_along(body: Body, value: Value, outer: Index, inner: Index) -> str:
    """An element of a reduction at `outer`, over the loops whose variables are `inner`."""
    (operand,), axes = value.operands, reduction_axes(value)
    kept, dropped = iter(outer), iter(inner)
    index = tuple(next(dropped) if axis in axes else next(kept) for axis in range(operand.rank))
    return _reduced(body, value, REDUCTIONS[value.op_name], body.at(operand, index))


def scan_along(body: Body, value: Value, index: Index) -> str:
    """An element of a running sum (or …), in a nest whose inner loop is along its axis."""
    argument, name, dtype = body.at(value.operands[0], index), body.fresh(), value.dtype.compute
    body.statements.append(Scan(name, dtype, SCANS[value.op_name], argument, value.node.origin))
    return body.cast(name, dtype, value.dtype)


def _reduced(body: Body, value: Value, kind: str, arg: str) -> str:
    name = body.fresh()
    dtype = value.dtype
    if kind in {"sum", "prod"} and dtype.is_float:
        dtype = dtype.compute
    body.statements.append(Reduce(name, dtype, kind, arg, value.node.origin))
    return body.cast(name, dtype, value.dtype)


def window(value: Value, outer: Index, inner: Index) -> tuple[Index, tuple[Guard, ...]]:
    """Where a pool or a convolution reads its first operand, and the guards of the padding."""
    x, attrs = value.operands[0], value.attrs
    spatial: list[Dim] = []
    guards: list[Guard] = []
    for axis in range(x.rank - 2):
        (low, high), size = attrs["padding"][axis], x.shape[axis + 2]
        place = outer[axis + 2] * attrs["strides"][axis] + inner[axis] * attrs["dilations"][axis] - low
        spatial.append(place)
        if attrs.get("ceil") or not (isinstance(low, int) and isinstance(high, int) and low == high == 0):
            guards.append(Guard(place, 0, size))
    return tuple(spatial), tuple(guards)


def pool_along(body: Body, value: Value, outer: Index, inner: Index) -> str:
    """An element of a pool."""
    kind = POOLS[value.op_name]
    spatial, guards = window(value, outer, inner)
    arg = body.within(guards, value.operands[0], (*outer[:2], *spatial))
    if guards:
        row = value.dtype
        identity = 0 if kind == "sum" else (-float("inf") if row.is_float else row.limits[0])
        inside = body.emit(Test, BOOL, guards)
        arg = body.compute("select", row, inside, arg, body.emit(Constant, row, identity))
    total = _reduced(body, value, kind, arg)
    if value.op_name != "avg_pool":
        return total
    return body.compute("div", value.dtype, total, _taps(body, value, outer, inner), origin=value.node.origin)


def _taps(body: Body, value: Value, outer: Index, inner: Index) -> str:
    """How many elements the mean of a window is over."""
    spatial, guards = window(value, outer, inner)
    if value.attrs["count"] == "padded":
        guards = tuple(
            Guard(place, -low, size + high)
            for place, (low, high), size in zip(
                spatial, value.attrs["padding"], value.operands[0].shape[2:], strict=True
            )
            if value.attrs["ceil"]
        )
    if not guards:
        count = 1
        for one in value.attrs["kernel"]:
            count *= one
        return body.emit(Constant, value.dtype, count)
    inside = body.cast(body.emit(Test, BOOL, guards), BOOL, INT64)
    name = body.fresh()
    body.statements.append(Reduce(name, INT64, "sum", inside))
    return body.cast(name, INT64, value.dtype)


def contract_along(body: Body, value: Value, outer: Index, inner: Index) -> str:
    """An element of a product or a convolution, multiplied out: for dtypes that no anchor takes."""
    a, b = value.operands
    if value.op_name == "matmul":
        left, right = body.at(a, (*outer[:-1], *inner)), body.at(b, (*outer[:-2], *inner, outer[-1]))
    else:
        spatial, guards = window(value, outer, inner[1:])
        per_group = b.shape[0] // value.attrs["groups"]
        channel = body.ranges.divide(outer[1], per_group) * b.shape[1] + inner[0]
        left = body.within(guards, a, (outer[0], channel, *spatial))
        if guards:
            inside = body.emit(Test, BOOL, guards)
            left = body.compute("select", a.dtype, inside, left, body.emit(Constant, a.dtype, 0))
        right = body.at(b, (outer[1], *inner))
    wide = value.attrs["accumulate"] or value.dtype.accumulate
    left, right = (body.cast(name, one.dtype, wide) for name, one in ((left, a), (right, b)))
    product = body.compute("mul", wide, left, right, origin=value.node.origin)
    name = body.fresh()
    body.statements.append(Reduce(name, wide, "sum", product, value.node.origin))
    return body.cast(name, wide, value.dtype)


def contract_loops(value: Value) -> Index:
    """The dims that a product or a convolution sums over."""
    a, b = value.operands
    return (a.shape[-1],) if value.op_name == "matmul" else tuple(b.shape[1:])
