"""Decides whether a dim of one symbol is ever negative: sums of minima, maxima, quotients and remainders.

Within a class of remainders, n = period * q + r, every quotient by a number is linear in q, and a dim is linear between
the places where the arguments of its minima and maxima cross:

    period of all divisors  ->  for each r: pieces (from q on, slope, offset)  ->  the ends of each piece

So the answer is exact where one comes, unlike the ones of `proofs.py`, which replace one term after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from kernels_hub.compiler.ir.dims import Dim, Expr, Opaque, Symbol

_MOST = 64
"""Largest period. Divisors of padding and of patches are below that; beyond, an answer costs more than it is worth."""

Piece = tuple[int, int, int]
"""(start, slope, offset): slope * q + offset from q = start on, until the next piece starts."""
Pieces = tuple[Piece, ...]


@lru_cache(maxsize=4096)
def is_never_negative(dim: Expr) -> bool | None:
    """Whether dim >= 0 for all sizes of its symbol; None where it has several, or terms of another kind."""
    if len(dim.symbols) != 1:
        return None
    (symbol,) = dim.symbols
    period = _period(dim)
    if period is None:
        return None
    for rest in range(period):
        last = None if symbol.max is None else (symbol.max - rest) // period
        if not _holds(_Remainder(period, rest, symbol.min).pieces(dim), last):
            return False
    return True


def _holds(pieces: Pieces, last: int | None) -> bool:
    """Whether no piece is below 0 up to the last q."""
    starts = [start for start, _, _ in pieces]
    for (start, slope, offset), following in zip(pieces, [*starts[1:], None], strict=True):
        end = last if following is None or (last is not None and last < following) else following - 1
        if end is not None and end < start:
            break
        least = start if slope >= 0 else end
        if least is None or slope * least + offset < 0:
            return False
    return True


def _period(dim: Dim) -> int | None:
    """What the symbol is counted in for every quotient to be linear; None where there is no such number."""
    if isinstance(dim, int):
        return 1
    period = 1
    for monomial, _ in dim.terms:
        if not monomial:
            continue
        if len(monomial) > 1 or monomial[0][1] > 1:
            return None
        ((one, _),) = monomial
        if isinstance(one, Symbol):
            continue
        assert isinstance(one, Opaque)
        inner = [_period(arg) for arg in one.args]
        if one.kind in {"floordiv", "mod"}:
            divisor = one.args[1]
            if not isinstance(divisor, int) or divisor <= 0:
                return None
            inner = [None if inner[0] is None else inner[0] * divisor]
        for each in inner:
            if each is None:
                return None
            period = math.lcm(period, each)
        if period > _MOST:
            return None
    return period


class _Remainder:
    """Sizes of one remainder: n = period * q + rest, from the first q on that is allowed."""

    def __init__(self, period: int, rest: int, minimum: int) -> None:
        self.period, self.rest = period, rest
        self.first = -((rest - minimum) // period)

    def pieces(self, dim: Dim) -> Pieces:
        """The dim as a function of q."""
        if isinstance(dim, int):
            return ((self.first, 0, dim),)
        total: Pieces = ((self.first, 0, 0),)
        for monomial, factor in dim.terms:
            if not monomial:
                term: Pieces = ((self.first, 0, factor),)
            else:
                ((one, _),) = monomial
                term = tuple((start, factor * slope, factor * at) for start, slope, at in self._of(one))
            total = _joined(total, term, _sum)
        return total

    def _of(self, one: object) -> Pieces:
        if isinstance(one, Symbol):
            return ((self.first, self.period, self.rest),)
        assert isinstance(one, Opaque)
        first, *others = map(self.pieces, one.args)
        if one.kind in {"min", "max"}:
            for other in others:
                first = _joined(first, other, _smaller if one.kind == "min" else _larger)
            return first
        divisor = one.args[1]
        assert isinstance(divisor, int)
        quotient = tuple((start, slope // divisor, at // divisor) for start, slope, at in first)
        if one.kind == "floordiv":
            return quotient
        return tuple(
            (start, slope - divisor * times, at - divisor * whole)
            for (start, slope, at), (_, times, whole) in zip(first, quotient, strict=True)
        )


Line = tuple[int, int]
"""(slope, offset)."""


def _joined(one: Pieces, other: Pieces, join: Callable[[Line, Line, int, float], list[Piece]]) -> Pieces:
    """Two functions as one: what `join` makes of the lines that they are between two places where a piece starts."""
    starts = sorted({start for start, _, _ in (*one, *other)})
    found: list[Piece] = []
    for start, end in zip(starts, [*starts[1:], math.inf], strict=True):
        a, b = (next(piece[1:] for piece in reversed(pieces) if piece[0] <= start) for pieces in (one, other))
        found += join(a, b, start, end)
    return tuple(
        piece
        for before, piece in zip([None, *found], found, strict=False)
        if not before or before[1:] != piece[1:]
    )


def _sum(a: Line, b: Line, start: int, _: float) -> list[Piece]:
    return [(start, a[0] + b[0], a[1] + b[1])]


def _larger(a: Line, b: Line, start: int, end: float) -> list[Piece]:
    return [
        (at, -slope, -offset) for at, slope, offset in _smaller((-a[0], -a[1]), (-b[0], -b[1]), start, end)
    ]


def _smaller(a: Line, b: Line, start: int, end: float) -> list[Piece]:
    """The smaller of two lines from `start` until before `end`: one, and from where they crossed the other."""
    if (a[0] * start + a[1], a[0]) > (b[0] * start + b[1], b[0]):
        a, b = b, a
    if a[0] <= b[0]:
        return [(start, *a)]
    crossed = (b[1] - a[1]) // (a[0] - b[0]) + 1  # the first q at which a is the larger one
    return [(start, *a), (crossed, *b)] if crossed < end else [(start, *a)]
