"""Measured search: right before fast, never worse than the default, the same each time, and interrupted at any moment."""

from __future__ import annotations

import json
import logging
import shutil
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

from kernels_hub.compiler import Graph, evaluate
from kernels_hub.compiler.engines.engine import Device
from kernels_hub.compiler.errors import MissingDependencyError
from kernels_hub.compiler.judging.timing import gain
from kernels_hub.compiler.plan.tuning_database import TuningDatabase
from kernels_hub.compiler.search.candidate import Measured, SearchCandidate, SearchError
from kernels_hub.compiler.search.equations import EQUATIONS, Equation
from kernels_hub.compiler.search.evaluator import GraphEvaluator, materialise, told
from kernels_hub.compiler.search.journal import Journal
from kernels_hub.compiler.search.ray_executor import RayExecutor
from kernels_hub.compiler.search.result import SearchResult, Standing
from kernels_hub.compiler.search.search import search
from tests.combinations import first
from tests.compiler.judging.machine import Machine
from tests.compiler.search.models import adapted, graph_convolution, layers, products
from tests.compiler.search.test_ray import FakeRay, introduction
from tests.compiler.strategies import assert_same_outputs

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@dataclass(frozen=True, eq=False)
class Predicting(GraphEvaluator):
    """The oracle runs candidates, the cost model times them: quick, and the same each time."""

    def __call__(self, candidate: SearchCandidate, *, build_only: bool = False) -> Measured:
        graph = materialise(candidate, self.weights)
        if (reason := self.judge(partial(evaluate, graph))) is not None:
            return Measured(candidate.digest, "wrong", None, reason)
        return Measured(candidate.digest, "slower", None, "built")

    def measure_many(self, candidates: Sequence[SearchCandidate]) -> list[Measured]:
        rows = []
        for one in candidates:
            checked = self(one, build_only=True)
            if checked.status == "slower":
                checked = Measured(one.digest, "slower", one.predicted, "predicted")
            rows.append(checked)
        return rows

    def measure_again(self, candidates: Sequence[SearchCandidate]) -> list[Measured]:
        first, other = self.measure_many(candidates)
        status = "fastest" if first.seconds > other.seconds else "slower"
        return [first, Measured(other.digest, status, other.seconds, "predicted again")]


def predicting(graph: Graph, device: Device, sizes: Any, seed: int) -> Predicting:
    made = GraphEvaluator.of(graph, device, sizes, seed)
    return Predicting(made.text, made.weights, made.device, made.sizes, made.seed)


@pytest.fixture
def database(tmp_path) -> TuningDatabase:
    return TuningDatabase(tmp_path / "tuning")


def searched(graph: Graph, database: TuningDatabase, **options: Any) -> SearchResult:
    given = {"budget": 60.0, "evaluator": predicting, "database": database, "sizes": {"n": 2}, **options}
    return search(graph, "cpu", **given)


def check_numbers(found: SearchResult, graph: Graph) -> None:
    """The winner computes what the graph does."""
    inputs = graph.dummy_inputs(3, dict.fromkeys(graph.symbols, 2))
    weights = {name: found.weights[name] for name in graph.parameters}
    assert set(weights) == set(graph.weights), "all weights are the graph's own"
    assert_same_outputs(found.plan().execute(inputs), evaluate(graph, inputs), 1e-4)


def test_it_finds_the_better_form(database):
    pytest.importorskip("egglog", reason="needs egglog")
    graph = graph_convolution()
    steps: list[Standing] = []
    found = searched(graph, database, progress=steps.append)
    assert found.speedup > 1.5
    assert found.winner.measured.status == "fastest"
    assert found.default.candidate.origin == "the default pipeline"
    assert "equal graph" in found.winner.candidate.origin
    check_numbers(found, graph)
    assert steps[-1].tried == len(found.rows)
    assert any("associate_products" in line for line in found.log)
    assert str(found).count("\n") == len(found.rows)
    assert [row.measured.seconds for row in found.rows if row.measured.ran] == sorted(
        row.measured.seconds for row in found.rows if row.measured.ran
    )


def test_the_default_wins_where_nothing_is_faster(database):
    graph = Graph("plain")
    graph.output("y", graph.input("x", (8, 8)) * 2.0 + 1.0)
    found = searched(graph, database, equations=())
    assert found.winner == found.default
    assert found.speedup == 1.0


@dataclass(frozen=True, eq=False)
class Hasty(Predicting):
    """In turn with others, the original took 419 us once, and whatever was beside it 2.3 us."""

    true: float = 1.0
    """What timing them again says."""

    def measure_many(self, candidates: Sequence[SearchCandidate]) -> list[Measured]:
        times = [419e-6, *(2.3e-6 + 1e-9 * place for place in range(1, len(candidates)))]
        return [
            Measured(one.digest, "slower", took, "hasty") for one, took in zip(candidates, times, strict=True)
        ]

    def measure_again(self, candidates: Sequence[SearchCandidate]) -> list[Measured]:
        machine = Machine()
        calls = machine.call(419e-6), machine.call(419e-6 / self.true)
        return told(gain(*calls, self.device, clock=machine.clock), candidates, [{}, {}])


def hasty(true: float) -> Callable[..., Hasty]:
    def make(graph: Graph, device: Device, sizes: Any, seed: int) -> Hasty:
        made = GraphEvaluator.of(graph, device, sizes, seed)
        return Hasty(made.text, made.weights, made.device, made.sizes, made.seed, true=true)

    return make


@pytest.mark.parametrize("over", ["threads", "ray"])
@pytest.mark.parametrize(("true", "wins"), [(1.0, False), (1.14, True)])
def test_a_gain_is_stored_as_it_is_when_it_is_timed_again(true, wins, over, database, monkeypatch):
    """Also where Ray's workers time them, who get all that they work on pickled."""
    options: dict[str, Any] = {}
    if over == "ray":
        monkeypatch.setitem(sys.modules, "ray", FakeRay(introduction()))
        options["executor"] = RayExecutor(max_workers=1)
    found = searched(graph_convolution(), database, evaluator=hasty(true), equations=(), **options)
    assert (found.winner != found.default) is wins
    assert found.speedup == pytest.approx(true)
    assert found.default.measured.seconds == pytest.approx(419e-6)
    (kept,) = database.folder.glob("*.json")
    assert json.loads(kept.read_text())["seconds"] == pytest.approx(419e-6 / true)
    assert any("timed again on its own" in line for line in found.log)


def test_ties_go_to_the_earlier_one(database):
    def flat(graph, device, sizes, seed):
        made = predicting(graph, device, sizes, seed)

        def measure(candidates):
            return [Measured(one.digest, "slower", 1e-3 * (1 + 0.001 * place), "flat")
                    for place, one in enumerate(reversed(candidates))][::-1]  # fmt: skip

        object.__setattr__(made, "measure_many", measure)
        return made

    found = searched(graph_convolution(), database, evaluator=flat, equations=())
    assert found.winner == found.default


@pytest.mark.parametrize(("build",), first(1, [(graph_convolution,), (adapted,)]))
def test_the_same_seed_and_times_choose_the_same(build, tmp_path):
    pytest.importorskip("egglog", reason="needs egglog")
    first, second = (searched(build(), TuningDatabase(tmp_path / str(number)), seed=3) for number in range(2))
    assert not first.remembered
    assert not second.remembered
    assert first.winner.candidate == second.winner.candidate
    assert [row.candidate.digest for row in first.rows] == [row.candidate.digest for row in second.rows]


def test_a_winner_is_remembered(database):
    pytest.importorskip("egglog", reason="needs egglog")
    graph = graph_convolution()
    first = searched(graph, database)
    again = searched(graph, database)
    assert again.remembered
    assert again.winner.candidate == first.winner.candidate
    assert again.elapsed < first.elapsed
    check_numbers(again, graph)
    assert not searched(graph, database, again=True).remembered
    assert not searched(graph, database, sizes={"n": 2}, seed=1).remembered, "another seed is another search"


@pytest.mark.exhaustive
def test_a_winner_of_half_a_search_is_a_candidate_of_the_next(database):
    graph = Graph("total")
    x = graph.input("x", (512, 1024))
    graph.output("y", (x * x).sum((0, 1)))
    first = searched(graph, database, budget=1e-3, equations=())
    assert first.winner == first.default
    assert searched(graph, database, budget=1e-3, equations=()).remembered
    second = searched(graph, database, budget=60, equations=())
    assert not second.remembered
    assert second.speedup > 1
    third = searched(graph, database, budget=1e-3, equations=(), again=True)
    assert third.winner.candidate.digest == second.winner.candidate.digest, "it is not lost"
    assert searched(graph, database, budget=90, equations=()).remembered


def test_a_remembered_winner_that_is_wrong_is_searched_again(database, caplog):
    graph = graph_convolution()
    found = searched(graph, database, equations=())
    (path,) = database.folder.glob("*.json")
    other = Graph("graph_convolution")
    a, x = other.input("a", (64, 64)), other.input("x", (64, 96))
    other.output("y", (a @ x @ other.parameter("w", (96, 4))) * 2.0)
    wrong = SearchCandidate(str(other), {}, "a lie")
    path.write_text(path.read_text().replace(
        _escaped(found.winner.candidate.graph), _escaped(wrong.graph)))  # fmt: skip
    with caplog.at_level(logging.WARNING, "kernels_hub"):
        again = searched(graph, database, equations=())
    assert not again.remembered
    assert "what won before is wrong" in caplog.text
    check_numbers(again, graph)


def _escaped(text: str) -> str:
    import json

    return json.dumps(text)[1:-1]


def test_what_computes_something_else_is_never_timed_nor_chosen(database):
    """An equation that is wrong, and cheaper: found out by the oracle."""
    pytest.importorskip("egglog", reason="needs egglog")
    wrong = Equation(
        "wrong",
        "A B = A' where that has the shape",
        ("(= s (Matmul a b)) (= x (shape a)) (= x (shape s)) => (union s a)",),
    )
    graph = Graph("square")
    x = graph.input("x", (32, 32))
    graph.output("y", (x @ graph.parameter("w", (32, 32), data=np.ones((32, 32), np.float32))).unary("tanh"))
    found = searched(graph, database, equations=(*EQUATIONS, wrong))
    refused = [row for row in found.rows if row.measured.status == "wrong"]
    assert refused
    assert all(row.measured.seconds is None for row in refused)
    assert all("of output 'y' is" in row.measured.reason for row in refused)
    assert products(found.graph) == 1
    check_numbers(found, graph)


def test_a_default_that_is_wrong_is_an_error(database):
    def lying(graph, device, sizes, seed):
        made = predicting(graph, device, sizes, seed)
        weights = {name: array + 1 for name, array in made.weights.items()}
        return Predicting(made.text.replace("maximum", "minimum"), weights, device, made.sizes, seed)

    with pytest.raises(SearchError, match="cannot be the first candidate: wrong: .*output 'y'"):
        searched(graph_convolution(), database, evaluator=lying, equations=())
    assert not list(database.folder.glob("*"))


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (SearchCandidate("no graph"), "ParseError"),
        (SearchCandidate(str(graph_convolution()), {"split": 0}), "from 1 to 4096"),
        (SearchCandidate(str(graph_convolution()), {"nix": 1}), "no choice 'nix'"),
        (SearchCandidate(str(graph_convolution()).replace('name="w"', 'name="u"')), "parameters 'u'"),
    ],
    ids=["text", "value", "name", "weights"],
)
def test_a_candidate_that_cannot_be_built_has_failed(candidate, reason):
    evaluator = GraphEvaluator.of(graph_convolution(), Device("cpu"), {}, 0)
    for one in (
        evaluator(candidate),
        evaluator(candidate, build_only=True),
        *evaluator.measure_many([candidate]),
    ):
        assert one.status == "failed"
        assert one.seconds is None
        assert reason in one.reason


def test_repeated_blocks_are_searched_once(database):
    pytest.importorskip("egglog", reason="needs egglog")
    graph = layers(3)
    found = searched(graph, database)
    assert any("3 blocks" in line for line in found.log)
    assert "in each block" in found.winner.candidate.origin
    assert products(found.graph) == 4
    check_numbers(found, graph)


def test_other_loops_are_tried(database):
    graph = Graph("total")
    x = graph.input("x", (512, 1024))
    graph.output("y", (x * x).sum((0, 1)))
    found = searched(graph, database, equations=())
    assert dict(found.choices).get("split", 1) > 1
    check_numbers(found, graph)


def test_an_interrupted_search_gives_what_it_has(database):
    def interrupting(graph, device, sizes, seed):
        made = predicting(graph, device, sizes, seed)
        measure, calls = made.measure_many, []

        def once(candidates):
            calls.append(1)
            if len(calls) > 1:
                raise KeyboardInterrupt
            return measure(candidates)

        object.__setattr__(made, "measure_many", once)
        return made

    graph = graph_convolution()
    found = searched(graph, database, evaluator=interrupting, equations=())
    assert found.interrupted == "it was interrupted"
    assert found.winner == found.default
    check_numbers(found, graph)
    assert not searched(graph, database, equations=()).remembered, "half a search decides nothing"


def test_interrupted_before_anything_ran(database):
    def interrupting(graph, device, sizes, seed):
        made = predicting(graph, device, sizes, seed)

        def stop(_):
            raise KeyboardInterrupt

        object.__setattr__(made, "measure_many", stop)
        return made

    with pytest.raises(KeyboardInterrupt):
        searched(graph_convolution(), database, evaluator=interrupting, equations=())


def test_a_budget_ends_it(database):
    found = searched(graph_convolution(), database, budget=1e-3, equations=())
    assert "were over" in found.interrupted
    assert found.winner == found.default
    with pytest.raises(SearchError, match="takes some seconds"):
        searched(graph_convolution(), database, budget=0)


def test_an_executor_builds_and_a_journal_knows(database, tmp_path):
    graph = graph_convolution()
    journal = Journal({"question": "test"}, tmp_path / "journal")
    with ThreadPoolExecutor(2) as executor:
        found = searched(graph, database, executor=executor, journal=journal, equations=())
    alone = searched(graph, TuningDatabase(tmp_path / "other"), equations=())
    assert found.winner.candidate == alone.winner.candidate
    assert set(journal.known("built")) == {row.candidate.digest for row in found.rows}
    check_numbers(found, graph)


def test_egglog_is_named_where_it_is_missing(database, monkeypatch):
    monkeypatch.setitem(sys.modules, "egglog.bindings", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'kernels-hub\[search\]'"):
        searched(graph_convolution(), database)
    found = searched(graph_convolution(), database, equations=())
    assert found.winner.measured.ran, "other loops need none"


def test_what_another_engine_runs_is_searched_as_well(database):
    """Places of maxima have no loop form: the graph is divided, and there are no choices for its loops."""
    graph = Graph("divided")
    x = graph.input("x", (8, 2, 16))
    graph.output(
        "y", x.apply("argmax_pool", x * 2.0, kernel=(2,), strides=(2,), dilations=(1,), padding=((0, 0),)) + 1
    )
    found = search(graph, "cpu", budget=5, database=database, equations=())
    assert found.winner == found.default
    assert found.winner.measured.ran
    check_numbers(found, graph)


@pytest.mark.exhaustive
def test_real_times(database):
    """Nothing is known of them but that they are there, and that no winner is slower than the default."""
    found = search(graph_convolution(), "cpu", budget=2, database=database, equations=())
    ran = [row for row in found.rows if row.measured.ran]
    assert ran
    assert all(row.measured.seconds > 0 for row in ran)
    assert found.speedup >= 1.0


def test_a_gpu_that_is_not_here(database):
    pytest.importorskip("triton", reason="needs Triton")
    graph = graph_convolution()
    found = search(graph, Device("cuda", 0, "sm_90"), budget=1, database=database, equations=())
    assert all(row.measured.seconds is None for row in found.rows)
    assert found.winner.measured.facts["spills"] == 0
    assert found.winner.measured.facts["registers"] > 0
    assert found.speedup is None
