"""Derived gradients of modules against torch's autograd: float32 and bfloat16, by the oracle and by C++."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from kernels_hub.compiler import differentiate, evaluate, import_torch, rewrite, verify
from kernels_hub.compiler.engines.tensors import to_array, to_tensor
from kernels_hub.compiler.runtime.toolchain import find_compiler
from kernels_hub.compiler.schedule.inlining import refused
from tests.combinations import all_but
from tests.compiler.autodiff.gradcheck import gradients
from tests.compiler.autodiff.modules import (
    SAMPLES,
    UNFOLDED,
    compiled_gradients,
    cotangents_of,
    derived,
    torch_gradients,
    traced,
)
from tests.compiler.rewrite.models import MODELS
from tests.tolerances import assert_close, errors

CPP = {
    "gated_mlp": ("cpp",), "layer_norm_block": ("cpp",), "llama": ("cpp",), "llama_grouped": ("cpp",), "bert": ("cpp",),
    "softmax_head": ("cpp",), "embedded": None, "conv_block": ("cpp",),
}  # fmt: skip
"""Engines that take both graphs; None: all of them together, since what is scattered is left to the library."""
STEPS = {"llama": (1e-3, 3e-4), "llama_grouped": (1e-3, 3e-4)}
"""Steps of finite differences, and tolerances, where a module computes a part in float32 whatever its dtype."""
FACTOR = 4.0
"""Gradients are sums of sums of rounded values."""


def _reference(module, args, cotangents):
    """In float64, from the same rounded weights, inputs and gradients."""
    wide = {
        name: one.detach().double().requires_grad_(one.requires_grad) if one.is_floating_point() else one
        for name, one in args.items()
    }
    return torch_gradients(module.double(), wide, [one.double() for one in cotangents])


def assert_gradients(found, expected, factor=FACTOR):
    """All of them, up to float32; one that is zero but for rounding (of keys' biases, say) is so in ours, too."""
    assert found.keys() == expected.keys()
    largest = max(one.abs().max() for one in expected.values())
    for name, one in expected.items():
        if one.abs().max() < 1e-9 * largest:
            assert found[name].abs().max() < 1e-5 * largest, name
        else:
            assert_close(found[name], one, dtype=torch.float32, factor=factor)


def _prepared(name, dtype):
    module, args, graph = traced(SAMPLES[name](), dtype)
    cotangents = cotangents_of(module, args)
    both = derived(graph, module, args)
    verify(both.forward)
    verify(both.backward)
    return module, args, cotangents, both


@pytest.mark.parametrize("name", SAMPLES)
def test_against_autograd(name):
    module, args, cotangents, both = _prepared(name, torch.float32)
    arrays = {one: to_array(given.detach(), both.forward.inputs[one].dtype) for one, given in args.items()}
    given = {
        one: to_array(g, both.forward.outputs[one].dtype)
        for one, g in zip(both.outputs, cotangents, strict=True)
    }
    found = gradients(both, arrays, given)
    expected = _reference(module, args, cotangents)
    assert_gradients({one: to_tensor(array) for one, array in found.items()}, expected)


@pytest.mark.parametrize("name", ["gated_mlp", "layer_norm_block", "llama", "softmax_head", "embedded"])
def test_against_autograd_in_bfloat16(name):
    """No further from the truth than twice what torch's own bfloat16 gradients are, or than rounding is."""
    module, args, cotangents, both = _prepared(name, torch.bfloat16)
    arrays = {one: to_array(given.detach(), both.forward.inputs[one].dtype) for one, given in args.items()}
    given = {
        one: to_array(g, both.forward.outputs[one].dtype)
        for one, g in zip(both.outputs, cotangents, strict=True)
    }
    found = gradients(both, arrays, given)
    theirs = torch_gradients(module, args, cotangents)
    expected = _reference(module, args, cotangents)
    for one, gradient in expected.items():
        ours = to_tensor(found[one])
        assert ours.dtype is torch.bfloat16
        mine, other = errors(ours, gradient)[0], errors(theirs[one], gradient)[0]
        assert mine <= max(2 * other, 1e-2), f"{one}: {mine:.3g}, torch's own is off by {other:.3g}"


def test_what_is_wrong_is_found():
    right = {"x": torch.randn(3), "zero": torch.full((2,), 1e-17)}
    assert_gradients({"x": right["x"].float(), "zero": torch.full((2,), 1e-8)}, right)
    for wrong in ({"x": right["x"] * 1.001, "zero": right["zero"]}, {"x": right["x"], "zero": torch.ones(2)},
                  {"x": right["x"]}):  # fmt: skip
        with pytest.raises(AssertionError):
            assert_gradients(wrong, right)


SLOW = [pytest.param(one, marks=pytest.mark.slow) for one in SAMPLES if one not in {"llama", "embedded"}]


@pytest.mark.parametrize(
    "name", all_but(SAMPLES, "llama", "llama_grouped", "gated_mlp", "layer_norm_block", "softmax_head")
)
def test_compiled(name):
    """Rewritten, scheduled, compiled: forward and backward, at the sizes of the example."""
    if find_compiler() is None:
        pytest.skip("needs a C++ compiler")
    module, args, cotangents, both = _prepared(name, torch.float32)
    found = compiled_gradients(both, args, cotangents, CPP[name])
    expected = _reference(module, args, cotangents)
    assert_gradients(found, expected)


def test_a_rewritten_forward_gives_the_same():
    """What is kept of the forward survives rewriting, and its outputs are those of the module."""
    module, args, _, both = _prepared("llama", torch.float32)
    arrays = {one: to_array(given.detach(), both.forward.inputs[one].dtype) for one, given in args.items()}
    outputs = evaluate(rewrite(both.forward).graph, arrays)
    assert_close(to_tensor(outputs[both.outputs[0]]), module(**args), factor=FACTOR)
    kept = [one for name, one in both.forward.outputs.items() if name not in both.outputs]
    assert all(one.rank < 4 or one.shape[-1] == 16 for one in kept), (
        "nothing of the size of the scores is kept"
    )


@pytest.mark.parametrize("name", SAMPLES)
def test_against_finite_differences_in_float64(name):
    """Along random directions of each input and parameter, by the oracle alone."""
    _, args, cotangents, both = _prepared(name, torch.float64)
    step, tolerance = STEPS.get(name, (1e-6, 1e-7))
    arrays = {one: given.detach().numpy() for one, given in args.items()}
    given = dict(zip(both.outputs, (one.numpy() for one in cotangents), strict=True))
    found = gradients(both, arrays, given)
    random = np.random.default_rng(12)
    for one, gradient in found.items():
        held = arrays if one in arrays else {one: np.asarray(both.forward.weight(one))}
        direction = random.standard_normal(gradient.shape)

        def loss(by, one=one, held=held, direction=direction):
            changed = {one: held[one] + by * direction}
            outputs = evaluate(
                both.forward, {**arrays, **changed} if one in arrays else arrays, weights=changed
            )
            return sum(float(np.sum(outputs[name] * g)) for name, g in given.items())

        expected = (loss(step) - loss(-step)) / (2 * step)
        scale = max(1.0, float(np.abs(gradient * direction).sum()))
        assert abs(float(np.sum(gradient * direction)) - expected) <= tolerance * scale, one


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_whole_model(name):
    """BERT, Llama, ResNet-50, a UNet's block: gradients of all parameters, by the oracle; C++ takes both graphs, but
    for what is added to embeddings."""
    torch.manual_seed(0)
    model = MODELS[name]()
    module, args = model.module.eval(), model.args
    graph = rewrite(import_torch(module, args), UNFOLDED).graph
    learned = {one: given for one, given in module.named_parameters() if one in graph.parameters}
    both = differentiate(graph, learned)
    for one in (both.forward, both.backward):
        assert {value.op_name for value in refused(rewrite(one, UNFOLDED).graph)} <= {"scatter_nd"}
    exact = copy.deepcopy(module).double()
    wide = [
        one.double() if isinstance(one, torch.Tensor) and one.is_floating_point() else one for one in args
    ]
    result = exact(*wide)
    result = result if isinstance(result, torch.Tensor) else result[0]
    weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(9))
    parameters = dict(exact.named_parameters())
    expected = torch.autograd.grad(
        (result * weights).sum(), [parameters[one] for one in learned], allow_unused=True
    )
    tensors = [one for one in args if isinstance(one, torch.Tensor)]
    arrays = {
        one: to_array(t.detach(), graph.inputs[one].dtype)
        for one, t in zip(graph.inputs, tensors, strict=True)
    }
    outputs = evaluate(both.forward, arrays)
    first, *others = both.given
    given = {first: weights.numpy()} | {one: np.zeros_like(outputs[one]) for one in others}
    found = evaluate(both.backward, both.backward_inputs(arrays, outputs, given))
    assert_gradients(
        {one: to_tensor(found[both.gradients[one]]) for one in both.gradients},
        {one: gradient for one, gradient in zip(learned, expected, strict=True) if gradient is not None},
        factor=4 * FACTOR,  # dozens of layers, each rounded, forward and back
    )
