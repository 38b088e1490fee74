"""compile(…, wait=False): calls are served at once, and by the compiled plan once that is there."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import onnx
import pytest

from kernels_hub.compiler import compile as compile_graph
from kernels_hub.compiler.engines import cpp
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.ir.graph import Graph
from tests.compiler.importers.test_onnx_variants import CHOSEN, parse
from tests.runtime_objects import share_runtime_objects
from tests.warm_process import run_script


def graph() -> Graph:
    made = Graph("g")
    x = made.input("x", ("n", 8))
    weight = made.parameter("w", (8, 3), data=np.arange(24, dtype=np.float32).reshape(8, 3))
    made.output("y", (x @ weight).tanh())
    return made


def inputs(rows: int) -> np.ndarray:
    return np.random.default_rng(rows).standard_normal((rows, 8)).astype(np.float32)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch):
    """The C++ engine compiles when this is set."""
    event, build = threading.Event(), cpp.CppEngine.compile

    def waiting(*args, **more):
        assert event.wait(60)
        return build(*args, **more)

    monkeypatch.setattr(cpp.CppEngine, "compile", waiting)
    return event


def test_calls_are_served_meanwhile_and_compiled_afterwards(held):
    run = compile_graph(graph(), "cpu", wait=False)
    before = {rows: run(inputs(rows)) for rows in (1, 5)}
    assert run.plan.engines == ("library",)
    assert not run.wait(0.01)
    held.set()
    assert run.wait(120)
    assert run.plan.engines == ("cpp",)
    for rows, result in before.items():
        np.testing.assert_allclose(run(inputs(rows)), result, rtol=1e-5, atol=1e-6)
    assert any(one.engine == "cpp" for one in run.candidates)


@pytest.mark.parametrize(("length", "rewritten"), [(16, False), (2048, True)])
def test_attention_with_long_scores_is_rewritten_before_the_first_call(held, length, rewritten):
    made = Graph("attention")
    q, k, v = (made.input(name, ("n", 2, length, 8)) for name in "qkv")
    made.output("y", (q @ k.permute(0, 1, 3, 2) * 0.3).softmax(-1) @ v)
    run = compile_graph(made, "cpu", wait=False)
    callees = {node.attrs["callee"].name for node in run.graph.live() if node.op.name == "call"}
    assert ("attention" in callees) is rewritten
    held.set()


def test_a_compiler_that_fails_leaves_the_first_plan(monkeypatch, caplog):
    def failing(*_, **__):
        raise EngineError("no")

    monkeypatch.setattr(cpp.CppEngine, "compile", failing)
    run = compile_graph(graph(), "cpu", engines=("cpp", "library"), wait=False)
    assert run.wait(60)
    assert run.compilation is not None
    assert isinstance(run.compilation.error, EngineError)
    np.testing.assert_allclose(run(inputs(2)), np.tanh(inputs(2) @ graph().weights["w"]), rtol=1e-5)


def test_without_another_engine_it_is_waited_for():
    run = compile_graph(graph(), "cpu", engines=("cpp",), wait=False)
    assert run.plan.engines == ("cpp",)
    assert run.wait(0)


def test_variants_of_a_model_are_compiled_in_the_background(held):
    run = compile_graph(parse(CHOSEN), "cpu")  # ONNX models are not waited for unless it is asked for
    x, rate = np.arange(8, dtype=np.float32), np.array(3)
    first = run(x, rate)
    assert run.plan.engines == ("library",)
    held.set()
    assert run.wait(120)
    np.testing.assert_array_equal(run(x, rate), first)
    assert run.plan.engines == ("cpp",)


def test_a_profile_is_of_the_compiled_plan(held):
    run = compile_graph(graph(), "cpu", wait=False)
    threading.Timer(0.1, held.set).start()
    assert {step.engine for step in run.profile(inputs(3), repeats=1).steps} == {"cpp"}


@pytest.mark.parametrize("after_s", [0.0, pytest.param(0.3, marks=pytest.mark.exhaustive), 1.2])
def test_a_process_that_ends_meanwhile_ends_well(after_s, tmp_path):
    code = f"""
        import time
        from tests.compiler.test_background import compile_graph, graph, inputs
        run = compile_graph(graph(), "cpu", wait=False)
        run(inputs(2))
        time.sleep({after_s})
    """
    done = run_script(
        textwrap.dedent(code), env={**os.environ, "KERNELS_HUB_CACHE": str(share_runtime_objects(tmp_path))}
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_first_plan_is_made_without_rewriting_schedules_and_protobuf(tmp_path):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y) { y = Tanh(x) }'
    )
    onnx.save(model, tmp_path / "g.onnx")
    code = f"""
        import sys
        from kernels_hub.compiler import compile
        run = compile({str(tmp_path / "g.onnx")!r}, "cpu")
        assert run.plan.engines == ("library",)
        assert not {{"onnx", "google.protobuf"}} & {{*sys.modules}}
        unused = ("rewrite.pipeline", "schedule.schedule", "engines.cpp", "engines.triton", "engines.metal")
        made = [name for name in unused if f"kernels_hub.compiler.{{name}}" in sys.modules]
        assert run.wait(120) and "kernels_hub.compiler.schedule.schedule" in sys.modules
        print(made, [name for name in unused[3:] if f"kernels_hub.compiler.{{name}}" in sys.modules])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "KERNELS_HUB_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[] []\n", "")
