"""Graphs divided among engines: as many pieces as needed, no cycles, the numbers of the oracle."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_hub.compiler import Graph, bind, evaluate, verify
from kernels_hub.compiler.engines.devices import find_device
from kernels_hub.compiler.engines.engine import Decline, Device
from kernels_hub.compiler.engines.reference import ENGINE as REFERENCE
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.plan.heuristics import estimate
from kernels_hub.compiler.plan.partition import partition
from kernels_hub.compiler.plan.selection import Candidate, untold_symbols
from tests.compiler.plan.plan_engines import PartEngine, only_engines
from tests.compiler.strategies import OTHER_SIZES, SIZES, assert_same_outputs, graphs


def some(seed, share):
    """Whether an op is one of those that an engine takes, by its name."""
    return lambda op: zlib.crc32(f"{seed}{op}".encode()) % 100 < share


def division(graph, *engines):
    """The division with the engines preferred in this order, whatever it costs."""
    answers = {one.name: one for one in engines}
    return partition(graph, list(answers), lambda name, part: answers[name].check(part, Device("cpu")))


def build(divided, *engines):
    with only_engines(*engines):
        return Candidate(divided, find_device("cpu")).build()


def without(*ops):
    return lambda op: op not in ops


@settings(max_examples=60)
@given(graphs(), st.integers(0, 1000), st.integers(20, 80))
def test_random_graphs_on_random_engines_give_what_the_oracle_gives(graph, seed, share):
    graph = bind(graph, {name: SIZES[name] for name in untold_symbols(graph)})
    left = PartEngine("left", some(seed, share), scratch=100)
    right = PartEngine("right", some(seed + 1, share))
    engines = left, right, REFERENCE
    plan = build(division(graph, *engines), *engines)
    for sizes in (SIZES, OTHER_SIZES if graph.symbols else SIZES, SIZES):
        inputs = graph.dummy_inputs(1, sizes)
        assert_same_outputs(plan.execute(inputs), evaluate(graph, inputs))


LEFT, RIGHT = PartEngine("left", without("tanh")), PartEngine("right")


def names(piece):
    return [node.op.name for node in piece.nodes]


def test_what_lies_between_keeps_two_parts_apart():
    """exp -> tanh -> add, and exp -> add: the add must not join the exp."""
    graph = Graph("diamond")
    x = graph.input("x", ("n",))
    a = x.exp()
    graph.output("y", a.tanh() + a)
    divided = division(graph, LEFT, RIGHT)
    assert [(one.engine, names(one)) for one in divided.pieces] == [
        ("left", ["exp"]), ("right", ["tanh"]), ("left", ["add"]),
    ]  # fmt: skip
    assert divided.declined == {"left": "it does not take tanh"}


def test_parts_that_nothing_lies_between_are_one():
    """Two chains that take turns in the same order run in two pieces, not in four."""
    graph = Graph("chains")
    x, y = graph.input("x", ("n",)), graph.input("y", ("m",))
    graph.output("a", x.exp().tanh())
    graph.output("b", y.exp().tanh())
    graph.output("c", -x.exp())
    divided = division(graph, LEFT, RIGHT)
    assert [(one.engine, names(one)) for one in divided.pieces] == [
        ("left", ["exp", "exp", "neg"]), ("right", ["tanh", "tanh"]),
    ]  # fmt: skip


def test_groups_join_after_all_where_only_later_nodes_show_that_they_may():
    graph = Graph("later")
    x = graph.input("x", ("n",))
    first, second = x.exp(), x.tanh().exp()
    graph.output("y", second + -first)
    divided = division(graph, LEFT, RIGHT)
    assert divided.engines == ("right", "left")


def test_leaves_and_views_of_them_belong_to_every_piece():
    graph = Graph("leaves")
    x = graph.input("x", ("n", 4))
    w = graph.parameter("w", (4,), data=np.ones(4, np.float32))
    v = graph.parameter("v", (4, 4), data=np.ones((4, 4), np.float32))
    half = graph.full(("n", 4), 0.5)
    graph.output("y", ((x + w.broadcast_to(("n", 4))) * half).tanh() * half @ v)
    left, right, last = division(graph, LEFT, RIGHT).pieces
    assert set(left.part.parameters) == {"w"} and set(last.part.parameters) == {"v"}
    assert last.part.weights["v"] is graph.weights["v"] and not right.part.parameters
    assert [len(one.inputs) for one in (left, right, last)] == [1, 1, 1]
    for one in (left, right, last):
        verify(one.part)


def test_regions_stay_in_one_piece():
    body = Graph("body")
    state, element = body.input("state", ()), body.input("element", ())
    body.output("state", (state + element).tanh())
    body.output("seen", state.exp())
    graph = Graph("scan")
    x = graph.input("x", ("n",))
    node = graph.add("scan", [graph.constant(0.0), x.exp()], {"body": body, "states": 1, "sequences": 1})
    graph.output("last", node.results[0].tanh())
    graph.output("all", node.results[1].exp())
    divided = division(graph, LEFT, RIGHT)
    assert [(one.engine, names(one)) for one in divided.pieces] == [
        ("left", ["exp", "scan", "exp"]), ("right", ["tanh"]),
    ]  # fmt: skip
    divided = division(graph, PartEngine("left", without("scan")), RIGHT)
    assert [(one.engine, names(one)) for one in divided.pieces] == [
        ("left", ["exp"]), ("right", ["scan"]), ("left", ["tanh", "exp"]),
    ]  # fmt: skip


def test_sizes_that_no_input_of_a_piece_shows_are_carried():
    graph = Graph("sizes")
    x = graph.input("x", ("n", "m"))
    total = x.sum().tanh()
    graph.output(
        "y",
        graph.iota("n", "float32") * total.broadcast_to(("n",))
        + graph.size("m").cast("float32").broadcast_to(("n",)),
    )
    engines = LEFT, RIGHT
    divided = division(graph, *engines)
    last = divided.pieces[-1]
    assert [one for one in last.inputs if isinstance(one, str)] == ["m", "n"]
    assert list(last.part.inputs)[:2] == ["size of m", "size of n"]
    given = {"x": np.ones((3, 5), np.float32)}
    assert_same_outputs(build(divided, *engines).execute(given), evaluate(graph, given))


def test_what_an_engine_declines_in_a_piece_goes_to_the_next():
    """An engine that takes an exp only where a tanh comes before it finds out when it sees the piece."""

    class Picky(PartEngine):
        def check(self, graph, device):
            ops = [node.op.name for node in graph.nodes]
            bad = [one.id for one in graph.values if one.op_name == "exp" and "tanh" not in ops]
            return Decline("an exp alone", frozenset(bad)) if bad else super().check(graph, device)

    graph = Graph("picky")
    x = graph.input("x", ("n",))
    graph.output("y", x.exp().cumulate("sum", 0).tanh())
    engines = Picky("picky", without("cumsum")), RIGHT
    divided = division(graph, *engines)
    assert [(one.engine, names(one)) for one in divided.pieces] == [
        ("right", ["exp", "cumsum"]),
        ("picky", ["tanh"]),
    ]


def test_an_engine_that_declines_pieces_without_saying_what_gets_none():
    class Moody(PartEngine):
        def check(self, graph, device):
            values = frozenset(one.id for one in graph.values if one.op_name == "tanh")
            return Decline("not today", values)

    graph = Graph("moody")
    graph.output("y", -graph.input("x", ("n",)).exp().tanh())
    assert division(graph, Moody("moody"), RIGHT).engines == ("right",)


def test_a_value_that_nobody_makes_is_named_with_every_reason():
    graph = Graph("nobody")
    with graph.origin("layer 3"):
        graph.output("y", graph.input("x", ("n",)).exp().tanh())
    with pytest.raises(EngineError) as caught:
        division(graph, LEFT, PartEngine("other", without("tanh", "exp")))
    text = str(caught.value)
    assert "graph nobody: no engine makes %2 = tanh(%1) (from layer 3)" in text
    assert "left: it does not take tanh" in text and "other: it does not take exp" in text


def test_many_pieces_are_found_in_time():
    graph = Graph("long")
    x = graph.input("x", ("n",))
    for _ in range(120):
        x = (x.tanh() + x).exp()
    graph.output("y", x)
    divided = division(graph, LEFT, RIGHT)
    assert len(divided.pieces) == 240
    assert estimate(divided) > estimate(division(graph, RIGHT))
