"""Views: other ways to index an operand. And pad and concat, which copy to other places and compute nothing.

Normal forms: `broadcast` only adds dims (a dim of 1 is dropped by a reshape, then added anew at its size);
`slice` has whole-rank starts, stops and steps with 0 <= start <= stop <= dim and step >= 1 (backwards is a
`flip`); `reshape` reads and writes in row-major order; splits are slices.
"""

from __future__ import annotations

import numpy as np

from kernels_hub.compiler.errors import EvaluateError, ShapeError, TypeRuleError
from kernels_hub.compiler.ir.dims import Dim, ceildiv
from kernels_hub.compiler.ir.op import (
    DIM,
    DIMS,
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
    axes_in,
    axis_in,
    one_of,
    require_equal,
    require_equal_shapes,
    same,
    show,
)  # fmt: skip
from kernels_hub.compiler.ir.types import Array, DType


def _reshape(operands: Operands, attrs: Attrs) -> Shape:
    (operand,), shape = operands, attrs["shape"]
    to = operand.__class__(operand.dtype, shape)
    require_equal(
        operand.size, to.size, f"the number of elements of {show(operand.shape)}", f"that of {show(shape)}"
    )
    return _sizes(shape)


def _sizes(shape: Shape) -> Shape:
    for axis, dim in enumerate(shape):
        if isinstance(dim, int) and dim < 0:
            raise ShapeError(f"dim {axis} of {show(shape)} is negative")
    return shape


def _broadcast(operands: Operands, attrs: Attrs) -> Shape:
    (operand,), shape, axes = operands, _sizes(attrs["shape"]), axes_in(attrs["axes"], len(attrs["shape"]))
    if len(axes) != operand.rank:
        raise ShapeError(f"axes {axes} say where {len(axes)} dims go, but the operand has {operand.rank}")
    require_equal_shapes(
        operand.shape, tuple(shape[axis] for axis in axes), "the operand", f"{show(shape)} at axes {axes},"
    )
    return shape


def _run_broadcast(step: ReferenceCall) -> Array:
    placed = [1] * len(step.shape)
    for dim, axis in zip(step.operands[0].shape, step.attrs["axes"], strict=True):
        placed[axis] = dim
    return np.broadcast_to(step.operands[0].reshape(placed), step.shape)


def _permute(operands: Operands, attrs: Attrs) -> Shape:
    (operand,), order = operands, attrs["order"]
    if sorted(order) != list(range(operand.rank)):
        raise ShapeError(f"order {order} is no permutation of 0..{operand.rank - 1}")
    return tuple(operand.shape[axis] for axis in order)


def _slice(operands: Operands, attrs: Attrs) -> Shape:
    (operand,) = operands
    starts, stops, steps = attrs["starts"], attrs["stops"], attrs["steps"]
    if not len(starts) == len(stops) == len(steps) == operand.rank:
        raise ShapeError(
            f"starts, stops and steps are one each for the {operand.rank} dims of {show(operand.shape)}"
        )
    shape: list[Dim] = []
    for axis, (start, stop, step, dim) in enumerate(zip(starts, stops, steps, operand.shape, strict=True)):
        numbers = all(isinstance(one, int) for one in (start, stop, dim))
        if step < 1 or (numbers and not 0 <= start <= stop <= dim):
            raise ShapeError(
                f"{start}:{stop}:{step} is no slice of dim {axis} of {show(operand.shape)}: "
                "0 <= start <= stop <= dim and step >= 1 must hold"
            )
        shape.append(ceildiv(stop - start, step) if step > 1 else stop - start)
    return tuple(shape)


def _run_slice(step: ReferenceCall) -> Array:
    starts, stops = step.attrs["starts"], step.attrs["stops"]
    for start, stop, dim in zip(starts, stops, step.operands[0].shape, strict=True):
        if not 0 <= start <= stop <= dim:
            raise EvaluateError(f"{start}:{stop} is no slice of a dim of {dim}")
    return step.operands[0][tuple(map(slice, starts, stops, step.attrs["steps"]))]


def _flip(operands: Operands, attrs: Attrs) -> Shape:
    axes_in(attrs["axes"], operands[0].rank)
    return operands[0].shape


def _padded_dtype(operands: Operands, attrs: Attrs) -> DType:
    constant = attrs["mode"] == "constant"
    if len(operands) != (2 if constant else 1):
        raise TypeRuleError(
            f"mode {attrs['mode']} takes {'the value to pad with' if constant else 'no value'}"
        )
    if constant and operands[1].rank:
        raise ShapeError(f"the value to pad with is a scalar, not {operands[1]}")
    return same()(operands, attrs)


def _pad(operands: Operands, attrs: Attrs) -> Shape:
    (shape, padding) = operands[0].shape, attrs["padding"]
    if len(padding) != len(shape):
        raise ShapeError(f"padding is (before, after) for each of the {len(shape)} dims of {show(shape)}")
    for axis, pair in enumerate(padding):
        if any(isinstance(one, int) and one < 0 for one in pair):
            raise ShapeError(f"padding {pair} of dim {axis} is negative; slice instead")
        if (
            attrs["mode"] != "constant"
            and isinstance(shape[axis], int)
            and shape[axis] == 0
            and pair != (0, 0)
        ):
            raise ShapeError(f"dim {axis} of {show(shape)} is empty: there is nothing to pad with")
    return tuple(before + dim + after for dim, (before, after) in zip(shape, padding, strict=True))


def _run_pad(step: ReferenceCall) -> Array:
    array, padding, mode = step.operands[0], step.attrs["padding"], step.attrs["mode"]
    if mode == "constant":
        result = np.full(step.shape, step.operands[1], step.dtype)
        inside = tuple(slice(low, low + dim) for (low, _), dim in zip(padding, array.shape, strict=True))
        result[inside] = array
        return result
    for axis, (low, high) in enumerate(padding):
        places = np.arange(-low, array.shape[axis] + high)
        array = np.take(array, _source_places(places, array.shape[axis], mode), axis)
    return array


def _source_places(places: Array, size: int, mode: str) -> Array:
    """Where along an axis of a size each padded place takes its element from."""
    if mode == "edge":
        return np.clip(places, 0, size - 1)
    if mode == "wrap":
        return np.asarray(places % size)
    period = max(2 * (size - 1), 1)
    folded = places % period
    return np.where(folded < size, folded, period - folded)


def _concat(operands: Operands, attrs: Attrs) -> Shape:
    axis, first = axis_in(attrs["axis"], operands[0].rank), operands[0].shape
    total: Dim = 0
    for index, operand in enumerate(operands):
        require_equal_shapes(
            (*first[:axis], *first[axis + 1 :]),
            (*operand.shape[:axis], *operand.shape[axis + 1 :]),
            f"operand 0 without dim {axis}",
            f"operand {index} without dim {axis}",
        )
        total = total + operand.shape[axis]
    return (*first[:axis], total, *first[axis + 1 :])


def _strided(_: Operands, attrs: Attrs) -> Shape:
    if len(attrs["shape"]) != len(attrs["strides"]):
        raise ShapeError(
            f"shape {show(attrs['shape'])} and strides {show(attrs['strides'])} differ in length"
        )
    return _sizes(attrs["shape"])


def _run_strided(step: ReferenceCall) -> Array:
    flat, shape = np.ascontiguousarray(step.operands[0]).reshape(-1), step.shape
    strides, offset = step.attrs["strides"], step.attrs["offset"]
    reach = [stride * (dim - 1) for stride, dim in zip(strides, shape, strict=True)]
    first, last = offset + sum(min(r, 0) for r in reach), offset + sum(max(r, 0) for r in reach)
    if 0 not in shape and not 0 <= first <= last < flat.size:
        raise EvaluateError(f"strides {strides} from {offset} reach {first}..{last} of {flat.size} elements")
    if 0 in shape:
        return np.zeros(shape, flat.dtype)
    size = flat.itemsize
    return np.lib.stride_tricks.as_strided(flat[offset:], shape, [stride * size for stride in strides]).copy()


_SHAPE = Attr("shape", DIMS)

ROWS = (
    Op("reshape", "The same elements in row-major order under another shape.", 1,
       lambda step: step.operands[0].reshape(step.shape), same(), _reshape, attrs=(_SHAPE,), traits=Trait.VIEW,
       source="numpy.reshape"),
    Op("broadcast", "Dims added: dim i of the operand is dim axes[i] of `shape`, along the others it repeats.", 1,
       _run_broadcast, same(), _broadcast, attrs=(_SHAPE, Attr("axes", INTS)), traits=Trait.VIEW,
       source="XLA BroadcastInDim"),
    Op("permute", "Dim i of the result is dim order[i] of the operand.", 1,
       lambda step: step.operands[0].transpose(step.attrs["order"]), same(), _permute,
       attrs=(Attr("order", INTS),), traits=Trait.VIEW, source="numpy.transpose"),
    Op("slice", "Elements start, start + step, … before stop of each dim.", 1, _run_slice, same(), _slice,
       attrs=(Attr("starts", DIMS), Attr("stops", DIMS), Attr("steps", INTS)), traits=Trait.VIEW,
       source="numpy basic slicing"),
    Op("flip", "Dims in axes run backwards.", 1, lambda step: np.flip(step.operands[0], step.attrs["axes"]), same(),
       _flip, attrs=(Attr("axes", INTS),), traits=Trait.VIEW, source="numpy.flip"),
    Op("strided", "Element (i, j, …) is element offset + i*strides[0] + j*strides[1] + … in row-major order: "
       "sliding windows and diagonals.", 1, _run_strided, same(), _strided,
       attrs=(_SHAPE, Attr("strides", DIMS), Attr("offset", DIM, 0)), traits=Trait.VIEW, source="torch.as_strided"),
    Op("pad", "More elements before and after each dim: a value (second operand), or elements mirrored without "
       "the edge (reflect), the edge, or from the other end (wrap).", (1, 2), _run_pad, _padded_dtype, _pad,
       attrs=(Attr("padding", PAIRS), Attr("mode", one_of("constant", "reflect", "edge", "wrap"), "constant")),
       traits=Trait.COPY,
       source="numpy.pad; ONNX Pad"),
    Op("concat", "Operands one after the other along an axis.", (1, None),
       lambda step: np.concatenate(step.operands, step.attrs["axis"]), same(), _concat, attrs=(Attr("axis", INT),),
       traits=Trait.COPY, source="numpy.concatenate"),
)  # fmt: skip
