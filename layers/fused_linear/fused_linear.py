"""One linear layer with its bias and activation: the operator, and when it runs.

Laid into every repository that computes linear layers; `kernels` is the repository's backend.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from .blocks import FORMULAS, needs_gradient
from .kernels import LINEAR, applies, dense, linear_directly, linear_with_gradient, operand
from .registration import define


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none") -> Tensor:
    """activation(input weight^T + bias).

    input: (..., K). weight: (N, K). bias: (N,) or None. Returns (..., N), in input's dtype.
    activation: "none", "relu", "silu", "gelu", "gelu_tanh" or "quick_gelu"; ValueError for another.
    float32, bfloat16 and float16 run on the kernel and are summed in float32. Other dtypes, tensor
    subclasses, autocast and, on CPU, whatever needs a gradient run on torch.nn.functional.linear.
    """
    if activation not in FORMULAS:
        raise ValueError(f"linear: unknown activation {activation!r}; known: {', '.join(FORMULAS)}")
    if linear_directly is not None:
        directly = linear_directly(input, weight, bias, activation)
        if directly is not None:
            return directly
    if applies(input, (weight,), (bias,)):
        if not needs_gradient(input, weight, bias):
            output: Tensor = _linear(input, operand(weight), bias, activation)
            return output
        if linear_with_gradient is not None:
            return linear_with_gradient(input, weight, bias, activation)
    return reference(input, dense(weight), bias, activation)


def reference(input: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """The formula in plain PyTorch."""
    return FORMULAS[activation](F.linear(input, weight, bias))


def _fake(input: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    return input.new_empty((*input.shape[:-1], weight.shape[0]))


_linear = define(
    "linear(Tensor input, Tensor weight, Tensor? bias, str activation) -> Tensor",
    {**LINEAR, "CompositeExplicitAutograd": reference},
    _fake,
)
