"""What comes out of a space: the known better forms, several and different, and always the graph that went in."""

from __future__ import annotations

import pytest

from kernels_hub.compiler import Graph, evaluate, verify
from kernels_hub.compiler.search.candidate import SearchError
from kernels_hub.compiler.search.cost import RATES
from kernels_hub.compiler.search.equations import Equation
from kernels_hub.compiler.search.extract import best
from kernels_hub.compiler.search.saturate import Limits, saturate
from tests.compiler.oracle import assert_same
from tests.compiler.search.models import BETTER, adapted, flops, graph_convolution, products, projections
from tests.compiler.strategies import assert_same_outputs

pytest.importorskip("egglog", reason="needs egglog")

CPU = RATES["cpu"]


@pytest.mark.parametrize("name", BETTER)
def test_the_known_better_form_is_the_best(name):
    graph = BETTER[name]()
    found = best(saturate(graph), 4, CPU)
    assert flops(found[0].graph) < 0.95 * flops(graph)
    assert products(found[0].graph) <= products(graph) or name == "low_rank"
    assert [one.cost for one in found] == sorted(one.cost for one in found)


def test_products_of_one_operand_become_one():
    graph = projections()
    found = best(saturate(graph), 6, CPU)
    assert products(graph) == 3
    assert products(found[0].graph) == 1
    assert {products(one.graph) for one in found} >= {1, 3}


@pytest.mark.parametrize("build", [adapted, graph_convolution, projections])
def test_all_that_come_out_are_different_and_compute_the_same(build):
    graph = build()
    inputs = graph.dummy_inputs(0, dict.fromkeys(graph.symbols, 3))
    expected = evaluate(graph, inputs)
    found = best(saturate(graph), 8, CPU)
    assert len({str(one.graph) for one in found}) == len(found) > 1
    for one in found:
        verify(one.graph)
        assert one.graph.signature() == graph.signature()
        assert_same_outputs(evaluate(one.graph, inputs), expected, 1e-5)


@pytest.mark.parametrize("build", [adapted, graph_convolution, projections])
def test_the_given_graph_is_among_them(build):
    graph = build()
    for count in (1, 2, 8):
        found = best(saturate(graph), count, CPU)
        assert len(found) <= count
        texts = {str(one.graph) for one in found}
        assert str(saturate(graph).graph) in texts


@pytest.mark.parametrize("build", [adapted, projections])
def test_it_is_the_same_each_time(build):
    def once(seed: int) -> list[tuple[float, str]]:
        return [(one.cost, str(one.graph)) for one in best(saturate(build()), 6, CPU, seed=seed)]

    assert once(0) == once(0)
    assert once(0)[0][0] == pytest.approx(once(7)[0][0], rel=1e-9), "a seed decides between equals alone"


def test_sizes_decide_what_is_best():
    """(A X) W with few rows of A, A (X W) with few columns of W."""
    graph = Graph("sizes")
    graph.symbol("n", 1)
    a, x, w = graph.input("a", ("n", 64)), graph.input("x", (64, 64)), graph.input("w", (64, "m"))
    graph.output("y", a @ x @ w)
    space = saturate(graph)
    few = best(space, 1 + 1, CPU, sizes={"n": 1, "m": 4096})[0].graph
    many = best(space, 1 + 1, CPU, sizes={"n": 4096, "m": 1})[0].graph
    assert str(few) != str(many)
    inputs = graph.dummy_inputs(0, {"n": 3, "m": 5})
    for one in (few, many):
        assert_same(evaluate(one, inputs)["y"], evaluate(graph, inputs)["y"], 1e-5)


def test_a_space_is_bounded():
    graph = Graph("sums")
    total = graph.input("x0", ("n",))
    for number in range(1, 9):
        total = total + graph.input(f"x{number}", ("n",))
    graph.output("y", total)
    assert not saturate(graph, Limits(rounds=2)).complete
    small = saturate(graph, Limits(rounds=50, terms=300))
    assert not small.complete
    assert small.rounds < 50
    inputs = graph.dummy_inputs(0, {"n": 3})
    for one in best(small, 4, CPU):
        assert_same(evaluate(one.graph, inputs)["y"], evaluate(graph, inputs)["y"], 1e-5)


def test_no_rounds_leave_the_graph():
    graph = adapted()
    found = best(saturate(graph, Limits(rounds=0)), 4, CPU)
    assert [str(one.graph) for one in found] == [str(saturate(graph).graph)]


def test_a_term_of_another_type_is_left_out():
    """An equation that is wrong about shapes does no harm."""
    wrong = Equation("wrong", "", ("(= s (Matmul a b)) => (union s a)",))
    graph = graph_convolution()
    found = best(saturate(graph, equations=(wrong,)), 4, CPU)
    assert all(one.graph.signature() == graph.signature() for one in found)


@pytest.mark.parametrize("text", ["no arrow", "(= s (Nix a)) => (union s a)", "(= s (Swap a)) => (union s"])
def test_what_is_no_equation_is_refused(text):
    with pytest.raises(SearchError, match="equation"):
        saturate(adapted(), equations=(Equation("bad", "", (text,)),))


def test_limits_that_make_no_sense_are_refused():
    with pytest.raises(SearchError, match="1 or more terms"):
        Limits(terms=0)
    with pytest.raises(SearchError, match="at least one graph"):
        best(saturate(graph_convolution()), 0, CPU)
