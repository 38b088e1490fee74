"""The cases of `python -m benchmarks.layers`: each layer against the module that it replaces."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from transformers.models.resnet.modeling_resnet import (
    ResNetBasicLayer,
    ResNetBottleNeckLayer,
    ResNetConvLayer,
    ResNetShortCut,
)

Case = tuple[str, Callable[[], nn.Module], tuple[Tensor, ...]]

# Convolutions of ResNet-50, ConvNeXt and ViT: channels, filters, kernel, stride, groups, pixels a side,
# and whether the input is channels_last, as inside a model of the fused blocks.
CONVOLUTIONS = (
    (3, 64, 7, 2, 1, 224, False),
    (64, 64, 3, 1, 1, 56, True),
    (256, 64, 1, 1, 1, 56, True),
    (128, 128, 3, 2, 1, 56, True),
    (1024, 256, 1, 1, 1, 14, True),
    (512, 512, 3, 1, 1, 7, True),
    (512, 512, 3, 1, 1, 7, False),
    (96, 96, 7, 1, 96, 56, True),
    (3, 384, 16, 16, 1, 224, False),
)
BATCHES = {"cpu": (1, 8), "cuda": (1, 64)}


def convolution(channels: int, filters: int, kernel: int, stride: int, groups: int) -> nn.Module:
    """A Conv2d, padded as ResNet pads: not at all where the kernel's steps do not overlap."""
    padding = 0 if stride == kernel else kernel // 2
    return nn.Conv2d(channels, filters, kernel, stride, padding, groups=groups)


# layer -> original, channels and pixels a side of its input
BLOCKS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "ConvNormActivation 7x7/2": (partial(ResNetConvLayer, 3, 64, 7, stride=2), 3, 224),
    "ConvNormActivation 3x3": (partial(ResNetConvLayer, 256, 256, 3), 256, 14),
    "ConvNorm 1x1/2": (partial(ResNetShortCut, 256, 512), 256, 56),
    "ResNetBottleneck": (partial(ResNetBottleNeckLayer, 256, 256), 256, 56),
    "ResNetBottleneck small": (partial(ResNetBottleNeckLayer, 2048, 2048), 2048, 7),
    "ResNetBottleneck halving": (partial(ResNetBottleNeckLayer, 512, 1024, stride=2), 512, 28),
    "ResNetBasic": (partial(ResNetBasicLayer, 128, 128), 128, 28),
}


def cases(device: str, dtype: torch.dtype) -> list[Case]:
    """(layer and shape, factory of the original module, example inputs) for each layer and shape.

    The first block of a model gets NCHW data, later ones what the block before them gives: channels_last
    from our kernels. The originals are given the same, which some run faster on and some slower.
    """
    make = partial(torch.randn, device=device, dtype=dtype)
    found: list[Case] = []
    for batch in BATCHES[device]:
        for channels, filters, kernel, stride, groups, side, channels_last in CONVOLUTIONS:
            x = make((batch, channels, side, side))
            x = x.contiguous(memory_format=torch.channels_last) if channels_last else x
            label = f"Conv2d {batch}x{channels}x{side}x{side}, {filters} of {kernel}x{kernel}/{stride}"
            label += f", {groups} groups" if groups > 1 else ""
            label += ", channels_last" if channels_last else ""
            found.append((label, partial(convolution, channels, filters, kernel, stride, groups), (x,)))
        for name, (block, channels, side) in BLOCKS.items():
            x = make((batch, channels, side, side))
            x = x.contiguous(memory_format=torch.channels_last) if channels > 3 else x
            found.append((f"{name} {batch}x{channels}x{side}x{side}", block, (x,)))
    return found
