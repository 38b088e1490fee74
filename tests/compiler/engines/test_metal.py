"""What the engine of Metal takes and declines; its numbers are tested in codegen/metal."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels_hub.compiler import Graph
from kernels_hub.compiler.engines.engine import Decline, Device, Engine
from kernels_hub.compiler.engines.metal import ENGINE
from kernels_hub.compiler.engines.registry import engine
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.runtime.toolchain import find_compiler
from tests.compiler.codegen.metal.metal_runner import plan_of, run_metal
from tests.compiler.oracle import array

MPS = Device("mps")


def _graph(dtype: str = "float32") -> Graph:
    graph = Graph("g")
    graph.output("y", graph.input("x", ("n", 4), dtype).unary("exp"))
    return graph


@pytest.fixture
def on_a_mac(monkeypatch):
    """As on a machine with an MPS device."""
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)


def test_it_is_bundled():
    assert engine("metal").loaded() is ENGINE
    assert isinstance(ENGINE, Engine)


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="for machines without an MPS device")
def test_it_declines_off_mps_devices():
    assert ENGINE.check(_graph(), Device("cpu")) == Decline("it runs on MPS devices, not on cpu")
    answer = ENGINE.check(_graph(), MPS)
    assert isinstance(answer, Decline)
    assert "sees no MPS device" in answer.reason
    with pytest.raises(EngineError, match="does not take graph g: this PyTorch"):
        ENGINE.compile(_graph(), MPS, {})


@pytest.mark.usefixtures("on_a_mac")
def test_what_it_takes_and_declines():
    assert ENGINE.check(_graph(), MPS)
    answer = ENGINE.check(_graph("float64"), MPS)
    assert isinstance(answer, Decline)
    assert answer.values and "Metal has no float64" in answer.reason
    graph = Graph("sort")
    x = graph.input("x", ("n",), "float32")
    graph.output("y", graph.apply("argsort", x, axis=0))
    answer = ENGINE.check(graph, MPS)
    assert isinstance(answer, Decline)
    assert "argsort has no form in Metal" in answer.reason
    with pytest.raises(EngineError, match="has no knob 'tile'"):
        ENGINE.compile(_graph(), MPS, {"tile": 3})


@pytest.mark.usefixtures("on_a_mac")
def test_a_kernel_of_too_many_buffers_is_declined():
    graph = Graph("many")
    total = None
    for place in range(40):
        x = graph.input(f"x{place}", ("n",), "float32")
        total = x if total is None else total + x
    graph.output("y", total)
    answer = ENGINE.check(graph, MPS)
    assert isinstance(answer, Decline)
    assert "31 buffers and sizes" in answer.reason


@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")
def test_weights_are_prepared_once_and_a_plan_profiles():
    graph = Graph("w")
    x, w = graph.input("x", ("n", 4), "float32"), graph.parameter("w", (4, 4), "float32")
    graph.weights["w"] = array(4, 4)
    graph.output("y", x @ w.unary("exp"))
    plan = plan_of(graph)
    assert len(plan.program.prepare) == 1
    got = run_metal(graph, [array(3, 4, seed=1)], plan)
    np.testing.assert_allclose(got["y"], array(3, 4, seed=1) @ np.exp(array(4, 4)), rtol=1e-5, atol=1e-6)
    steps = plan.profile([torch.zeros(3, 4)], repeats=1)
    assert [one.name for one in steps] == list(plan.program.steps)
    assert plan.workspace_size({"n": 3}) == 0
