"""The algebra of shapes, against evaluation at every small binding."""

from __future__ import annotations

import itertools
import operator
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_hub.compiler.errors import DimError
from kernels_hub.compiler.ir.dims import (
    Expr,
    ceildiv,
    divide_exactly,
    floordiv,
    mod,
    product,
    samples,
    symbol,
)
from kernels_hub.compiler.ir.extrema import dim_max, dim_min, substitute
from kernels_hub.compiler.ir.one_symbol import is_never_negative
from kernels_hub.compiler.ir.proofs import interval, proves_different, proves_equal, proves_le
from kernels_hub.compiler.ir.text import parse_dim

A, B, N = symbol("a"), symbol("b", 1, 5), symbol("n", 1)
RANGES = {"a": range(5), "b": range(1, 6), "n": range(1, 5)}
BINDINGS = [dict(zip(RANGES, sizes, strict=True)) for sizes in itertools.product(*RANGES.values())]

BINARY = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": floordiv,
    "%": mod,
    "min": dim_min,
    "max": dim_max,
}
PYTHON = {**BINARY, "//": operator.floordiv, "%": operator.mod, "min": min, "max": max}


def trees(depth: int = 4, over=tuple(RANGES)):
    """Formulas over a, b, n: nested tuples (sign, left, right); division by what is positive only."""
    leaves = st.one_of(st.integers(-6, 6), st.sampled_from(over))
    divisors = [name for name in over if name != "a"]
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(st.sampled_from(["+", "-", "*", "min", "max"]), inner, inner),
            st.tuples(st.sampled_from(["//", "%"]), inner, st.integers(1, 6)),
            *(
                [st.tuples(st.sampled_from(["//", "%"]), inner, st.sampled_from(divisors))]
                if divisors
                else []
            ),
        ),
        max_leaves=depth,
    )


def build(tree, known=MappingProxyType({"a": A, "b": B, "n": N})):
    if isinstance(tree, tuple):
        sign, left, right = tree
        return BINARY[sign](build(left, known), build(right, known))
    return known.get(tree, tree)


def compute(tree, binding, others=MappingProxyType({})):
    if isinstance(tree, tuple):
        sign, left, right = tree
        values = compute(left, binding, others), compute(right, binding, others)
        return others.get(sign, PYTHON[sign])(*values)
    return binding.get(tree, tree)


@given(trees(6))
@settings(max_examples=300, deadline=None)
def test_a_dim_is_what_its_formula_computes(tree):
    dim = build(tree)
    low, high = interval(dim)
    for binding in BINDINGS:
        expected = compute(tree, binding)
        assert substitute(dim, binding) == expected
        assert low is None or low <= expected
        assert high is None or expected <= high
    for place, found in enumerate(samples(dim)):
        assert found == compute(tree, {str(one): samples(one)[place] for one in (A, B, N)})


def test_samples_are_within_bounds_and_unknown_where_they_divide_by_zero():
    assert [sample for one in (A, B, N) for sample in samples(one)[:1]] == [0, 1, 1]
    assert all(1 <= sample <= 5 for sample in samples(B)) and len({*samples(N)}) > 1
    assert samples(N // A)[0] is None and samples(dim_min(7, N // A) + 1)[0] is None
    assert None not in samples(N // A)[1:]


@given(trees(4), trees(4))
@settings(max_examples=300, deadline=None)
def test_what_is_proved_holds(left, right):
    a, b = build(left), build(right)
    values = [(compute(left, binding), compute(right, binding)) for binding in BINDINGS]
    if proves_equal(a, b):
        assert all(x == y for x, y in values)
    if proves_le(a, b):
        assert all(x <= y for x, y in values)
    if proves_different(a, b):
        assert all(x != y for x, y in values)
    if a == b:
        assert hash(a) == hash(b) and proves_equal(a, b)


polynomials = st.recursive(
    st.one_of(st.integers(-4, 4), st.sampled_from(["a", "b", "n"])),
    lambda inner: st.tuples(st.sampled_from(["+", "-", "*"]), inner, inner),
    max_leaves=6,
)


@given(polynomials, polynomials)
@settings(max_examples=200, deadline=None)
def test_equal_polynomials_compare_equal(left, right):
    points = [{"a": 7**i, "b": 11**i, "n": 13**i} for i in range(8)]
    same = all(compute(left, point) == compute(right, point) for point in points)
    a, b = build(left), build(right)
    assert (a == b) == same
    assert build(("*", left, ("+", right, "n"))) == build(("+", ("*", left, right), ("*", "n", left)))


@given(polynomials, polynomials)
@settings(max_examples=200, deadline=None)
def test_exact_division_undoes_multiplication(left, right):
    a, b = build(left), build(right)
    if not (isinstance(b, int) and b == 0):
        assert divide_exactly(a * b, b) == a


@given(trees(4), trees(3))
@settings(max_examples=150, deadline=None)
def test_substitution_by_dims_commutes_with_evaluation(tree, inner):
    size = ("max", inner, 0)
    replaced = substitute(build(tree), {"a": build(size)})
    for binding in BINDINGS[::3]:
        assert substitute(replaced, binding) == compute(tree, {**binding, "a": compute(size, binding)})


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        ((N * 2 + A) * 3, "3*a + 6*n"),
        ((4 * N + 6) // 4, "n + 1"),
        ((2 * N + 4) // 2, "n + 2"),
        ((N * A * 12) // (A * 4), "3*n"),
        ((A // 2) // 3, "a//6"),
        (ceildiv(N, 2), "(n + 1)//2"),
        (ceildiv(A * N, N), "a"),
        ((A * B + B - 1) // B, "a"),
        ((A * N + 1) // N, "(a*n + 1)//n"),
        (dim_min(N, 0), "0"),
        (dim_max(N, 0), "n"),
        (dim_max(N - 3, 0), "max(0, n - 3)"),
        (mod(5 * N + 3, 4), "(n + 3) % 4"),
        (mod(8 - mod(N, 8), 8), "(7*n) % 8"),
        (mod(5 + mod(N, 12), 4), "(n + 1) % 4"),
        (mod(5 + mod(N, 6), 4), "(n % 6 + 1) % 4"),
        (floordiv(N + mod(-N, 8), 8), "(n + 7)//8"),
        (mod(N + mod(-N, 8), ceildiv(N, 8)), "0"),
        (symbol("batch size") - 1, '"batch size" - 1'),
        (product([2, N, 3]), "6*n"),
    ],
)
def test_canonical_forms(dim, text):
    assert str(dim) == text.replace("n + 1", "n + 1")


@pytest.mark.parametrize(
    ("a", "b"),
    [(A // 2, A), (A // 2 * 2, A), (A, A * N), (dim_min(A, 5), 5), (ceildiv(N, 2), N), (A % 4, 3), (B, 5)],
)
def test_order_is_proved(a, b):
    assert proves_le(a, b)
    assert not proves_le(b, a - 1)


def test_equality_beyond_form():
    assert A % 4 + 4 * (A // 4) != A
    assert proves_equal(A % 4 + 4 * (A // 4), A)
    assert proves_different(A, A + 1) and not proves_different(A, N)


@given(trees(7, ["a"]), st.integers(0, 3), st.one_of(st.none(), st.integers(0, 40)))
@settings(max_examples=300, deadline=None)
def test_one_symbol_is_decided(tree, least, more):
    of = symbol("n", least, None if more is None else least + more)
    dim = build(tree, {"a": of})
    sizes = np.arange(least, 4000 if more is None else least + more + 1)
    if more is None:  # where slopes decide
        sizes = np.concatenate([sizes, 10**6 + np.arange(64)])
    values = np.broadcast_to(compute(tree, {"a": sizes}, {"min": np.minimum, "max": np.maximum}), sizes.shape)
    decided = is_never_negative(dim) if isinstance(dim, Expr) else dim >= 0
    assert decided is None or decided == bool((values >= 0).all())
    if decided:
        assert proves_le(0, dim)


def test_terms_that_occur_several_times():
    """As in the model VITS, and in sizes that are padded to whole windows."""
    short, long = dim_max(0, 5 - N), dim_max(0, N - 5)
    assert proves_equal(dim_min(2 * N - 1 + short, 9 + 2 * long) - short, 2 * N - 1)
    assert proves_le(N, ceildiv(N, 4) * 4) and proves_le(ceildiv(N, 4) * 4, N + 3)
    assert proves_equal(dim_max(N // 2, ceildiv(N, 2)) + dim_min(N // 2, ceildiv(N, 2)), N)
    assert is_never_negative(A * A) is None and is_never_negative(A + N) is None
    assert is_never_negative(N // 100 + N) is None, "a period that is too long"


def test_what_is_not_a_number_says_so():
    with pytest.raises(DimError, match=r"bind a, n first"):
        range(A + N)
    with pytest.raises(DimError, match="not known"):
        bool(A)
    with pytest.raises(DimError, match="b = 6 contradicts b in 1..5"):
        substitute(A * B, {"b": 6})
    with pytest.raises(DimError, match="division by zero"):
        substitute(N // A, {"a": 0, "n": 1})
    with pytest.raises(DimError, match="divided by zero"):
        N // 0
    with pytest.raises(DimError, match="below its smallest"):
        symbol("x", 3, 2)


def test_facts_are_part_of_a_symbol():
    assert symbol("x") != symbol("x", 1) and symbol("x", 1) == symbol("x", 1)
    assert isinstance(symbol("x"), Expr)


@given(trees(6))
@settings(max_examples=300, deadline=None)
def test_the_text_of_a_dim_is_read_back(tree):
    dim = build(tree)
    known = {"a": A, "b": B, "n": N}
    assert parse_dim(str(dim), known.__getitem__) == dim


def test_a_proof_over_many_terms_ends_soon():
    sizes = [symbol(f"s{i}") for i in range(40)]
    total = sum((dim_min(one, 7) - one // 2 for one in sizes), start=0)
    assert not proves_le(total, 3)
    assert proves_le(sum((dim_min(one, 7) for one in sizes[:5]), start=0), 35)


def test_a_factor_of_both_sides_is_left_out():
    """Padded to one window of 8, and times a batch of any size."""
    few = symbol("few", 2, 8)
    padded = few + mod(8 - mod(few, 8), 8)
    assert proves_equal(padded, 8)
    assert proves_equal(A * padded, 8 * A)
    assert proves_equal(A * A * B * padded, 8 * A * A * B)
    assert not proves_equal(A * padded, 16 * A)
    assert not proves_equal(A * B, A * N)
