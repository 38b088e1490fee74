"""The Triton variant of `layers/linear`: under the interpreter, or on a GPU."""

from __future__ import annotations

import copy
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertIntermediate

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.combinations import every_value
from tests.layers.checked_operators import opcheck
from tests.layers.linear_cases import FORMULAS, random
from tests.tolerances import assert_close

PACKAGE: ModuleType = import_kernel(source_variant(bundled_folder() / "linear", "cuda"))
linear = PACKAGE.linear

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

# (shape of the input, out_features): odd ones, aligned ones, more than one tile either way, few rows.
SHAPES = [((3, 37), 19), ((2, 35, 33), 130), ((70, 48), 144), ((1, 64), 40), ((64,), 33)]


def operands(shape: tuple[int, ...], n: int, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    k = shape[-1]
    tensors = (random(*shape), random(n, k, seed=1) / k**0.5, random(n, seed=2))
    return [tensor.to(dtype).to(device) for tensor in tensors]


@every_value(sizes=SHAPES, dtype=DTYPES)
def test_forward(sizes: tuple[tuple[int, ...], int], dtype: torch.dtype, device: str) -> None:
    shape, n = sizes
    x, weight, bias = operands(shape, n, dtype, device)
    for b in (bias, None):
        result = linear(x, weight, b)
        assert result.dtype is dtype and result.is_contiguous()
        assert_close(result, F.linear(x.double(), weight.double(), None if b is None else b.double()))


@every_value(activation=FORMULAS, dtype=DTYPES)
def test_activation(activation: str, dtype: torch.dtype, device: str) -> None:
    x, weight, bias = operands((35, 33), 70, dtype, device)
    assert_close(
        linear(x * 3, weight, bias, activation),
        FORMULAS[activation](F.linear(3 * x.double(), weight.double(), bias.double())),
    )


@pytest.mark.parametrize("activation", FORMULAS)
def test_special_values(activation: str, device: str) -> None:
    x = torch.tensor(
        [float("nan"), float("inf"), -float("inf"), 1e38, -1e38, -20.0, -90.0, 0.0], device=device
    )[:, None]
    weight = torch.ones(17, 1, device=device)
    expected = FORMULAS[activation](x[:, 0])
    expected[1] = float("inf")  # of which PyTorch's vectorised GELU makes NaN on CPU
    torch.testing.assert_close(linear(x, weight, None, activation)[:, 0], expected, equal_nan=True)


@every_value(activation=FORMULAS, dtype=DTYPES)
def test_backward(activation: str, dtype: torch.dtype, device: str) -> None:
    ours = [t.requires_grad_() for t in operands((2, 9, 33), 35, dtype, device)]
    exact = [t.detach().double().requires_grad_() for t in ours]
    gradient = random(2, 9, 35, seed=3).to(dtype).to(device)
    linear(*ours, activation).backward(gradient)
    FORMULAS[activation](F.linear(*exact)).backward(gradient.double())
    for found, expected in zip(ours, exact, strict=True):
        assert_close(
            found.grad, expected.grad, factor=2.0
        )  # the pre-activation is rounded on its way to backward


def test_only_the_input_needs_a_gradient(device: str) -> None:
    x, weight, bias = operands((9, 33), 35, torch.float32, device)
    x.requires_grad_()
    linear(x, weight, bias, "gelu").sum().backward()
    assert_close(
        x.grad,
        torch.autograd.functional.jacobian(
            lambda t: F.gelu(F.linear(t, weight.double(), bias.double())).sum(), x.detach().double()
        ),
    )
    assert weight.grad is None


@pytest.mark.parametrize("activation", FORMULAS)
def test_second_derivatives(activation: str, device: str) -> None:
    ours = [t.requires_grad_() for t in operands((9, 33), 35, torch.float32, device)]
    exact = [t.detach().double().requires_grad_() for t in ours]
    for function, inputs in ((linear, ours), (lambda x, w, b, a: FORMULAS[a](F.linear(x, w, b)), exact)):
        (slope,) = torch.autograd.grad(
            function(*inputs, activation).square().sum(), inputs[0], create_graph=True
        )
        slope.square().sum().backward()
    for found, expected in zip(ours, exact, strict=True):
        assert_close(found.grad, expected.grad, factor=2.0)


def test_layouts(device: str) -> None:
    wide = random(6, 5, 96).to(device)
    weight, bias = random(40, 48).to(device), random(80).to(device)[::2].contiguous()
    for x in (
        wide[..., ::2],
        wide[..., 7:55],
        wide[..., :48].transpose(0, 1),
        wide[:1, :, :48].expand(3, 5, 48),
    ):
        result = linear(x, weight, bias, "silu")
        assert result.is_contiguous()
        assert_close(result, F.silu(F.linear(x.double(), weight.double(), bias.double())))
    transposed = random(48, 40).to(device).t()
    assert_close(linear(wide[..., :48], transposed), F.linear(wide[..., :48].double(), transposed.double()))


def test_what_runs_on_pytorch(device: str) -> None:
    for x, weight in (
        (random(3, 5).double(), random(4, 5).double()),
        (random(0, 5), random(4, 5)),
        (random(3, 0), random(4, 0)),
    ):
        x, weight = x.to(device), weight.to(device)
        assert_close(
            linear(x, weight, None, "relu"),
            F.relu(F.linear(x.double(), weight.double())),
            dtype=torch.float32,
        )
    with pytest.raises(RuntimeError, match="shapes"):
        linear(random(3, 4).to(device), random(4, 5).to(device))
    with torch.autocast(device, torch.bfloat16):
        assert linear(random(3, 5).to(device), random(4, 5).to(device)).dtype is torch.bfloat16


def test_layers(device: str) -> None:
    block = (
        BertIntermediate(BertConfig(hidden_size=32, intermediate_size=70, num_attention_heads=2))
        .to(device)
        .eval()
    )
    x = random(2, 9, 32).to(device)
    reference = copy.deepcopy(block).double()
    assert_close(PACKAGE.layers.LinearActivation.forward(block, x), reference(x.double()))
    assert_close(PACKAGE.layers.Linear.forward(block.dense, x), reference.dense(x.double()))


def test_compile(device: str) -> None:
    module, x = nn.Linear(33, 35).to(device), random(9, 33).to(device)
    compiled = torch.compile(
        lambda x: PACKAGE.linear(x, module.weight, module.bias, "gelu"), backend="aot_eager", fullgraph=True
    )
    exact = copy.deepcopy(module).double()
    F.gelu(exact(x.double())).square().sum().backward()
    result = compiled(x)
    assert_close(result, F.gelu(exact(x.double())))
    result.square().sum().backward()
    assert_close(module.weight.grad, exact.weight.grad)
    with torch.no_grad():
        assert_close(compiled(x), F.gelu(exact(x.double())))


def test_opcheck(device: str) -> None:
    operators = getattr(torch.ops, PACKAGE.__name__)
    x, weight, bias = operands((9, 33), 35, torch.float32, device)
    opcheck(operators.linear.default, (x, weight, bias, "gelu"))
    for activation in ("none", "silu"):
        inputs = [t.clone().requires_grad_() for t in (x, weight, bias)]
        opcheck(operators.linear_with_gradient.default, (*inputs, activation))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape, n", [((4096, 4096), 11008), ((1, 4096), 4096), ((333, 1000), 999), ((16, 8192), 1024)]
)
def test_large(dtype: torch.dtype, shape: tuple[int, ...], n: int, device: str) -> None:
    x, weight, bias = operands(shape, n, dtype, device)
    assert_close(
        linear(x, weight, bias, "gelu"), F.gelu(F.linear(x.double(), weight.double(), bias.double()))
    )
