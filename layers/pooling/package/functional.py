"""The functions of this package.

The kernels are for contiguous float32. Everything else runs PyTorch's functions: other dtypes and memory formats,
where gradients are needed, under autocast, in transforms of torch.func.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import kernels, operators, reference
from .direct import is_for_any_size, is_strided, is_transformed, is_unwatched, records_gradient
from .reference import Pair


def max_pool2d(
    input: Tensor,
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    dilation: Pair = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """The largest number of each window of input (N, C, H, W) or (C, H, W); NaN where one is in the window.

    Returns what torch.nn.functional.max_pool2d does, but that of 0 and -0 it may be the other.
    """
    if is_unwatched(kernels.DISPATCH_KEYS, input):
        return kernels.max_pool2d(input, kernel_size, stride, padding, dilation, ceil_mode)
    geometry = _pairs(kernel_size, kernel_size if stride is None else stride, padding, dilation)
    if geometry is None or _is_for_pytorch(input):
        return reference.max_pool2d(input, kernel_size, stride, padding, dilation, ceil_mode)
    return operators.max_pool2d(input, *geometry, ceil_mode)  # type: ignore[no-any-return]


def avg_pool2d(
    input: Tensor,
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window of input (N, C, H, W) or (C, H, W), as torch.nn.functional.avg_pool2d.

    The sum of a window is made of the sums of its columns, in float32.
    """
    if is_unwatched(kernels.DISPATCH_KEYS, input):
        return kernels.avg_pool2d(
            input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
        )
    geometry = _pairs(kernel_size, kernel_size if stride is None else stride, padding)
    if geometry is None or _is_for_pytorch(input):
        return reference.avg_pool2d(
            input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
        )
    return operators.avg_pool2d(input, *geometry, ceil_mode, count_include_pad, divisor_override)  # type: ignore[no-any-return]


def _pairs(*numbers: Pair) -> list[tuple[int, int]] | None:
    """What an operator takes; None for what PyTorch shall refuse, or for sizes that a trace leaves open."""
    pairs = []
    for each in numbers:
        pair = kernels.pair(each)
        if pair is None:
            return None
        pairs.append(pair)
    return pairs


def _is_for_pytorch(input: Tensor) -> bool:
    return (
        type(input) not in (Tensor, torch.nn.Parameter)
        or input.dtype is not torch.float32
        or not is_strided(input)
        or not input.is_contiguous()
        or torch.is_autocast_enabled(input.device.type)
        or is_transformed()
        or is_for_any_size(input)
        or records_gradient(input)
    )
