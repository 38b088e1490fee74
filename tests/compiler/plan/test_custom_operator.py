"""Executables inside of torch.compile(fullgraph=True): the same results, for all sizes, and no graph breaks."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch.export import Dim

from kernels_hub.compiler import Graph, compile
from kernels_hub.compiler.errors import PlanError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def whole(function):
    """Traced whole, and run op by op: what is asked is whether it can be traced."""
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def test_a_module_of_any_batch():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 32), nn.ReLU()).eval()
    run = compile((module, (torch.randn(4, 16),)), "cpu", dims=({0: Dim("n")},))

    @whole
    def traced(x):
        return (run(x * 2) + 1).sum(-1)

    with torch.no_grad():
        for size in (4, 7, 2):
            x = torch.randn(size, 16)
            torch.testing.assert_close(traced(x), (module(x * 2) + 1).sum(-1))


def test_results_in_a_structure():
    class Both(nn.Module):
        def forward(self, x):
            return {"twice": x * 2, "parts": (x + 1, [x.sum(0)])}

    run = compile((Both(), (torch.randn(4, 3),)), "cpu")
    x = torch.randn(4, 3)
    found = whole(lambda one: run(one))(x)
    torch.testing.assert_close(found, Both()(x))


def test_sizes_that_are_computed():
    graph = Graph("sizes")
    x = graph.input("x", ("n", 3), "float32")
    y = graph.input("y", ("m", 3), "float32")
    joined = graph.apply("concat", x, y, axis=0)
    graph.output("joined", joined)
    graph.output("flat", graph.apply("reshape", joined, shape=(joined.type.size,)))
    run = compile(graph, "cpu")

    @whole
    def traced(a, b):
        both, flat = run(a, b)
        return both * 2, flat[: a.shape[0]]

    for n, m in ((2, 3), (5, 4)):
        a, b = torch.randn(n, 3), torch.randn(m, 3)
        both = torch.cat([a, b])
        torch.testing.assert_close(traced(a, b), (both * 2, both.reshape(-1)[:n]))


def test_an_executable_that_is_gone_is_named():
    run = compile((nn.Linear(3, 2).eval(), (torch.randn(4, 3),)), "cpu")
    number = run._number
    del run
    gc.collect()
    with pytest.raises(PlanError, match=f"executable {number} is gone: it has to live as long as"):
        torch.ops.kernels_hub_compiler.run(number, [torch.randn(4, 3)])
