"""Binding of shapes: what is declared, evaluated at some sizes, gives these sizes back; what contradicts is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels_hub.compiler.errors import DimError, ShapeError
from kernels_hub.compiler.export.table import _Dims, _Names
from kernels_hub.compiler.ir.binding import bind_shapes, told_symbols
from kernels_hub.compiler.ir.dims import Dim, dim_symbols, symbol
from kernels_hub.compiler.ir.extrema import dim_max, dim_min, evaluated, number
from kernels_hub.compiler.ir.op import TensorType
from kernels_hub.compiler.ir.types import FLOAT32
from kernels_hub.compiler.runtime.errors import ShapeMisfit, SizeMisfit
from kernels_hub.compiler.runtime.sizes import Bound, Declared, ShapeBinder, SymbolicDim, named

A, B, C = symbol("a"), symbol("b"), symbol("c", 1)

DIMS = st.recursive(
    st.one_of(st.integers(0, 9), st.sampled_from([A, B, C])),
    lambda of: st.one_of(
        st.tuples(of, of).map(lambda pair: pair[0] + pair[1]),
        st.tuples(of, of).map(lambda pair: pair[0] * pair[1]),
        st.tuples(of, st.integers(1, 5)).map(lambda pair: pair[0] // pair[1]),
        st.tuples(of, st.integers(1, 5)).map(lambda pair: pair[0] % pair[1]),
        st.tuples(of, of).map(lambda pair: dim_min(*pair)),
        st.tuples(of, of).map(lambda pair: dim_max(*pair)),
    ),
    max_leaves=5,
)
SHAPES = st.lists(st.lists(DIMS, max_size=3).map(tuple), min_size=1, max_size=3)
SIZES = st.fixed_dictionaries({"a": st.integers(0, 7), "b": st.integers(0, 7), "c": st.integers(1, 7)})


def declared(shapes: list[tuple[Dim, ...]]) -> dict[str, TensorType]:
    return {f"x{index}": TensorType(FLOAT32, shape) for index, shape in enumerate(shapes)}


@given(SHAPES, SIZES, st.permutations(["a", "b", "c"]))
def test_the_sizes_that_shapes_were_made_with(shapes, sizes, order):
    """Symbols that stand alone somewhere are told, wherever that is."""
    rows = [*shapes, *((symbol(name, 1 if name == "c" else 0),) for name in order)]
    given_shapes = [tuple(number(dim, sizes) for dim in shape) for shape in rows]
    assert bind_shapes(declared(rows), given_shapes) == sizes


@given(SHAPES, SIZES, st.data())
def test_a_dim_of_another_size_is_refused_or_tells_other_sizes(shapes, sizes, data):
    given_shapes = [[number(dim, sizes) for dim in shape] for shape in shapes]
    places = [(row, axis) for row, shape in enumerate(shapes) for axis in range(len(shape))]
    if not places:
        return
    row, axis = data.draw(st.sampled_from(places))
    given_shapes[row][axis] += data.draw(st.integers(1, 3))
    try:
        found = bind_shapes(declared(shapes), given_shapes)
    except (ShapeError, DimError):
        return
    assert given_shapes == [[number(dim, found) for dim in shape] for shape in shapes]


@given(SHAPES, SIZES)
def test_the_table_of_an_exported_layer_binds_alike(shapes, sizes):
    """The text of its dims, evaluated, and the runtime that is shipped."""
    given_shapes = [tuple(number(dim, sizes) for dim in shape) for shape in shapes]
    try:
        expected: object = bind_shapes(declared(shapes), given_shapes)
    except ShapeError as error:
        expected = str(error)
    assert _bound_by_text(shapes, given_shapes) == expected


def _bound_by_text(shapes, given_shapes):
    names = _Names([])
    used = sorted(dim_symbols(dim for shape in shapes for dim in shape))
    names.variables = {one.name: one.name for one in used}
    dims = _Dims(names)
    texts = [dims.shape(shape) for shape in shapes]
    scope = {"SymbolicDim": SymbolicDim, "named": named}
    exec("\n".join(dims.lines[1:]), scope)
    inputs = [
        Declared(f"x{index}", f"input 'x{index}' {TensorType(FLOAT32, shape)}", eval(text, scope))
        for index, (text, shape) in enumerate(zip(texts, shapes, strict=True))
    ]
    try:
        return ShapeBinder(inputs, {one.name: Bound(one.min, one.max, one.facts) for one in used}).of(
            given_shapes
        )
    except ShapeMisfit as misfit:
        return str(misfit)


@given(DIMS, SIZES)
def test_dims_are_evaluated_as_they_are_substituted(dim, sizes):
    assert evaluated(dim, sizes) == number(dim, sizes)


def test_a_factor_that_another_dim_tells():
    shapes = declared([(A * B + 1,), (A,)])
    assert bind_shapes(shapes, [(13,), (4,)]) == {"a": 4, "b": 3}
    with pytest.raises(ShapeError, match=r"dim 0 is 14, but no b makes a\*b \+ 1 that"):
        bind_shapes(shapes, [(14,), (4,)])
    with pytest.raises(ShapeError, match=r"is a\*b \+ 1, which does not tell b"):
        bind_shapes(shapes, [(1,), (0,)])
    assert told_symbols([(A * B + 1,), (A,)]) == {"a"}
    assert told_symbols([(2 * A + 1,), (A + B,)]) == {"a", "b"}


def test_a_square_tells_nothing():
    with pytest.raises(ShapeError, match="does not tell a"):
        bind_shapes(declared([(A * A,)]), [(9,)])


N = named("n")


@pytest.mark.parametrize(
    ("shapes", "kind", "error", "text"),
    [
        ([(2, 3, 3), (3,)], "shape x", ShapeMisfit, "x got [2, 3, 3], which has rank 3, not 2"),
        ([(2, 5), (3,)], "shape x", ShapeMisfit, "x got [2, 5]: dim 1 is 5, expected 3"),
        (
            [(2, 3), (3,)], "shape y", ShapeMisfit,
            "y got [3]: dim 0 is 3, but 2*n is 4 (n = 2 by x got [2, 3]: dim 0)",
        ),
        ([(9, 3), (18,)], "size n", SizeMisfit, "x got [9, 3]: dim 0 is 9: n = 9 contradicts n in 1..8"),
    ],
)  # fmt: skip
def test_what_is_said_of_shapes_that_do_not_fit(shapes, kind, error, text):
    twice = SymbolicDim("2*n", ("n",), ("n",), lambda n: 2 * n)
    binder = ShapeBinder(
        [Declared("x", "x", (N, 3)), Declared("y", "y", (twice,))], {"n": Bound(1, 8, "n in 1..8")}
    )
    assert binder.of([(2, 3), (4,)]) == {"n": 2}
    with pytest.raises(error) as raised:
        binder.of(shapes)
    assert (raised.value.kind, str(raised.value)) == (kind, text)
