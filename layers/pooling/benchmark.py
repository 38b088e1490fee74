"""The cases of `python -m benchmarks.layers`: each layer against the module that it replaces."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

Case = tuple[str, Callable[[], nn.Module], tuple[Tensor, ...]]

# Of ResNet, VGG and GoogLeNet, and a small one: channels, pixels a side, window, stride.
IMAGES = (
    (64, 112, 3, 2),
    (64, 224, 2, 2),
    (192, 56, 3, 2),
    (256, 28, 3, 1),
    (512, 14, 3, 1),
    (832, 7, 3, 1),
    (64, 4, 2, 2),
)


def cases(device: str, dtype: torch.dtype) -> list[Case]:
    """(layer and shape, factory of the original module, example inputs) for each layer and shape."""
    return [
        (
            f"{original.__name__} {channels}x{side}x{side}, {kernel}x{kernel}/{stride}",
            partial(original, kernel, stride, kernel // 2 if stride < kernel else 0),
            (torch.randn(1, channels, side, side, device=device, dtype=dtype),),
        )
        for original in (nn.MaxPool2d, nn.AvgPool2d)
        for channels, side, kernel, stride in IMAGES
    ]
