"""A linear layer whose weight lies transposed, as GPT-2 has them: the operator, and when it runs."""

from __future__ import annotations

import torch
from torch import Tensor

from .blocks import needs_gradient
from .kernels import TRANSPOSED_LINEAR, transposed_linear_pays
from .registration import define


def transposed_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x weight + bias.

    x: (..., K). weight: (K, N). bias: (N,). Returns (..., N), in x's dtype. On the CPU products of float32,
    and of what else oneDNN multiplies natively, run on a copy of the weight that is packed once and
    compared with it before each use. Other dtypes and devices, small products, tensor subclasses,
    autocast, and whatever needs a gradient run on torch.addmm.
    """
    if not needs_gradient(x, weight, bias) and transposed_linear_pays(x, weight, bias):
        output: Tensor = _transposed_linear(x, weight, bias)
        return output
    return reference(x, weight, bias)


def reference(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The formula in plain PyTorch, as transformers writes it."""
    size_out = (*x.shape[:-1], weight.shape[1])
    return torch.addmm(bias, x.reshape(-1, x.shape[-1]), weight).view(size_out)


def _fake(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[1]))


_transposed_linear = define(
    "transposed_linear(Tensor x, Tensor weight, Tensor bias) -> Tensor",
    {**TRANSPOSED_LINEAR, "CompositeExplicitAutograd": reference},
    _fake,
)
