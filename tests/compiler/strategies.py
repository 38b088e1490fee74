"""Random graphs for hypothesis: any pass must keep what they compute.

    @given(graphs())
    def test_a_pass_keeps_the_numbers(graph):
        inputs = graph.dummy_inputs(0, SIZES)
        assert_same_outputs(evaluate(graph, inputs), evaluate(my_pass(graph), inputs))

Graphs have inputs and parameters of several dtypes, symbolic dims ("n" >= 1, "m" in 0..4), special values
among their constants, shared and unused values, and one or more outputs.
"""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from kernels_hub.compiler import Graph, Value
from kernels_hub.compiler.errors import ShapeError, TypeRuleError
from kernels_hub.compiler.ir import types

SIZES = {"n": 3, "m": 2}
OTHER_SIZES = {"n": 1, "m": 0}
FLOAT_DTYPES = ("float32", "float64", "float16", "bfloat16")
DTYPES = (*FLOAT_DTYPES, "int32", "int64", "int8", "bool")
NUMBERS = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, math.inf, -math.inf, math.nan, 1e-5, 3.0)
UNARY = {
    "float": (
        "neg",
        "abs",
        "sign",
        "exp",
        "tanh",
        "sigmoid",
        "sqrt",
        "floor",
        "round",
        "sin",
        "erf",
        "rsqrt",
        "log1p",
    ),
    "int": ("neg", "abs", "sign", "bitnot"),
    "bool": ("bitnot",),
}
BINARY = {
    "float": ("add", "sub", "mul", "div", "maximum", "minimum"),
    "int": ("add", "sub", "mul", "div", "floordiv", "mod", "maximum", "minimum", "bitand", "bitor", "bitxor"),
    "bool": ("bitand", "bitor", "bitxor"),
}


@st.composite
def graphs(draw, max_ops: int = 14, dtypes: tuple[str, ...] = DTYPES, symbolic: bool = True) -> Graph:
    """A random graph. All of it can be evaluated for SIZES and for OTHER_SIZES."""
    graph = Graph("random")
    graph.symbol("n", 1)
    graph.symbol("m", 0, 4)
    dim = st.sampled_from([1, 2, 3, 4, *(["n", "m", "n + 1", "2*n"] if symbolic else [])])
    values: list[Value] = []
    for i in range(draw(st.integers(1, 3))):
        shape = draw(st.lists(dim, max_size=3))
        values.append(graph.input(f"x{i}", shape, draw(st.sampled_from(dtypes))))
    if draw(st.booleans()):
        data = np.random.default_rng(draw(st.integers(0, 3))).standard_normal((4, 3)).astype(np.float32)
        values.append(graph.parameter("w", (4, 3), "float32", data))
    for _ in range(draw(st.integers(max_ops // 2, max_ops))):
        x = draw(st.sampled_from(values[-5:]))
        step = draw(st.sampled_from(STEPS))
        try:
            values += step(draw, graph, x, values)
        except (ShapeError, TypeRuleError):
            continue  # an op that does not take this value
    unused = [value for value in values if not value.users]
    shown = draw(st.lists(st.sampled_from(values), max_size=2)) + unused[draw(st.integers(0, 1)) :]
    for i, value in enumerate(shown or values[-1:]):
        graph.output(f"y{i}", value)
    return graph


def assert_same_outputs(actual, expected, tolerance: float = 0.0) -> None:
    """The same names, dtypes and shapes; the same elements (bits, but for the sign of NaN), or close ones."""
    assert list(actual) == list(expected)
    for name in expected:
        a, e = actual[name], expected[name]
        assert a.dtype == e.dtype and a.shape == e.shape, (
            f"{name}: {a.dtype}{a.shape}, expected {e.dtype}{e.shape}"
        )
        if a.dtype.kind in "biu":
            assert np.array_equal(a, e), name
            continue
        a, e = a.astype(np.float64), e.astype(np.float64)
        same = (a == e) & (np.signbit(a) == np.signbit(e)) | (np.isnan(a) & np.isnan(e))
        if tolerance:
            with np.errstate(invalid="ignore"):
                same |= np.abs(a - e) <= tolerance * np.maximum(1, np.abs(e))
        assert same.all(), f"{name}: {a[~same][:4]}, expected {e[~same][:4]}"


def _kind(value: Value) -> str:
    return "int" if value.dtype.is_integer else value.dtype.kind


def _unary(draw, graph, x, values):
    return [x.unary(draw(st.sampled_from(UNARY[_kind(x)])))]


def _binary(draw, graph, x, values):
    partners = [value for value in values if value.dtype is x.dtype]
    return [x.binary(draw(st.sampled_from(BINARY[_kind(x)])), draw(st.sampled_from(partners)))]


def _with_number(draw, graph, x, values):
    number = draw(st.sampled_from(NUMBERS))
    if _kind(x) != "float":
        number = bool(number) if _kind(x) == "bool" else int(number) if math.isfinite(number) else 7
    return [x.binary(draw(st.sampled_from(BINARY[_kind(x)])), number, reverse=draw(st.booleans()))]


def _compare(draw, graph, x, values):
    partners = [value for value in values if value.dtype is x.dtype]
    return [x.binary(draw(st.sampled_from(["eq", "ne", "lt", "le"])), draw(st.sampled_from(partners)))]


def _select(draw, graph, x, values):
    condition = x if x.dtype is types.BOOL else x.ne(x.like(0))
    a = draw(st.sampled_from(values))
    b = draw(st.sampled_from([value for value in values if value.dtype is a.dtype]))
    return [condition.select(a, b)]


def _cast(draw, graph, x, values):
    return [x.cast(draw(st.sampled_from(DTYPES if _kind(x) != "float" else FLOAT_DTYPES)))]


def _reduce(draw, graph, x, values):
    axes = draw(st.sets(st.integers(0, max(x.rank - 1, 0)), max_size=x.rank))
    kind = draw(st.sampled_from(["any", "all"] if x.dtype is types.BOOL else ["sum", "max", "min", "prod"]))
    return [x.reduce(kind, sorted(axes), keepdims=draw(st.booleans()))]


def _normalise(draw, graph, x, values):
    return (
        [x - x.mean(-1, keepdims=True), x.softmax(draw(st.integers(-x.rank, x.rank - 1)))] if x.rank else []
    )


def _permute(draw, graph, x, values):
    return [x.permute(*draw(st.permutations(range(x.rank))))]


def _reshape(draw, graph, x, values):
    return [
        draw(
            st.sampled_from(
                [lambda: x.reshape(-1), lambda: x.unsqueeze(0), lambda: x.flatten(0, min(1, x.rank - 1))]
            )
        )()
    ]


def _slice(draw, graph, x, values):
    bound = st.one_of(st.none(), st.integers(-4, 4))
    step = draw(st.sampled_from([1, 1, 2, -1, -2]))
    return [x.slice(draw(st.integers(0, max(x.rank - 1, 0))), draw(bound), draw(bound), step)]


def _broadcast(draw, graph, x, values):
    return [x.broadcast_to((draw(st.sampled_from([2, "n"])), *x.shape))]


def _pad(draw, graph, x, values):
    pairs = st.tuples(st.integers(0, 2), st.integers(0, 2))
    return [x.pad([draw(pairs) for _ in range(x.rank)], draw(st.sampled_from([0, 1])))]


def _concat(draw, graph, x, values):
    axis = draw(st.integers(0, max(x.rank - 1, 0)))
    return [graph.apply("concat", x, x.flip(axis), x, axis=axis)]


def _matmul(draw, graph, x, values):
    return (
        [x @ x.transpose(), x @ draw(st.sampled_from(values))] if draw(st.booleans()) else [x @ x.transpose()]
    )


def _gather(draw, graph, x, values):
    index = graph.constant(np.array(draw(st.lists(st.sampled_from([0, -1]), min_size=1, max_size=3))))
    axes = [axis for axis, dim in enumerate(x.shape) if isinstance(dim, int) and dim > 0]
    return [x.gather(index, draw(st.sampled_from(axes)))] if axes else []


def _order(draw, graph, x, values):
    return (
        list(x.sort(draw(st.integers(-x.rank, x.rank - 1)), descending=draw(st.booleans()))) if x.rank else []
    )


def _cumulate(draw, graph, x, values):
    return (
        [x.cumulate("sum", -1, exclusive=draw(st.booleans()), reverse=draw(st.booleans()))] if x.rank else []
    )


def _constant(draw, graph, x, values):
    numbers = draw(st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=12))
    return [graph.constant(np.array(numbers, np.float32), draw(st.sampled_from(FLOAT_DTYPES)))]


STEPS = (
    _unary, _unary, _binary, _binary, _with_number, _compare, _select, _cast, _reduce, _normalise, _permute, _reshape,
    _slice, _broadcast, _pad, _concat, _matmul, _gather, _order, _cumulate, _constant,
)  # fmt: skip
