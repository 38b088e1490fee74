"""Small modules with fixed weights, and their inputs: what the kept files were made from.

Weights and inputs are sines of their positions, not random numbers: every release of PyTorch makes the same ones.
The classes never change, since kept layers are bound to their parameters by name.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F


def wave(*shape: int, step: float = 0.7) -> torch.Tensor:
    """A float32 tensor of sines."""
    count = torch.Size(shape).numel()
    return torch.sin(torch.arange(count, dtype=torch.float64) * step).reshape(shape).to(torch.float32)


def with_fixed_weights(module: nn.Module) -> nn.Module:
    """The module in eval mode; each parameter is a wave of its own, scaled by its fan-in."""
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            scale = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.5
            parameter.copy_(wave(*parameter.shape, step=0.7 + 0.13 * number) * scale)
            if parameter.dim() == 1:
                parameter.add_(1.0)
    return module.eval()


class NormedMLP(nn.Module):
    """A LayerNorm and two linear layers with GELU between them, with a residual."""

    def __init__(self, size: int = 24, inner: int = 40) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.up = nn.Linear(size, inner)
        self.down = nn.Linear(inner, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class AttentionBlock(nn.Module):
    """Causal self-attention of two heads, with an RMS norm and a residual."""

    def __init__(self, size: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.RMSNorm(size, eps=1e-5)
        self.qkv = nn.Linear(size, 3 * size, bias=False)
        self.out = nn.Linear(size, size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, size = x.shape
        rows = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, size // self.heads)
        query, key, value = rows.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).reshape(batch, length, size))


def normed_mlp() -> tuple[nn.Module, torch.Tensor]:
    """The MLP and an input, (rows, 24)."""
    return with_fixed_weights(NormedMLP()), wave(6, 24, step=0.37)


def attention_block() -> tuple[nn.Module, torch.Tensor]:
    """The attention block and an input, (batch, length, 32)."""
    return with_fixed_weights(AttentionBlock()), wave(2, 5, 32, step=0.37)


def write_onnx(path: Path) -> None:
    """The MLP's formula as an ONNX file that holds its weights, with the axis "rows"."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights = {name: parameter.detach() for name, parameter in normed_mlp()[0].named_parameters()}
    arrays = {name: (one.T if one.dim() > 1 else one).contiguous().numpy() for name, one in weights.items()}
    nodes = [
        helper.make_node("LayerNormalization", ["x", "norm.weight", "norm.bias"], ["normed"], axis=-1),
        helper.make_node("MatMul", ["normed", "up.weight"], ["product"]),
        helper.make_node("Add", ["product", "up.bias"], ["wide"]),
        helper.make_node("Gelu", ["wide"], ["active"]),
        helper.make_node("MatMul", ["active", "down.weight"], ["narrow"]),
        helper.make_node("Add", ["narrow", "down.bias"], ["change"]),
        helper.make_node("Add", ["x", "change"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 24])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 24])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)
