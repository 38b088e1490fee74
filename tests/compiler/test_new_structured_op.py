"""One row is all that a structured op takes to be imported from PyTorch, run by its kernel, and differentiated."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels_hub.compiler import Graph, compile, differentiate, evaluate, import_torch
from kernels_hub.compiler.ir.op import INT, Attr, Op, Pull, axis_in, same
from kernels_hub.compiler.ir.ops import OPS
from tests.compiler.oracle import array, assert_same


def _shape(operands, attrs):
    axis_in(attrs["axis"], operands[0].rank)
    return operands[0].shape


def _gradients(site):
    """exp(x) times the sums of g / exp(y) from each place to the end."""
    axis = site.attrs["axis"]
    weighted = site.gradient * (-site.result).exp()
    total = weighted.sum((axis,), keepdims=True).broadcast_to(weighted.shape)
    return [(total - weighted.along("cumsum", axis) + weighted) * site.x.exp()]


RUNNING = Op(
    "running_logsumexp",
    "log(cumsum(exp(x))) along an axis.",
    1,
    lambda step: np.logaddexp.accumulate(step.operands[0], axis=step.attrs["axis"]).astype(step.dtype),
    dtype=same("float"),
    shape=_shape,
    attrs=(Attr("axis", INT),),
    derivative=Pull("exp(x) * (sum of g / exp(y) from here on)", _gradients),
    torch=("_logcumsumexp.default",),
    source="torch.logcumsumexp",
)


class Running(torch.nn.Module):
    """logcumsumexp along the last axis, negated."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -torch.ops.aten._logcumsumexp(x, -1)


@pytest.fixture(autouse=True)
def running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, RUNNING.name, RUNNING)


def test_it_is_imported_and_run(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELS_HUB_CACHE", str(tmp_path))
    x = torch.from_numpy(array(3, 7))
    graph = import_torch(Running(), (x,))
    assert [node.attrs["axis"] for node in graph.live() if node.op is RUNNING] == [1]
    run = compile((Running(), (x,), {}), "cpu", engines=("library",))
    assert_same(run(x).numpy(), Running()(x))
    assert_same(evaluate(graph, [x.numpy()])[next(iter(graph.outputs))], Running()(x))


def test_the_library_runs_it_on_dtypes_that_it_takes():
    graph = Graph("running")
    graph.output("y", graph.apply(RUNNING.name, graph.input("x", ("n",), "float64"), axis=0))
    run = compile(graph, "cpu", engines=("library",))
    x = torch.linspace(-3, 3, 11, dtype=torch.float64)
    assert_same(run(x).numpy(), torch.logcumsumexp(x, 0))


def test_it_has_a_gradient():
    graph = Graph("running")
    graph.output("y", graph.apply(RUNNING.name, graph.input("x", (2, 5), "float64"), axis=1))
    both = differentiate(graph)
    x, g = array(2, 5, dtype="float64"), array(2, 5, dtype="float64", seed=1)
    gradient = evaluate(
        both.backward, both.backward_inputs({"x": x}, evaluate(both.forward, {"x": x}), {"y": g})
    )
    leaf = torch.from_numpy(x).requires_grad_()
    torch.logcumsumexp(leaf, 1).backward(torch.from_numpy(g))
    assert_same(gradient["grad.x"], leaf.grad)
