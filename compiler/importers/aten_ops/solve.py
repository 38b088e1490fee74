# ruff: noqa: D103
"""Systems of linear equations, inverses, determinants and Cholesky factors, of matrices of known size.

Matrices (…, n, n) of one size n are factored by ops that every engine has: a Gaussian elimination with the pivots that
LAPACK takes, a step for each column, up to `_MOST_COLUMNS`. A triangular system is solved by the inverse of its
triangle, of which blocks are doubled in size (log2 n levels of two products each), so that 64 rows take 6 levels and no
64 steps:

    [A 0]^-1   [ A^-1            0   ]
    [C B]    = [-B^-1 C A^-1    B^-1 ]    Source: Du Croz and Higham, Stability of Methods for Matrix Inversion

For a singular matrix, and one without a Cholesky factor, PyTorch raises. Here that is an assertion on data, by which a
layer falls back to the original; what looks at no assertions gives inf and NaN.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence

from kernels_hub.compiler.importers.aten_ops.call import AtenCall, aten
from kernels_hub.compiler.ir.graph import Value

_MOST_ROWS = 512
"""Of a triangle: its inverse takes n³/3 multiplications, which beyond are more than a LAPACK's n²."""
_MOST_COLUMNS = 16
"""Of an elimination, which has some ops for each."""


def _rows_of(call: AtenCall, a: Value, most: int) -> int:
    n = a.shape[-1]
    call.refuse_unless(isinstance(n, int), "a matrix of a size that may differ", of_sizes=True)
    assert isinstance(n, int)
    call.refuse_unless(n <= most, f"a matrix of {n} rows; up to {most} are taken")
    call.refuse_unless(a.dtype.name in {"float32", "float64"}, f"a matrix of {a.dtype}")
    return n


def _batched(a: Value, b: Value) -> tuple[Value, Value]:
    """Both with the batch of the two, by NumPy's rules."""
    rank = max(a.rank, b.rank)
    x, y = (one.unsqueeze(*range(rank - one.rank)) if one.rank < rank else one for one in (a, b))
    batch = [p if q == 1 else q for p, q in zip(x.shape[:-2], y.shape[:-2], strict=True)]
    return x.broadcast_to((*batch, *x.shape[-2:])), y.broadcast_to((*batch, *y.shape[-2:]))


def _places(a: Value) -> tuple[Value, Value]:
    """(n, 1) and (n) whole numbers: the row and the column of an element."""
    return a.graph.iota(a.shape[-2]).unsqueeze(1), a.graph.iota(a.shape[-1])


def _diagonal(a: Value) -> Value:
    """(…, n, n) -> (…, n)."""
    row, column = _places(a)
    return row.eq(column).broadcast_to(a.shape).select(a, 0.0).sum(-1)


def _joined(a: Value, b: Value, axis: int) -> Value:
    return a.graph.apply("concat", a, b, axis=axis)


def _unit_inverse(a: Value, n: int) -> Value:
    """The inverse of the lower triangle of a (…, n, n) whose diagonal counts as ones."""
    row, column = _places(a)
    low = column.binary("lt", row).broadcast_to(a.shape).select(a, 0.0)
    size = 1 << (n - 1).bit_length()
    batch, front = a.shape[:-2], a.rank - 2
    if size > n:
        low = low.pad([*[(0, 0)] * front, (0, size - n), (0, size - n)], 0.0)
    found = a.graph.full((*batch, size, 1, 1), 1.0, a.dtype)  # blocks on the diagonal, inverted
    half, rank = 1, front + 1
    while half < size:
        count = size // (2 * half)
        # (…, count, 2, half, count, 2, half): of each pair of blocks the one under the diagonal.
        pairs = low.reshape((*batch, count, 2, half, count, 2, half))
        under = (
            pairs.slice(front + 1, 1, 2).slice(front + 4, 0, 1).reshape((*batch, count, half, count, half))
        )
        if count > 1:
            order = (*range(front), front, front + 2, front + 1, front + 3)
            flat = under.permute(*order).reshape((*batch, count * count, half, half))
            under = flat.slice(front, 0, None, count + 1)
        under = under.reshape((*batch, count, half, half))
        blocks = found.reshape((*batch, count, 2, half, half))
        first, second = (
            blocks.slice(front + 1, at, at + 1).reshape((*batch, count, half, half)) for at in (0, 1)
        )
        corner = -under if half == 1 else -(second @ (under @ first))
        top = first.pad([*[(0, 0)] * (front + 2), (0, half)], 0.0)
        found = _joined(top, _joined(corner, second, rank + 1), rank)
        half *= 2
    inverse = found.reshape((*batch, size, size))
    return inverse if size == n else inverse.slice(front, 0, n).slice(front + 1, 0, n)


def _lower_solved(a: Value, b: Value, n: int, *, unit: bool) -> Value:
    """x of a x = b, of the lower triangle of a (…, n, n); b (…, n, m). Of one batch."""
    if n == 0:
        return b
    if not unit:
        scale = _diagonal(a).unsqueeze(-1)
        a, b = a / scale.broadcast_to(a.shape), b / scale.broadcast_to(b.shape)
    return b if n == 1 else _unit_inverse(a, n) @ b


def _triangular(a: Value, b: Value, n: int, *, upper: bool, unit: bool) -> Value:
    if not upper:
        return _lower_solved(a, b, n, unit=unit)
    return _lower_solved(a.flip(-2, -1), b.flip(-2), n, unit=unit).flip(-2)


@aten("linalg_solve_triangular.default")
def solve_triangular(
    call: AtenCall, a: Value, b: Value, *, upper: bool, left: bool, unitriangular: bool
) -> Value:
    n = _rows_of(call, a, _MOST_ROWS)
    if not left:
        a, b, upper = a.transpose(), b.transpose(), not upper
    found = _triangular(*_batched(a, b), n, upper=upper, unit=unitriangular)
    return found if left else found.transpose()


@aten("triangular_solve.default")
def triangular_solve(
    call: AtenCall, b: Value, a: Value, upper: bool, transpose: bool, unitriangular: bool
) -> tuple[Value, Value]:
    n = _rows_of(call, a, _MOST_ROWS)
    copied = a
    if transpose:
        a, upper = a.transpose(), not upper
    a, b = _batched(a, b)
    return _triangular(a, b, n, upper=upper, unit=unitriangular), copied.broadcast_to(a.shape)


# -- elimination


def _eliminated(a: Value, n: int) -> tuple[Value, Value, list[Value]]:
    """L (below) and U of a in the order of rows that its pivots give; that order (…, n); the pivots, each (…)."""
    row, column = _places(a)
    lines = a.graph.iota(n)
    batch = a.shape[:-2]
    order = lines.broadcast_to((*batch, n))
    pivots: list[Value] = []
    for k in range(n):
        below = a.slice(a.rank - 2, k).slice(a.rank - 1, k, k + 1).squeeze(-1)
        at = (abs(below).along("argmax", below.rank - 1) + k).unsqueeze(-1).broadcast_to((*batch, n))
        pivots.append(at.slice(at.rank - 1, 0, 1).squeeze(-1))
        here = lines.broadcast_to((*batch, n))
        swapped = here.eq(k).select(at, here.eq(at).select(k, here))
        order = order.gather_elements(swapped, order.rank - 1)
        a = a.gather_elements(swapped.unsqueeze(-1).broadcast_to(a.shape), a.rank - 2)
        if k == n - 1:
            break
        pivot = a.slice(a.rank - 2, k, k + 1)
        first = a.slice(a.rank - 1, k, k + 1)
        by = pivot.slice(pivot.rank - 1, k, k + 1)
        by = by.eq(0.0).select(1.0, by)
        factor = (
            row.binary("lt", k + 1)
            .broadcast_to(first.shape)
            .select(0.0, first / by.broadcast_to(first.shape))
        )
        rest = a - factor.broadcast_to(a.shape) * pivot.broadcast_to(a.shape)
        inside = column.binary("le", k).broadcast_to(a.shape)
        kept = column.eq(k) & (row.binary("lt", k + 1).eq(False))
        a = inside.select(kept.broadcast_to(a.shape).select(factor.broadcast_to(a.shape), a), rest)
    return a, order, pivots


def _solved(factors: Value, order: Value, b: Value, n: int) -> Value:
    places = order.unsqueeze(-1).broadcast_to(b.shape)
    under = _triangular(factors, b.gather_elements(places, b.rank - 2), n, upper=False, unit=True)
    return _triangular(factors, under, n, upper=True, unit=False)


def _sign(factors: Value, pivots: Sequence[Value]) -> Value:
    """-1 for each exchange of two rows, (…)."""
    one = factors.graph.full(pivots[0].shape, 1.0, factors.dtype)
    moved = [pivot.eq(k).select(one, -1.0) for k, pivot in enumerate(pivots)]
    return functools.reduce(operator.mul, moved)


def _identity(a: Value) -> Value:
    row, column = _places(a)
    return row.eq(column).cast(a.dtype).broadcast_to(a.shape)


def _assert_regular(call: AtenCall, factors: Value) -> None:
    """PyTorch raises of a pivot of 0."""
    call.asserted.append(_diagonal(factors).ne(0.0).reduce("all"))


@aten("inverse.default", "linalg_inv.default", "linalg_inv_ex.default")
def inverse(call: AtenCall, a: Value, *_: object, check_errors: bool = False) -> Value | tuple[Value, Value]:
    n = _rows_of(call, a, _MOST_COLUMNS)
    factors, order, _pivots = _eliminated(a, n)
    found = _solved(factors, order, _identity(a), n)
    if not call.name.startswith("linalg_inv_ex"):
        _assert_regular(call, factors)
        return found
    if check_errors:
        _assert_regular(call, factors)
    return found, _info(factors)


def _info(factors: Value) -> Value:
    """The number of the first pivot of 0, counted from 1; 0 where there is none."""
    diagonal = _diagonal(factors)
    n = factors.shape[-1]
    number = (factors.graph.iota(n) + 1).broadcast_to(diagonal.shape)
    first = diagonal.eq(0.0).select(number, factors.graph.size(n, number.dtype) + 1).min(-1)
    return first.binary("le", n).select(first, 0).cast("int32")


@aten("_linalg_check_errors.default")
def check_errors(call: AtenCall, info: Value, *_: object, **__: object) -> None:
    call.asserted.append(info.eq(0).reduce("all"))


@aten("linalg_solve.default")
def solve(call: AtenCall, a: Value, b: Value, *, left: bool) -> Value:
    n = _rows_of(call, a, _MOST_COLUMNS)
    is_vector = b.rank == 1 or (b.rank == a.rank - 1 and len(call.shape) == b.rank)
    if is_vector:
        b = b.unsqueeze(-1)
    if not left:
        a, b = a.transpose(), b if is_vector else b.transpose()
    a, b = _batched(a, b)
    factors, order, _pivots = _eliminated(a, n)
    found = _solved(factors, order, b, n)
    _assert_regular(call, factors)
    return found.squeeze(-1) if is_vector else (found if left else found.transpose())


@aten("det.default", "linalg_det.default")
def determinant(call: AtenCall, a: Value) -> Value:
    n = _rows_of(call, a, _MOST_COLUMNS)
    call.refuse_unless(n > 0, "an empty matrix")
    factors, _order, pivots = _eliminated(a, n)
    return _diagonal(factors).reduce("prod", -1) * _sign(factors, pivots)


@aten("_linalg_det.default", "_linalg_slogdet.default", "_linalg_solve_ex.default")
def with_factors(call: AtenCall, *_: object, **__: object) -> None:
    """What the others become as PyTorch runs them: their factors, for a backward, depend on how a matrix lies."""
    call.refuse_unless(False, "an LU decomposition as a result")


@aten("slogdet.default", "linalg_slogdet.default", "logdet.default")
def log_determinant(call: AtenCall, a: Value) -> Value | tuple[Value, Value]:
    n = _rows_of(call, a, _MOST_COLUMNS)
    call.refuse_unless(n > 0, "an empty matrix")
    factors, _order, pivots = _eliminated(a, n)
    diagonal = _diagonal(factors)
    signs = diagonal.unary("sign").reduce("prod", -1) * _sign(factors, pivots)
    found = abs(diagonal).log().sum(-1)
    if call.name.startswith("logdet"):
        return signs.binary("lt", 0.0).select(math.nan, found)
    return signs, found


# -- Cholesky


def _factored(a: Value, n: int) -> tuple[Value, list[Value]]:
    """The lower factor of a, of which the lower triangle is read; of each column whether there is one that far, (…)."""
    row, column = _places(a)
    rank = a.rank
    done = a.graph.full(a.shape, 0.0, a.dtype)
    good: list[Value] = []
    for k in range(n):
        pivot = a.slice(rank - 2, k, k + 1).slice(rank - 1, k, k + 1)
        fine = pivot.squeeze(-1, -2).binary("le", 0.0).eq(False) & pivot.squeeze(-1, -2).unary("isnan").eq(
            False
        )
        good.append(good[-1] & fine if good else fine)
        first = a.slice(rank - 1, k, k + 1) / pivot.sqrt().broadcast_to((*a.shape[:-1], 1))
        first = row.binary("lt", k).broadcast_to(first.shape).select(0.0, first)
        wide = first.broadcast_to(a.shape)
        done = column.eq(k).broadcast_to(a.shape).select(wide, done)
        if k < n - 1:
            a = a - wide * first.transpose().broadcast_to(a.shape)
    return done, good


@aten("linalg_cholesky_ex.default")
def cholesky_ex(call: AtenCall, a: Value, *, upper: bool, check_errors: bool) -> tuple[Value, Value]:
    n = _rows_of(call, a, _MOST_COLUMNS)
    call.refuse_unless(n > 0, "an empty matrix")
    found, good = _factored(a.transpose() if upper else a, n)
    if check_errors:
        call.asserted.append(good[-1].reduce("all"))
    info = call.graph.full(good[0].shape, 0, "int32")
    for k in reversed(range(n)):
        info = good[k].select(info, k + 1)
    return found.transpose() if upper else found, info


@aten("linalg_cholesky.default", "cholesky.default")
def cholesky(call: AtenCall, a: Value, upper: bool = False, **named: bool) -> Value:
    n = _rows_of(call, a, _MOST_COLUMNS)
    call.refuse_unless(n > 0, "an empty matrix")
    upper = named.get("upper", upper)
    found, good = _factored(a.transpose() if upper else a, n)
    call.asserted.append(good[-1].reduce("all"))
    return found.transpose() if upper else found


@aten("cholesky_solve.default")
def cholesky_solve(call: AtenCall, b: Value, a: Value, upper: bool) -> Value:
    n = _rows_of(call, a, _MOST_ROWS)
    a, b = _batched(a, b)
    low = a.transpose() if upper else a
    under = _triangular(low, b, n, upper=False, unit=False)
    return _triangular(low.transpose(), under, n, upper=True, unit=False)


@aten("cholesky_inverse.default")
def cholesky_inverse(call: AtenCall, a: Value, upper: bool) -> Value:
    return cholesky_solve(call, _identity(a), a, upper)
