"""Cases of the normalizations, shared by the CPU and the Triton tests, with the modules that they replace."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRMSNorm
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearRMSNormGated
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.mamba2.modeling_mamba2 import MambaRMSNormGated
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNormGated

from tests.tolerances import assert_close

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class AddNorm(nn.Module):
    """What the layers that add a residual do, in two steps."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name) if name == "norm" else getattr(self.norm, name)

    def forward(self, hidden_states: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        total = hidden_states + residual
        return self.norm(total), total


def sigmoid_gated(width: int) -> nn.Module:
    module = Qwen3NextRMSNormGated(width)
    module.activation = "sigmoid"
    return module


class EpsilonRMSNorm(nn.Module):
    """The same formula by another author, with another name for its constant."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = 0.3

    def forward(self, hidden_states: Tensor) -> Tensor:
        wide = hidden_states.to(torch.float32)
        return self.weight * (wide * (wide.square().mean(-1, keepdim=True) + self.epsilon).rsqrt()).to(
            hidden_states.dtype
        )


# case -> (layer, factory of the original from the width, number of inputs)
CASES: dict[str, tuple[str, Callable[[int], nn.Module], int]] = {
    "RMSNorm": ("RMSNorm", LlamaRMSNorm, 1),
    "RMSNorm-epsilon": ("RMSNorm", EpsilonRMSNorm, 1),
    "RMSNormRoundedOnce": ("RMSNormRoundedOnce", GptOssRMSNorm, 1),
    "RMSNormZeroCentered": ("RMSNormZeroCentered", GemmaRMSNorm, 1),
    "TorchRMSNorm": ("TorchRMSNorm", lambda width: nn.RMSNorm(width, eps=1e-5), 1),
    "TorchRMSNorm-no-weight": (
        "TorchRMSNorm",
        lambda width: nn.RMSNorm(width, 0.1, elementwise_affine=False),
        1,
    ),
    "LayerNorm": ("LayerNorm", nn.LayerNorm, 1),
    "LayerNorm-no-bias": ("LayerNorm", lambda width: nn.LayerNorm(width, bias=False), 1),
    "LayerNorm-plain": ("LayerNorm", lambda width: nn.LayerNorm(width, 0.1, elementwise_affine=False), 1),
    "RMSNormGated": ("RMSNormGated", Qwen3NextRMSNormGated, 2),
    "RMSNormGated-sigmoid": ("RMSNormGated", sigmoid_gated, 2),
    "RMSNormGatedFloat32": ("RMSNormGatedFloat32", KimiLinearRMSNormGated, 2),
    "AddRMSNorm": ("AddRMSNorm", lambda width: AddNorm(LlamaRMSNorm(width)), 2),
    "AddLayerNorm": ("AddLayerNorm", lambda width: AddNorm(nn.LayerNorm(width)), 2),
}
if "group_size" in signature(MambaRMSNormGated).parameters:  # releases of transformers before have no groups
    CASES |= {
        "MambaRMSNormGated": ("MambaRMSNormGated", lambda width: MambaRMSNormGated(width, width), 2),
        "MambaRMSNormGated-groups": (
            "MambaRMSNormGated",
            lambda width: MambaRMSNormGated(width, width // 2),
            2,
        ),
        "MambaRMSNormGated-open": ("MambaRMSNormGated", lambda width: MambaRMSNormGated(width, width), 1),
    }


class Float64(TorchFunctionMode):
    """Originals say `.to(torch.float32)`; under this mode they compute in float64 what they say."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.float or (func is torch.Tensor.to and torch.float32 in args):
            return args[0].double()
        return func(*args, **(kwargs or {}))


def random(shape: tuple[int, ...], dtype: torch.dtype, device: str, seed: int) -> Tensor:
    """Values with a mean and a scale of their own."""
    values = 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + 0.5
    return values.to(device, dtype)


def make(
    case: str, shape: tuple[int, ...], dtype: torch.dtype, device: str
) -> tuple[nn.Module, list[Tensor]]:
    """The original, with parameters away from 0 and 1, and its inputs."""
    _, factory, count = CASES[case]
    module = factory(shape[-1]).to(device, dtype)
    for seed, parameter in enumerate(module.parameters()):
        parameter.data = random(tuple(parameter.shape), dtype, device, 10 + seed)
    return module, [random(shape, dtype, device, seed) for seed in range(count)]


def call(package: Any, case: str, module: nn.Module, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    layer = getattr(package.layers, CASES[case][0])
    outputs = layer.forward(module, *inputs)
    return outputs if isinstance(outputs, tuple) else (outputs,)


def check(package: Any, case: str, module: nn.Module, inputs: list[Tensor], factor: float = 1.0) -> None:
    """Forward and backward against the original in float64, on the same rounded values.

    The inputs' dtype gives the tolerance: with float32 weights the results are float32, but made of
    rounded values.
    """
    dtype = inputs[0].dtype
    expected = module(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    inputs = [input.detach().requires_grad_() for input in inputs]
    with torch.no_grad():
        inferred = call(package, case, module, inputs)
    outputs = call(package, case, module, inputs)
    wide = [input.detach().double().requires_grad_() for input in inputs]
    wide_parameters = {
        name: value.detach().double().requires_grad_() for name, value in module.named_parameters()
    }
    with Float64():
        references = torch.func.functional_call(module, wide_parameters, tuple(wide))
    references = references if isinstance(references, tuple) else (references,)
    for ours, again, like, reference in zip(outputs, inferred, expected, references, strict=True):
        assert ours.dtype == again.dtype == like.dtype
        assert layout(ours) == layout(again) == layout(like)
        if ours.is_cpu:
            assert torch.equal(ours, again)
        else:  # of kernels that differ in what they store, and so in which sums of products are rounded once
            assert_close(again, reference, dtype=dtype, factor=factor)
        assert_close(ours, reference, dtype=dtype, factor=factor)
    grads = [  # with a mean of zero: float16 cannot hold the sums of many rows else
        (random(tuple(output.shape), torch.float32, str(output.device), 20 + i) - 0.5).to(output.dtype)
        for i, output in enumerate(outputs)
    ]
    module.zero_grad()
    torch.autograd.backward(outputs, grads)
    torch.autograd.backward(references, [grad.double() for grad in grads])
    for ours, reference in zip(inputs, wide, strict=True):
        assert_close(ours.grad, reference.grad, dtype=dtype, factor=2 * factor)
    for name, parameter in module.named_parameters():
        # A sum over rows of products that were rounded once each: its terms may cancel.
        assert_close(parameter.grad, wide_parameters[name].grad, dtype=dtype, factor=2 * factor)
    module.zero_grad()


def layout(x: Tensor) -> list[int]:
    """Strides, where they mean anything."""
    return [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1] if x.numel() else []
