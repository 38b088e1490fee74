"""Growing beside a graph: what ends is replaced, all else stays, and rules see operands as they are known."""

from __future__ import annotations

import numpy as np
import pytest

from kernels_hub.compiler import Graph, evaluate, print_graph, verify
from kernels_hub.compiler.errors import GraphError
from kernels_hub.compiler.rewrite.attention import ATTENTION
from kernels_hub.compiler.rewrite.growth import Growth, known_as, parts, plain, plain_root
from kernels_hub.compiler.rewrite.outline import composite, operand, recognised
from kernels_hub.compiler.rewrite.pattern import Any, Op
from kernels_hub.compiler.rewrite.rule import Options, Rule
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
