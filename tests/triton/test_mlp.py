"""The Triton variant of `layers/mlp`: under the interpreter, or on a GPU."""

from __future__ import annotations

import copy
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import CLIPVisionConfig, LlamaConfig
from transformers.models.clip.modeling_clip import CLIPMLP
from transformers.models.llama.modeling_llama import LlamaMLP

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.combinations import every_pair, every_value
from tests.layers.checked_operators import opcheck
from tests.layers.linear_cases import FORMULAS, random
from tests.tolerances import assert_close

PACKAGE: ModuleType = import_kernel(source_variant(bundled_folder() / "mlp", "cuda"))

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

# (shape of x, intermediate size)
SHAPES = [((3, 37), 19), ((2, 35, 33), 70), ((70, 48), 80), ((1, 64), 40), ((64,), 33)]

# Two products and an activation, each rounded.
ROUNDINGS = 2.0


def operands(
    shape: tuple[int, ...], n: int, dtype: torch.dtype, device: str, biases: bool
) -> list[torch.Tensor | None]:
    """x, gate, up, down and their biases."""
    k = shape[-1]
    weights = [
        random(*shape),
        random(n, k, seed=1) / k**0.5,
        random(n, k, seed=2) / k**0.5,
        random(k, n, seed=3) / n**0.5,
    ]
    all_biases = [random(n, seed=4), random(n, seed=5), random(k, seed=6)] if biases else []
    return [tensor.to(dtype).to(device) for tensor in (*weights, *all_biases)]


def original(x, gate, up, down, gate_bias=None, up_bias=None, down_bias=None, activation="silu"):
    return F.linear(
        FORMULAS[activation](F.linear(x, gate, gate_bias)) * F.linear(x, up, up_bias), down, down_bias
    )


@every_pair(sizes=SHAPES, dtype=DTYPES, biases=[False, True])
def test_forward(sizes: tuple[tuple[int, ...], int], dtype: torch.dtype, biases: bool, device: str) -> None:
    shape, n = sizes
    tensors = operands(shape, n, dtype, device, biases)
    result = PACKAGE.gated_mlp(*tensors)
    assert result.dtype is dtype
    assert_close(result, original(*(t.double() for t in tensors)), factor=ROUNDINGS)


@every_value(activation=FORMULAS, dtype=DTYPES)
def test_activations_and_backward(activation: str, dtype: torch.dtype, device: str) -> None:
    ours = [t.requires_grad_() for t in operands((2, 9, 33), 35, dtype, device, True)]
    exact = [t.detach().double().requires_grad_() for t in ours]
    result, reference = PACKAGE.gated_mlp(*ours, activation), original(*exact, activation)
    assert_close(result, reference, factor=ROUNDINGS)
    gradient = random(2, 9, 33, seed=7).to(dtype).to(device)
    result.backward(gradient)
    reference.backward(gradient.double())
    for found, expected in zip(ours, exact, strict=True):
        # Pre-activations and the gradients at them are rounded on their way.
        assert_close(found.grad, expected.grad, factor=2 * ROUNDINGS)


@pytest.mark.parametrize("activation", FORMULAS)
def test_plain_mlp(activation: str, device: str) -> None:
    x, first, _, second, first_bias, _, second_bias = (
        t.requires_grad_() for t in operands((9, 33), 35, torch.float32, device, True)
    )
    ours = (x, first, second, first_bias, second_bias)
    exact = [t.detach().double().requires_grad_() for t in ours]
    result = PACKAGE.mlp(*ours, activation)
    reference = F.linear(FORMULAS[activation](F.linear(exact[0], exact[1], exact[3])), exact[2], exact[4])
    assert_close(result, reference)
    result.square().sum().backward()
    reference.square().sum().backward()
    for found, expected in zip(ours, exact, strict=True):
        assert_close(found.grad, expected.grad, factor=ROUNDINGS)


def test_second_derivatives(device: str) -> None:
    tensors = operands((9, 33), 35, torch.float32, device, True)
    ours = [t.detach().clone().requires_grad_() for t in tensors]
    exact = [t.detach().double().requires_grad_() for t in tensors]
    for function, inputs in ((PACKAGE.gated_mlp, ours), (original, exact)):
        (slope,) = torch.autograd.grad(function(*inputs).square().sum(), inputs[0], create_graph=True)
        slope.square().sum().backward()
    for found, expected in zip(ours, exact, strict=True):
        assert_close(found.grad, expected.grad, factor=2 * ROUNDINGS)


def test_only_some_need_a_gradient(device: str) -> None:
    tensors = operands((9, 33), 35, torch.float32, device, False)
    for needed in range(4):
        ours = [t.detach().clone().requires_grad_(i == needed) for i, t in enumerate(tensors)]
        exact = [t.detach().double().requires_grad_(i == needed) for i, t in enumerate(tensors)]
        PACKAGE.gated_mlp(*ours).square().sum().backward()
        original(*exact).square().sum().backward()
        assert [t.grad is not None for t in ours] == [i == needed for i in range(4)]
        assert_close(ours[needed].grad, exact[needed].grad, factor=ROUNDINGS)


def test_layouts_and_empty(device: str) -> None:
    _, gate, up, down = operands((9, 48), 40, torch.float32, device, False)
    wide = random(6, 5, 96).to(device)
    for x in (
        wide[..., ::2],
        wide[..., 7:55],
        wide[..., :48].transpose(0, 1),
        wide[:0, :, :48],
        wide[:1, :, :48].expand(3, 5, 48),
    ):
        assert_close(
            PACKAGE.gated_mlp(x, gate, up, down),
            original(x.double(), gate.double(), up.double(), down.double()),
        )


def blocks(device: str) -> list[tuple[nn.Module, object]]:
    gated = LlamaMLP(LlamaConfig(hidden_size=32, intermediate_size=70, num_attention_heads=2))
    plain = CLIPMLP(CLIPVisionConfig(hidden_size=32, intermediate_size=70, num_attention_heads=2))
    return [
        (gated.to(device), PACKAGE.layers.GatedMLP.forward),
        (plain.to(device), PACKAGE.layers.MLP.forward),
    ]


def test_layers(device: str) -> None:
    for block, forward in blocks(device):
        x, exact = random(2, 9, 32).to(device), copy.deepcopy(block).double()
        result, reference = forward(block, x), exact(x.double())
        assert_close(result, reference, factor=ROUNDINGS)
        result.square().sum().backward()
        reference.square().sum().backward()
        for ours, theirs in zip(block.parameters(), exact.parameters(), strict=True):
            assert_close(ours.grad, theirs.grad, factor=ROUNDINGS)


def test_hooked_children_are_called(device: str) -> None:
    for block, forward in blocks(device):
        next(m for m in block.children() if isinstance(m, nn.Linear)).register_forward_hook(
            lambda m, a, output: output + 1
        )
        x = random(2, 9, 32).to(device)
        torch.testing.assert_close(forward(block, x), block(x))


def test_compile(device: str) -> None:
    block, forward = blocks(device)[0]
    x, exact = random(9, 32).to(device), copy.deepcopy(block).double()
    compiled = torch.compile(lambda x: forward(block, x), backend="aot_eager", fullgraph=True)
    result = compiled(x)
    assert_close(result, exact(x.double()), factor=ROUNDINGS)
    result.square().sum().backward()
    exact(x.double()).square().sum().backward()
    assert_close(block.gate_proj.weight.grad, exact.gate_proj.weight.grad, factor=ROUNDINGS)


def test_opcheck(device: str) -> None:
    operators = getattr(torch.ops, PACKAGE.__name__)
    x, gate, up, _, gate_bias, up_bias, _ = operands((9, 33), 35, torch.float32, device, True)
    opcheck(operators.gated_linear.default, (x, gate, up, gate_bias, None, "silu"))
    inputs = [t.clone().requires_grad_() for t in (x, gate, up, gate_bias, up_bias)]
    opcheck(operators.gated_linear_with_gradient.default, (*inputs, "gelu"))
    pre = [random(9, 35, seed=i).to(device) for i in range(3)]
    opcheck(operators.gated_linear_gradient.default, (*pre, "silu"))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape, n", [((4096, 4096), 11008), ((1, 4096), 11008), ((333, 1000), 999)])
def test_large(dtype: torch.dtype, shape: tuple[int, ...], n: int, device: str) -> None:
    ours = [t.requires_grad_() for t in operands(shape, n, dtype, device, False)]
    exact = [t.detach().double().requires_grad_() for t in ours]
    result, reference = PACKAGE.gated_mlp(*ours), original(*exact)
    assert_close(result, reference, factor=ROUNDINGS)
    gradient = random(*shape, seed=9).to(dtype).to(device)
    result.backward(gradient)
    reference.backward(gradient.double())
    for found, expected in zip(ours, exact, strict=True):
        assert_close(found.grad, expected.grad, factor=2 * ROUNDINGS)
