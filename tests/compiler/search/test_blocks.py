"""Repeated blocks: found, cut out, and replaced everywhere at once."""

from __future__ import annotations

import pytest

from kernels_hub.compiler import Graph, evaluate, verify
from kernels_hub.compiler.errors import GraphError
from kernels_hub.compiler.search.blocks import repeated
from kernels_hub.compiler.search.cost import RATES
from kernels_hub.compiler.search.extract import best
from kernels_hub.compiler.search.saturate import saturate
from tests.compiler.search.models import adapted, layers, products
from tests.compiler.strategies import assert_same_outputs


def test_layers_are_found():
    graph = layers(4)
    (block,) = repeated(graph)
    assert len(block.instances) == 4
    assert products(block.graph) == 3
    names = [sorted(value.attrs["name"] for value in one.weights.values()) for one in block.instances]
    assert names[2] == ["layer2.base", "layer2.base.bias", "layer2.down", "layer2.up"]
    verify(block.graph)


def test_a_layer_that_differs_is_none_of_them():
    assert all(len(block.instances) < 4 for block in repeated(layers(4, odd=True)))


def test_a_graph_without_repetition_has_no_blocks():
    assert repeated(adapted()) == []


@pytest.mark.parametrize("count", [2, 5])
def test_a_block_in_its_own_place_changes_nothing(count):
    graph = layers(count)
    (block,) = repeated(graph)
    again = verify(block.apply(block.graph))
    inputs = graph.dummy_inputs(0, {"n": 2})
    assert_same_outputs(evaluate(again, inputs), evaluate(graph, inputs), 0)


def test_what_is_found_for_one_serves_all():
    pytest.importorskip("egglog", reason="needs egglog")
    graph = layers(3)
    (block,) = repeated(graph)
    better = best(saturate(block.graph), 3, RATES["cpu"])[0].graph
    applied = verify(block.apply(better))
    assert products(graph) == 10
    assert products(applied) == 4
    inputs = graph.dummy_inputs(0, {"n": 2})
    assert_same_outputs(evaluate(applied, inputs), evaluate(graph, inputs), 1e-5)


def test_another_signature_is_refused():
    (block,) = repeated(layers(3))
    other = Graph("other")
    other.output("y0", other.input("x", (1,)))
    with pytest.raises(GraphError, match=r"has the inputs \['x0'\] and the outputs \['y0'\], not \['x'\]"):
        block.apply(other)
