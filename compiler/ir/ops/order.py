"""Ops that sorting or counting decides: medians, k-th least elements, modes, binary search, counts, repeats.

NaN is the greatest of all. Which of equal elements a place says is not told, as in PyTorch: engines may take any.
`bincount` and `repeat_places` define a symbol, as only the data tell how many elements they give.
"""

from __future__ import annotations

import numpy as np

from kernels_hub.compiler.errors import EvaluateError, ShapeError, TypeRuleError
from kernels_hub.compiler.ir.flops import per_operand_element
from kernels_hub.compiler.ir.op import (
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
    Trait,
    axis_in,
    gives,
    require_equal_shapes,
    require_integer,
    require_rank,
    same,
    shape_along_axis,
    show,
)  # fmt: skip
from kernels_hub.compiler.ir.ops.conversion import accumulator, widened
from kernels_hub.compiler.ir.proofs import proves_le
from kernels_hub.compiler.ir.types import BOOL as BOOLEAN
from kernels_hub.compiler.ir.types import FLOAT32, FLOAT64, INT64, REALS, Array, DType


def _without_axis(operands: Operands, attrs: Attrs) -> Shape:
    axis = axis_in(attrs["axis"], operands[0].rank)
    return (*operands[0].shape[:axis], *operands[0].shape[axis + 1 :])


# -- one place of each row


def _kth_shape(operands: Operands, attrs: Attrs) -> Shape:
    shape = _without_axis(operands, attrs)
    size, k = operands[0].shape[attrs["axis"]], attrs["k"]
    if proves_le(size + 1, k) or proves_le(k, 0):
        raise ShapeError(f"k {k} is not in 1..{size}, dim {attrs['axis']} of {show(operands[0].shape)}")
    return shape


def _rows(step: ReferenceCall) -> Array:
    """The operand with its axis as the last; there is something along it."""
    x, axis = widened(step.operands[0]), step.attrs["axis"]
    if x.shape[axis] == 0:
        raise EvaluateError(f"a place along axis {axis} of shape {list(x.shape)}: there is no element")
    return np.moveaxis(x, axis, -1)


def _run_kth(step: ReferenceCall) -> Array:
    return np.asarray(np.argsort(_rows(step), -1, kind="stable")[..., step.attrs["k"] - 1])


def _run_median(step: ReferenceCall) -> Array:
    rows = _rows(step)
    missing = np.isnan(rows) if rows.dtype.kind == "f" else np.zeros(rows.shape, bool)
    count = (~missing).sum(-1, keepdims=True)
    order = np.argsort(rows, -1, kind="stable")
    place = np.take_along_axis(order, np.maximum(count - 1, 0) // 2, -1)[..., 0]
    if step.attrs["ignore_nan"]:
        return place
    return np.where(missing.any(-1), np.argmax(missing, -1), place)


def _run_mode(step: ReferenceCall) -> Array:
    rows = _rows(step)
    flat = rows.reshape(-1, rows.shape[-1])
    found = np.empty(len(flat), np.int64)
    for index, row in enumerate(flat):
        _, last, counts = np.unique(row[::-1], return_index=True, return_counts=True, equal_nan=False)
        found[index] = row.size - 1 - last[np.argmax(counts)]
    return found.reshape(rows.shape[:-1])


# -- binary search


def _search_shape(operands: Operands, _: Attrs) -> Shape:
    ordered, values = operands
    if ordered.rank != 1:
        require_equal_shapes(ordered.shape[:-1], values.shape[:-1], "dims of the rows", "those of the values")
    return values.shape


def _run_search(step: ReferenceCall) -> Array:
    """PyTorch's own search, so that NaN, and rows that are not in order, give what they give there."""
    ordered, values = map(widened, step.operands)
    rows = np.broadcast_to(ordered, (*values.shape[:-1], ordered.shape[-1])) if values.ndim else ordered
    low, high = np.zeros(values.shape, np.int64), np.full(values.shape, ordered.shape[-1])
    for _ in range(int(ordered.shape[-1]).bit_length()):
        middle = (low + high) // 2
        inside = np.minimum(middle, ordered.shape[-1] - 1)
        at = np.take_along_axis(rows, inside, -1) if values.ndim else rows[inside]
        behind = ~(at > values if step.attrs["right"] else at >= values) & (low < high)
        low, high = np.where(behind, middle + 1, low), np.where(behind | (low >= high), high, middle)
    return low


# -- counts and repeats


def _counted(operands: Operands, _: Attrs) -> DType:
    if not operands[0].dtype.is_integer:
        raise TypeRuleError(f"counts integers, not {operands[0].dtype}")
    require_rank(operands[0], 1, "what is counted (operand 0)")
    if len(operands) == 1:
        return INT64
    return FLOAT32 if operands[1].dtype is FLOAT32 else FLOAT64


def _run_bincount(step: ReferenceCall) -> Array:
    x, *weights = step.operands
    if x.size and x.min() < 0:
        raise EvaluateError(f"bincount of {x.min()}, which is below 0")
    given = weights[0].astype(np.float64) if weights else None
    total = np.bincount(x.astype(np.int64), given, step.attrs["least"])
    return total.astype(step.results[0].dtype.numpy)


def _repeats(operands: Operands, _: Attrs) -> DType:
    require_integer(operands[0], "repeats")
    require_rank(operands[0], 1, "repeats")
    return INT64


def _run_repeats(step: ReferenceCall) -> Array:
    (repeats,) = step.operands
    if repeats.size and repeats.min() < 0:
        raise EvaluateError(f"{repeats.min()} repeats")
    return np.repeat(np.arange(repeats.size), repeats)


# -- running sums of exponentials


def _run_logcumsumexp(step: ReferenceCall) -> Array:
    return np.logaddexp.accumulate(accumulator(step.operands[0]), axis=step.attrs["axis"]).astype(step.dtype)


_AXIS, _COUNT = Attr("axis", INT), Attr("count", SYMBOL)

ROWS = (
    Op("argkth", "The place of the k-th least along an axis, counted from 1.", 1, _run_kth, gives(INT64, *REALS),
       _kth_shape, attrs=(Attr("k", DIM), _AXIS), source="torch.kthvalue"),
    Op("argmedian", "The place of the median along an axis, the lower one of two; that of the first NaN where one is, "
       "unless they are ignored.", 1, _run_median, gives(INT64, *REALS), _without_axis,
       attrs=(_AXIS, Attr("ignore_nan", BOOL, False)), source="torch.median; torch.nanmedian"),
    Op("argmode", "The place of the value that occurs most often along an axis, the least of such.", 1, _run_mode,
       gives(INT64, "bool", *REALS), _without_axis, attrs=(_AXIS,), source="torch.mode"),
    Op("searchsorted", "Where values (…, m) belong in rows (…, n), or one row (n), in rising order: before what is "
       "equal, or behind it (right). NaN belongs at the end.", 2, _run_search, gives(INT64, *REALS), _search_shape,
       attrs=(Attr("right", BOOL, False),), source="torch.searchsorted; numpy.searchsorted"),
    Op("isin", "Whether each element is one of a vector's; NaN is none.", 2,
       lambda step: np.isin(widened(step.operands[0]), widened(step.operands[1])), gives(BOOLEAN, *REALS),
       lambda operands, _: operands[0].shape, torch=("isin.Tensor_Tensor",), source="torch.isin; numpy.isin"),
    Op("bincount", "How often each number from 0 on occurs in a vector, or the sums of their weights; at least `least` "
       "counts. Defines the symbol `count`.", (1, 2), _run_bincount, _counted, lambda _, attrs: (attrs["count"],),
       attrs=(_COUNT, Attr("least", INT, 0)), traits=Trait.INDEXING, defines="count", source="numpy.bincount"),
    Op("repeat_places", "Each place of a vector of repeats, as often as it says. Defines the symbol `count`.", 1,
       _run_repeats, _repeats, lambda _, attrs: (attrs["count"],), attrs=(_COUNT,), traits=Trait.INDEXING,
       defines="count", source="torch.repeat_interleave"),
    Op("logcumsumexp", "log(cumsum(exp(x))) along an axis, where exp(x) overflows, too.", 1, _run_logcumsumexp,
       same("float"), shape_along_axis, attrs=(_AXIS,), flops=per_operand_element(4),
       torch=("logcumsumexp.default",), source="torch.logcumsumexp"),
)  # fmt: skip
