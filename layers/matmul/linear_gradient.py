"""The operators of a linear layer on GPU, and its gradient."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from triton.knobs import runtime

from . import matmul
from .blocks import FORMULAS
from .registration import define, differentiate


def on_triton(kernel: Any) -> dict[str, Any]:
    """The dispatch keys that an implementation in Triton serves; "CPU" under Triton's interpreter."""
    return {"CUDA": kernel, "CPU": kernel} if runtime.interpret else {"CUDA": kernel}


def linear(input: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """activation(input weight^T + bias)."""
    if not matmul.fits(input, weight):
        return FORMULAS[activation](F.linear(input, weight, bias))
    return matmul.run_linear(input, weight, bias, activation, save=False)[0]


def linear_with_gradient(input: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """As `linear`, recorded for backward. The gradients' products are torch.matmul's."""
    output: Tensor = _operator(input, weight, bias, activation)[0]
    return output


def gradient_of_activation(gradient: Tensor, pre: Tensor, activation: str) -> Tensor:
    """The gradient at the pre-activation."""
    if activation == "none":
        return gradient
    if activation == "relu":
        return torch.ops.aten.threshold_backward(gradient, pre, 0)
    if activation == "silu":
        return torch.ops.aten.silu_backward(gradient, pre)
    if activation == "quick_gelu":
        x = pre.float()
        s = torch.sigmoid(1.702 * x)
        return (gradient * (s + 1.702 * x * s * (1 - s))).to(pre.dtype)
    return torch.ops.aten.gelu_backward(
        gradient, pre, approximate="tanh" if activation == "gelu_tanh" else "none"
    )


def gradient_of_product(
    gradient: Tensor, x: Tensor, weight: Tensor, needed: tuple[bool, bool, bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of x (..., K), weight (N, K) and bias (N,), each where it is needed."""
    rows = gradient.reshape(-1, gradient.shape[-1])
    return (
        torch.matmul(gradient, weight) if needed[0] else None,
        torch.matmul(rows.t(), x.reshape(-1, x.shape[-1])) if needed[1] else None,
        rows.sum(0) if needed[2] else None,
    )


def _forward(input: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
    if not matmul.fits(input, weight):
        return _reference(input, weight, bias, activation)
    return matmul.run_linear(input, weight, bias, activation, save=activation != "none")


def _reference(input: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
    pre = F.linear(input, weight, bias)
    return (pre, input.new_empty(0)) if activation == "none" else (FORMULAS[activation](pre), pre)


def _fake(input: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
    shape = (*input.shape[:-1], weight.shape[0])
    return input.new_empty(shape), input.new_empty((0,) if activation == "none" else shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *operands, ctx.activation = inputs
    ctx.save_for_backward(*operands, output[1])
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Any, ...]:
    *operands, pre = ctx.saved_tensors
    if torch.is_grad_enabled():
        # By the formula: what the kernels save hides from a second derivative how it came about.
        return *differentiate(
            lambda *given: _reference(*[*given, ctx.activation])[0], gradient, operands
        ), None
    input, weight, _ = operands
    at_pre = gradient_of_activation(gradient, pre, ctx.activation)
    return (*gradient_of_product(at_pre, input, weight, ctx.needs_input_grad[:3]), None)


_operator = define(
    "linear_with_gradient(Tensor input, Tensor weight, Tensor? bias, str activation) -> (Tensor, Tensor)",
    {**on_triton(_forward), "CompositeExplicitAutograd": _reference},
    _fake,
    backward=_backward,
    setup_context=_save,
)
