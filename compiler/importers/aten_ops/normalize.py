# ruff: noqa: D103
"""Normalizations, in their formulas. Narrow floats are computed in float32 and rounded once, as ATen does."""

from __future__ import annotations

from collections.abc import Sequence

from kernels_hub.compiler.importers.aten_ops.call import AtenCall, Scalar, aten
from kernels_hub.compiler.ir.dims import Dim, product
from kernels_hub.compiler.ir.graph import Value


def _normalized(x: Value, axes: Sequence[int], eps: float) -> tuple[Value, Value, Value]:
    """((x - mean) / sqrt(var + eps), mean, 1 / sqrt(var + eps)) over axes, which are kept as 1."""
    mean = x.mean(axes, keepdims=True)
    off = x - mean
    scale = ((off * off).mean(axes, keepdims=True) + eps).unary("rsqrt")
    return off * scale, mean, scale


def _affine(x: Value, weight: Value | None, bias: Value | None) -> Value:
    if weight is not None:
        x = x * weight.cast(x.dtype)
    return x if bias is None else x + bias.cast(x.dtype)


def _per_channel(vector: Value | None, rank: int) -> Value | None:
    return None if vector is None else vector.reshape((vector.shape[0], *[1] * (rank - 2)))


@aten("native_layer_norm.default")
def native_layer_norm(
    call: AtenCall, x: Value, shape: Sequence[Dim], weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, ...]:
    wide = x.cast(x.dtype.compute)
    result, mean, scale = _normalized(wide, range(x.rank - len(shape), x.rank), eps)
    kept = [result.dtype for result in call.results[1:] if result is not None] or [x.dtype, x.dtype]
    return _affine(result, weight, bias).cast(x.dtype), mean.cast(kept[0]), scale.cast(kept[1])


@aten("layer_norm.default")
def layer_norm(
    call: AtenCall,
    x: Value,
    shape: Sequence[Dim],
    weight: Value | None,
    bias: Value | None,
    eps: float,
    *_: object,
) -> Value:
    return native_layer_norm(call, x, shape, weight, bias, eps)[0]


@aten("rms_norm.default")
def rms_norm(_: AtenCall, x: Value, shape: Sequence[Dim], weight: Value | None, eps: float | None) -> Value:
    """x / sqrt(mean(x^2) + eps) * weight. Source: arXiv 1910.07467."""
    import numpy as np

    wide = x.cast(x.dtype.compute)
    if eps is None:
        eps = float(np.finfo(wide.dtype.numpy).eps)
    axes = range(x.rank - len(shape), x.rank)
    result = wide * ((wide * wide).mean(axes, keepdims=True) + float(eps)).unary("rsqrt")
    return _affine(result, weight, None).cast(x.dtype)


@aten("group_norm.default")
def group_norm(
    _: AtenCall, x: Value, groups: int, weight: Value | None, bias: Value | None, eps: float, *__: object
) -> Value:
    batch, channels = x.shape[:2]
    wide = x.cast(x.dtype.compute).reshape((batch, groups, channels // groups * product(x.shape[2:])))
    result = _normalized(wide, [2], eps)[0].reshape(x.shape)
    return _affine(result, _per_channel(weight, x.rank), _per_channel(bias, x.rank)).cast(x.dtype)


@aten("native_group_norm.default")
def native_group_norm(
    _: AtenCall, x: Value, weight: Value | None, bias: Value | None, batch: Dim, channels: Dim, rest: Dim,
    groups: int, eps: float,
) -> tuple[Value, ...]:  # fmt: skip
    wide = x.cast(x.dtype.compute).reshape((batch, groups, channels // groups * rest))
    result, mean, scale = _normalized(wide, [2], eps)
    affine = _affine(result.reshape(x.shape), _per_channel(weight, x.rank), _per_channel(bias, x.rank))
    return affine.cast(x.dtype), mean.squeeze(2).cast(x.dtype), scale.squeeze(2).cast(x.dtype)


@aten("_native_batch_norm_legit_no_training.default")
def batch_norm_inference(
    call: AtenCall, x: Value, weight: Value | None, bias: Value | None, mean: Value, variance: Value,
    _momentum: float, eps: float,
) -> tuple[Value | None, ...]:  # fmt: skip
    return _with_statistics(x, weight, bias, mean, variance, eps), *_nothing(call)


@aten("batch_norm.default")
def batch_norm(
    call: AtenCall, x: Value, weight: Value | None, bias: Value | None, mean: Value | None, variance: Value | None,
    training: bool, _momentum: float, eps: float, _cudnn: bool,
) -> Value:  # fmt: skip
    if training and mean is None and variance is None:
        return _of_batch(x, weight, bias, eps)[0]
    call.refuse_unless(not training, "batch norm in training mode")
    assert mean is not None
    assert variance is not None
    return _with_statistics(x, weight, bias, mean, variance, eps)


def _with_statistics(
    x: Value, weight: Value | None, bias: Value | None, mean: Value, variance: Value, eps: float
) -> Value:
    wide = x.cast(x.dtype.compute)
    centre, spread = (_per_channel(one.cast(wide.dtype), x.rank) for one in (mean, variance))
    assert centre is not None
    assert spread is not None
    result = (wide - centre) * (spread + eps).unary("rsqrt")
    return _affine(result, _per_channel(weight, x.rank), _per_channel(bias, x.rank)).cast(x.dtype)


def _nothing(call: AtenCall) -> list[Value]:
    """What batch norm saves for a backward that is not there: empty."""
    return [
        call.graph.full(result.shape, 0, result.dtype) for result in call.results[1:] if result is not None
    ]


def _of_batch(
    x: Value, weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, Value, Value, Value]:
    """(result, mean, 1 / sqrt(var + eps), unbiased variance) with the statistics of this batch."""
    wide = x.cast(x.dtype.compute)
    axes = [axis for axis in range(x.rank) if axis != 1]
    result, mean, scale = _normalized(wide, axes, eps)
    result = _affine(result, _per_channel(weight, x.rank), _per_channel(bias, x.rank)).cast(x.dtype)
    off = wide - mean
    count = product(x.shape[axis] for axis in axes)
    unbiased = (off * off).sum(axes) / (x.graph.size(count).cast(wide.dtype) - 1.0)
    return result, mean.squeeze(*axes), scale.squeeze(*axes), unbiased


@aten("_native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    _: AtenCall,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    _training: bool,
    _momentum: Scalar,
    eps: float,
) -> tuple[Value, ...]:
    return _of_batch(x, weight, bias, eps)[:3]


@aten("_native_batch_norm_legit_functional.default")
def batch_norm_training(
    call: AtenCall, x: Value, weight: Value | None, bias: Value | None, mean: Value, variance: Value,
    training: bool, momentum: float, eps: float,
) -> tuple[Value, ...]:  # fmt: skip
    call.refuse_unless(training, "functional batch norm outside of training")
    result, centre, scale, spread = _of_batch(x, weight, bias, eps)
    moved = [
        old * (1 - momentum) + new.cast(old.dtype) * momentum
        for old, new in ((mean, centre), (variance, spread))
    ]
    return result, centre, scale, *moved
