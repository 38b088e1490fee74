"""The kinds of convolutions that are measured. A row is a pixel of the input, or a place of a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kernels_hub.calibration.kind import Arguments, Kind, Layer, product

if TYPE_CHECKING:
    from torch import nn

_PIXELS = (16, 64, 256, 1024, 4096, 16384)


def _form(convolution: Layer) -> str:
    height, width = convolution.kernel_size
    form = f"{height}x{width}/{convolution.stride[0]}"
    if convolution.groups == 1:
        is_unpadded = height >= _LEAST_UNPADDED and convolution.padding in {(0, 0), "valid"}
        return f"{form} unpadded" if is_unpadded and convolution.stride == (1, 1) else form
    return form + _groups(convolution)


def _groups(convolution: Layer) -> str:
    if convolution.groups == 1:
        return ""
    return " depthwise" if convolution.groups == convolution.in_channels else " grouped"


_LEAST_UNPADDED = 5
"""Rows of a kernel that, without padding, is a class of its own: many cover the whole image (VGG's classifier)."""


def _read_convolution(module: Layer) -> tuple[str, int, int, int]:
    depth = module.in_channels // module.groups
    return _form(module), depth, module.out_channels, module.in_channels


def _read_block(module: Layer) -> tuple[str, int, int, int]:
    return _read_convolution(module.convolution)


def _read_residual(module: Layer) -> tuple[str, int, int, int]:
    blocks = list(module.layer)
    stride = max(block.convolution.stride[0] for block in blocks)
    depth, columns = blocks[0].convolution.in_channels, blocks[-1].convolution.out_channels
    return f"/{stride}", depth, columns, depth


def _read_line_convolution(module: Layer) -> tuple[str, int, int, int]:
    form = f"{module.kernel_size[0]}/{module.stride[0]}{_groups(module)}"
    return form, module.in_channels // module.groups, module.out_channels, module.in_channels


def _geometry(form: str) -> tuple[int, int, int]:
    """Rows and columns of the kernel, and the stride."""
    kernel, _, stride = form.partition(" ")[0].partition("/")
    height, _, width = kernel.partition("x")
    return int(height), int(width), int(stride)


def _channels(form: str, depth: int, columns: int) -> int:
    """Of the input: as many as come out where there are groups, each of `depth`."""
    return columns if form.endswith(("depthwise", "grouped")) else depth


def _convolution(form: str, depth: int, columns: int) -> nn.Module:
    from torch import nn

    height, width, stride = _geometry(form)
    is_padded = stride < max(height, width) and not form.endswith("unpadded")
    padding = (height // 2, width // 2) if is_padded else 0
    channels = _channels(form, depth, columns)
    return nn.Conv2d(channels, columns, (height, width), stride, padding, groups=channels // depth)


def _line_geometry(form: str) -> tuple[int, int]:
    """Taps and stride."""
    taps, _, stride = form.partition(" ")[0].partition("/")
    return int(taps), int(stride)


def _line_convolution(form: str, depth: int, columns: int) -> nn.Module:
    from torch import nn

    taps, stride = _line_geometry(form)
    channels = _channels(form, depth, columns)
    padding = taps // 2 if stride < taps else 0
    return nn.Conv1d(channels, columns, taps, stride, padding, groups=channels // depth)


def _line(form: str, depth: int, columns: int, rows: int) -> list[Arguments]:
    import torch

    return [((torch.randn(1, _channels(form, depth, columns), rows),), {})]


def _line_work(form: str, depth: int, columns: int, rows: int) -> float:
    taps, stride = _line_geometry(form)
    return float("inf") if taps > rows else depth * columns * rows * taps / stride


def _read_convnext(module: Layer) -> tuple[str, int, int, int]:
    linear = next(child for child in module._modules.values() if hasattr(child, "in_features"))
    return "", linear.in_features, linear.out_features, linear.in_features


def _convnext(_form: str, depth: int, _columns: int) -> nn.Module:
    from transformers import ConvNextConfig
    from transformers.models.convnext.modeling_convnext import ConvNextLayer

    return ConvNextLayer(ConvNextConfig(), depth)


def _image_of_pixels(form: str, depth: int, _columns: int, rows: int) -> list[Arguments]:
    """A channels_last image, which the block before leaves."""
    import torch

    side = _side(form, rows)
    return [((torch.randn(1, depth, side, side).contiguous(memory_format=torch.channels_last),), {})]


def _conv_norm_activation(form: str, depth: int, columns: int) -> nn.Module:
    from transformers.models.resnet.modeling_resnet import ResNetConvLayer

    kernel, _, stride = _geometry(form)
    return ResNetConvLayer(depth, columns, kernel, stride)


def _conv_norm(form: str, depth: int, columns: int) -> nn.Module:
    from transformers.models.resnet.modeling_resnet import ResNetShortCut

    return ResNetShortCut(depth, columns, _geometry(form)[2])


def _resnet_basic(form: str, depth: int, columns: int) -> nn.Module:
    from transformers.models.resnet.modeling_resnet import ResNetBasicLayer

    return ResNetBasicLayer(depth, columns, int(form[1:]))


def _resnet_bottleneck(form: str, depth: int, columns: int) -> nn.Module:
    from transformers.models.resnet.modeling_resnet import ResNetBottleNeckLayer

    return ResNetBottleNeckLayer(depth, columns, int(form[1:]))


def _image(form: str, depth: int, columns: int, rows: int) -> list[Arguments]:
    """An image as the first layer of a model gets it, so that changing to channels_last is paid for; of a depthwise
    convolution a small one in either format, since models of pixels have those."""
    import torch

    side = _side(form, rows)
    image = torch.randn(1, _channels(form, depth, columns), side, side)
    if not form.endswith("depthwise") or rows > _MOST_IN_EITHER_FORMAT:
        return [((image,), {})]
    return [((image,), {}), ((image.contiguous(memory_format=torch.channels_last),), {})]


_MOST_IN_EITHER_FORMAT = 1024


def _side(form: str, rows: int) -> int:
    """Of an image of so many pixels, which a kernel without padding fits into."""
    side: int = max(1, round(rows**0.5))
    return max(side, _geometry(form)[0]) if form.endswith("unpadded") else side


def _convolution_work(form: str, depth: int, columns: int, rows: int) -> float:
    height, width, stride = _geometry(form)
    if max(height, width) ** 2 > rows:
        return float("inf")  # the image is smaller than the kernel
    if form.endswith("unpadded"):
        return depth * columns * (height * (_side(form, rows) - height + 1)) ** 2
    return depth * columns * rows * height * width / stride**2


_DEPTHWISE = ("7x7/1 depthwise", "5x5/1 depthwise", "5x5/2 depthwise", "3x3/1 depthwise", "3x3/2 depthwise")
_STEMS = ("4x4/4", "7x7/2", "7x7/4", "3x3/1", "3x3/2", "16x16/16")
_CHANNELS = (32, 64, 128, 256, 512, 1024)
_MANY_CHANNELS = (16, *_CHANNELS, 2048)
_CONVOLUTION_SIZES = [
    *((form, 1, columns) for form in _DEPTHWISE for columns in _MANY_CHANNELS),
    *((form, 4, columns) for form in _STEMS for columns in (16, 32, 64, 128, 256, 512)),
    *((form, depth, columns) for form in ("3x3/1 grouped", "3x3/2 grouped")
      for depth in (4, 8, 16, 32, 64) for columns in _CHANNELS[1:] if columns >= 2 * depth),
    *((form, depth, columns) for form in ("5x5/1 unpadded", "7x7/1 unpadded")
      for depth in _CHANNELS[1:5] for columns in _CHANNELS[1:5]),
    *((form, depth, columns) for form in ("1x1/1",)
      for depth in _MANY_CHANNELS for columns in _MANY_CHANNELS if depth / 8 <= columns <= depth * 8),
    *((form, depth, columns) for form in ("3x3/1", "3x3/2", "2x2/2", "1x1/2")
      for depth in (16, *_CHANNELS) for columns in (16, *_CHANNELS) if depth / 4 <= columns <= depth * 4),
    *((form, depth, columns) for form in ("5x5/1", "1x7/1", "7x1/1", "1x3/1", "3x1/1")
      for depth in _CHANNELS[:5] for columns in _CHANNELS[:5] if depth / 4 <= columns <= depth * 4),
]  # fmt: skip
_LINE_SIZES = [
    *((form, 1, columns) for form in ("3/1 depthwise", "4/1 depthwise", "7/1 depthwise", "31/1 depthwise")
      for columns in _CHANNELS),
    *((form, depth, columns) for form in ("10/5", "7/1", "3/1") for depth in (1, 4) for columns in (32, 128, 512)),
    *((form, depth, columns) for form in ("1/1", "3/1", "5/1", "7/1", "2/2", "3/2")
      for depth in _CHANNELS for columns in _CHANNELS if depth / 2 <= columns <= depth * 2),
]  # fmt: skip
_CONV_NORM_SIZES = [
    *(("7x7/2", 4, columns) for columns in (32, 64)),
    *((form, depth, columns) for form in ("1x1/1", "3x3/1", "3x3/2") for depth in _CHANNELS for columns in _CHANNELS
      if depth / 4 <= columns <= depth * 4),
]  # fmt: skip
_SHORTCUT_SIZES = [("1x1/2", depth, 2 * depth) for depth in _CHANNELS] + [("1x1/1", 64, 256)]
_RESIDUAL_SIZES = [
    *(("/1", depth, depth) for depth in (*_CHANNELS, 2048)),
    *(("/2", depth, 2 * depth) for depth in _CHANNELS),
]
_CONVNEXT_SIZES = [("", depth, 4 * depth) for depth in (64, 128, 256, 512, 1024)]

CONVOLUTIONS: Mapping[str, Kind] = {
    "Conv2d": Kind(
        _read_convolution, _convolution, _image, _PIXELS, _CONVOLUTION_SIZES, _convolution_work
    ),
    "Conv1d": Kind(_read_line_convolution, _line_convolution, _line, _PIXELS, _LINE_SIZES, _line_work),
    "ConvNormActivation": Kind(
        _read_block, _conv_norm_activation, _image, _PIXELS, _CONV_NORM_SIZES, _convolution_work
    ),
    "ConvNorm": Kind(_read_block, _conv_norm, _image, _PIXELS, _SHORTCUT_SIZES, _convolution_work),
    "ConvNextBlock": Kind(_read_convnext, _convnext, _image_of_pixels, _PIXELS, _CONVNEXT_SIZES, product(2)),
    "ResNetBasic": Kind(_read_residual, _resnet_basic, _image, _PIXELS, _RESIDUAL_SIZES, product(18)),
    "ResNetBottleneck": Kind(
        _read_residual, _resnet_bottleneck, _image, _PIXELS, _RESIDUAL_SIZES, product(1)
    ),
}  # fmt: skip
