"""Planted rules that compute something else: none wins a search, none is published; right ones are taken."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from kernels_hub.compiler import Graph, emit_layer, evaluate, print_graph
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.export import emit_layer as emit
from kernels_hub.compiler.export.source import Source
from kernels_hub.compiler.export.tuned import Tuned
from kernels_hub.compiler.judging import Judge
from kernels_hub.compiler.plan.tuning_database import TuningDatabase
from kernels_hub.compiler.runtime.parts import Tensor
from kernels_hub.compiler.search import search as searching
from kernels_hub.compiler.search.candidate import Measured, SearchCandidate
from kernels_hub.compiler.search.evaluator import GraphEvaluator, materialise
from kernels_hub.compiler.search.search import search
from tests.compiler.judging.planted import RIGHT, WRONG, Plant
from tests.fuzz.harness import EXHAUSTIVE


def named(plant: Plant) -> str:
    return plant.name.replace(" ", "-")


def test_there_are_enough():
    assert len(WRONG) >= 50 and len(RIGHT) >= 15
    assert len({one.name for one in (*WRONG, *RIGHT)}) == len(WRONG) + len(RIGHT)


@dataclass(frozen=True, eq=False)
class Eager(GraphEvaluator):
    """The oracle runs candidates; whatever is planted takes a tenth of the time."""

    def __call__(self, candidate: SearchCandidate, *, build_only: bool = False) -> Measured:
        reason = self.judge(partial(evaluate, materialise(candidate, self.weights)))
        return Measured(candidate.digest, "wrong" if reason else "slower", None, reason or "built")

    def measure_many(self, candidates: Sequence[SearchCandidate]) -> list[Measured]:
        times = [1e-4 if one.origin == "planted" else 1e-3 for one in candidates]
        return [
            Measured(one.digest, "slower", seconds, "timed")
            for one, seconds in zip(candidates, times, strict=True)
        ]

    def measure_again(self, candidates: Sequence[SearchCandidate]) -> list[Measured]:
        first, other = self.measure_many(candidates)
        return [first, Measured(other.digest, "fastest", other.seconds, "timed again")]


def eager(graph, device, sizes, seed):
    made = GraphEvaluator.of(graph, device, sizes, seed)
    return Eager(made.text, made.weights, made.device, made.sizes, made.seed)


def searched(plant: Plant, folder: Path, monkeypatch: pytest.MonkeyPatch):
    right, other = plant.graphs()
    planted = SearchCandidate(print_graph(other, data=True), origin="planted")
    monkeypatch.setattr(searching, "neighbours", lambda *_: [planted])
    return search(right, "cpu", evaluator=eager, database=TuningDatabase(folder), equations=())


@pytest.mark.parametrize("plant", WRONG, ids=named)
def test_none_that_is_wrong_wins_a_search(plant, tmp_path, monkeypatch):
    found = searched(plant, tmp_path, monkeypatch)
    assert found.winner.candidate.origin == "the default pipeline"
    (row,) = (one for one in found.rows if one.candidate.origin == "planted")
    assert row.measured.status == "wrong" and "on inputs" in row.measured.reason


@pytest.mark.parametrize("plant", RIGHT, ids=named)
def test_what_is_right_wins(plant, tmp_path, monkeypatch):
    found = searched(plant, tmp_path, monkeypatch)
    (row,) = (one for one in found.rows if one.candidate.origin == "planted")
    assert found.winner.candidate.origin == "planted", row.measured.reason


@pytest.mark.parametrize("plant", [*WRONG, *RIGHT], ids=named)
def test_the_graph_itself_is_right(plant):
    judge = Judge(plant.graphs()[0])
    assert judge(lambda inputs: evaluate(plant.graphs()[0], inputs)) is None
    assert judge.coverage > 0.5


def source_of(graph: Graph) -> Source:
    """As of an ONNX file, with the graph's weights."""
    kinds = inspect.Parameter
    arguments = dict(zip(graph.inputs, map(Tensor, count()), strict=False))
    signature = inspect.Signature([kinds(one, kinds.POSITIONAL_OR_KEYWORD) for one in arguments])
    result = {name: Tensor(place) for place, name in enumerate(graph.outputs)}
    arrays = dict(graph.weights)
    graph.weights.clear()
    return Source(graph, signature, arguments, result, arrays=arrays)


def layer_of(plant: Plant) -> str:
    """A name of its own: what is loaded twice from equal files is one module, of the folder that came first."""
    return f"Planted{[*WRONG, *RIGHT].index(plant)}"


PUBLISHED = WRONG if EXHAUSTIVE else WRONG[:1] + WRONG[5:6]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("plant", PUBLISHED, ids=named)
def test_none_that_is_wrong_is_published(plant, tmp_path, monkeypatch):
    right, other = plant.graphs()
    tuned = Tuned("", "avx512", print_graph(other, data=True))
    monkeypatch.setattr(emit, "from_onnx", lambda *_: source_of(right))
    with pytest.raises(EngineError, match=r"wrong: .*nothing was written|differs from the oracle"):
        emit_layer(
            "planted.onnx", layer_name=layer_of(plant), out=tmp_path / "out", tuned=[tuned], triton=False
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("plant", RIGHT if EXHAUSTIVE else RIGHT[:1], ids=named)
def test_what_is_right_is_published(plant, tmp_path, monkeypatch):
    right, other = plant.graphs()
    tuned = Tuned("", "avx512", print_graph(other, data=True))
    monkeypatch.setattr(emit, "from_onnx", lambda *_: source_of(right))
    file = tmp_path / "planted.onnx"  # of which a digest is stated
    file.write_bytes(b"stands for the graph")
    emit_layer(str(file), layer_name=layer_of(plant), out=tmp_path / "out", tuned=[tuned], triton=False)
    assert (tmp_path / "out" / "tuned.json").exists()
