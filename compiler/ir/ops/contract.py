"""Contractions: matrix products and convolutions.

Operands may have different dtypes of one kind (or one of them of integers of either sign); `dtype` names the
result's, `accumulate` what sums are kept in (by default that of the result, float32 or int32 at least). The
reference multiplies and sums in float64 (64-bit integers, which wrap; complex128), and rounds to `accumulate`
and to `dtype`. There is no bias: that is a broadcast and an add.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernels_hub.compiler.errors import ShapeError, TypeRuleError
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.flops import conv_flops, conv_transpose_flops, matmul_flops
from kernels_hub.compiler.ir.op import (
    DTYPE,
    INT,
    INTS,
    PAIRS,
    Attr,
    Attrs,
    Op,
    Operands,
    ReferenceCall,
    Shape,
    Trait,
    require_equal,
    require_equal_shapes,
    require_rank,
    show,
)  # fmt: skip
from kernels_hub.compiler.ir.ops.conversion import accumulator, convert, made_once
from kernels_hub.compiler.ir.types import INT8, INT32, Array, DType


def product_dtype(operands: Operands, attrs: Attrs) -> DType:
    """The result's dtype: `dtype`, or that of both operands."""
    a, b = operands[0].dtype, operands[1].dtype
    result: DType = attrs["dtype"] or a
    if attrs["dtype"] is None and a is not b:
        raise TypeRuleError(f"operands are {a} and {b}: say the result's dtype")
    kinds = {
        one.kind if one.kind != "uint" else "int" for one in (a, b, result, attrs["accumulate"] or result)
    }
    if len(kinds) > 1 or "bool" in kinds:
        raise TypeRuleError(f"{a} times {b} in {attrs['accumulate'] or result} as {result} mixes kinds")
    return result


def _matmul(operands: Operands, _: Attrs) -> Shape:
    a, b = operands
    if a.rank < 2 or a.rank != b.rank:
        raise ShapeError(f"takes operands of one rank, 2 or more, got {show(a.shape)} and {show(b.shape)}")
    require_equal_shapes(a.shape[:-2], b.shape[:-2], "the batch of operand 0", "the batch of operand 1")
    require_equal(
        a.shape[-1], b.shape[-2], f"dim {a.rank - 1} of operand 0 {show(a.shape)}",
        f"dim {a.rank - 2} of operand 1 {show(b.shape)}",
    )  # fmt: skip
    return (*a.shape[:-1], b.shape[-1])


def _grouped(operands: Operands, _: Attrs) -> Shape:
    x, w, ends = operands
    require_rank(x, 2, "the rows (operand 0)")
    require_rank(w, 3, "the matrices (operand 1)")
    require_rank(ends, 1, "the ends of the groups (operand 2)")
    if not ends.dtype.is_integer:
        raise TypeRuleError(f"the ends of the groups (operand 2) are integers, not {ends.dtype}")
    require_equal(
        w.shape[0], ends.shape[0], f"dim 0 of operand 1 {show(w.shape)}",
        f"the number of groups {show(ends.shape)}",
    )  # fmt: skip
    require_equal(
        x.shape[1], w.shape[1], f"dim 1 of operand 0 {show(x.shape)}", f"dim 1 of operand 1 {show(w.shape)}"
    )
    return (x.shape[0], w.shape[2])


def _finish(step: ReferenceCall, total: Array) -> Array:
    result = step.results[0].dtype
    middle = step.attrs["accumulate"]
    return convert(convert(total, middle) if middle is not None else total, result)


def _run_matmul(step: ReferenceCall) -> Array:
    a, b = (_wide(operand) for operand in step.operands)
    return _finish(step, _product(a, b))


def _product(a: Array, b: Array) -> Array:
    """np.matmul(a, b); of one matrix for a whole batch, as one product of all rows."""
    is_one = b.size and not any(
        stride for size, stride in zip(b.shape[:-2], b.strides, strict=False) if size > 1
    )
    if b.ndim == 2 or a.ndim != b.ndim or not is_one or not a.size:
        result: Array = np.matmul(a, b)
        return result
    matrix = b[(0,) * (b.ndim - 2)]
    rows: Array = np.matmul(a.reshape(-1, a.shape[-1]), matrix)
    return rows.reshape(*a.shape[:-1], matrix.shape[-1])


def _run_grouped(step: ReferenceCall) -> Array:
    x, w = (_wide(operand) for operand in step.operands[:2])
    total, start = np.zeros((x.shape[0], w.shape[2]), np.result_type(x, w)), 0
    for matrix, end in zip(w, step.operands[2].tolist(), strict=True):
        if end > start:
            total[start:end] = x[start:end] @ matrix
            start = end
    return _finish(step, total)


def _wide(array: Array) -> Array:
    """As `accumulator`, but unsigned as signed: products of both wrap to the same bits. Not to be written to."""
    if array.dtype == np.float64:
        return array
    wide = made_once(array, accumulator)
    return wide.view(np.int64) if wide.dtype == np.uint64 else wide


def _window_count(dim: Dim, low: Dim, high: Dim, kernel: Dim, stride: int, dilation: int) -> Dim:
    return (dim + low + high - dilation * (kernel - 1) - 1) // stride + 1


def spatial_attrs(attrs: Attrs, rank: int) -> list[tuple[int, int, tuple[Dim, Dim]]]:
    """(stride, dilation, padding) for each spatial dim. Raises ShapeError where their numbers differ."""
    strides, dilations, padding = attrs["strides"], attrs["dilations"], attrs["padding"]
    for name in ("strides", "dilations", "padding"):
        if len(attrs[name]) != rank:
            raise ShapeError(f"{name} {attrs[name]} are not one each for {rank} spatial dims")
    if min((*strides, *dilations), default=1) < 1:
        raise ShapeError(f"strides {strides} and dilations {dilations} are 1 or more")
    return list(zip(strides, dilations, padding, strict=True))


def _conv(operands: Operands, attrs: Attrs) -> Shape:
    x, w = operands
    rank, groups = _conv_ranks(operands, attrs)
    if isinstance(w.shape[0], int) and w.shape[0] % groups:
        raise ShapeError(f"the {w.shape[0]} output channels do not split into {groups} groups")
    require_equal(
        x.shape[1], w.shape[1] * groups, f"dim 1 of operand 0 {show(x.shape)}",
        f"{groups} groups of dim 1 of operand 1 {show(w.shape)}",
    )  # fmt: skip
    spatial = []
    for axis, (stride, dilation, (low, high)) in enumerate(spatial_attrs(attrs, rank), 2):
        count = _window_count(x.shape[axis], low, high, w.shape[axis], stride, dilation)
        if isinstance(count, int) and count < 0:
            raise ShapeError(
                f"dim {axis} of {show(x.shape)}, padded, is smaller than the kernel {show(w.shape)}"
            )
        spatial.append(count)
    return (x.shape[0], w.shape[0], *spatial)


def _conv_transpose(operands: Operands, attrs: Attrs) -> Shape:
    x, w = operands
    rank, groups = _conv_ranks(operands, attrs)
    if isinstance(x.shape[1], int) and x.shape[1] % groups:
        raise ShapeError(f"the {x.shape[1]} input channels do not split into {groups} groups")
    require_equal(
        x.shape[1], w.shape[0], f"dim 1 of operand 0 {show(x.shape)}", f"dim 0 of operand 1 {show(w.shape)}"
    )
    if len(attrs["output_padding"]) != rank:
        raise ShapeError(f"output_padding {attrs['output_padding']} is not one each for {rank} spatial dims")
    spatial = []
    for axis, (stride, dilation, (low, high)) in enumerate(spatial_attrs(attrs, rank), 2):
        extra = attrs["output_padding"][axis - 2]
        count = (x.shape[axis] - 1) * stride + dilation * (w.shape[axis] - 1) + 1 + extra - low - high
        if isinstance(count, int) and count < 0:
            raise ShapeError(f"padding ({low}, {high}) leaves nothing of dim {axis} of {show(x.shape)}")
        spatial.append(count)
    return (x.shape[0], w.shape[1] * groups, *spatial)


def _conv_ranks(operands: Operands, attrs: Attrs) -> tuple[int, int]:
    x, w = operands
    if x.rank < 3:
        raise ShapeError(f"takes (batch, channels, spatial dims…), got {show(x.shape)}")
    require_rank(w, x.rank, "the kernel (operand 1)")
    if attrs["groups"] < 1:
        raise ShapeError(f"groups are 1 or more, not {attrs['groups']}")
    return x.rank - 2, attrs["groups"]


def _taps(kernel: Sequence[int]) -> Any:
    return itertools.product(*map(range, kernel))


def _by_groups(matrices: Array, x: Array) -> Array:
    """Matrices (groups, M, K) by x (batch, groups, K, spatial dims…): (groups, M, batch, spatial dims…)."""
    columns = np.moveaxis(x, 0, 2)
    product: Array = matrices @ columns.reshape(*columns.shape[:2], math.prod(columns.shape[2:]))
    return product.reshape(*product.shape[:2], *columns.shape[2:])


def _run_conv(step: ReferenceCall) -> Array:
    """A sum over the kernel's places, each a product of a strided slice of x with one matrix of w."""
    x: Any = _wide(step.operands[0])
    w: Any = _wide(step.operands[1])
    attrs, groups = step.attrs, step.attrs["groups"]
    batch, outputs, *spatial = step.shape
    x = np.pad(x, ((0, 0), (0, 0), *attrs["padding"]))
    x = x.reshape(batch, groups, w.shape[1], *x.shape[2:])
    w = w.reshape(groups, outputs // groups, *w.shape[1:])
    total: Any = np.zeros((groups, outputs // groups, batch, *spatial), np.result_type(x, w))
    for tap in _taps(w.shape[3:]):
        places = tuple(
            slice(place * dilation, place * dilation + stride * (count - 1) + 1, stride)
            for place, dilation, stride, count in zip(
                tap, attrs["dilations"], attrs["strides"], spatial, strict=True
            )
        )
        if math.prod(spatial):
            total += _by_groups(w[(..., *tap)], x[(..., *places)])
    total = np.moveaxis(total, 2, 0).reshape(step.shape)
    return _finish(step, total)


def _run_conv_transpose(step: ReferenceCall) -> Array:
    """Each element of x adds its product with the kernel into the places that it reaches; then crop."""
    x: Any = _wide(step.operands[0])
    w: Any = _wide(step.operands[1])
    attrs, groups = step.attrs, step.attrs["groups"]
    batch, channels, *sizes = x.shape
    each = w.shape[1]
    full = [
        max(count + low + high, stride * (size - 1) + dilation * (kernel - 1) + 1)
        for count, (low, high), stride, size, dilation, kernel in zip(
            step.shape[2:],
            attrs["padding"],
            attrs["strides"],
            sizes,
            attrs["dilations"],
            w.shape[2:],
            strict=True,
        )
    ]
    total: Any = np.zeros((groups, each, batch, *full), np.result_type(x, w))
    x = x.reshape(batch, groups, channels // groups, *sizes)
    w = w.reshape(groups, channels // groups, *w.shape[1:])
    for tap in _taps(w.shape[3:]):
        places = tuple(
            slice(place * dilation, place * dilation + stride * (size - 1) + 1, stride)
            for place, dilation, stride, size in zip(
                tap, attrs["dilations"], attrs["strides"], sizes, strict=True
            )
        )
        if math.prod(sizes):
            total[(..., *places)] += _by_groups(w[(..., *tap)].swapaxes(1, 2), x)
    crop = tuple(
        slice(low, low + count) for (low, _), count in zip(attrs["padding"], step.shape[2:], strict=True)
    )
    total = np.moveaxis(total, 2, 0)[(..., *crop)]
    return _finish(step, np.ascontiguousarray(total).reshape(step.shape))


def _of_bytes(operands: Operands, _: Attrs) -> DType:
    for operand in operands:
        if operand.dtype is not INT8:
            raise TypeRuleError(f"takes int8, not {operand.dtype}")
    return INT32


def _matrices(operands: Operands, attrs: Attrs) -> Shape:
    for index, operand in enumerate(operands):
        require_rank(operand, 2, f"operand {index}")
    return _matmul(operands, attrs)


_DTYPES = (
    Attr("dtype", DTYPE, None, "of the result; that of the operands by default"),
    Attr("accumulate", DTYPE, None, "what sums are kept in; the result's dtype, widened, by default"),
)
_SPATIAL = (
    Attr("strides", INTS),
    Attr("dilations", INTS),
    Attr("padding", PAIRS, doc="zeros (before, after) each spatial dim"),
    Attr("groups", INT, 1),
)

ROWS = (
    Op("matmul", "(…, M, K) by (…, K, N): the sum over K. Batch dims are equal.", 2, _run_matmul, product_dtype,
       _matmul, attrs=_DTYPES, traits=Trait.CONTRACTION, flops=matmul_flops,
       source="numpy.matmul; ONNX MatMul, MatMulInteger"),
    Op("int_mm", "(M, K) by (K, N) of int8, in int32: a matmul that PyTorch's own kernel runs.", 2,
       lambda step: np.matmul(*(one.astype(np.int32) for one in step.operands)), _of_bytes, _matrices,
       flops=matmul_flops, torch=("_int_mm.default",), source="torch._int_mm"),
    Op("grouped_matmul", "Rows (S, K), sorted by group, by matrices (G, K, N): group g has the rows from the "
       "end of the one before it up to ends[g], which never fall. Rows behind the last end are 0.", 3, _run_grouped,
       product_dtype, _grouped, attrs=_DTYPES, flops=matmul_flops,
       source="torch.nn.functional.grouped_mm; the experts of a mixture"),
    Op("conv", "x (N, C, …) with w (O, C / groups, …): cross-correlation over any number of spatial dims.", 2,
       _run_conv, product_dtype, _conv, attrs=(*_SPATIAL, *_DTYPES), traits=Trait.CONTRACTION,
       flops=conv_flops, source="torch.nn.functional.conv*d; ONNX Conv, ConvInteger"),
    Op("conv_transpose", "x (N, C, …) with w (C, O / groups, …): the gradient of conv by its input. Padding "
       "crops the result, output_padding adds at its end.", 2, _run_conv_transpose, product_dtype, _conv_transpose,
       attrs=(*_SPATIAL, Attr("output_padding", INTS), *_DTYPES), traits=Trait.CONTRACTION,
       flops=conv_transpose_flops, source="torch.nn.functional.conv_transpose*d; ONNX ConvTranspose"),
)  # fmt: skip
