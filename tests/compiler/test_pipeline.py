"""`compile` from end to end: sources, engines that decline or break, plans for each set of shapes."""

from __future__ import annotations

import logging
import threading

import numpy as np
import pytest
import torch

from kernels_hub.compiler import Filter, Graph, check_support, compile, create_plans, evaluate
from kernels_hub.compiler.engines.engine import Note
from kernels_hub.compiler.engines.reference import ENGINE as REFERENCE
from kernels_hub.compiler.errors import (
    CompilerError,
    DimError,
    EngineError,
    EvaluateError,
    ImportFailure,
    PlanError,
    ShapeError,
)
from kernels_hub.compiler.plan import selection
from tests.compiler.plan.plan_engines import FailingEngine, PartEngine, only_engines
from tests.compiler.strategies import assert_same_outputs


@pytest.fixture(autouse=True)
def _nothing_was_reported(monkeypatch):
    monkeypatch.setattr(selection, "_REPORTED", set())


def simple(name="simple"):
    graph = Graph(name)
    x = graph.input("x", ("n", 3))
    graph.output("y", (x * 2.0).tanh())
    return graph


X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(4, 3)
EXPECTED = evaluate(simple(), {"x": X})


def engines_of(run):
    return {one.engine: one.reason for one in run.candidates}


def test_a_graph_by_position_and_by_name():
    run = compile(simple(), "cpu", engines=("reference",))
    for results in (run(X), run(x=X), run(torch.from_numpy(X)).numpy(), run.execute({"x": X})["y"]):
        assert_same_outputs({"y": results}, EXPECTED)
    with pytest.raises(PlanError, match=r"missing are \['x'\], unknown \['z'\]"):
        run(z=X)
    with pytest.raises(PlanError, match=r"twice \['x'\]"):
        run(X, x=X)


def test_dims_and_rewrites():
    run = compile(simple(), "cpu", engines=("reference",), dims={"n": 4}, rewrite=False)
    assert run.signature.inputs["x"].shape == (4, 3)
    with pytest.raises(ShapeError, match="dim 0 is 5, expected 4"):
        run(np.zeros((5, 3), np.float32))


def test_dims_that_a_graph_does_not_have():
    with pytest.raises(DimError, match="graph simple has no symbols batch; it has n"):
        compile(simple(), "cpu", dims={"batch": 4})


class Pair(torch.nn.Module):
    """Arguments and results in containers, and one that is no tensor."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, pair, *, scale):
        a, b = pair["a"], pair["b"]
        return {"sum": self.linear(a) + b * scale, "rest": (a, 3, None)}


_TORCH = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch.export's own


@_TORCH
def test_a_module_takes_and_gives_what_it_did():
    module = Pair().eval()
    args, kwargs = ({"a": torch.randn(2, 3), "b": torch.randn(2, 3)},), {"scale": 2.0}
    with torch.no_grad():
        run = compile((module, args, kwargs), "cpu", engines=("library", "reference"))
        expected = module(*args, **kwargs)
    got = run(*args, **kwargs)
    assert got["rest"][1:] == (3, None) and torch.equal(got["rest"][0], expected["rest"][0])
    torch.testing.assert_close(got["sum"], expected["sum"])
    with pytest.raises(PlanError, match="was traced with arguments"):
        run(*args)
    with pytest.raises(PlanError, match=r"argument 'scale' was 2.0 when .* called with 3.0"):
        run(*args, scale=3.0)
    with pytest.raises(PlanError, match=r"argument 'scale' was 2.0 when"):
        run(*args, scale=torch.tensor(2.0))


def test_an_onnx_file(tmp_path):
    onnx = pytest.importorskip("onnx", reason="needs onnx: pip install 'kernels-hub[onnx]'")
    node = onnx.helper.make_node("Tanh", ["x"], ["y"])
    shape = ["n", 3]
    info = [onnx.helper.make_tensor_value_info(one, onnx.TensorProto.FLOAT, shape) for one in "xy"]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "tanh", info[:1], info[1:]))
    onnx.save(model, tmp_path / "tanh.onnx")
    for source in (tmp_path / "tanh.onnx", str(tmp_path / "tanh.onnx"), model):
        run = compile(source, "cpu", engines=("reference",))
        np.testing.assert_allclose(run(X), np.tanh(X), rtol=1e-6)
    assert compile(model, "cpu", engines=("reference",), dims={"n": 4}).signature.inputs["x"].shape == (4, 3)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (torch.nn.ReLU(), "needs example arguments"),
        (3, "compile takes a Graph"),
        ((), "compile takes a Graph"),
    ],
)
def test_other_sources_are_refused(source, message):
    with pytest.raises(CompilerError, match=message):
        compile(source)


@pytest.mark.parametrize("device", ["tpu", "cpu:1", "cuda:x", "cuda:99"])
def test_devices_that_there_are_not(device):
    with pytest.raises(CompilerError, match=device):
        compile(simple(), device)


def test_inputs_in_the_place_of_the_device():
    """As torch.export.export takes them. The message is one line, without what tensors hold."""
    with pytest.raises(CompilerError) as raised:
        compile(torch.nn.ReLU(), (torch.ones(100, 100),))  # type: ignore[arg-type]
    assert str(raised.value) == (
        "a device is a name such as 'cpu', not a tuple; the inputs of a module go with it: compile((module, inputs), 'cpu')"
    )


def test_the_preferred_engine_runs_all_of_it():
    with only_engines(PartEngine("a"), PartEngine("b"), REFERENCE):
        run = compile(simple(), "cpu", heuristic=lambda *_: ["b", "a", "reference"])
        assert run.plan.engines == ("b",)
        assert engines_of(run)["a"] == "takes the graph; preferred is b"
        assert engines_of(run)["b"] == "runs 2 of 2 ops"


def test_what_the_preferred_engine_declines_goes_to_the_next():
    engine = PartEngine("generated", lambda op: op != "tanh")
    with only_engines(engine, PartEngine("other"), REFERENCE):
        found = create_plans(simple(), "cpu", rank=lambda *_: ["generated", "other", "reference"])
        assert {one.engines for one in found} == {("generated", "other"), ("other",), ("reference",)}
        assert found[0].engines == ("other",), "two pieces cost more than one here"
        assert found[-1].engines == ("reference",)
        assert_same_outputs(found[1].build().execute({"x": X}), EXPECTED)


def test_every_reason_is_told_where_nobody_takes_it():
    a, b = PartEngine("a", lambda op: op != "tanh"), PartEngine("b", lambda op: False)
    with only_engines(a, b), pytest.raises(EngineError) as caught:
        compile(simple(), "cpu")
    text = str(caught.value)
    assert "graph simple on cpu" in text
    assert "a: it does not take tanh" in text and "b: it does not take" in text
    assert check_support(simple(), "cpu")["reference"] is not None


def test_filters_by_name_note_and_workspace():
    slow = PartEngine("slow", notes=(Note.NONDETERMINISTIC,))
    large = PartEngine("large", scratch=4096)
    with only_engines(slow, large, REFERENCE):
        order = lambda *_: ["slow", "large", "reference"]  # noqa: E731
        assert compile(simple(), "cpu", heuristic=order).plan.engines == ("slow",)
        run = compile(simple(), "cpu", heuristic=order, exclude_notes=[Note.NONDETERMINISTIC])
        assert run.plan.engines == ("large",) and "excluded" in engines_of(run)["slow"]
        run = compile(
            simple(), "cpu", heuristic=order, exclude_notes=[Note.NONDETERMINISTIC], workspace_limit=4095
        )
        run(X)  # a workspace has a size where the shapes are known
        assert run.plan.engines == ("reference",) and "more than 4095" in engines_of(run)["large"]
        assert compile(simple(), "cpu", engines="large").plan.engines == ("large",)
        with pytest.raises(EngineError, match="no engine is called 'nobody'"):
            compile(simple(), "cpu", engines=("nobody",))
        answers = check_support(simple(), "cpu", only=Filter(workspace_limit=1))
        assert bool(answers["slow"]) and not answers["large"]


@pytest.mark.parametrize("at", ["compile", "execute"])
def test_an_engine_that_breaks_its_word_is_reported_and_replaced(at, caplog):
    with (
        only_engines(FailingEngine("broken", at), REFERENCE),
        caplog.at_level(logging.WARNING, "kernels_hub"),
    ):
        run = compile(simple(), "cpu", heuristic=lambda *_: ["broken", "reference"])
        for _ in range(3):
            assert_same_outputs({"y": run(X)}, EXPECTED)
            assert_same_outputs(run.execute({"x": X}), EXPECTED)
        again = compile(simple(), "cpu", heuristic=lambda *_: ["broken", "reference"])
        assert_same_outputs({"y": again(X)}, EXPECTED)
    assert run.plan.engines == ("reference",)
    assert any(one.engine == "broken" and "the engine broke" in one.reason for one in run.candidates)
    assert len(caplog.records) == 1 and "engine broken" in caplog.text and "simple" in caplog.text


@pytest.mark.parametrize("at", ["compile", "execute"])
def test_an_engine_that_was_named_raises_its_error(at, caplog):
    with (
        only_engines(FailingEngine("broken", at), REFERENCE),
        pytest.raises(EngineError, match="engine broken"),
    ):
        compile(simple(), "cpu", engines=("broken",))(X)
    assert not caplog.records


def test_nobody_left_raises_what_the_first_one_raised():
    with only_engines(FailingEngine("first", "execute"), FailingEngine("second", "execute")):
        run = compile(simple(), "cpu", heuristic=lambda *_: ["first", "second"])
        for _ in range(2):
            with pytest.raises(EngineError, match="engine first failed"):
                run(X)


def test_memory_that_ran_out_is_not_tried_elsewhere():
    broken = FailingEngine("hungry", "execute", torch.OutOfMemoryError("no more"))
    with only_engines(broken, REFERENCE), pytest.raises(EngineError, match="hungry ran out of memory"):
        compile(simple(), "cpu", heuristic=lambda *_: ["hungry", "reference"])(X)


def test_bad_data_are_no_fault_of_an_engine(caplog):
    graph = Graph("index")
    table = graph.constant(np.zeros((4, 2), np.float32))
    graph.output("y", table.gather(graph.input("i", ("n",), "int64"), 0))
    with only_engines(FailingEngine("unclear", "execute", IndexError("somewhere")), REFERENCE):
        run = compile(graph, "cpu", heuristic=lambda *_: ["unclear", "reference"])
        with pytest.raises(EvaluateError, match="index"):
            run(torch.tensor([9]))
        assert run.plan.engines == ("unclear",) and not caplog.records


def test_a_heuristic_that_fails_is_replaced(caplog):
    def broken(*_):
        raise ValueError("no idea")

    with only_engines(REFERENCE):
        assert compile(simple(), "cpu", heuristic=broken).plan.engines == ("reference",)
    assert "no idea" in caplog.text
    with pytest.raises(EngineError, match="no heuristic is called 'nothing'"):
        compile(simple(), "cpu", heuristic="nothing")


def test_sizes_that_nothing_tells():
    graph = Graph("untold")
    graph.output("y", graph.iota("n"))
    with pytest.raises(EngineError, match="no input's shape tells the size of n"):
        compile(graph, "cpu")
    assert compile(graph, "cpu", dims={"n": 3}, engines=("reference",))().tolist() == [0, 1, 2]


# -- engines that want numbers for sizes


def test_plans_for_each_set_of_shapes(caplog):
    engine = PartEngine("numbers", symbolic=False)
    with only_engines(engine, REFERENCE):
        run = compile(simple(), "cpu", heuristic=lambda *_: ["numbers", "reference"], max_shapes=2)
        with pytest.raises(PlanError, match="call it first"):
            _ = run.plan
        for n in (1, 2, 1, 2, 3, 3, 2, 1):
            x = np.ones((n, 3), np.float32)
            assert_same_outputs({"y": run(x)}, evaluate(simple(), {"x": x}))
            assert run.plan.engines == ("numbers",) and run.plan.signature.inputs["x"].shape == (n, 3)
        assert engine.compiled == ["simple"] * 4, "1, 2, 3, and 1 again"
        assert run.evicted == 2 and len(run.plans) == 2
        assert len(caplog.records) == 1 and "more than 2 sets of shapes" in caplog.text
        with pytest.raises(ShapeError, match="dim 1 is 4, expected 3"):
            run(np.ones((1, 4), np.float32))


def test_the_plan_that_was_used_last_is_dropped_last():
    engine = PartEngine("numbers", symbolic=False)
    with only_engines(engine):
        run = compile(simple(), "cpu", max_shapes=2)
        for n in (1, 2, 1, 3, 1, 3, 1):
            run(np.ones((n, 3), np.float32))
        assert len(engine.compiled) == 3 and {one[0][0] for one in run.plans} == {1, 3}


def test_one_plan_for_all_shapes_where_nothing_is_gained():
    with only_engines(PartEngine("numbers", symbolic=False), PartEngine("symbols"), REFERENCE):
        run = compile(simple(), "cpu", heuristic=lambda *_: ["symbols", "numbers", "reference"])
        assert run.plan.engines == ("symbols",) and not run.plans


def test_a_specialised_plan_that_breaks_is_replaced():
    with only_engines(FailingEngine("broken", "execute", symbolic=False), REFERENCE):
        run = compile(simple(), "cpu", heuristic=lambda *_: ["broken", "reference"])
        assert_same_outputs({"y": run(X)}, EXPECTED)
        assert run.plan.engines == ("reference",)
        assert_same_outputs({"y": run(X[:2])}, evaluate(simple(), {"x": X[:2]}))


def test_threads_specialise_once():
    engine = PartEngine("numbers", symbolic=False)
    failures = []

    def work(run, n):
        try:
            x = np.full((n, 3), n, np.float32)
            for _ in range(20):
                assert_same_outputs({"y": run(x)}, evaluate(simple(), {"x": x}))
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    with only_engines(engine, REFERENCE):
        run = compile(simple(), "cpu", heuristic=lambda *_: ["numbers", "reference"])
        threads = [threading.Thread(target=work, args=(run, 1 + number % 3)) for number in range(6)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert not failures and len(engine.compiled) == 3


@_TORCH
def test_weights_are_those_of_the_module():
    """Bundled engines, as they are: whatever runs it, the numbers are torch's."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 2)
    )
    x = torch.randn(5, 8)
    with torch.no_grad():
        run = compile((module.eval(), (x,)), "cpu", dims=({0: torch.export.Dim("batch", min=2)},))
        for batch in (5, 2, 7):
            x = torch.randn(batch, 8)
            torch.testing.assert_close(run(x), module(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "begun"),
    [
        ({}, ["linked_convolution.cpp", "linked_grouped.cpp", "linked_product.cpp"]),
        ({"engines": ("cpp",)}, ["linked_convolution.cpp", "linked_grouped.cpp", "linked_product.cpp"]),
        ({"engines": ("library",)}, []),
        ({"exclude_notes": (Note.NEEDS_COMPILER,)}, []),
    ],
)
def test_the_runtime_that_a_module_needs_is_begun_while_it_is_traced(options, begun, monkeypatch):
    found = []
    monkeypatch.setattr("kernels_hub.compiler.engines.cpp.begin", found.extend)
    module = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 1), torch.nn.Flatten(), torch.nn.Linear(4, 2)).eval()

    def trace(*_):
        raise ImportFailure("not to be traced")

    monkeypatch.setattr("kernels_hub.compiler.pipeline._imported", trace)
    with pytest.raises(ImportFailure):
        compile((module, (torch.ones(1, 1, 2, 2),)), "cpu", **options)
    assert found == begun
