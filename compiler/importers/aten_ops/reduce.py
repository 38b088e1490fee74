# ruff: noqa: D103
"""Reductions, running reductions, sorting and top-k."""

from __future__ import annotations

from collections.abc import Sequence

from kernels_hub.compiler.importers.aten_ops.call import (
    AtenCall,
    Axes,
    Handler,
    Scalar,
    aten,
    axes_of,
    unfollowed,
)
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import Dim, product
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.proofs import proves_le


def _reduction(kind: str) -> Handler:
    def handler(call: AtenCall, x: Value, dims: Axes = None, keepdim: bool = False, **_: object) -> Value:
        return call.tensor(x).reduce(kind, axes_of(x, dims), keepdims=keepdim)

    return handler


aten("sum.default", "sum.dim_IntList")(_reduction("sum"))
aten("mean.default", "mean.dim")(_reduction("mean"))
aten("prod.default", "prod.dim_int")(_reduction("prod"))


def _logic(kind: str) -> Handler:
    def handler(_: AtenCall, x: Value, dims: Axes = None, keepdim: bool = False) -> Value:
        return x.cast("bool").reduce(kind, axes_of(x, dims), keepdims=keepdim)

    return handler


for _kind in ("any", "all"):
    aten(f"{_kind}.default", f"{_kind}.dim", f"{_kind}.dims")(_logic(_kind))
aten("_is_all_true.default")(_logic("all"))
aten("_is_any_true.default")(_logic("any"))


def _extremum(kind: str) -> Handler:
    def handler(_: AtenCall, x: Value, dims: Axes = None, keepdim: bool = False) -> Value:
        return _reduced(x, kind, axes_of(x, dims), keepdim=keepdim)

    return handler


def _reduced(x: Value, kind: str, axes: list[int], *, keepdim: bool) -> Value:
    if x.dtype is types.BOOL:
        kind = {"max": "any", "min": "all"}[kind]
    return x.reduce(kind, axes, keepdims=keepdim)


aten("amax.default", "max.default")(_extremum("max"))
aten("amin.default", "min.default")(_extremum("min"))


def _with_place(kind: str) -> Handler:
    def handler(_: AtenCall, x: Value, axis: int, keepdim: bool) -> tuple[Value, Value]:
        places = _place(x, kind, axis, keepdim=keepdim)
        found = _reduced(x, kind, axes_of(x, axis), keepdim=keepdim)
        if x.dtype.is_float and x.rank:  # the gradient is that of the element at that place alone
            at = places if keepdim else places.unsqueeze(x.axis(axis))
            element = x.gather_elements(at, axis).reshape(found.shape)
            found = found.apply("with_derivative", found, element, x.graph.full(found.shape, 1, x.dtype))
        return found, places

    return handler


def _place(x: Value, kind: str, axis: int | None, *, keepdim: bool) -> Value:
    wide = x.cast("uint8") if x.dtype is types.BOOL else x
    flat = wide.flatten() if wide.rank else wide.reshape(1)
    if axis is None or not x.rank:
        place = flat.along(f"arg{kind}", 0)
        return place.reshape([1] * x.rank) if keepdim else place
    place = wide.along(f"arg{kind}", axis)
    return place.unsqueeze(x.axis(axis)) if keepdim else place


def _only_place(kind: str) -> Handler:
    def handler(_: AtenCall, x: Value, axis: int | None, keepdim: bool) -> Value:
        return _place(x, kind, axis, keepdim=keepdim)

    return handler


for _kind in ("max", "min"):
    aten(f"{_kind}.dim")(_with_place(_kind))
    aten(f"arg{_kind}.default")(_only_place(_kind))


def _centred(
    call: AtenCall, x: Value, dims: Axes, correction: Scalar, *, keepdim: bool
) -> tuple[Value, Value]:
    """(variance, mean) in the dtype that ATen computes in."""
    wide, axes = x.cast(x.dtype.compute), axes_of(x, dims)
    count = product(x.shape[axis] for axis in axes)
    mean = wide.mean(axes, keepdims=True)
    off = wide - mean
    squares = (off * off).sum(axes, keepdims=keepdim)
    freedom = call.tensor(count, wide.dtype) - float(1 if correction is None else correction)
    variance = squares / freedom.binary("maximum", 0.0)
    mean = mean if keepdim or not axes else mean.squeeze(*axes)
    return variance.cast(x.dtype), mean.cast(x.dtype)


@aten("var.correction")
def var(call: AtenCall, x: Value, dims: Axes, *, correction: Scalar, keepdim: bool) -> Value:
    return _centred(call, x, dims, correction, keepdim=keepdim)[0]


@aten("var.dim")
def var_dim(call: AtenCall, x: Value, dims: Axes, unbiased: bool, keepdim: bool) -> Value:
    return _centred(call, x, dims, int(unbiased), keepdim=keepdim)[0]


@aten("var_mean.correction")
def var_mean(
    call: AtenCall, x: Value, dims: Axes, *, correction: Scalar, keepdim: bool
) -> tuple[Value, Value]:
    return _centred(call, x, dims, correction, keepdim=keepdim)


@aten("std.correction")
def std(call: AtenCall, x: Value, dims: Axes, *, correction: Scalar, keepdim: bool) -> Value:
    return _root(_centred(call, x, dims, correction, keepdim=keepdim)[0])


def _root(x: Value) -> Value:
    """The square root, whose gradient is taken for 0 at 0, not infinite."""
    return unfollowed(x, x.eq(0)).unary("sqrt")


@aten("logsumexp.default")
def logsumexp(call: AtenCall, x: Value, dims: Axes, keepdim: bool) -> Value:
    wide, axes = call.tensor(x), axes_of(x, dims)
    top = wide.max(axes, keepdims=True)
    safe = top.unary("isinf").select(0.0, top)
    total = (wide - safe).unary("exp").sum(axes, keepdims=True).unary("log") + safe
    return total if keepdim or not axes else total.squeeze(*axes)


@aten("linalg_vector_norm.default", "norm.ScalarOpt_dim")
def vector_norm(call: AtenCall, x: Value, order: Scalar, dims: Axes, keepdim: bool, **_: object) -> Value:
    wide, axes = call.tensor(x).cast(call.dtype.compute), axes_of(x, dims)
    size = wide.unary("abs")
    if order is None or order == 2:
        result = _root((wide * wide).sum(axes, keepdims=keepdim))
    elif order == 1:
        result = size.sum(axes, keepdims=keepdim)
    elif order in {float("inf"), float("-inf")}:
        result = size.reduce("max" if order > 0 else "min", axes, keepdims=keepdim)
    elif order == 0:
        result = wide.ne(0).cast(wide.dtype).sum(axes, keepdims=keepdim)
    else:
        total = (size ** float(order)).sum(axes, keepdims=keepdim)
        result = unfollowed(total, total.eq(0)) ** (1 / float(order))
    return result.cast(call.dtype)


@aten("_weight_norm.default")
def weight_norm(call: AtenCall, direction: Value, length: Value, axis: int) -> Value:
    axes = [one for one in range(direction.rank) if one != axis]
    return direction * (length / vector_norm(call, direction, 2, axes, True))


@aten("cosine_similarity.default")
def cosine_similarity(call: AtenCall, a: Value, b: Value, axis: int = 1, eps: float = 1e-8) -> Value:
    """ATen clamps the norms without autograd's knowledge: gradients go on as if it did not."""
    total = None
    for one in (a, b):
        wide = call.tensor(one).cast(call.dtype.compute)
        norm = _root((wide * wide).sum([wide.axis(axis)], keepdims=True))
        clamped = norm.binary("maximum", eps)
        clamped = norm.apply("with_derivative", clamped, norm, norm.graph.full(norm.shape, 1, norm.dtype))
        total = wide / clamped if total is None else total * (wide / clamped)
    assert total is not None
    return total.sum([total.axis(axis)]).cast(call.dtype)


def _running(kind: str) -> Handler:
    def handler(call: AtenCall, x: Value, axis: int, **_: object) -> Value:
        wide = call.tensor(x)
        return wide.along(f"cum{kind}", axis) if wide.rank else wide

    return handler


aten("cumsum.default")(_running("sum"))
aten("cumprod.default")(_running("prod"))


@aten("sort.default")
def sort(_: AtenCall, x: Value, axis: int, descending: bool) -> tuple[Value, Value]:
    return _sorted(x, axis, descending)


@aten("sort.stable")
def sort_stable(_: AtenCall, x: Value, *, dim: int, descending: bool, **__: object) -> tuple[Value, Value]:
    return _sorted(x, dim, descending)


@aten("argsort.default")
def argsort(_: AtenCall, x: Value, axis: int, descending: bool) -> Value:
    return _sorted(x, axis, descending)[1]


def _sorted(x: Value, axis: int, descending: bool) -> tuple[Value, Value]:
    if x.rank:
        return x.sort(axis, descending=descending)
    values, places = x.reshape(1).sort(0, descending=descending)
    return values.reshape(()), places.reshape(())


@aten("topk.default")
def topk(_: AtenCall, x: Value, k: Dim, axis: int, largest: bool, __: bool) -> Sequence[Value]:
    return x.topk(k, axis, largest=largest)


def _spread(call: AtenCall, rows: Value) -> tuple[Value | float, Value | float]:
    """The least and the greatest element, or one less and one more where they are equal."""
    if rows.type.size == 0:
        return 0.0, 1.0
    call.refuse_unless(proves_le(1, rows.type.size), "a histogram of what may be nothing", of_sizes=True)
    least, most = rows.min(), rows.max()
    alike = least.eq(most)
    return alike.select(least - 1, least), alike.select(most + 1, most)


@aten("histc.default")
def histc(call: AtenCall, x: Value, bins: int, low: Scalar, high: Scalar) -> Value:
    rows = x.reshape((-1,)).cast(types.FLOAT64)
    if low == high:
        least, most = _spread(call, rows)
    else:
        call.refuse_unless(high > low, "a histogram from a number to a lesser one")
        least, most = float(low), float(high)
    inside = (rows >= least) & (rows <= most)
    places = ((rows - least) / (most - least) * float(bins)).cast(types.INT64).binary("minimum", bins - 1)
    counts = call.graph.full((bins,), 0, types.INT64)
    found = counts.apply(
        "scatter_elements",
        counts,
        inside.select(places, 0),
        inside.cast(types.INT64),
        axis=0,
        reduction="add",
    )
    return found.cast(call.dtype)
