"""Growing beside a graph: what ends is replaced, all else stays, and rules see operands as they are known.

Of softmaxes that divide behind a product, or of what their maximum was subtracted from, and of attention: of four dims,
and brought to four dims.
"""

from __future__ import annotations

import numpy as np
import pytest

from kernels_hub.compiler import Graph, evaluate, print_graph, verify
from kernels_hub.compiler.errors import GraphError
from kernels_hub.compiler.rewrite.attention import ATTENTION
from kernels_hub.compiler.rewrite.growth import Growth, known_as, parts, plain, plain_root
from kernels_hub.compiler.rewrite.heads import FOUR_DIMS
from kernels_hub.compiler.rewrite.outline import composite, operand, recognised
from kernels_hub.compiler.rewrite.pattern import Any, Op
from kernels_hub.compiler.rewrite.pipeline import rewrite
from kernels_hub.compiler.rewrite.rule import Options, Rule
from kernels_hub.compiler.rewrite.softmax import DIVIDED, SHIFTED
from tests.compiler.strategies import assert_same_outputs

NEGATED = Op("call", name="grown").where(recognised("negated"))


def begin(match):
    return known_as("negated", match.root, {"x": match["x"]})


def end(match):
    return 1.0 / parts(match["grown"])["x"].exp()


RULES = (Rule("end", Op("exp", NEGATED), end), Rule("begin", Op("neg", Any("x")), begin))
INVERSES = Growth("inverses", RULES, frozenset({"end"}))
"""exp(-x) -> 1 / exp(x)."""


def graph_of(build, *shapes):
    graph = Graph("case")
    graph.output("y", build(*(graph.input(f"x{place}", shape) for place, shape in enumerate(shapes))))
    return graph


def names(graph):
    return [node.op.name for node in graph.live()]


def test_what_ends_is_replaced_and_all_else_stays():
    graph = graph_of(lambda x: (-x).exp() + (-x.exp()).tanh(), ("n", 3))
    found = INVERSES.run(graph, Options())
    assert found.fired == {"begin": 2, "end": 1}
    verify(found.graph)
    assert names(found.graph) == ["input", "exp", "constant", "broadcast", "div", "neg", "tanh", "add"]
    inputs = graph.dummy_inputs(0, {"n": 2})
    assert_same_outputs(evaluate(found.graph, inputs), evaluate(graph, inputs), 1e-6)


@pytest.mark.parametrize("build", [lambda x: (-x).tanh(), lambda x: x.exp(), lambda x: (-x).reshape(3, -1)])
def test_a_graph_in_which_nothing_ends_stays_the_same(build):
    graph = graph_of(build, ("n", 3))
    text = print_graph(graph)
    found = INVERSES.run(graph, Options())
    assert found.graph is graph and not found.fired and print_graph(graph) == text


def test_a_growth_begins_where_it_may_alone():
    graph = graph_of(lambda x: (-x).exp(), (3,))
    nowhere = Growth("nowhere", RULES, frozenset({"end"}), lambda _: set())
    assert nowhere.run(graph, Options()).graph is graph


def test_a_graph_that_does_not_pay_is_not_looked_at():
    def begins(graph):
        raise AssertionError(graph)

    graph = graph_of(lambda x: (-x).exp(), (3,))
    assert (
        Growth("never", RULES, frozenset({"end"}), begins, lambda _: False).run(graph, Options()).graph
        is graph
    )


def test_a_graph_is_not_built_again_where_no_rule_may_begin(monkeypatch):
    def rebuild(*_):
        raise AssertionError

    monkeypatch.setattr("kernels_hub.compiler.rewrite.growth.rebuild", rebuild)
    for growth, build in (
        (SHIFTED, lambda x: (x - 1.0).softmax(1)),
        (DIVIDED, lambda x: (x @ x.transpose()) / 8.0),
        (ATTENTION, lambda x: (x @ x).softmax(1)),
    ):
        graph = graph_of(build, (4, 4))
        assert growth.begins(graph) and growth.run(graph, Options()).graph is graph


def test_uses_are_those_of_the_whole_graph():
    """Also of values behind operands, and by nodes that come later."""
    tanh = Rule(
        "tanh", Op("exp", Op("neg", Op("tanh", Any("x")).once())), lambda match: match.root.operands[0].exp()
    )
    growth = Growth(
        "tanh",
        (tanh,),
        frozenset({"tanh"}),
        lambda graph: {one for one in graph.nodes if one.op.name == "exp"},
    )
    assert growth.run(graph_of(lambda x: (-x.tanh()).exp(), (3,)), Options()).fired["tanh"] == 1
    used = graph_of(lambda x: (-(y := x.tanh())).exp() + y * 2.0, (3,))
    assert growth.run(used, Options()).graph is used


def test_dead_values_count_as_no_use():
    once = Growth("once", (Rule("end", Op("exp", NEGATED.once()), end), RULES[1]), frozenset({"end"}))
    graph = graph_of(lambda x: (-x).exp(), (3,))
    graph.outputs["y"].operands[0].tanh()
    assert once.run(graph, Options()).fired["end"] == 1
    used = graph_of(lambda x: (y := -x).exp() + y, (3,))
    assert not once.run(used, Options()).fired


def test_a_replacement_of_another_type_is_refused():
    narrow = Rule("end", Op("exp", NEGATED), lambda match: match["grown"].cast("float64"))
    with pytest.raises(GraphError, match="rule end makes .*, of another type"):
        Growth("wrong", (narrow, RULES[1]), frozenset({"end"})).run(
            graph_of(lambda x: (-x).exp(), (3,)), Options()
        )


def test_a_value_is_found_again_behind_what_it_is_known_as():
    x = Graph("case").input("x", (3,))
    match_root = -x
    known = known_as("negated", match_root, {"x": x})
    assert (plain(known), plain(x), parts(known)) == (match_root, x, {"x": x})
    assert plain_root(known.exp()) is match_root.exp() and plain_root(match_root) is match_root
    again = known_as("exp", known.exp(), parts(known) | {"z": known})
    assert parts(again) == {"x": x, "z": match_root} and plain(again) is match_root.exp()


# -- attention


HEADS = ("n", 2, 5, 8)


def test_layers_share_a_mask():
    def build(q, k, v, m):
        wide = (m < 0).broadcast_to("n", 2, 5, 5)
        for _ in range(2):
            q = wide.select((q @ k.transpose()) * 0.5, -np.inf).softmax(-1) @ v
        return q + wide.cast("float32").sum(-1, keepdims=True)

    found = ATTENTION.run(graph_of(build, HEADS, HEADS, HEADS, (5, 5)), Options())
    first, second = [value for value in found.graph.values if composite(value) == "attention"]
    assert operand(first, "kept") is operand(second, "kept") and operand(first, "kept").op_name == "lt"
    assert operand(second, "q") is first


def test_what_is_no_attention_beside_one_stays_as_it_was():
    def beside(q, k):
        return ((q @ k.exp().transpose()) * 0.5).softmax(-1).sum(-1, keepdims=True).broadcast_to(HEADS)

    both = graph_of(lambda q, k, v: (q @ k.transpose()).softmax(-1) @ v + beside(q, k), HEADS, HEADS, HEADS)
    found = ATTENTION.run(both, Options())
    assert found.fired["attention"] == 1 and found.fired["attention_weights"] == 2
    assert [one for one in names(found.graph) if one not in {"input", "call", "add"}] == [
        one for one in names(graph_of(beside, HEADS, HEADS)) if one != "input"
    ]


def test_scores_that_are_the_mask_of_others():
    """Positions, say: they go in as they are, not as what they are known as."""
    graph = graph_of(
        lambda q, k, v, p: ((q @ k.transpose()) + (q @ p.transpose())).softmax(-1) @ v, *[HEADS] * 4
    )
    found = ATTENTION.run(graph, Options())
    (call,) = [value for value in found.graph.values if composite(value) == "attention"]
    assert operand(call, "mask").op_name == "matmul"
    inputs = graph.dummy_inputs(0, {"n": 2})
    assert_same_outputs(evaluate(found.graph, inputs), evaluate(graph, inputs))


# -- products that are divided by sums of rows


def divided(powers, v, axis=-1, of=None):
    return (powers @ v) / (powers if of is None else of).sum(axis, keepdims=True)


SQUARES = ("n", 5, 5)


def test_a_division_goes_before_the_product():
    graph = graph_of(lambda x, v: divided(x.exp(), v), ("n", 5, 7), ("n", 7, 3))
    found = DIVIDED.run(graph, Options())
    assert found.fired == {"row_total": 1, "softmax_before_product": 1}
    verify(found.graph)
    assert names(found.graph) == ["input", "input", "exp", "reduce_sum", "broadcast", "div", "matmul"]
    inputs = graph.dummy_inputs(0, {"n": 2})
    assert_same_outputs(evaluate(found.graph, inputs), evaluate(graph, inputs), 1e-5)


DIVIDED_OTHERWISE = {
    "sums of columns": lambda x, v: divided(x.exp(), v, -2),
    "sums over two dims": lambda x, v: divided(x.exp(), v, (1, 2)),
    "sums of other exponentials": lambda x, v: divided(x.exp(), v, of=(x * 2.0).exp()),
    "sums of something else": lambda x, v: divided(x.exp(), v, of=x),
    "a product of something else": lambda x, v: divided(x, v, of=x.exp()),
    "the greatest of each row": lambda x, v: (x.exp() @ v) / x.exp().max(-1, keepdims=True),
    "exponentials that are used elsewhere": lambda x, v: divided(e := x.exp(), v) + e,
    "a product that is used elsewhere": lambda x, v: (y := x.exp() @ v) / x.exp().sum(-1, keepdims=True) + y,
    "a product that divides": lambda x, v: x.exp().sum(-1, keepdims=True) / (x.exp() @ v),
    "multiplied": lambda x, v: (x.exp() @ v) * x.exp().sum(-1, keepdims=True),
}


@pytest.mark.parametrize("name", DIVIDED_OTHERWISE)
def test_other_divisions_stay(name):
    graph = graph_of(DIVIDED_OTHERWISE[name], SQUARES, SQUARES)
    found = DIVIDED.run(graph, Options())
    assert found.graph is graph and not found.fired


def test_all_of_a_softmax_is_found_behind_a_product():
    graph = graph_of(lambda x, v: divided(below(x, -1).exp(), v), SQUARES, SQUARES)
    found = rewrite(graph)
    assert names(found.graph) == ["input", "input", "softmax", "matmul"]
    assert {name: set(rules) for name, rules in found.fired.items() if rules} == {
        "divided": {"row_total", "softmax_before_product"},
        "recognise": {"softmax"},
        "shifted": {"row_maximum", "below_maximum", "shifted_softmax"},
    }
    inputs = {name: array * 100 for name, array in graph.dummy_inputs(0, {"n": 2}).items()}
    assert_same_outputs(evaluate(found.graph, inputs), evaluate(graph, inputs), 1e-5)


def test_weights_that_are_an_output_too_are_one_softmax():
    """Their exponentials have two uses left once the weights are found."""
    graph = graph_of(lambda x, v: divided(x.exp(), v), SQUARES, SQUARES)
    powers = graph.inputs["x0"].exp()
    graph.output("weights", powers / powers.sum(-1, keepdims=True))
    found = rewrite(graph)
    assert names(found.graph) == ["input", "input", "softmax", "matmul"]
    inputs = graph.dummy_inputs(0, {"n": 2})
    assert_same_outputs(evaluate(found.graph, inputs), evaluate(graph, inputs), 1e-5)


# -- softmax of what its maximum was subtracted from


def below(x, axis):
    return x - x.max(axis, keepdims=True)


def below_spread(x, axis):
    rank = range(x.rank)
    return x - x.max(axis).broadcast(x.shape, [one for one in rank if one != axis % x.rank])


def also_used(x, axis):
    most = x.max(axis, keepdims=True)
    return (x - most).softmax(axis) * most.exp()


SHIFTS = {
    "kept dims": lambda x, axis: below(x, axis).softmax(axis),
    "spread": lambda x, axis: below_spread(x, axis).softmax(axis),
    "twice": lambda x, axis: below(below(x, axis), axis).softmax(axis),
    "three times": lambda x, axis: below_spread(below(below(x, axis), axis), axis).softmax(axis),
    "a maximum that is used elsewhere": also_used,
    "of a maximum": lambda x, axis: below(x.max(axis, keepdims=True).broadcast_to(x.shape), axis).softmax(
        axis
    ),
}


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("name", SHIFTS)
def test_a_maximum_below_a_softmax_is_left_out(name, axis):
    graph = graph_of(lambda x: SHIFTS[name](x, axis), ("n", 3, 4))
    found = SHIFTED.run(graph, Options())
    assert found.fired["shifted_softmax"] == 1
    verify(found.graph)
    assert "sub" not in names(found.graph)
    assert names(found.graph).count("reduce_max") == (1 if "a maximum" in name else 0)
    inputs = graph.dummy_inputs(0, {"n": 2})
    inputs["x0"] = inputs["x0"] + 1e4
    assert_same_outputs(evaluate(found.graph, inputs), evaluate(graph, inputs), 1e-6)


STAYS = {
    "a maximum along another dim": lambda x: below(x, 0).softmax(1),
    "a softmax along another dim": lambda x: below(x, 1).softmax(2),
    "a maximum over two dims": lambda x: below(x, (0, 1)).softmax(1),
    "a maximum of another value": lambda x: (x - x.exp().max(1, keepdims=True)).softmax(1),
    "a minimum": lambda x: (x - x.reduce("min", 1, keepdims=True)).softmax(1),
    "subtracted from": lambda x: (x.max(1, keepdims=True) - x).softmax(1),
    "another step between": lambda x: below(x, 1).tanh().softmax(1),
    "no softmax": lambda x: below(x, 1).exp(),
    "along one dim, then along another": lambda x: below(below(x, 1), 2).softmax(1),
}


@pytest.mark.parametrize("name", STAYS)
def test_other_maxima_stay(name):
    graph = graph_of(STAYS[name], ("n", 3, 4))
    found = SHIFTED.run(graph, Options())
    assert found.graph is graph and not found.fired


def test_a_maximum_along_another_dim_stays_below_one_that_is_left_out():
    graph = graph_of(lambda x: below(below(x, 1), 2).softmax(2), ("n", 3, 4))
    found = SHIFTED.run(graph, Options())
    assert names(found.graph) == names(graph_of(lambda x: below(x, 1).softmax(2), ("n", 3, 4)))


def test_no_maximum_is_left_out_without_rounding():
    graph = graph_of(lambda x: below(x, 1).softmax(1), ("n", 3, 4))
    assert SHIFTED.run(graph, Options(rounding=False)).graph is graph


# -- attention of four dims

THREE = ("n", 5, 8)


def test_attention_is_brought_to_four_dims_beside_what_is_none():
    def beside(q, k, v):
        return (q @ k.exp().transpose()).softmax(1) @ v

    both = graph_of(lambda q, k, v: (q @ k.transpose()).softmax(-1) @ v + beside(q, k, v), *[THREE] * 3)
    found = FOUR_DIMS.run(both, Options())
    assert found.fired["attention_of_four_dims"] == 1 and found.fired["heads_scores"] == 2
    ranks = [node.results[0].rank for node in found.graph.nodes if node.op.name in {"softmax", "matmul"}]
    assert sorted(ranks) == [3, 3, 3, 4, 4, 4]
    inputs = both.dummy_inputs(0, {"n": 2})
    assert_same_outputs(evaluate(found.graph, inputs), evaluate(both, inputs))


def test_weights_that_are_an_output_too_are_not_computed_twice():
    def build(q, k, v):
        rows = below((q @ k.transpose()).reshape("5 * n", 5), -1).softmax(-1)
        q.graph.output("weights", rows)
        return rows.reshape("n", 5, 5) @ v

    graph = graph_of(build, *[THREE] * 3)
    found = rewrite(graph)
    assert names(found.graph).count("softmax") == 1 and names(found.graph).count("matmul") == 2
    inputs = graph.dummy_inputs(0, {"n": 2})
    assert_same_outputs(evaluate(found.graph, inputs), evaluate(graph, inputs), 1e-6)


def test_attention_of_four_dims_is_not_looked_at():
    four = graph_of(lambda q, k, v: (q @ k.transpose()).softmax(-1) @ v, *[HEADS] * 3)
    assert FOUR_DIMS.begins(four) and not FOUR_DIMS.pays(four)
    router = graph_of(
        lambda x: (x @ x.graph.parameter("w", (8, 4)).broadcast(("n", 8, 4), (1, 2))).softmax(-1), THREE
    )
    assert not FOUR_DIMS.pays(router)


def test_layers_of_three_dims_are_found_one_behind_the_other():
    """The batch and the heads of the second are read through what the first was reshaped to."""

    def build(q, k, v):
        heads = ("n", 2, 5, 8)
        merged = ("n * 2", 5, 8)
        q, k, v = (x.reshape(merged) for x in (q, k, v))
        for _ in range(2):
            q = (below((q @ k.transpose()) * 0.5, -1).softmax(-1) @ v).reshape(heads).reshape(merged)
        return q

    graph = graph_of(build, *[HEADS] * 3)
    found = rewrite(graph)
    assert found.total["shifted_softmax"] == found.total["attention_of_four_dims"] == 2
    assert names(found.graph) == ["input", "input", "input", "constant", "call", "call", "reshape"]
    inputs = graph.dummy_inputs(0, {"n": 2})
    assert_same_outputs(evaluate(found.graph, inputs), evaluate(graph, inputs), 1e-6)
