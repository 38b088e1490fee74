"""Convolution on the CPU: oneDNN on weights that were packed once, 3 x 3 ones of stride 1 by `minimal` filtering.

Per call, PyTorch's convolution reorders its weights into oneDNN's blocked layout, and NCHW data
into a blocked layout and back. Here the packed weights are kept, and channels_last data runs as it
lies. The packed layout depends on the input's size, so there is a packed copy a size; sizes that
need the same layout share one.

`conv_norm` folds the batch norm's running statistics into the packed copy, in float64, and adds the
residual while the convolution's result is in registers. ReLU is a pass of its own: oneDNN's turns
NaN into 0, PyTorch's does not; the pass costs 1% of a ResNet-50. `minimal` has one that does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from . import minimal, reference
from .copies import Copies
from .layouts import Layouts

TRAINS = False
"""Whether the layers call the operators where a gradient is needed: PyTorch's own path is as fast."""


def pays(input: Tensor, weight: Tensor, stride: Sequence[int], groups: int) -> bool:
    """Whether `conv2d` is faster than PyTorch's for arguments that it takes.

    It saves the reorder of the weights, which are few in a grouped convolution, and costs 15
    microseconds of Python. Measured on two cores of a Zen 4 server, float32 and bfloat16: on
    channels_last data 1.1 times faster where it begins to pay, up to 5 times for many channels on few
    pixels. NCHW data must be converted twice, so weights must be much larger than the data: 512
    channels, 3x3 on 7x7 pixels 1.4 times faster, ViT's patches, whose weights are 2 times larger, 0.95.
    """
    if groups > 1:
        return False
    batch, _, height, width = input.shape
    filters, _, rows, columns = weight.shape
    pixels = batch * height * width // (stride[0] * stride[1])
    if reference.is_channels_last(input) or reference.is_channels_last(weight):
        if rows * columns == 1:
            return weight.numel() >= 65_536 and input.numel() > _MANY_ELEMENTS
        return weight.numel() >= (8_192 if input.numel() > _MANY_ELEMENTS else 32_768)
    moved = input.numel() + pixels * filters
    return rows * columns > 1 and weight.numel() >= 4 * moved and pixels * weight.numel() >= 4_000_000


def fuses(input: Tensor, weight: Tensor, stride: Sequence[int]) -> bool:
    """Whether `conv_norm` is faster than convolution, norm and activation one by one.

    For a single small image PyTorch has convolutions that start sooner than oneDNN's; everything
    else gains, measured as above: 1.1 to 2.5 times.
    """
    batch, _, height, width = input.shape
    if batch > 1 or input.numel() > _MANY_ELEMENTS:
        return True
    work = height * width // (stride[0] * stride[1]) * weight.numel()
    return work >= (4_000_000 if weight.shape[2] * weight.shape[3] == 1 else 1_000_000)


_MANY_ELEMENTS = 20_480
"""Input elements above which PyTorch runs a single image on oneDNN (aten/src/ATen/native/Convolution.cpp)."""

# Packed copies of weights as they are, and of weights with a norm folded in.
_PACKED: Copies[Layouts] = Copies()
_FOLDED: Copies[Layouts] = Copies()

# The same for minimal filtering.
_FILTERS: Copies[minimal.Filter] = Copies()
_FOLDED_FILTERS: Copies[minimal.Filter] = Copies()


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """reference.conv2d on packed weights."""
    geometry = (stride, padding, dilation, groups)
    if not (_is_supported(weight.dtype) and reference.is_regular(input, weight, bias, *geometry)):
        return reference.conv2d(input, weight, bias, *geometry)
    channels_last = reference.is_channels_last(input) or reference.is_channels_last(weight)
    if channels_last and minimal.takes(input, weight, *geometry):
        sources = [weight] if bias is None else [weight, bias]
        filter = _FILTERS.get(sources, (), lambda: minimal.Filter(weight, bias))
        if filter.fits:
            return minimal.convolve(input, filter, padding)
    layouts = _PACKED.get((weight,), (tuple(stride), tuple(padding), tuple(dilation), groups), Layouts)
    layout = layouts.find(input.shape) or layouts.make(input.shape, weight, *geometry)
    output = _CONVOLVE(input, layout.weight, bias, padding, stride, dilation, groups, "none", [], "")
    return output if channels_last else output.clone(memory_format=torch.contiguous_format)


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
    """reference.conv_norm on weights with the norm folded in; returns channels_last."""
    geometry = (stride, padding, dilation, groups)
    tensors = (weight, bias, norm_weight, norm_bias, running_mean, running_var)
    key = (tuple(stride), tuple(padding), tuple(dilation), groups, eps, bias is None, norm_weight is None)
    sources = [tensor for tensor in tensors if tensor is not None]
    if minimal.takes(input, weight, *geometry) and reference.is_regular(input, weight, bias, *geometry):
        filter = _FOLDED_FILTERS.get(sources, key, lambda: minimal.Filter(*_fold(*tensors, eps)))
        shape = reference.output_shape(input.shape, weight.shape, stride, padding, dilation)
        if filter.fits and (residual is None or (residual.shape == shape and residual.dtype is input.dtype)):
            return minimal.convolve(input, filter, padding, residual, relu)
    folded = _FOLDED.find(sources, key) if _is_supported(input.dtype) else None
    layout = folded.find(input.shape) if folded is not None and input.dtype is weight.dtype else None
    if folded is None or layout is None:  # else these arguments have been through here before
        if not (_is_supported(weight.dtype) and reference.is_regular(input, weight, bias, *geometry)):
            return reference.conv_norm(input, *tensors, residual, eps, *geometry, relu)
        folded = _FOLDED.get(sources, key, lambda: Layouts(*_fold(*tensors, eps)))
        if not folded.fits:
            return reference.conv_norm(input, *tensors, residual, eps, *geometry, relu)
        layout = folded.make(input.shape, None, *geometry)
    input = input.contiguous(memory_format=torch.channels_last)  # so that an unpacked weight follows
    if residual is None:
        output = _CONVOLVE(
            input, layout.weight, folded.bias, padding, stride, dilation, groups, "none", [], ""
        )
    elif residual.shape == layout.output_shape and residual.dtype is input.dtype:
        output = _CONVOLVE_AND_ADD(
            input,
            residual,
            layout.weight,
            folded.bias,
            padding,
            stride,
            dilation,
            groups,
            "add",
            1.0,
            None,
            [],
            "",
        )
    else:
        return reference.conv_norm(input, *tensors, residual, eps, *geometry, relu)
    return output.relu_() if relu else output


def forget(weight: Tensor) -> None:
    """Drop the packed copies made from a weight."""
    for copies in (_PACKED, _FOLDED, _FILTERS, _FOLDED_FILTERS):
        copies.forget(weight)


def packed_nbytes(weight: Tensor, *, folded: bool) -> int:
    """Bytes of the packed copies made from a weight: those with a norm folded in, or those without."""
    layouts, filters = (_FOLDED, _FOLDED_FILTERS) if folded else (_PACKED, _FILTERS)
    return sum(one.nbytes() for one in layouts.of(weight)) + sum(one.nbytes() for one in filters.of(weight))


def _fold(
    weight: Tensor,
    bias: Tensor | None,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Weight and bias of the convolution that does what convolution and norm do."""
    scale = (running_var.double() + eps).rsqrt()
    if norm_weight is not None:
        scale = scale * norm_weight.double()
    shift = -running_mean.double() * scale
    if bias is not None:
        shift = shift + bias.double() * scale
    if norm_bias is not None:
        shift = shift + norm_bias.double()
    folded = (weight.double() * scale.view(-1, 1, 1, 1)).to(weight.dtype)
    return folded, shift.to(weight.dtype)


def _is_supported(dtype: torch.dtype) -> bool:
    return dtype in _DTYPES and torch._C._get_mkldnn_enabled()


def _supported_dtypes() -> frozenset[torch.dtype]:
    """What oneDNN computes on this CPU, as PyTorch sees it."""
    if not torch.backends.mkldnn.is_available():
        return frozenset()
    supported = {
        torch.float32: True,
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported(),
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported(),
    }
    return frozenset(dtype for dtype, here in supported.items() if here)


_DTYPES = _supported_dtypes()
if _DTYPES:
    _CONVOLVE = torch.ops.mkldnn._convolution_pointwise.default
    _CONVOLVE_AND_ADD = torch.ops.mkldnn._convolution_pointwise.binary

_Implementations = dict[str, Callable[..., Tensor]]
CONV2D: _Implementations = {"CPU": conv2d, "CompositeExplicitAutograd": reference.conv2d}
CONV_NORM: _Implementations = {"CPU": conv_norm, "CompositeExplicitAutograd": reference.conv_norm}
