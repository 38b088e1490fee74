"""Tuning: what is wrong is never chosen, what is fastest is, and is remembered; a broken memory costs nothing else."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels_hub.compiler import Filter, Graph, bind, compile, evaluate
from kernels_hub.compiler.engines.engine import Device, Knob, Support
from kernels_hub.compiler.engines.reference import ENGINE as REFERENCE
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.judging.timing import measure
from kernels_hub.compiler.plan import benchmarks, tuning
from kernels_hub.compiler.plan.tuning import knob_sets
from kernels_hub.compiler.plan.tuning_database import TuningDatabase, Winner
from tests.compiler.differences import difference
from tests.compiler.plan.plan_engines import FailingEngine, PartEngine, PartPlan, only_engines
from tests.compiler.strategies import assert_same_outputs

CPU = Device("cpu")
X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(autouse=True)
def _first_warning(monkeypatch):
    monkeypatch.setattr(TuningDatabase, "_warned", False)


def simple():
    graph = Graph("tuned")
    graph.output("y", graph.input("x", ("n", 3)).tanh() * 2.0)
    return graph


EXPECTED = evaluate(simple(), {"x": X})["y"]


class KnobPlan(PartPlan):
    """Slower, or wrong, as its knobs say."""

    def __init__(self, graph, device, engine, knobs):
        super().__init__(graph, device, engine)
        self.knobs = knobs

    def execute(self, inputs, outputs, workspace=None, stream=None):
        super().execute(inputs, outputs, workspace, stream)
        time.sleep(self.knobs["milliseconds"] / 1e3)
        for one in outputs:
            one.add_(self.knobs["error"])


class KnobEngine(PartEngine):
    def check(self, graph, device):
        answer = super().check(graph, device)
        knobs = (Knob("milliseconds", (2, 0, 1)), Knob("error", (0.0, 1.0)))
        return Support(knobs=knobs) if answer else answer

    def compile(self, graph, device, knobs):
        self.compiled.append(dict(knobs))
        return KnobPlan(graph, device, self.name, knobs)


def test_the_fastest_that_is_right_wins_and_is_remembered(tmp_path, caplog):
    knobs, slow = KnobEngine("knobs"), FailingEngine("broken", "compile")
    with only_engines(knobs, slow, REFERENCE), caplog.at_level(logging.WARNING, "kernels_hub"):
        run = compile(simple(), "cpu", heuristic="benchmark", cache=tmp_path)
        assert_same_outputs({"y": run(X)}, {"y": EXPECTED})
        rows = [(one.engine, dict(one.knobs), one.reason) for one in run.candidates]
        wrong = [reason for engine, given, reason in rows if engine == "knobs" and given["error"]]
        assert len(wrong) == 3 and all("of output 'y' is" in reason for reason in wrong)
        assert any(engine == "broken" and "not built" in reason for engine, _, reason in rows)
        timed = {one.seconds: one for one in run.candidates if one.seconds is not None}
        best = timed[min(timed)]
        assert best.reason == "fastest" and best.engine in {"knobs", "reference"}
        assert best.knobs.get("milliseconds", 0) == 0 and best.knobs.get("error", 0.0) == 0.0
        assert len(timed) == 4 and max(timed) > 0.0018
        assert len(knobs.compiled) == 6
        again = compile(simple(), "cpu", heuristic="benchmark", cache=tmp_path)
        assert_same_outputs({"y": again(X)}, {"y": EXPECTED})
        assert again.plan.engines == run.plan.engines
        assert len(again.candidates) == 1 and "measured before" in again.candidates[0].reason
        assert len(knobs.compiled) <= 7
        before = len(knobs.compiled)
        again(np.zeros((5, 3), np.float32))
        assert len(knobs.compiled) == before + 6, "another shape is another question"
        compile(simple(), "cpu", heuristic="benchmark", cache=tmp_path, workspace_limit=10, dims={"n": 2})
        assert len(knobs.compiled) == before + 12, "and so is another limit"


def test_nobody_who_is_right(tmp_path, caplog):
    class Wrong(PartEngine):
        def compile(self, graph, device, knobs):
            return KnobPlan(graph, device, self.name, {"milliseconds": 0, "error": 1.0})

    with (
        only_engines(Wrong("wrong")),
        pytest.raises(EngineError, match=r"numbers of the oracle:\n  wrong .*output 'y'"),
    ):
        compile(simple(), "cpu", heuristic="benchmark", cache=tmp_path, dims={"n": 2})
    assert "engine wrong is not used" in caplog.text


def test_an_engine_that_breaks_while_it_is_measured_is_left_out(tmp_path):
    with only_engines(FailingEngine("broken", "execute"), REFERENCE):
        run = compile(simple(), "cpu", heuristic="benchmark", cache=tmp_path, dims={"n": 2})
        assert run.plan.engines == ("reference",)
        assert any(one.engine == "broken" and "not run" in one.reason for one in run.candidates)


def test_what_won_before_and_is_gone_is_measured_again(tmp_path, caplog):
    with only_engines(PartEngine("good")):
        compile(simple(), "cpu", heuristic="benchmark", cache=tmp_path, dims={"n": 2})
    with (
        only_engines(broken := FailingEngine("good", "compile")),
        pytest.raises(EngineError, match="not built"),
    ):
        compile(simple(), "cpu", heuristic="benchmark", cache=tmp_path, dims={"n": 2})
    assert "does not build, all is measured again" in caplog.text and broken.compiled == []


def test_a_graph_that_refuses_made_up_inputs_is_compiled_all_the_same(tmp_path, caplog):
    graph = Graph("strict")
    table = graph.constant(np.zeros((4, 2), np.float32))
    index = graph.input("i", (2,), "int64") + 100
    graph.output("y", table.gather(index, 0))
    with only_engines(PartEngine("any"), REFERENCE):
        run = compile(graph, "cpu", heuristic="benchmark", cache=tmp_path)
    assert run.plan.engines == ("any",) and "made-up inputs" in caplog.text
    assert run(np.array([-100, -97])).shape == (2, 2)


KEY = {"graph": "0", "n": [1, 2]}
WINNER = Winner("cpp", {"tile": 4, "fast": True, "kind": "a", "x": 0.5}, 1e-3)


def test_the_database_keeps_by_key(tmp_path):
    database = TuningDatabase(tmp_path / "deep" / "folder")
    assert database.get(KEY) is None
    database.put(KEY, WINNER)
    database.put({**KEY, "graph": "1"}, Winner("library", {}, 2.0))
    assert database.get(KEY) == WINNER
    assert database.get({**KEY, "graph": "1"}) == Winner("library", {}, 2.0)
    assert database.get({**KEY, "graph": "2"}) is None
    assert TuningDatabase(tmp_path / "deep" / "folder").get(KEY) == WINNER


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"format": 1}', "\x00\xff", '{"format": 1, "key": 3}', "[" * 10_000],
)
def test_a_damaged_file_is_forgotten_with_one_warning(tmp_path, text, caplog):
    database = TuningDatabase(tmp_path)
    database.put(KEY, WINNER)
    (path,) = tmp_path.iterdir()
    path.write_bytes(text.encode("latin-1"))
    assert database.get(KEY) is None and database.get(KEY) is None
    assert len(caplog.records) <= 1
    database.put(KEY, WINNER)
    assert database.get(KEY) == WINNER


def test_fields_of_other_types_are_forgotten(tmp_path):
    database = TuningDatabase(tmp_path)
    database.put(KEY, WINNER)
    (path,) = tmp_path.iterdir()
    good = json.loads(path.read_text())
    for change in ({"engine": 3}, {"knobs": []}, {"format": 9}, {"key": {}}):
        path.write_text(json.dumps({**good, **change}))
        assert database.get(KEY) is None


def test_a_folder_that_cannot_be_written_to_costs_the_memory_alone(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    with only_engines(REFERENCE):
        for _ in range(2):
            run = compile(simple(), "cpu", heuristic="benchmark", cache=tmp_path / "file", dims={"n": 2})
            assert_same_outputs({"y": run(X)}, {"y": EXPECTED})
    assert len(caplog.records) == 1 and "is not remembered" in caplog.text


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(os, "replace", full)
    TuningDatabase(tmp_path).put(KEY, WINNER)
    assert list(tmp_path.iterdir()) == [] and "No space left" in caplog.text


def full(*_, **__):
    raise OSError(28, "No space left on device")


_WRITER = """
import sys
from kernels_hub.compiler.plan.tuning_database import TuningDatabase, Winner
database, key = TuningDatabase(sys.argv[1]), {"graph": "0", "n": [1, 2]}
for place in range(300):
    database.put(key, Winner("engine" + sys.argv[2], {"place": place}, 1.0))
    found = database.get(key)
    assert found is not None and found.engine.startswith("engine"), found
"""


def test_processes_write_one_entry_at_once(tmp_path):
    others = [subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path), str(n)]) for n in range(3)]
    assert [one.wait(60) for one in others] == [0, 0, 0]
    assert TuningDatabase(tmp_path).get(KEY) is not None and len(list(tmp_path.iterdir())) == 1


def test_knob_sets_begin_with_the_best_guesses():
    knobs = [Knob("a", (1, 2, 3)), Knob("b", ("x", "y"))]
    found = knob_sets(knobs)
    assert found[0] == {"a": 1, "b": "x"} and {"a": 2, "b": "x"} in found[1:3] and len(found) == 6
    assert knob_sets([]) == [{}]
    many = knob_sets([Knob(str(place), tuple(range(9))) for place in range(9)])
    assert len(many) == tuning.MOST_KNOBS


def test_calls_are_measured_in_turns():
    order, now = [], [0.0]

    def taking(name: str, seconds: float):
        def call() -> None:
            order.append(name)
            now[0] += seconds

        return call

    calls = [taking("a", 2e-3), taking("b", 3e-3), taking("c", 3e-2)]
    times = measure(calls, CPU, clock=lambda: now[0])
    assert times == pytest.approx([2e-3, 3e-3, 3e-2])
    assert order[:2] == ["a", "a"], "first calls warm up"
    assert order.count("c") == 4, "what is hopeless is not measured again"
    assert "".join(order[-4:]) in {"abab", "baba", "abba", "baab"}
    assert measure([], CPU) == []


@pytest.mark.parametrize(
    ("dtype", "off", "close"),
    [("float32", 1e-5, True), ("float32", 1e-3, False), ("float64", 1e-7, False), ("float16", 5e-3, True), ("float32", np.nan, False), ("float32", np.inf, False)],
)  # fmt: skip
def test_a_wrong_output_is_told_from_a_rounded_one(dtype, off, close):
    expected = np.linspace(1, 2, 100).astype(dtype)
    actual = expected.copy()
    actual[7:20] += np.asarray(off * 3, dtype)
    assert (difference({"y": actual}, {"y": expected}) is None) == close


def test_other_wrong_outputs():
    expected = np.arange(2000)
    assert difference({"y": expected.copy()}, {"y": expected}) is None
    actual = expected.copy()
    actual[0] = 9
    assert difference({"y": actual}, {"y": expected}) is None, "one in two thousand may be rounded otherwise"
    actual[:5] = 9
    assert "0.25%" in difference({"y": actual}, {"y": expected})
    assert "expected int64" in difference({"y": expected.astype(np.int32)}, {"y": expected})
    special = np.array([np.nan, np.inf, -np.inf, 0.0], np.float32)
    assert difference({"y": special.copy()}, {"y": special}) is None
    assert difference({"y": -special}, {"y": special}) is not None
    assert difference({"y": np.zeros(4, np.float32)}, {"y": special}) is not None
    empty = np.zeros((0, 3), np.float32)
    assert difference({"y": empty}, {"y": empty}) is None


def test_a_benchmark_of_a_plugin(tmp_path, monkeypatch):
    def last_is_best(calls, device):
        assert device.type == "cpu"
        return [1.0 / (1 + place) for place, _ in enumerate(calls)]

    class Point:
        name, value = "mine", "module:function"

        def load(self):
            return last_is_best

    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: [Point()] if group == benchmarks.GROUP else []
    )
    with only_engines(PartEngine("a"), REFERENCE, PartEngine("b")):
        run = compile(simple(), "cpu", heuristic="mine", cache=tmp_path, dims={"n": 2})
    assert run.plan.engines == ("reference",)
    assert torch.equal(run(torch.from_numpy(X)), torch.from_numpy(EXPECTED))


@pytest.mark.parametrize(
    "by", [lambda calls, device: 1 / 0, lambda calls, device: [1.0], lambda calls, device: None]
)
def test_a_benchmark_that_fails_is_replaced(by, tmp_path, caplog):
    graph = bind(simple(), {"n": 2})
    outcomes = []
    with only_engines(PartEngine("a"), REFERENCE, PartEngine("none", lambda op: False)):
        tuning.tune(graph, CPU, Filter(), outcomes, set(), by=by, database=TuningDatabase(tmp_path))
    assert "the built-in one measures" in caplog.text
    rows = {one.engine: one for one in outcomes}
    assert rows["a"].seconds and rows["reference"].seconds
    assert rows["none"].seconds is None and "does not take" in rows["none"].reason


def test_the_database_lies_in_the_cache_and_finds_what_earlier_versions_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("KERNELS_HUB_CACHE", str(tmp_path))
    former, winner = Winner("cpp", {"tile": 8}, 1e-3), Winner("library", {}, 2e-3)
    TuningDatabase(tmp_path / "compiled" / "tuning").put({"graph": "a"}, former)
    assert TuningDatabase().get({"graph": "a"}) == former
    TuningDatabase().put({"graph": "a"}, winner)
    assert TuningDatabase().get({"graph": "a"}) == winner
    assert len(list((tmp_path / "tuning").glob("*.json"))) == 1
    assert TuningDatabase(tmp_path / "elsewhere").get({"graph": "a"}) is None
