"""The cases of `python -m benchmarks.layers`: each layer against the module that it replaces."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from transformers import ConvNextConfig
from transformers.models.convnext.modeling_convnext import ConvNextLayer

Case = tuple[str, Callable[[], nn.Module], tuple[Tensor, ...]]

# Of ConvNeXt-T and -B at 224 x 224: channels, pixels a side.
IMAGES = ((96, 56), (192, 28), (384, 14), (768, 7), (128, 56), (1024, 7))


def cases(device: str, dtype: torch.dtype) -> list[Case]:
    """(layer and shape, factory of the original module, example inputs) for each layer and shape."""
    return [
        (
            f"ConvNextBlock {channels}x{side}x{side}",
            partial(ConvNextLayer, ConvNextConfig(), channels),
            (_image(channels, side, device, dtype),),
        )
        for channels, side in IMAGES
    ]


def _image(channels: int, side: int, device: str, dtype: torch.dtype) -> Tensor:
    image = torch.randn(1, channels, side, side, device=device, dtype=dtype)
    return image.contiguous(memory_format=torch.channels_last)
