"""Which engine comes first, where plugins say so, and what dividing a graph costs."""

from __future__ import annotations

import importlib.metadata

import numpy as np
import pytest

from kernels_hub.compiler import Graph, compile, create_plans
from kernels_hub.compiler.engines.engine import Decline, Device, Note, Support
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.plan import heuristics
from kernels_hub.compiler.plan.heuristics import default, estimate, middling
from tests.compiler.plan.plan_engines import PartEngine, only_engines

SLOW = Support(frozenset({Note.SLOW}))


@pytest.mark.parametrize(
    ("device", "order"),
    [
        ("cpu", ["cpp", "plugin", "triton", "library", "lazy", "reference"]),
        ("cuda", ["triton", "cpp", "plugin", "library", "lazy", "reference"]),
        ("rocm", ["triton", "cpp", "plugin", "library", "lazy", "reference"]),
    ],
)
def test_generated_code_first_and_what_is_slow_last(device, order):
    answers = {
        "lazy": SLOW, "reference": SLOW, "cpp": Support(), "plugin": Decline("no"), "library": Support(),
        "triton": Support(),
    }  # fmt: skip
    assert default(Graph("any"), Device(device), answers) == order


def test_sizes_for_estimates_keep_to_the_bounds():
    graph = Graph("bounds")
    graph.symbol("n")
    graph.symbol("small", 0, 4)
    graph.symbol("large", 100)
    graph.input("x", ("n", "small", "large"))
    assert middling(graph) == {"n": 32, "small": 4, "large": 100}


def model(layers):
    graph = Graph("layers")
    x = graph.input("x", ("n", 256))
    for place in range(layers):
        data = np.zeros((256, 256), np.float32)
        x = (x @ graph.parameter(f"w{place}", (256, 256), data=data)).tanh()
    graph.output("y", x.cumulate("sum", 0))
    return graph


def test_one_op_that_is_not_taken_does_not_move_a_whole_model():
    """cpp takes all but the last op of a large graph, and of a small one: the large one is divided."""
    with only_engines(
        PartEngine("cpp", lambda op: op != "cumsum"),
        PartEngine("library"),
        PartEngine("reference", notes=[Note.SLOW]),
    ):
        assert create_plans(model(12), "cpu")[0].engines == ("cpp", "library")
        graph = Graph("small")
        graph.output("y", graph.input("x", (4,)).tanh().cumulate("sum", 0))
        assert create_plans(graph, "cpu")[0].engines == ("library",)


def test_the_oracle_takes_only_what_nobody_else_does():
    with only_engines(
        PartEngine("library", lambda op: op != "cumsum"), PartEngine("reference", notes=[Note.SLOW])
    ):
        found = create_plans(model(2), "cpu")
        assert found[0].engines == ("library", "reference") and found[1].engines == ("reference",)
        assert estimate(found[0].partition) < estimate(found[1].partition)


def test_a_heuristic_of_a_plugin(monkeypatch):
    class Point:
        name, value = "mine", "module:function"

        def __init__(self, error=None):
            self.error = error

        def load(self):
            if self.error:
                raise self.error
            return lambda graph, device, answers: [name for name in answers if name == "second"]

    def install(*points: Point) -> None:
        monkeypatch.setattr(
            importlib.metadata, "entry_points", lambda group: points if group == heuristics.GROUP else ()
        )

    install(Point())
    graph = Graph("any")
    graph.output("y", graph.input("x", (4,)).tanh())
    with only_engines(PartEngine("first"), PartEngine("second")):
        run = compile(graph, "cpu", heuristic="mine")
        assert run.plan.engines == ("second",)
        assert {one.engine: one.reason for one in run.candidates}[
            "first"
        ] == "takes the graph; the heuristic leaves it out"
        install(Point(ImportError("no module")))
        with pytest.raises(
            EngineError, match=r"heuristic 'mine' \(module:function\) does not load: no module"
        ):
            compile(graph, "cpu", heuristic="mine")
        install()
        with pytest.raises(EngineError, match="no heuristic is called 'mine'; there are default, benchmark"):
            compile(graph, "cpu", heuristic="mine")
    with (
        only_engines(PartEngine("first")),
        pytest.raises(EngineError, match="first: the heuristic leaves it out"),
    ):
        compile(graph, "cpu", heuristic=lambda *_: [])
