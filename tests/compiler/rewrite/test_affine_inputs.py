"""Scales and shifts that go into weights behind them, and into those of transposed convolutions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from kernels_hub.compiler import Graph, evaluate, verify
from kernels_hub.compiler.importers.torch_export import import_torch
from kernels_hub.compiler.rewrite.affine import AFFINE
from kernels_hub.compiler.rewrite.affine_inputs import AFFINE_INPUTS
from kernels_hub.compiler.rewrite.engine import apply_rules
from kernels_hub.compiler.rewrite.explain import explain_rule
from kernels_hub.compiler.rewrite.pipeline import rewrite
from kernels_hub.compiler.rewrite.rule import Options
from tests.compiler.importers.torch_programs import assert_matches
from tests.compiler.rewrite.structure import kinds
from tests.compiler.strategies import assert_same_outputs

RULES = {rule.name: rule for rule in (*AFFINE, *AFFINE_INPUTS)}
TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-1}


def weight(x, name, *shape, low=-1.0, dtype=None):
    array = np.random.default_rng(len(name)).uniform(low, 1, shape).astype((dtype or x.dtype).numpy)
    return x.graph.parameter(name, shape, dtype or x.dtype, array)


def along(x, vector, axis=1):
    return vector.broadcast(x.shape, (axis,))


def conv(x, groups=1, pads=0, op="conv"):
    shape = (6, 4 // groups, 3, 2) if op == "conv" else (4, 6 // groups, 3, 2)
    attrs = {} if op == "conv" else {"output_padding": (1, 0)}
    padding = ((pads, 0), (pads, pads))
    return x.graph.apply(
        op,
        x,
        weight(x, "w", *shape),
        strides=(2, 1),
        dilations=(1, 1),
        padding=padding,
        groups=groups,
        **attrs,
    )


def scaled_transpose(x, groups=1, axis=1):
    y = conv(x, groups, 1, "conv_transpose")
    return y * along(y, weight(x, "scale", y.shape[axis]), axis)


IMAGE = ("n", 4, 7, 5)
FIRES = {
    "scaled_into_conv": [
        (lambda x, g=g, p=p: conv(x * along(x, weight(x, "scale", 4)), g, p), IMAGE) for g in (1, 2) for p in (0, 1)
    ],
    "shifted_into_conv": [
        (lambda x, g=g: conv(x + along(x, weight(x, "shift", 4)), g), IMAGE) for g in (1, 2)
    ],
    "scaled_into_matmul": [
        (lambda x: (x * along(x, weight(x, "scale", 5), 3)) @ weight(x, "w", 5, 3).broadcast(("n", 4, 5, 3), (2, 3)), IMAGE),
        (lambda x: (x * along(x, weight(x, "scale", 5))) @ weight(x, "w", 5, 3), ("n", 5)),
    ],
    "shifted_into_matmul": [
        (lambda x: (x + along(x, weight(x, "shift", 5), 3)) @ weight(x, "w", 5, 3).broadcast(("n", 4, 5, 3), (2, 3)), IMAGE),
        (lambda x: (x + along(x, weight(x, "shift", 5))) @ weight(x, "w", 5, 3), ("n", 5)),
    ],
    "scale_conv_transpose": [(lambda x, g=g: scaled_transpose(x, g), IMAGE) for g in (1, 2)],
}  # fmt: skip


def graph_of(build, shape, dtype="float32"):
    graph = Graph("case")
    graph.output("y", build(graph.input("x", shape, dtype)))
    return graph


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", FIRES)
def test_fires_and_keeps_numbers_up_to_rounding(name, dtype):
    for build, shape in FIRES[name]:
        graph = graph_of(build, shape, dtype)
        outcome = apply_rules(graph, [RULES[name]])
        assert outcome.fired[name] == 1, explain_rule(graph, RULES[name])
        assert not apply_rules(graph, [RULES[name]], Options(rounding=False)).fired
        verify(outcome.graph)
        inputs = graph.dummy_inputs(0, {"n": 2})
        expected, actual = (evaluate(one, inputs) for one in (graph, outcome.graph))
        assert_same_outputs(actual, expected, TOLERANCE[dtype])
        special = {"x": inputs["x"].copy()}
        special["x"][0].reshape(-1)[:2] = [np.nan, -0.0]
        expected, actual = (evaluate(one, special)["y"].astype(np.float32) for one in (graph, outcome.graph))
        np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
        assert np.isnan(expected).any()


MISSES = {
    "scaled_into_conv": [
        (lambda x: conv(x * along(x, weight(x, "scale", 5), 3)), "lies along (3,), not along 1"),
        (lambda x: conv(x * x.exp()), "made by exp"),
        (lambda x: conv(y := x * along(x, weight(x, "scale", 4))) + y.sum(), "is used 2 times"),
    ],
    "shifted_into_conv": [
        (lambda x: conv(x + along(x, weight(x, "shift", 4)), pads=1), "would see the shift"),
        (lambda x: conv(x + along(x, weight(x, "shift", 5), 3)), "lies along (3,), not along 1"),
    ],
    "scaled_into_matmul": [
        (lambda x: (x * along(x, weight(x, "scale", 7), 2)) @ weight(x, "w", 5, 3).broadcast(("n", 4, 5, 3), (2, 3)), "lies along (2,), not along 3"),
        (lambda x: (x * along(x, weight(x, "scale", 5), 3)) @ x.transpose(), "depends on"),
    ],
    "shifted_into_matmul": [
        (lambda x: (x + along(x, weight(x, "shift", 7), 2)) @ weight(x, "w", 5, 3).broadcast(("n", 4, 5, 3), (2, 3)), "lies along (2,), not along 3"),
        (lambda x: (x + along(x, weight(x, "shift", 5), 3)) @ x.transpose(), "depends on"),
    ],
    "scale_conv_transpose": [
        (lambda x: scaled_transpose(x, axis=3), "lies along (3,), not along 1"),
        (lambda x: (y := conv(x)) * along(y, weight(x, "scale", 6)), "made by conv, not by conv_transpose"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", MISSES)
def test_declines_and_says_why(name):
    for build, reason in MISSES[name]:
        graph = graph_of(build, (2, 4, 7, 5) if "transpose" in name else IMAGE)
        assert not apply_rules(graph, [RULES[name]]).fired
        assert reason in str(explain_rule(graph, RULES[name])), explain_rule(graph, RULES[name])


def norm(kind, size):
    one = kind(size)
    for tensor in (one.running_mean, one.running_var, one.weight.data, one.bias.data):
        tensor.uniform_(0.5, 1.5)
    return one


MODULES = {
    "before a convolution": (lambda: [norm(nn.BatchNorm2d, 4), nn.Conv2d(4, 6, 3, groups=2)], (2, 4, 8, 8), "conv"),
    "behind a transposed one": (
        lambda: [nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1), norm(nn.BatchNorm2d, 6)],
        (2, 4, 8, 8), "conv_transpose"),
    "before a linear layer": (lambda: [norm(nn.BatchNorm1d, 8), nn.Linear(8, 6)], (3, 8), "matmul"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # torch.export's own
@pytest.mark.parametrize("name", MODULES)
def test_batch_norm(name):
    torch.manual_seed(0)
    layers, shape, op = MODULES[name]
    module, x = nn.Sequential(*layers()).eval(), torch.randn(shape)
    result = rewrite(import_torch(module, (x,)), after=lambda _, one: verify(one)).graph
    assert kinds(result) == {op: 1, "add": 1}
    with torch.no_grad():
        assert_matches(next(iter(evaluate(result, [x.numpy()]).values())), module(x))
