"""Ops that read or write where data say: gather, scatter, sort, top-k, nonzero.

An index i of a dim n is in -n..n-1, negative ones from the end; the oracle refuses others. Sorting is stable
(of equals, the first comes first) and takes NaN for the greatest. Sorted values are a gather_elements by
`argsort`; top-k values by `argtopk`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels_hub.compiler.errors import EvaluateError, ShapeError, TypeRuleError
from kernels_hub.compiler.ir.op import (  # fmt: skip
    BOOL,
    DIM,
    INT,
    SYMBOL,
    Attr,
    Attrs,
    Op,
    Operands,
    ReferenceCall,
    Shape,
    TensorType,
    Trait,
    axis_in,
    gives,
    one_of,
    require_equal_shapes,
    require_integer,
    shape_along_axis,
    show,
)
from kernels_hub.compiler.ir.ops.conversion import accumulator, widened
from kernels_hub.compiler.ir.proofs import proves_le
from kernels_hub.compiler.ir.types import ALL_KINDS, INT64, REALS, Array, DType


def _data(operands: Operands, _: Attrs) -> DType:
    require_integer(operands[1], "indices (operand 1)")
    if len(operands) > 2 and operands[2].dtype is not operands[0].dtype:
        raise TypeRuleError(
            f"updates (operand 2) are {operands[2].dtype}, what they go to is {operands[0].dtype}"
        )
    return operands[0].dtype


def checked(indices: Array, size: int) -> Array:
    """Indices of a dim counted from its start. Raises EvaluateError for one that is not in it."""
    indices = indices.astype(np.int64)
    if indices.size and not (-size <= int(indices.min()) and int(indices.max()) < size):
        wrong = indices[(indices < -size) | (indices >= size)].flat[0]
        raise EvaluateError(f"index {wrong} is out of range of a dim of {size}")
    return np.where(indices < 0, indices + size, indices)


def _gather(operands: Operands, attrs: Attrs) -> Shape:
    x, indices = operands
    axis = axis_in(attrs["axis"], x.rank)
    return (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


def _run_gather(step: ReferenceCall) -> Array:
    x, axis = step.operands[0], step.attrs["axis"]
    return np.take(x, checked(step.operands[1], x.shape[axis]), axis)


def _same_but(x: TensorType, other: TensorType, axis: int, what: str) -> None:
    if other.rank != x.rank:
        raise ShapeError(f"{what} {show(other.shape)} have not the rank of {show(x.shape)}")
    for index, (dim, limit) in enumerate(zip(other.shape, x.shape, strict=True)):
        if index != axis and proves_le(limit + 1, dim):
            raise ShapeError(
                f"dim {index} of {what} {show(other.shape)} is not within that of {show(x.shape)}"
            )


def _gather_elements(operands: Operands, attrs: Attrs) -> Shape:
    x, indices = operands
    _same_but(x, indices, axis_in(attrs["axis"], x.rank), "indices")
    return indices.shape


def _element_places(x: Array, indices: Array, axis: int) -> tuple[Array, ...]:
    places = list(np.ogrid[tuple(slice(0, dim) for dim in indices.shape)])
    places[axis] = checked(indices, x.shape[axis])
    return tuple(places)


def _run_gather_elements(step: ReferenceCall) -> Array:
    x, indices = step.operands
    return x[_element_places(x, indices, step.attrs["axis"])]


def _depth(x: TensorType, indices: TensorType, batch: int) -> int:
    """How many dims of x an index tuple (the last dim of indices) fixes."""
    if indices.rank < 1 or not isinstance(indices.shape[-1], int):
        raise ShapeError(
            f"the last dim of indices {show(indices.shape)} is a number: how many dims they index"
        )
    if not 0 <= batch < indices.rank or batch + indices.shape[-1] > x.rank:
        raise ShapeError(
            f"indices {show(indices.shape)} reach past the dims of {show(x.shape)}, batch_dims {batch}"
        )
    return indices.shape[-1]


def _gather_nd(operands: Operands, attrs: Attrs) -> Shape:
    (x, indices), batch = operands, attrs["batch_dims"]
    depth = _depth(x, indices, batch)
    require_equal_shapes(
        x.shape[:batch], indices.shape[:batch], "the batch of operand 0", "the batch of indices"
    )
    return (*indices.shape[:-1], *x.shape[batch + depth :])


def _nd_places(x: Array, indices: Array, batch: int) -> tuple[Array, ...]:
    depth, inner = indices.shape[-1], indices.ndim - 1
    places: list[Array] = []
    for axis in range(batch):
        shape = [1] * inner
        shape[axis] = x.shape[axis]
        places.append(np.arange(x.shape[axis]).reshape(shape))
    places += [checked(indices[..., index], x.shape[batch + index]) for index in range(depth)]
    return tuple(places)


def _run_gather_nd(step: ReferenceCall) -> Array:
    x, indices = step.operands
    places = _nd_places(x, indices, step.attrs["batch_dims"])
    return np.broadcast_to(x[places] if places else x, step.shape).copy()


def _scatter_elements(operands: Operands, attrs: Attrs) -> Shape:
    x, indices, updates = operands
    _same_but(x, indices, axis_in(attrs["axis"], x.rank), "indices")
    require_equal_shapes(indices.shape, updates.shape, "indices", "updates")
    return x.shape


def _scatter_nd(operands: Operands, _: Attrs) -> Shape:
    x, indices, updates = operands
    depth = _depth(x, indices, 0)
    require_equal_shapes(
        (*indices.shape[:-1], *x.shape[depth:]), updates.shape, "what the indices select", "updates"
    )
    return x.shape


_UPDATE: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _write(step: ReferenceCall, places: tuple[Array, ...]) -> Array:
    x, _, updates = step.operands
    reduction = step.attrs["reduction"]
    if reduction == "none":
        result = x.copy()
        result[places or ...] = updates
        return result
    wide = accumulator if x.dtype.kind != "b" else np.copy
    result = wide(x)
    _UPDATE[reduction].at(result, places or ..., wide(updates))
    return result.astype(step.dtype)


def _run_scatter_elements(step: ReferenceCall) -> Array:
    return _write(step, _element_places(step.operands[0], step.operands[1], step.attrs["axis"]))


def _run_scatter_nd(step: ReferenceCall) -> Array:
    return _write(step, _nd_places(step.operands[0], step.operands[1], 0))


def _argsort(step: ReferenceCall) -> Any:
    return _order(widened(step.operands[0]), step.attrs["axis"], descending=step.attrs["descending"])


def _order(x: Array, axis: int, *, descending: bool) -> Any:
    if not descending:
        return np.argsort(x, axis, kind="stable")
    size = x.shape[axis]
    return size - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)


def _topk(operands: Operands, attrs: Attrs) -> Shape:
    (x,), k, axis = operands, attrs["k"], axis_in(attrs["axis"], operands[0].rank)
    if proves_le(x.shape[axis] + 1, k):
        raise ShapeError(f"k {k} is not within dim {axis} of {show(x.shape)}")
    return (*x.shape[:axis], k, *x.shape[axis + 1 :])


def _run_topk(step: ReferenceCall) -> Array:
    axis = step.attrs["axis"]
    order = _order(widened(step.operands[0]), axis, descending=step.attrs["largest"])
    return np.take(order, np.arange(step.attrs["k"]), axis)


def _nonzero(operands: Operands, attrs: Attrs) -> Shape:
    return (operands[0].rank, attrs["count"])


_REDUCTION = Attr(
    "reduction", one_of("none", *_UPDATE), "none", "how updates meet what is there; none: the last stays"
)
_AXIS = Attr("axis", INT)

ROWS = (
    Op("gather", "x[…, indices, …] at an axis.", 2, _run_gather, _data, _gather, attrs=(_AXIS,),
       traits=Trait.INDEXING, source="numpy.take; ONNX Gather"),
    Op("gather_elements", "Element (i, j) is x[indices[i, j], j] for axis 0, and so on.", 2, _run_gather_elements,
       _data, _gather_elements, attrs=(_AXIS,), traits=Trait.INDEXING,
       source="numpy.take_along_axis; ONNX GatherElements"),
    Op("gather_nd", "x[b, indices[b, …, :]]: the last dim of indices is a place in x.", 2, _run_gather_nd, _data,
       _gather_nd, attrs=(Attr("batch_dims", INT, 0),), traits=Trait.INDEXING, source="ONNX GatherND"),
    Op("scatter_elements", "x with updates[i, j] at (indices[i, j], j) for axis 0, and so on.", 3,
       _run_scatter_elements, _data, _scatter_elements, attrs=(_AXIS, _REDUCTION), traits=Trait.INDEXING,
       source="ONNX ScatterElements; torch.scatter_reduce"),
    Op("scatter_nd", "x with updates[…] at the places indices[…, :].", 3, _run_scatter_nd, _data, _scatter_nd,
       attrs=(_REDUCTION,), traits=Trait.INDEXING, source="ONNX ScatterND; torch.index_put"),
    Op("argsort", "The order that sorts along an axis.", 1, _argsort, gives(INT64, "bool", *REALS), shape_along_axis,
       attrs=(_AXIS, Attr("descending", BOOL, False)), source="torch.argsort(stable=True)"),
    Op("argtopk", "The places of the k greatest (or least) along an axis, in that order.", 1, _run_topk,
       gives(INT64, *REALS), _topk, attrs=(Attr("k", DIM), _AXIS, Attr("largest", BOOL, True)),
       source="torch.topk; ONNX TopK"),
    Op("nonzero", "The places that are not zero, a column each; defines the symbol `count`.", 1,
       lambda step: np.array(np.nonzero(step.operands[0]), np.int64).reshape(step.operands[0].ndim, -1),
       gives(INT64, *ALL_KINDS), _nonzero, attrs=(Attr("count", SYMBOL),), traits=Trait.INDEXING,
       defines="count", source="ONNX NonZero"),
)  # fmt: skip
