"""The formulas in plain PyTorch: what the kernels are tested against, and what runs where none fits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """y[n, k, p, q] = bias[k] + sum over c, r, s of x[n, c, p*stride + r*dilation - padding, …] * w[k, c, r, s].

    input (N, C, H, W), weight (K, C / groups, R, S), bias (K,): returns (N, K, P, Q) in the memory
    format that PyTorch gives, channels_last where input or weight has it.
    Source: torch.nn.functional.conv2d.
    """
    return F.conv2d(input, weight, bias, list(stride), list(padding), list(dilation), groups)


def conv_norm(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    residual: Tensor | None,
    eps: float,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    relu: bool,
) -> Tensor:
    """act(batch_norm(conv2d(x)) + residual), the norm with its running statistics; act is ReLU or nothing.

    norm_weight, norm_bias, running_mean, running_var (K,); residual (N, K, P, Q) or None. On the CPU the
    result is channels_last, whatever the input is: a following convolution is fastest on that.
    Sources: arXiv 1502.03167 (batch normalization), 1512.03385 (the order of the block).
    """
    output = conv2d(input, weight, bias, stride, padding, dilation, groups)
    output = F.batch_norm(output, running_mean, running_var, norm_weight, norm_bias, False, 0.0, eps)
    if residual is not None:
        output = output + residual
    if relu:
        output = torch.relu(output)
    return output.contiguous(memory_format=torch.channels_last) if input.device.type == "cpu" else output


def is_channels_last(tensor: Tensor) -> bool:
    """Whether a 4-d tensor's strides say channels_last, by the rule with which PyTorch picks a format.

    `is_contiguous(memory_format=torch.channels_last)` is another question: tensors with one channel
    or one pixel are contiguous in both formats. Source: c10/core/MemoryFormat.h,
    is_channels_last_strides_2d.
    """
    sizes, strides = tensor.shape, tensor.stride()
    if strides[1] == 0:
        return False
    least = 0
    for dimension in (1, 3, 2, 0):
        if sizes[dimension] == 0 or strides[dimension] < least:
            return False
        if dimension == 0 and least == strides[1]:
            return False
        least = strides[dimension] * max(sizes[dimension], 1)
    return True


def output_shape(
    input: Sequence[int],
    weight: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, int, int, int]:
    """(N, K, P, Q) from the shapes of input and weight; P or Q below 1 where the kernel is larger than the input."""
    batch, _, height, width = input
    channels, _, rows, columns = weight
    return (
        batch,
        channels,
        (height + 2 * padding[0] - dilation[0] * (rows - 1) - 1) // stride[0] + 1,
        (width + 2 * padding[1] - dilation[1] * (columns - 1) - 1) // stride[1] + 1,
    )


def is_regular(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> bool:
    """Whether a kernel may take these arguments: shapes and dtypes fit and nothing is empty.

    Everything else goes to PyTorch, for its result or for its error message.
    """
    return (
        input.dtype == weight.dtype
        and (bias is None or (bias.dtype == weight.dtype and bias.is_contiguous()))
        and input.device == weight.device
        and has_regular_sizes(
            input.shape, weight.shape, None if bias is None else bias.shape, stride, padding, dilation, groups
        )
    )


def has_regular_sizes(
    input: Sequence[int],
    weight: Sequence[int],
    bias: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> bool:
    """Whether the shapes of input, weight and bias fit each other and nothing is empty."""
    return (
        len(input) == len(weight) == 4
        and (bias is None or tuple(bias) == (weight[0],))
        and groups > 0
        and input[1] == weight[1] * groups
        and weight[0] % groups == 0
        and min(stride) > 0
        and min(padding) >= 0
        and min(dilation) > 0
        and min(input) > 0
        and min(weight) > 0
        and min(output_shape(input, weight, stride, padding, dilation)) > 0
    )
