"""The layers: `forward` runs with `self` being the module that is replaced."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from . import functional
from .reference import Pair


class MaxPool2d(nn.Module):
    """torch.nn.MaxPool2d: the largest number of each window of (N, C, H, W) or (C, H, W).

    Contiguous float32 without gradients runs on the kernel; the rest, with indices too, runs PyTorch's function.
    """

    has_backward: bool = True
    can_torch_compile: bool = True

    kernel_size: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    ceil_mode: bool
    return_indices: bool

    def forward(self, input: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        if self.return_indices:
            return F.max_pool2d(
                input,
                self.kernel_size,
                self.stride,
                self.padding,
                self.dilation,
                self.ceil_mode,
                return_indices=True,
            )
        return functional.max_pool2d(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode
        )


class AvgPool2d(nn.Module):
    """torch.nn.AvgPool2d: the mean of each window of (N, C, H, W) or (C, H, W). As MaxPool2d."""

    has_backward: bool = True
    can_torch_compile: bool = True

    kernel_size: Pair
    stride: Pair
    padding: Pair
    ceil_mode: bool
    count_include_pad: bool
    divisor_override: int | None

    def forward(self, input: Tensor) -> Tensor:
        return functional.avg_pool2d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )
