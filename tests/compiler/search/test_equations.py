"""Every equation fires where it should, declines where it should not, and what it calls equal is."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from kernels_hub.compiler import Graph, Value
from kernels_hub.compiler.rewrite.algebra import ALGEBRA
from kernels_hub.compiler.search.derived import derived
from kernels_hub.compiler.search.equations import EQUATIONS, Equation
from kernels_hub.compiler.search.saturate import Limits, saturate
from tests.compiler.search.spaces import disagreements
from tests.compiler.strategies import SIZES, graphs

pytest.importorskip("egglog", reason="needs egglog")

BY_NAME = {one.name: one for one in EQUATIONS}
SPECIAL = (0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 2.5)


def weight(graph: Graph, name: str, *shape: int, dtype: str = "float32") -> Value:
    array = np.random.default_rng(len(name)).standard_normal(shape).astype(dtype)
    return graph.parameter(name, shape, dtype, array)


def spread(weight: Value, *shape) -> Value:
    """A matrix for all of a batch, as linear layers have it."""
    return weight.graph.apply("broadcast", weight, shape=weight.graph.dims(shape), axes=(1, 2))


def row(vector: Value, like: Value) -> Value:
    return vector.graph.apply("broadcast", vector, shape=like.shape, axes=(like.rank - 1,))


def chain(graph: Graph) -> Value:
    return graph.input("x", ("n", 4)) @ weight(graph, "u", 4, 3) @ weight(graph, "vv", 3, 5)


def chain_of_batch(graph: Graph) -> Value:
    x = graph.input("x", ("n", 2, 4))
    return x @ spread(weight(graph, "u", 4, 3), "n", 4, 3) @ spread(weight(graph, "vv", 3, 5), "n", 3, 5)


def sums(op: str) -> Callable[[Graph], Value]:
    def build(graph: Graph) -> Value:
        x, y = graph.input("x", ("n", 4)), graph.input("y", (5, 4))
        u, v = weight(graph, "u", 4, 4), weight(graph, "vv", 4, 4)
        both = (x @ u).binary(op, x @ v)
        return both @ (u @ y.transpose()).binary(op, v @ y.transpose())

    return build


def weighted(graph: Graph) -> Value:
    x = graph.input("x", ("n", 4))
    return row(weight(graph, "u", 4), x) * x + row(weight(graph, "vv", 4), x) * x


def scaled(graph: Graph) -> Value:
    return (graph.input("x", ("n", 4)) * 0.3) @ weight(graph, "u", 4, 3) * 2.0


def transposed(graph: Graph) -> Value:
    x = graph.input("x", ("n", 4))
    y = (x @ weight(graph, "u", 4, 3)).transpose()
    return (y.unary("tanh") + y).transpose()


def twice_transposed(graph: Graph) -> Value:
    turned = graph.apply("permute", graph.input("x", ("n", 4)), order=(1, 0))
    return graph.apply("permute", turned, order=(1, 0))


def batch(graph: Graph) -> Value:
    x = graph.input("x", ("n", 2, 4))
    first, second = spread(weight(graph, "u", 4, 3), "n", 4, 3), spread(weight(graph, "vv", 4, 3), "n", 4, 3)
    square = spread(weight(graph, "www", 3, 3), "n", 3, 3)
    joined = graph.apply("concat", (first * 2.0 + second).unary("tanh"), first @ square, axis=2)
    return x @ joined + (x @ second.transpose().transpose()).sum(2, keepdims=True)


def rows(graph: Graph) -> Value:
    x = graph.input("x", ("n", 4))
    u, v = row(weight(graph, "u", 4), x), row(weight(graph, "vv", 4), x)
    return x * ((u + v).unary("tanh") * 3.0)


def siblings(graph: Graph, dtype: str = "float32") -> Value:
    x = graph.input("x", ("n", 4), dtype)
    parts = [x @ weight(graph, "u" * n, 4, n + 1, dtype=dtype) for n in (1, 2, 3)]
    return graph.apply("concat", *(one.unary("tanh") for one in parts), axis=1)


def biased(graph: Graph) -> Value:
    x = graph.input("x", ("n", 4))
    parts = []
    for n in (1, 2, 3):
        y = x @ weight(graph, "u" * n, 4, n + 1)
        parts.append(y + row(weight(graph, "b" * n + "ias", n + 1), y))
    return graph.apply("concat", *(one.unary("tanh") for one in parts), axis=1)


def joined(graph: Graph) -> Value:
    x, y = graph.input("x", ("n", 4)), graph.input("y", (5, 4))
    u, v = weight(graph, "u", 4, 2), weight(graph, "vv", 4, 3)
    wide = graph.apply("concat", x @ u, x @ v, axis=1)
    return graph.apply("concat", wide, y @ graph.apply("concat", u, v, axis=1), axis=0)


def joined_first(graph: Graph) -> Value:
    x, y = graph.input("x", ("n", 2, 4)), graph.input("y", ("n", 2, 3))
    both = graph.apply("concat", x, y, axis=2)
    return both @ spread(weight(graph, "u", 7, 5), "n", 7, 5)


def sliced(graph: Graph) -> Value:
    x = graph.input("x", (6, 4))
    y = x @ weight(graph, "u", 4, 5)
    y = (y + row(weight(graph, "b", 5), y)).unary("tanh") * 2.0
    part = graph.apply("slice", y, starts=(0, 1), stops=(6, 4), steps=(1, 1))
    return graph.apply("slice", graph.apply("slice", part, starts=(2, 0), stops=(6, 3), steps=(1, 1)),
                       starts=(1, 0), stops=(3, 3), steps=(1, 1))  # fmt: skip


def last_rows(graph: Graph) -> Value:
    x = graph.input("x", ("n", 4))
    y = x @ weight(graph, "u", 4, 5)
    y = (y + row(weight(graph, "b", 5), y)).unary("tanh")
    n = graph.symbol("n")
    return graph.apply("slice", y, starts=(n - 1, 0), stops=(n, 5), steps=(1, 1))


def pooled(op: str) -> Callable[[Graph], Value]:
    def build(graph: Graph) -> Value:
        x = graph.input("x", ("n", 6, 4))
        y = x @ spread(weight(graph, "u", 4, 3), "n", 4, 3)
        if op == "reduce_mean":
            y = y + row(weight(graph, "b", 3), y)
        return graph.apply(op, y, axes=(1,))

    return build


def looked_up(graph: Graph) -> Value:
    x = weight(graph, "table", 10, 4).gather(graph.input("ids", ("n", 2), "int64"), 0)
    y = (x + row(weight(graph, "b", 4), x)).unary("tanh") * 3.0
    return y @ spread(weight(graph, "u", 4, 3), "n", 4, 3)


def unit(graph: Graph) -> Value:
    return graph.input("x", ("n", 4)) * 1.0 / 1.0


def grouped(graph: Graph) -> Value:
    x, y, z = (graph.input(name, ("n", 4)) for name in "xyz")
    return (x + y) + z


CASES = {
    "associate_products": (chain, chain_of_batch), "factor_products": (sums("add"), sums("sub")),
    "factor_scales": (weighted,), "scale_out_of_product": (scaled,), "scale_into_weight": (scaled,),
    "transpose_twice": (twice_transposed,), "transpose_product": (transposed,), "transpose_pointwise": (transposed,),
    "batch_last": (batch,), "row_last": (rows,), "siblings": (siblings,), "siblings_with_bias": (biased,),
    "concat_associates": (siblings, biased), "concat_of_products": (joined,), "product_of_concat": (joined_first,), "slice_product": (sliced, last_rows),
    "slice_pointwise": (sliced, last_rows), "slice_twice": (sliced,),
    "reduce_product": (pooled("reduce_sum"), pooled("reduce_mean")), "reduce_shift": (pooled("reduce_mean"),),
    "table_times_weight": (looked_up,), "table_pointwise": (looked_up,), "unit": (unit,), "commute": (grouped,),
    "associate": (grouped,),
}  # fmt: skip


def graph_of(build: Callable[[Graph], Value]) -> Graph:
    graph = Graph("case")
    graph.symbol("n", 1)
    graph.output("y", build(graph))
    return graph


def with_specials(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Inputs with NaN, infinities and zeros of both signs strewn in."""
    made = {}
    for place, (name, array) in enumerate(inputs.items()):
        made[name] = array.copy()
        if array.dtype.kind == "f" and array.size:
            flat = made[name].reshape(-1)
            flat[place :: max(1, flat.size // 8)] = np.resize(
                SPECIAL, flat[place :: max(1, flat.size // 8)].shape
            )
    return made


@pytest.mark.parametrize(("name", "build"), [(name, build) for name in BY_NAME for build in CASES[name]])
def test_an_equation_fires_and_what_it_calls_equal_is(name, build):
    graph = graph_of(build)
    space = saturate(graph)
    assert space.fired.get(name, 0) > 0, f"{name} does not fire"
    for n in (3, 1):
        inputs = graph.dummy_inputs(n, {"n": n})
        assert disagreements(space, inputs, {"n": n}, bits=False) == []


@pytest.mark.parametrize(
    "build",
    dict.fromkeys(build for builds in CASES.values() for build in builds),
    ids=lambda one: one.__qualname__,
)
def test_without_rounding_every_bit_stays(build):
    graph = graph_of(build)
    space = saturate(graph, Limits(rounding=False))
    assert all(BY_NAME[name].exact for name in space.fired if name in BY_NAME)
    inputs = with_specials(graph.dummy_inputs(0, {"n": 3}))
    with np.errstate(all="ignore"):
        assert disagreements(space, inputs, {"n": 3}, bits=True) == []


@settings(max_examples=6, suppress_health_check=list(HealthCheck), deadline=None)
@given(graph=graphs(max_ops=12))
def test_random_graphs_keep_every_bit_without_rounding(graph):
    space = saturate(graph, Limits(rounds=4, terms=1500, rounding=False))
    with np.errstate(all="ignore"):
        assert disagreements(space, graph.dummy_inputs(0, SIZES), SIZES, bits=True) == []


@settings(max_examples=6, suppress_health_check=list(HealthCheck), deadline=None)
@given(graph=graphs(max_ops=10, dtypes=("int32", "int64", "bool")))
def test_random_graphs_of_integers_keep_their_numbers(graph):
    space = saturate(graph, Limits(rounds=4, terms=1500))
    assert disagreements(space, graph.dummy_inputs(0, SIZES), SIZES, bits=True) == []


def narrow_chain(graph: Graph) -> Value:
    x = graph.input("x", (2, 4), "bfloat16")
    u, v = graph.input("u", (4, 3), "bfloat16"), graph.input("v", (3, 5), "bfloat16")
    return x @ u @ v


def computed_siblings(graph: Graph) -> Value:
    x = graph.input("x", ("n", 4))
    return (x @ graph.input("u", (4, 2))).sum(1) + (x @ graph.input("v", (4, 3))).sum(1)


def computed_table(graph: Graph) -> Value:
    return graph.input("table", (10, 4)).gather(graph.input("ids", ("n",), "int64"), 0) @ weight(
        graph, "u", 4, 3
    )


def large_table(graph: Graph) -> Value:
    table = graph.parameter("table", (1 << 14, 4), data=np.zeros((1 << 14, 4), np.float32))
    wide = graph.parameter("wide", (4, 1 << 13), data=np.zeros((4, 1 << 13), np.float32))
    return table.gather(graph.input("ids", ("n",), "int64"), 0) @ wide


def nearly_unit(graph: Graph) -> Value:
    return graph.input("x", ("n", 4)) * (1 + 2.0**-20)


def widened_product(graph: Graph) -> Value:
    x, u = graph.input("x", (2, 4), "bfloat16"), graph.input("u", (4, 3), "bfloat16")
    return graph.apply("matmul", graph.apply("matmul", x, u, dtype="float32"), graph.input("v", (3, 5)))


def columns_reduced(graph: Graph) -> Value:
    x = graph.input("x", (3, 6, 4))
    return graph.apply("reduce_sum", x @ spread(weight(graph, "u", 4, 3), 3, 4, 3), axes=(2,))


DECLINED = {
    "associate_products": (narrow_chain, widened_product), "siblings": (computed_siblings,),
    "table_times_weight": (computed_table, large_table), "unit": (nearly_unit,),
    "reduce_product": (columns_reduced,), "reduce_shift": (pooled("reduce_sum"),), "factor_products": (chain,),
}  # fmt: skip


@pytest.mark.parametrize(("name", "build"), [(name, build) for name in DECLINED for build in DECLINED[name]])
def test_an_equation_declines(name, build):
    assert saturate(graph_of(build)).fired.get(name, 0) == 0


def test_a_wrong_equation_is_found_out():
    """The helper of these tests rejects what is not equal."""
    graph = graph_of(grouped)
    wrong = Equation("wrong", "", ('(= s (Bin "add" a b)) => (union s (Bin "sub" a b))',))
    space = saturate(graph, equations=(wrong,))
    inputs = graph.dummy_inputs(0, {"n": 3})
    assert any("sub" in one for one in disagreements(space, inputs, {"n": 3}, bits=False))
    assert disagreements(space, inputs, {"n": 3}, bits=True)


def test_equations_are_derived_from_the_tables_of_rewrites():
    found = {one.name: one for one in derived({"float32", "int32"})}
    assert {"inverse_twice", "add_negated", "subtract_negated", "idempotent", "abs_of_neg"} <= set(found)
    assert found["add_negated"].exact
    assert '(= s (Bin "add" x0 (Un "neg" x1))) (= "float32" (dtype s)) => (union s (Bin "sub" x0 x1))' in (
        found["add_negated"].texts
    )
    guarded = found["subtract_itself"].texts if "subtract_itself" in found else ()
    assert not any("float32" in text for text in guarded), "x - x is NaN for an infinite x"


def test_derived_equations_are_used():
    graph = Graph("negated")
    x, y = graph.input("x", ("n",)), graph.input("y", ("n",))
    graph.output("z", x + (-y))
    space = saturate(graph, equations=())
    assert space.fired["add_negated"] > 0
    assert len(space.classes[space.outputs["z"]]) > 1


def test_every_equation_has_a_name_and_a_case():
    assert len(BY_NAME) == len(EQUATIONS)
    assert set(CASES) == set(BY_NAME)
    assert not set(BY_NAME) & {one.name for one in ALGEBRA}
