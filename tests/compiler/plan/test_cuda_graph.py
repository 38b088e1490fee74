"""Calls as CUDA graphs: refused on the CPU; on a GPU, replayed on other numbers, by several threads."""

from __future__ import annotations

import threading

import pytest
import torch

from kernels_hub.compiler import Graph, compile
from kernels_hub.compiler.errors import PlanError


def block() -> Graph:
    graph = Graph("block")
    x = graph.input("x", ("n", 64), "float32")
    w = graph.input("w", (64, 32), "float32")
    hidden = (x @ w).unary("tanh")
    graph.output("y", hidden.softmax(-1))
    graph.output("total", hidden.sum(-1))
    return graph


def test_a_plan_on_the_cpu_is_refused():
    plan = compile(block(), "cpu").plan
    with pytest.raises(
        PlanError, match="graph block: only calls on a GPU can be captured, its plan is for cpu"
    ):
        plan.capture(torch.randn(3, 64), torch.randn(64, 32))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("engine", ["triton", "library"])
def test_a_captured_call_computes_what_the_plan_does(engine):
    plan = compile(block(), "cuda", engines=[engine]).plan
    w = torch.randn(64, 32, device="cuda")
    captured = plan.capture(torch.randn(5, 64, device="cuda"), w)
    inputs = [torch.randn(5, 64, device="cuda") for _ in range(8)]
    expected = [plan(one, w) for one in inputs]
    found: list = [None] * len(inputs)

    def run(place: int) -> None:
        found[place] = captured(inputs[place], w)
        torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(inputs))]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    for results, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(results, wanted)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_other_inputs_are_refused():
    plan = compile(block(), "cuda").plan
    x, w = torch.randn(5, 64, device="cuda"), torch.randn(64, 32, device="cuda")
    captured = plan.capture(x, w)
    with pytest.raises(
        PlanError, match=r"input 'x' was captured as torch.float32\[5, 64\], got torch.float32\[4, 64\]"
    ):
        captured(x[:4], w)
    with pytest.raises(PlanError, match="takes the inputs"):
        captured(x)
