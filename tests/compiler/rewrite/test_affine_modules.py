"""Products with scales, shifts and residuals around them: one kernel each, and the numbers of the oracle."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

from kernels_hub.compiler import Graph, compile, evaluate
from kernels_hub.compiler.autodiff import differentiate
from kernels_hub.compiler.engines.triton import ANCHORS, split_reductions
from kernels_hub.compiler.importers.torch_export import import_torch
from kernels_hub.compiler.rewrite.pipeline import INFERENCE_PASS, PIPELINE, rewrite
from kernels_hub.compiler.schedule.kernel import Role, Store
from kernels_hub.compiler.schedule.schedule import schedule
from tests.compiler.rewrite.affine_modules import CASES, together
from tests.compiler.schedule.run import run_schedule

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export's own


@pytest.fixture(scope="module")
def model():
    """The cases side by side with a batch of any size each; module, inputs, graph, rewritten graph."""
    module, inputs = together()
    dims = [Dim(f"n{place}", min=2, max=16) for place, _ in enumerate(CASES)]
    owners = [place for place, case in enumerate(CASES.values()) for _ in case.shapes]
    graph = import_torch(module, inputs, dynamic_shapes=(tuple({0: dims[one]} for one in owners),))
    return module, inputs, graph, rewrite(graph).graph


def special(inputs):
    """Inputs in which NaN and infinities stand beside usual numbers."""
    arrays = [one.numpy().copy() for one in inputs]
    for place, array in enumerate(arrays):
        flat = array.reshape(-1)
        flat[place % 5 + 1] = np.nan
        flat[-1 - place % 3] = (-1) ** place * np.inf
    return arrays


@pytest.mark.parametrize("anchors", [None, ANCHORS], ids=["cpp", "triton"])
def test_each_is_one_kernel(model, anchors):
    *_, graph = model
    planned = schedule(graph) if anchors is None else split_reductions(schedule(graph, anchors))
    stored = []
    for kernel in planned.kernels:
        (nest,) = kernel.nests
        assert nest.anchor is not None, kernel.name
        (store,) = [one for one in nest.body if isinstance(one, Store)]
        assert store.buffer.role is Role.OUTPUT
        stored.append(store.buffer)
    assert len(stored) == len(set(stored)) == len(CASES) >= 30


@pytest.mark.parametrize(
    ("channels", "pixels", "kernels"),
    [(32, 60, 1), (32, 64, 4), (8, 8, 1), (8, 64, 4)],
    ids=["deep", "deep, and crowds the cache", "small", "shallow and large"],
)
def test_a_convolution_between_inputs_and_outputs_is_copied_only_where_that_is_faster(
    channels, pixels, kernels
):
    graph = Graph("layout")
    shape = (2, channels, pixels, pixels)
    x, residual = graph.input("x", shape), graph.input("residual", shape)
    weight = graph.parameter("w", (channels, channels, 3, 3))
    y = graph.apply("conv", x, weight, strides=(1, 1), dilations=(1, 1), padding=((1, 1), (1, 1)))
    graph.output("y", (y + residual).maximum(0.0))
    planned = schedule(graph)
    assert len(planned.kernels) == kernels
    (rooted,) = [nest for kernel in planned.kernels for nest in kernel.nests if nest.anchor is not None]
    assert [one.op.name for one in rooted.body if hasattr(one, "op")] == ["add", "maximum"], "in the epilogue"


def test_numbers_stay(model):
    _, inputs, graph, rewritten = model
    sizes = dict.fromkeys(graph.symbols, 2)
    planned = schedule(rewritten)
    for arrays in ([one.numpy() for one in inputs], special(inputs)):
        expected, oracle = (evaluate(one, arrays).values() for one in (graph, rewritten))
        run = run_schedule(planned, rewritten, dict(zip(graph.inputs, arrays, strict=True)), sizes)
        for name, wanted, one, other in zip(CASES, expected, oracle, run.values(), strict=True):
            np.testing.assert_allclose(one, wanted, 2e-4, 2e-5, err_msg=name)
            np.testing.assert_allclose(other, one, 2e-4, 2e-5, err_msg=name)


def test_compiled_they_give_the_same(model):
    module, inputs, graph, _ = model
    with torch.inference_mode():
        run = compile(graph, "cpu", engines=("cpp",))
        for name, got, wanted in zip(CASES, run(*inputs), module(*inputs), strict=True):
            torch.testing.assert_close(got, wanted, msg=lambda text, name=name: f"{name}: {text}")


def test_gradients_reach_folded_parameters():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    module[1].running_mean.uniform_(-1, 1)
    x = torch.randn(2, 3, 6, 5)
    passes = tuple(one for one in PIPELINE if one is not INFERENCE_PASS)
    graph = rewrite(import_torch(module, (x,)), passes).graph
    assert "folded.0.weight" in graph.parameters and "0.weight" not in graph.parameters
    both = differentiate(graph)
    wanted = dict(module.named_parameters())
    assert set(wanted) <= set(both.gradients) and "folded.0.weight" not in both.gradients
    outputs = evaluate(both.forward, [x.numpy()])
    (name,) = both.given
    seed = np.random.default_rng(0).normal(size=outputs[name].shape).astype(np.float32)
    got = evaluate(
        both.backward, both.backward_inputs({next(iter(graph.inputs)): x.numpy()}, outputs, {name: seed})
    )
    module(x).backward(torch.from_numpy(seed))
    for key, parameter in wanted.items():
        np.testing.assert_allclose(got[both.gradients[key]], parameter.grad, 1e-3, 1e-4, err_msg=key)
