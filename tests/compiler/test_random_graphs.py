"""What holds of every graph: text and rebuilding change nothing, sizes may be bound early or late, parts fit together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels_hub.compiler import Graph, bind, evaluate, extract, parse_graph, print_graph, rebuild, verify
from kernels_hub.compiler.ir.printer import large_constants
from tests.compiler.strategies import OTHER_SIZES, SIZES, assert_same_outputs, graphs

several = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@given(graphs())
@several
def test_text_round_trip(graph):
    verify(graph)
    text = print_graph(graph, data=True)
    again = verify(parse_graph(text, weights=graph.weights))
    assert print_graph(again, data=True) == text
    assert str(parse_graph(str(graph), constants=large_constants(graph))) == str(graph)
    inputs = graph.dummy_inputs(0, SIZES)
    assert_same_outputs(evaluate(again, inputs, bindings=SIZES), evaluate(graph, inputs, bindings=SIZES))


@given(graphs())
@several
def test_rebuilding_is_the_identity(graph):
    rebuilt = rebuild(graph)
    verify(rebuilt.graph)
    assert rebuilt.replaced == 0 and list(rebuilt.graph.inputs) == list(graph.inputs)
    assert len(rebuilt.graph.nodes) == len(graph.live())
    assert str(rebuild(rebuilt.graph).graph) == str(rebuilt.graph)
    copied = rebuild(graph, lambda new, node, operands: new.add(node.op, operands, node.attrs).results).graph
    assert str(copied) == str(rebuilt.graph)
    inputs = graph.dummy_inputs(1, SIZES)
    assert_same_outputs(
        evaluate(rebuilt.graph, inputs, bindings=SIZES), evaluate(graph, inputs, bindings=SIZES)
    )


def _respell(new, node, operands):
    """a + b as b + a, a - b as a + -b, slices of nothing away: exact, and the old operands die at times."""
    if node.op.name == "add":
        return operands[1] + operands[0]
    if node.op.name == "sub":
        return operands[0] + -operands[1]
    if node.op.name == "flip" and operands[0].op_name == "flip" and operands[0].attrs == node.attrs:
        return operands[0].operands[0]
    return None


@given(graphs())
@several
def test_replacing_keeps_the_numbers_and_leaves_nothing_dead(graph):
    rebuilt = rebuild(graph, _respell)
    verify(rebuilt.graph)
    assert rebuilt.graph.live() == rebuilt.graph.nodes
    assert all(
        new.graph is rebuilt.graph and rebuilt.graph.values[new.id] is new for new in rebuilt.values.values()
    )
    inputs = graph.dummy_inputs(6, SIZES)
    assert_same_outputs(
        evaluate(rebuilt.graph, inputs, bindings=SIZES), evaluate(graph, inputs, bindings=SIZES)
    )


@given(graphs(), st.sampled_from([SIZES, OTHER_SIZES]))
@several
def test_sizes_bound_before_or_at_the_run(graph, sizes):
    inputs = graph.dummy_inputs(2, sizes)
    early = bind(graph, sizes)
    assert not verify(early).symbols
    assert_same_outputs(evaluate(early, inputs), evaluate(graph, inputs, bindings=sizes))


@given(graphs())
@several
def test_a_call_writes_the_graph_out_once(graph):
    outer = Graph("outer")
    arguments = [outer.input(name, value.shape, value.dtype) for name, value in graph.inputs.items()]
    first, second = outer.call(graph, *arguments), outer.call(graph, *arguments)
    assert all(a is b for a, b in zip(first, second, strict=True))
    for name, value in zip(graph.outputs, first, strict=True):
        outer.output(name, value)
    verify(outer)
    inputs = graph.dummy_inputs(3, SIZES)
    assert_same_outputs(evaluate(outer, inputs, bindings=SIZES), evaluate(graph, inputs, bindings=SIZES))


@given(graphs(), st.data())
@several
def test_parts_make_the_whole(graph, data):
    cut = data.draw(st.sampled_from([value for node in graph.live() for value in node.results]))
    front = extract(graph, graph.inputs, {"cut": cut})
    back = extract(graph, {**graph.inputs, "cut": cut}, graph.outputs)
    verify(front), verify(back)
    inputs = graph.dummy_inputs(4, SIZES)
    middle = evaluate(front, inputs, bindings=SIZES)["cut"]
    whole = evaluate(graph, inputs, bindings=SIZES)
    assert_same_outputs(evaluate(back, {**inputs, "cut": middle}, bindings=SIZES), whole)


@given(graphs())
@several
def test_debug_changes_nothing(graph):
    inputs = graph.dummy_inputs(5, SIZES)
    plain, debug = (
        evaluate(graph, inputs, bindings=SIZES),
        evaluate(graph, inputs, bindings=SIZES, debug=True),
    )
    assert_same_outputs(debug, plain)
    assert plain.report is None
    assert len(debug.report.rows) == sum(len(node.results) for node in graph.live())
    assert str(debug.report)


def test_the_comparison_rejects_wrong_answers():
    right = {"y": np.array([0.0, np.nan, 1.0], np.float32)}
    assert_same_outputs(right, right)
    for wrong in ([-0.0, np.nan, 1.0], [0.0, 1.0, 1.0], [0.0, np.nan, 1.0000001], [0.0, np.nan]):
        with pytest.raises(AssertionError):
            assert_same_outputs({"y": np.array(wrong, np.float32)}, right)
    with pytest.raises(AssertionError):
        assert_same_outputs({"z": right["y"]}, right)
    assert_same_outputs({"y": np.array([0.0, np.nan, 1.0000001], np.float32)}, right, tolerance=1e-6)
