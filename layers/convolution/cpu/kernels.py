"""Convolution on the CPU: contiguous images in `planes`, others by oneDNN on weights that were packed once, and 3 x 3
ones of stride 1 by `minimal` filtering.

Per call, PyTorch's convolution reorders its weights into oneDNN's blocked layout, and NCHW data
into a blocked layout and back. Here the packed weights are kept, and channels_last data runs as it
lies. The packed layout depends on the input's size, so there is a packed copy a size; sizes that
need the same layout share one.

`conv_norm` folds the batch norm's running statistics into the packed copy, in float64, and adds the
residual while the convolution's result is in registers. ReLU is a pass of its own: oneDNN's turns
NaN into 0, PyTorch's does not; the pass costs 1% of a ResNet-50. `minimal` has one that does not.

float16, where oneDNN has none for the processor and PyTorch's own convolutions are loops, is computed in float32 on
packed copies in float32, and rounded once: 50 times faster for a ResNet-50.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import finish, minimal, planes, reference
from .copies import Copies
from .direct import is_observed
from .guard import finished, mark_strict
from .layouts import Layouts

TRAINS = False
"""Whether the layers call the operators where a gradient is needed: PyTorch's own path is as fast."""


def at_once(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    following: tuple[Any, float, str] | None = None,
) -> Tensor | None:
    """conv2d or conv1d for calls that nothing must see, without a gradient; None for those that `pays` is about.

    following: the tensors of a norm, its eps, and an activation, which are computed with it.
    """
    geometry = (stride, padding, dilation, groups)
    plan = planes.plan(input, weight, bias, *geometry)
    if following is None:
        return None if plan is None else planes.convolve(plan, input, weight, bias)
    follower = finish.as_followers(weight.shape[0], *following)
    if follower is None:
        return None
    if plan is not None:
        return planes.convolve(plan, input, weight, bias, follower)
    if not (
        minimal.takes(input, weight, *geometry)
        and input.is_contiguous()
        and weight.dtype is torch.float32
        and reference.is_regular(input, weight, bias, *geometry)
    ):
        return None
    sources = [weight] if bias is None else [weight, bias]
    filter = _FILTERS.get(sources, (), lambda: minimal.Filter(*_cast(weight, bias, torch.float32)))
    result = minimal.convolve_planes(input, filter, padding, follower) if filter.fits else None
    finished()
    return result


def pays(input: Tensor, weight: Tensor, stride: Sequence[int], dilation: Sequence[int], groups: int) -> bool:
    """Whether `conv2d` is faster than PyTorch's for arguments that it takes; where it is not, that is kept.

    What `minimal` takes is faster in either memory format, by 1.2 to 4 times; what `planes` takes, by 1.1 to 3. Of what
    is left to oneDNN, it
    saves the reorder of the weights, which are few in a grouped convolution, and costs 15
    microseconds of Python. Measured on two cores of a Zen 4 server, float32 and bfloat16: on
    channels_last data 1.1 times faster where it begins to pay, up to 5 times for many channels on few
    pixels; 1 x 1 in float32 0.8 to 1.0 below 262,144 weights. NCHW data must be converted twice, so
    weights must be much larger than the data: 512 channels, 3x3 on 7x7 pixels 1.4 times faster, ViT's
    patches, whose weights are 2 times larger, 0.95.
    """
    found = _pays(input, weight, stride, dilation, groups)
    if not found and not is_observed() and planes.is_built() and minimal.is_built():
        if len(_LOSING) >= _MOST_LOSING:
            _LOSING.clear()
        _LOSING.add(_key(input, weight, stride, dilation, groups))
    return found


def loses(input: Tensor, weight: Tensor, stride: Sequence[int], dilation: Sequence[int], groups: int) -> bool:
    """Whether it is known that it does not pay: one question for calls whose own take as long as ten of these."""
    return _key(input, weight, stride, dilation, groups) in _LOSING


def _key(
    input: Tensor, weight: Tensor, stride: Sequence[int], dilation: Sequence[int], groups: int
) -> tuple[object, ...]:
    tensors = (input.shape, input.stride(), weight.shape, input.dtype, weight.dtype)
    return *tensors, tuple(stride), tuple(dilation), groups  # a module's may be lists


_LOSING: set[tuple[object, ...]] = set()
_MOST_LOSING = 4096


def _pays(input: Tensor, weight: Tensor, stride: Sequence[int], dilation: Sequence[int], groups: int) -> bool:
    batch, _, height, width = input.shape
    filters, _, rows, columns = weight.shape
    if _computed_in(weight.dtype) is not weight.dtype:
        return batch * height * width * weight.numel() // (stride[0] * stride[1]) >= _LEAST_WORK_WIDENED
    if minimal.takes(input, weight, stride, (), dilation, groups) or planes.takes(input, weight, stride):
        return True
    if groups > 1:
        return False
    pixels = batch * height * width // (stride[0] * stride[1])
    if reference.is_channels_last(input) or reference.is_channels_last(weight):
        if rows * columns == 1:
            least = 262_144 if weight.dtype is torch.float32 else 65_536
            return weight.numel() >= least and input.numel() > _MANY_ELEMENTS
        return weight.numel() >= (8_192 if input.numel() > _MANY_ELEMENTS else 32_768)
    moved = input.numel() + pixels * filters
    return rows * columns > 1 and weight.numel() >= 4 * moved and pixels * weight.numel() >= 4_000_000


takes_planes = planes.takes


def fuses(input: Tensor, weight: Tensor, stride: Sequence[int]) -> bool:
    """Whether `conv_norm` is faster than convolution, norm and activation one by one.

    For a single small image PyTorch has convolutions that start sooner than oneDNN's; everything
    else gains, measured as above: 1.1 to 2.5 times.
    """
    batch, _, height, width = input.shape
    if batch > 1 or input.numel() > _MANY_ELEMENTS:
        return True
    if _computed_in(weight.dtype) is not weight.dtype:
        return height * width // (stride[0] * stride[1]) * weight.numel() >= _LEAST_WORK_WIDENED
    work = height * width // (stride[0] * stride[1]) * weight.numel()
    return work >= (4_000_000 if weight.shape[2] * weight.shape[3] == 1 else 1_000_000)


_MANY_ELEMENTS = 20_480
"""Input elements above which PyTorch runs a single image on oneDNN (aten/src/ATen/native/Convolution.cpp)."""

_LEAST_WORK_WIDENED = 100_000
"""Multiplications from which it pays to compute float16 in float32."""

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
    output = _conv2d(input, weight, bias, stride, padding, dilation, groups)
    finished()
    return output


def _conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    geometry = (stride, padding, dilation, groups)
    dtype, computed_in = input.dtype, _computed_in(weight.dtype)
    if not (_is_supported(computed_in) and reference.is_regular(input, weight, bias, *geometry)):
        return reference.conv2d(input, weight, bias, *geometry)
    plan = planes.plan(input, weight, bias, *geometry)
    if plan is not None:
        return planes.convolve(plan, input, weight, bias)
    channels_last = reference.is_channels_last(input) or reference.is_channels_last(weight)
    sources = [weight] if bias is None else [weight, bias]
    input = input.to(computed_in)
    if minimal.takes(input, weight, *geometry):
        filter = _FILTERS.get(sources, (), lambda: minimal.Filter(*_cast(weight, bias, computed_in)))
        if filter.fits:
            convolve = minimal.convolve if channels_last else minimal.convolve_planes
            return convolve(input, filter, padding).to(dtype)
    key = (tuple(stride), tuple(padding), tuple(dilation), groups)
    if computed_in is dtype:
        layouts = _PACKED.get((weight,), key, Layouts)
        layout = layouts.find(input.shape) or layouts.make(input.shape, weight, *geometry)
    else:
        layouts = _PACKED.get(sources, key, lambda: Layouts(*_cast(weight, bias, computed_in)))
        if not layouts.fits:
            wide_weight, wide_bias = _cast(weight, bias, computed_in)
            return reference.conv2d(input, wide_weight, wide_bias, *geometry).to(dtype)
        layout = layouts.find(input.shape) or layouts.make(input.shape, None, *geometry)
        bias = layouts.bias
    output = _CONVOLVE(input, layout.weight, bias, padding, stride, dilation, groups, "none", [], "")
    return (
        output.to(dtype)
        if channels_last
        else output.to(dtype, memory_format=torch.contiguous_format, copy=True)
    )


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
    dtype, computed_in = input.dtype, _computed_in(weight.dtype)

    def is_regular() -> bool:
        return reference.is_regular(input, weight, bias, *geometry)

    output = None
    if computed_in is weight.dtype:
        output = _convolved(input, tensors, residual, eps, geometry, relu, is_regular)
    elif dtype is weight.dtype and is_regular() and (residual is None or residual.dtype is dtype):
        wide = None if residual is None else residual.to(computed_in)
        output = _convolved(input.to(computed_in), tensors, wide, eps, geometry, relu, lambda: True)
    finished()
    if output is None:
        return reference.conv_norm(input, *tensors, residual, eps, *geometry, relu)
    return output.to(dtype)


_Tensors = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor, Tensor]


def _convolved(
    input: Tensor,
    tensors: _Tensors,
    residual: Tensor | None,
    eps: float,
    geometry: tuple[Sequence[int], Sequence[int], Sequence[int], int],
    relu: bool,
    is_regular: Callable[[], bool],
) -> Tensor | None:
    """conv_norm in the dtype of input and residual; None for what oneDNN does not take.

    tensors: the convolution's weight and bias, the norm's weight, bias, mean and variance.
    """
    weight, bias, norm_weight, *_ = tensors
    stride, padding, dilation, groups = geometry
    key = (tuple(stride), tuple(padding), tuple(dilation), groups, eps, bias is None, norm_weight is None)
    sources = [tensor for tensor in tensors if tensor is not None]
    if minimal.takes(input, weight, *geometry) and is_regular():
        filter = _FOLDED_FILTERS.get(sources, key, lambda: minimal.Filter(*_fold(*tensors, eps, input.dtype)))
        shape = reference.output_shape(input.shape, weight.shape, stride, padding, dilation)
        if filter.fits and (residual is None or (residual.shape == shape and residual.dtype is input.dtype)):
            return minimal.convolve(input, filter, padding, residual, relu)
    folded = _FOLDED.find(sources, key) if _is_supported(input.dtype) else None
    takes_weight = input.dtype is _computed_in(weight.dtype)
    layout = folded.find(input.shape) if folded is not None and takes_weight else None
    if folded is None or layout is None:  # else these arguments have been through here before
        if not (_is_supported(input.dtype) and takes_weight and is_regular()):
            return None
        folded = _FOLDED.get(sources, key, lambda: Layouts(*_fold(*tensors, eps, input.dtype)))
        if not folded.fits:
            return None
        layout = folded.make(input.shape, None, *geometry)
    input = input.contiguous(memory_format=torch.channels_last)  # so that an unpacked weight follows
    if residual is None or _has_two_layouts(layout.output_shape):
        output = _CONVOLVE(
            input, layout.weight, folded.bias, padding, stride, dilation, groups, "none", [], ""
        )
        if residual is not None:
            if residual.shape != output.shape or residual.dtype is not output.dtype:
                return None
            output += residual
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
        return None
    return output.relu_() if relu else output


def _has_two_layouts(shape: Sequence[int]) -> bool:
    """Whether an output of one channel, or of one pixel, is contiguous and channels last at once.

    The fused sum of PyTorch 2.11 "could not create a memory" for those.
    """
    return shape[1] == 1 or shape[2] == shape[3] == 1


def forget(weight: Tensor) -> None:
    """Drop the packed copies made from a weight."""
    for copies in (_PACKED, _FOLDED, _FILTERS, _FOLDED_FILTERS):
        copies.forget(weight)


def refresh(weight: Tensor) -> None:
    """Drop the packed copies made from a weight, and from others with it, of which one has changed."""
    for copies in (_PACKED, _FOLDED, _FILTERS, _FOLDED_FILTERS):
        copies.refresh(weight)


def strict(weight: Tensor, on: bool) -> None:
    """Compare all that copies of a weight are made from at every use, or no more."""
    mark_strict(weight, on)
    for copies in (_PACKED, _FOLDED, _FILTERS, _FOLDED_FILTERS):
        copies.strict(weight, on)


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
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Weight and bias, in a dtype, of the convolution that does what convolution and norm do."""
    scale = (running_var.double() + eps).rsqrt()
    if norm_weight is not None:
        scale = scale * norm_weight.double()
    shift = -running_mean.double() * scale
    if bias is not None:
        shift = shift + bias.double() * scale
    if norm_bias is not None:
        shift = shift + norm_bias.double()
    folded = (weight.double() * scale.view(-1, 1, 1, 1)).to(dtype)
    return folded, shift.to(dtype)


def _cast(weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    return weight.detach().to(dtype), None if bias is None else bias.detach().to(dtype)


def _computed_in(dtype: torch.dtype) -> torch.dtype:
    """The dtype that weights of a dtype are packed in: float32 for float16 that oneDNN has not."""
    return torch.float32 if dtype is torch.float16 and torch.float16 not in _DTYPES else dtype


def is_computed_as_it_is(dtype: torch.dtype) -> bool:
    """Whether weights of a dtype are not widened."""
    return _computed_in(dtype) is dtype


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
