"""The operators of the convolution layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import reference
from .kernels import CONV2D, CONV_NORM
from .registration import define


def _conv2d_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    input, weight, bias, ctx.stride, ctx.padding, ctx.dilation, ctx.groups = inputs
    ctx.save_for_backward(input, weight)
    ctx.bias_shape = None if bias is None else list(bias.shape)


def _conv2d_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    """PyTorch's own convolution_backward: cuDNN, MIOpen or oneDNN, differentiable again."""
    input, weight = ctx.saved_tensors
    needs_input, needs_weight, needs_bias, *_ = ctx.needs_input_grad
    wanted = [needs_input, needs_weight, ctx.bias_shape is not None and needs_bias]
    gradients = torch.ops.aten.convolution_backward(
        gradient,
        input,
        weight,
        ctx.bias_shape,
        ctx.stride,
        ctx.padding,
        ctx.dilation,
        False,
        [0, 0],
        ctx.groups,
        wanted,
    )
    return (*gradients, None, None, None, None)


conv2d = define(
    "conv2d(Tensor input, Tensor weight, Tensor? bias, int[2] stride, int[2] padding, int[2] dilation, "
    "int groups) -> Tensor",
    CONV2D,
    reference.conv2d,
    backward=_conv2d_backward,
    setup_context=_conv2d_setup,
)


conv_norm = define(
    "conv_norm(Tensor input, Tensor weight, Tensor? bias, Tensor? norm_weight, Tensor? norm_bias, "
    "Tensor running_mean, Tensor running_var, Tensor? residual, float eps, int[2] stride, int[2] padding, "
    "int[2] dilation, int groups, bool relu) -> Tensor",
    CONV_NORM,
    reference.conv_norm,
)
