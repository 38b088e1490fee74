"""The matcher: alternatives, repeated names, dims and attributes bound across a pattern, conditions; and folding."""

from __future__ import annotations

import numpy as np
import pytest

from kernels_hub.compiler import Graph, evaluate, verify
from kernels_hub.compiler.errors import GraphError
from kernels_hub.compiler.rewrite.engine import MOST_STEPS, MOST_SWEEPS, apply_rules
from kernels_hub.compiler.rewrite.fold import FoldConstants, FoldParameters
from kernels_hub.compiler.rewrite.pattern import NOTHING, Any, Bind, Op, Scalar, Scope, one_of, through
from kernels_hub.compiler.rewrite.pipeline import rewrite
from kernels_hub.compiler.rewrite.rule import Options, Rule

X, Y = Any("x"), Any("y")


@pytest.fixture
def graph():
    return Graph("case")


def ways(pattern, value):
    scope = Scope(value.graph.uses, value.graph.is_output)
    return list(pattern.find(value, NOTHING, scope))


def test_every_order_of_nested_commutative_operands_is_tried(graph):
    a, b, c = (graph.input(name, (2,)) for name in "abc")
    value = c + (a * b) * a
    pattern = Op("add", Op("mul", X, Op("mul", Y, X)), Any("z"))
    (found,) = ways(pattern, value)
    assert (found.values["x"], found.values["y"], found.values["z"]) == (a, b, c)
    assert len(ways(Op("mul", X, Y), a * b)) == 2
    assert not ways(Op("sub", X, Op("mul", X, Y)), (a * b) - a)


def test_a_name_is_one_value_one_attribute_and_one_dim(graph):
    x = graph.input("x", ("n", "m"))
    y = graph.input("y", ("m", "n"))
    assert ways(Op("mul", X, X), x * x) and not ways(Op("mul", X, X), x * y.permute(1, 0))
    square = Op("matmul", Any("a", ("n", "m")), Any("b", ("m", "n")))
    assert ways(square, x @ y)
    assert not ways(square, x @ graph.input("z", ("m", 4)))
    twice = Op("reduce_sum", Op("softmax", X, axis=Bind("axis")), axes=Bind("axis"))
    assert not ways(twice, x.softmax(1).sum(1))
    same = Op("add", Op("softmax", X, axis=Bind("axis")), Op("softmax", Y, axis=Bind("axis")))
    other = x.exp()
    assert ways(same, x.softmax(1) + other.softmax(1)) and not ways(same, x.softmax(1) + other.softmax(0))


def test_scalars_are_exact_unless_told(graph):
    x = graph.input("x", ("n",))
    assert ways(Op("mul", X, Scalar("c", 0.5)), x * 0.5)
    assert not ways(Op("mul", X, Scalar("c", 0.5)), x * 0.501)
    assert ways(Op("mul", X, Scalar("c", 0.5, 1e-2)), x * 0.501)
    assert not ways(Op("add", X, Scalar("c", 0.0)), x + -0.0)
    assert not ways(Op("mul", X, Scalar("c")), x * x)


def test_optional_nodes_and_visibility(graph):
    x = graph.input("x", ("n",), "float16")
    wide = x.cast("float32")
    assert ways(Op("exp", through("cast", X)), wide.exp())[-1].values["x"] is x
    pattern = Op("exp", Op("neg", X).once())
    value = -wide
    assert ways(pattern, value.exp())
    graph.output("seen", value)
    assert not ways(pattern, value.exp())
    assert one_of(pattern, Op("log", X)).roots == {"exp", "log"}


def test_a_rule_of_another_type_is_refused_by_name(graph):
    x = graph.input("x", ("n",))
    graph.output("y", x.exp())
    wrong = Rule("wrong", Op("exp", X), lambda match: match["x"].cast("float64"))
    with pytest.raises(GraphError, match="rule wrong replaces"):
        apply_rules(graph, [wrong])


def test_rules_that_undo_each_other_end(graph):
    x = graph.input("x", ("n",))
    graph.output("y", x.exp())
    there = Rule("there", Op("exp", X), lambda match: match["x"].log())
    back = Rule("back", Op("log", X), lambda match: match["x"].exp())
    assert apply_rules(graph, [there, back]).fired == {"there": 1, "back": 1}


def test_rules_that_build_more_and_more_end(graph):
    x = graph.input("x", ("n",))
    graph.output("y", x.exp())
    more = Rule("more", Op("exp", X), lambda match: (match["x"] + 1.0).exp())
    assert apply_rules(graph, [more]).fired["more"] == MOST_STEPS * MOST_SWEEPS


def test_a_graph_at_which_nothing_fires_is_that_graph(graph):
    x = graph.input("x", ("n",))
    graph.output("y", x.log().exp())
    rule = Rule("back", Op("log", Op("exp", X)), lambda match: match["x"])
    assert apply_rules(graph, [rule]).graph is graph
    x.sqrt()  # nobody needs it
    assert len(apply_rules(graph, [rule]).graph.nodes) == 3


def test_what_two_rules_build_is_rewritten_both_times(graph):
    x = graph.input("x", ("n",))
    graph.output("y", x.exp())
    graph.output("z", x.sqrt())
    rules = [
        Rule("one", Op("exp", X), lambda match: match["x"].log()),
        Rule("other", Op("sqrt", X), lambda match: match["x"].log()),
        Rule("both", Op("log", X), lambda match: match["x"].unary("sin")),
    ]
    outputs = apply_rules(graph, rules).graph.outputs
    assert outputs["y"] is outputs["z"] and outputs["y"].op_name == "sin"
    rules[1] = Rule("other", Op("sqrt", X), lambda match: -match["x"].log())
    outputs = apply_rules(graph, rules).graph.outputs
    assert outputs["z"].operands == (outputs["y"],)


def test_what_has_fewer_uses_after_a_sweep_is_tried_again(graph):
    x = graph.input("x", ("n",))
    shared = x.exp()
    graph.output("y", shared.log())
    graph.output("z", shared.sqrt() - shared.sqrt())
    once = Rule("once", Op("log", Op("exp", X).once()), lambda match: match["x"])
    gone = Rule("gone", Op("sub", X, X), lambda match: match.graph.full(match.root.shape, 0.0))
    outcome = apply_rules(graph, [once, gone])
    assert outcome.fired == {"once": 1, "gone": 1} and outcome.graph.outputs["y"].op_name == "input"


def test_constants_fold_up_to_the_limit(graph):
    x = graph.input("x", ("n", 4))
    c = graph.constant(np.arange(4, dtype=np.float32))
    graph.output("y", x * (c * 2.0 + 1.0).exp())
    folded = rewrite(graph).graph
    assert verify(folded) and "exp" not in {node.op.name for node in folded.nodes}
    inputs = graph.dummy_inputs(0, {"n": 2})
    assert np.array_equal(evaluate(folded, inputs)["y"], evaluate(graph, inputs)["y"])
    big = Graph("big")
    big.output("y", big.constant(1.0).broadcast_to((1 << 20,)).exp())
    assert not FoldConstants().run(big, Options()).fired


def test_weights_fold_when_they_are_needed_and_views_stay(graph):
    loaded = []

    def load():
        loaded.append(1)
        return np.arange(6, dtype=np.float32).reshape(2, 3)

    w = graph.parameter("w", (2, 3), "float32", load)
    bare = graph.parameter("bare", (2,))
    x = graph.input("x", ("n", 2))
    graph.output("y", x @ (w.exp() * 2.0))
    graph.output("z", x @ w.permute(1, 0).permute(1, 0))
    graph.output("b", x + bare.exp().broadcast(("n", 2), (1,)))
    folded = FoldParameters().run(graph, Options()).graph
    assert not loaded
    assert set(folded.parameters) == {"w", "folded.w", "bare"}
    inputs = {"x": np.ones((1, 2), np.float32)}
    weights = {"bare": np.ones(2, np.float32)}
    expected, actual = (evaluate(one, inputs, weights=weights) for one in (graph, folded))
    for name in expected:
        assert np.array_equal(actual[name], expected[name])


def test_a_weight_that_is_reshaped_in_another_order_is_a_new_one(graph):
    """No strides describe it: a product would read it element by element, at every call."""
    w = graph.parameter("w", (2, 3, 4), data=np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    x = graph.input("x", ("n", 3))
    graph.output("y", x @ w.permute(1, 0, 2).reshape((3, 8)))
    graph.output("z", graph.input("z_in", ("n", 8)) @ w.permute(0, 2, 1).permute(0, 2, 1).reshape((8, 3)))
    folded = FoldParameters().run(graph, Options()).graph
    assert set(folded.parameters) == {"w", "folded.w"}
    assert folded.parameters["folded.w"].shape == (3, 8)
    inputs = {"x": np.ones((1, 3), np.float32), "z_in": np.ones((1, 8), np.float32)}
    expected, actual = evaluate(graph, inputs), evaluate(folded, inputs)
    for name in expected:
        assert np.array_equal(actual[name], expected[name])
