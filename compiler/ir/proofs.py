"""Proofs about dims, from the bounds of their symbols: equality, order, intervals.

Every answer True holds for all sizes that the facts allow; False means only "not proved". Most are False, and a size
for which it does not hold says so sooner than every proof that fails: dims know their values at a few (`dims.samples`).
"""

from __future__ import annotations

from functools import lru_cache

from kernels_hub.compiler.ir.dims import (
    Dim,
    Expr,
    Opaque,
    Symbol,
    atom,
    divide_exactly,
    product,
    replace_atom,
    samples,
    without_mod,
)
from kernels_hub.compiler.ir.one_symbol import is_never_negative

_DEPTH = 6
"""How many opaque terms a proof takes apart, one after the other."""
_MOST_KNOWN = 1 << 12
"""Answers that are remembered of each kind: a model asks the same of the same sizes at every node."""

Interval = tuple[int | None, int | None]
"""Smallest and largest value; None for no bound."""


def proves_equal(a: Dim, b: Dim) -> bool:
    """Whether a == b for every binding."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return a == b or _proves_equal(a, b)


@lru_cache(maxsize=_MOST_KNOWN)
def _proves_equal(a: Dim, b: Dim) -> bool:
    if any(x is not None and y is not None and x != y for x, y in zip(samples(a), samples(b), strict=True)):
        return False
    difference = _without_factors(_without_mod(a - b))
    if isinstance(difference, int):
        return difference == 0
    if interval(without_mod(difference)) == (0, 0):
        return True
    return _never_negative(difference, _DEPTH) and _never_negative(-difference, _DEPTH)


def _without_factors(dim: Dim) -> Dim:
    """Without the symbols that every term has as a factor: it is 0 wherever what remains is."""
    if isinstance(dim, int):
        return dim
    powers = [dict(monomial) for monomial, _ in dim.terms]
    common = {one: min(of.get(one, 0) for of in powers) for one in powers[0]}
    rest = divide_exactly(dim, product(atom(one) for one, power in common.items() for _ in range(power)))
    return dim if rest is None else rest


def proves_different(a: Dim, b: Dim) -> bool:
    """Whether a != b for every binding."""
    difference = a - b
    if isinstance(difference, int):
        return difference != 0
    return _never_negative(difference - 1, _DEPTH) or _never_negative(-difference - 1, _DEPTH)


def proves_le(a: Dim, b: Dim) -> bool:
    """Whether a <= b for every binding."""
    if isinstance(a, int) and isinstance(b, int):
        return a <= b
    return _never_negative(b - a, _DEPTH)


def interval(dim: Dim) -> Interval:
    """Bounds of a dim, not always the tightest."""
    if isinstance(dim, int):
        return dim, dim
    low: int | None = 0
    high: int | None = 0
    for monomial, coefficient in dim.terms:
        term: Interval = (coefficient, coefficient)
        for one, power in monomial:
            bounds = _atom_interval(one)
            for _ in range(power):
                term = _multiply(term, bounds)
        low = None if low is None or term[0] is None else low + term[0]
        high = None if high is None or term[1] is None else high + term[1]
    return low, high


@lru_cache(maxsize=_MOST_KNOWN)
def _never_negative(dim: Dim, depth: int) -> bool:
    if any(value is not None and value < 0 for value in samples(dim)):
        return False
    dim = _without_mod(dim)
    if isinstance(dim, int):
        return dim >= 0
    low, high = interval(_from_zero(dim))
    if low is not None and low >= 0:
        return True
    if high is not None and high < 0:
        return False
    found = _linear_opaque(dim)
    if depth > 0 and found is not None and _by_cases(dim, *found, depth - 1):
        return True
    return depth == _DEPTH and bool(is_never_negative(dim))


def _from_zero(dim: Expr) -> Dim:
    """The dim over symbols that start at 0: n >= 1 becomes n + 1, so that n*m - m becomes n*m, never below 0."""
    shifted: Dim = dim
    for one in {one for monomial, _ in dim.terms for one, _ in monomial if isinstance(one, Symbol)}:
        if one.min > 0 and isinstance(shifted, Expr):
            rest = Symbol(one.name, 0, None if one.max is None else one.max - one.min)
            shifted = replace_atom(shifted, one, atom(rest) + one.min)
    return shifted


def _by_cases(dim: Expr, opaque: Opaque, coefficient: int, depth: int) -> bool:
    """Prove dim >= 0 by replacing the term `coefficient * one` by what it is at least."""
    if opaque.kind in {"min", "max"}:
        replaced = (_never_negative(replace_atom(dim, opaque, arg), depth) for arg in opaque.args)
        # c*min(a, b) is c*a or c*b; with c < 0 it is at least both of these, so one will do. max: likewise.
        return any(replaced) if (coefficient < 0) == (opaque.kind == "min") else all(replaced)
    a, b = opaque.args
    if opaque.kind != "floordiv" or not isinstance(b, int) or b <= 0:
        return False
    # a//b lies in (a - b + 1)/b .. a/b: multiply by b, and take the end that makes the sum smaller.
    rest = dim - coefficient * atom(opaque)
    end = a - (b - 1) if coefficient > 0 else a
    return _never_negative(b * rest + coefficient * end, depth)


def _linear_opaque(dim: Expr) -> tuple[Opaque, int] | None:
    """An opaque term that stands alone in one monomial and in no other, with its coefficient.

    Minima and maxima come first: to replace them loses nothing. One at a time, so that a proof takes time
    exponential in `_DEPTH` at worst, and not in the number of terms.
    """
    found = None
    occurrences = [one for monomial, _ in dim.terms for one, _ in monomial if isinstance(one, Opaque)]
    for monomial, coefficient in dim.terms:
        one = monomial[0][0] if len(monomial) == 1 and monomial[0][1] == 1 else None
        if isinstance(one, Opaque) and one.kind != "mod" and occurrences.count(one) == 1:
            if one.kind in {"min", "max"}:
                return one, coefficient
            found = found or (one, coefficient)
    return found


def _without_mod(dim: Dim) -> Dim:
    """a % b written as a - b * (a // b), where the terms may cancel."""
    if isinstance(dim, int):
        return dim
    divided = any(
        isinstance(one, Opaque) and one.kind == "floordiv" for monomial, _ in dim.terms for one, _ in monomial
    )
    return without_mod(dim) if divided else dim


def _atom_interval(one: object) -> Interval:
    if isinstance(one, Symbol):
        return one.min, one.max
    assert isinstance(one, Opaque)
    bounds = [interval(arg) for arg in one.args]
    lows, highs = [low for low, _ in bounds], [high for _, high in bounds]
    if one.kind == "min":
        known = [high for high in highs if high is not None]
        return (None if None in lows else min(low for low in lows if low is not None)), min(
            known, default=None
        )
    if one.kind == "max":
        known = [low for low in lows if low is not None]
        return max(known, default=None), (None if None in highs else max(h for h in highs if h is not None))
    (a_low, a_high), (b_low, b_high) = bounds
    if b_low is None or b_low <= 0:
        return None, None
    if one.kind == "mod":
        return 0, None if b_high is None else b_high - 1
    return _divide(a_low, b_low, b_high, down=True), _divide(a_high, b_low, b_high, down=False)


def _divide(a: int | None, b_low: int, b_high: int | None, *, down: bool) -> int | None:
    """The end of a // b that lies further down (or up), for positive b."""
    if a is None:
        return None
    if (a >= 0) == down:
        return a // b_high if b_high is not None else (0 if a >= 0 else -1)
    return a // b_low


def _multiply(a: Interval, b: Interval) -> Interval:
    """Products of two intervals. A factor 0 makes 0 of no bound, too."""
    ends = [0 if 0 in (x, y) else None if x is None or y is None else x * y for x in a for y in b]
    if None not in ends:
        return min(e for e in ends if e is not None), max(e for e in ends if e is not None)
    (a_low, a_high), (b_low, b_high) = a, b
    if a_low is not None and a_low >= 0 and b_low is not None and b_low >= 0:
        return a_low * b_low, None
    if a_high is not None and a_high <= 0 and b_low is not None and b_low >= 0:
        return None, a_high * b_low
    if b_high is not None and b_high <= 0 and a_low is not None and a_low >= 0:
        return None, b_high * a_low
    return None, None
