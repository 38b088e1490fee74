"""The functions of PyTorch: what the kernels are compared with, and what runs where none does."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

Pair = int | tuple[int, int]
"""What is set of rows and of columns: one number for both, or two."""


def max_pool2d(
    input: Tensor, kernel_size: Pair, stride: Pair | None, padding: Pair, dilation: Pair, ceil_mode: bool
) -> Tensor:
    """torch.nn.functional.max_pool2d."""
    return F.max_pool2d(input, kernel_size, stride, padding, dilation, ceil_mode)


def avg_pool2d(
    input: Tensor,
    kernel_size: Pair,
    stride: Pair | None,
    padding: Pair,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    """torch.nn.functional.avg_pool2d."""
    return F.avg_pool2d(input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
