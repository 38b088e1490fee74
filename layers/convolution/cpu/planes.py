"""float32 convolutions on contiguous (NCHW) images, depthwise ones on channels_last, too: both and weights as they lie.

The C++ of `planes.cpp` through ctypes. For images in planes, PyTorch multiplies with a BLAS that copies both operands
(1 x 1), or has oneDNN reorder image, weights and result at every call. Here a vector is of neighbouring pixels and an
element of the weights is one number, so that neither is reordered and no copy of the weights is kept.
Times as fast as PyTorch on a core of a Zen 5 server: 1 x 1 1.6 to 2.2, depthwise 1.2 to 2.5, grouped 1.2 to 3.7.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from . import minimal, reference
from .finish import Followers
from .native import load, when_built

_LEAST_PIXELS = 8
"""Of the result, below which half of a vector would be empty."""

_MOST_PIXELS, _MANY_TAPS = 2048, 25
"""Of channels_last images that are larger, oneDNN's kernels of fewer taps are as fast: 0.94 to 1.16 times at 3 x 3."""


class Geometry(NamedTuple):
    """A convolution of one shape: what the C++ gets, and the shape of the result."""

    numbers: ctypes.Array[ctypes.c_int64]
    shape: tuple[int, ...]
    layout: torch.memory_format = torch.contiguous_format


def takes(input: Tensor, weight: Tensor, stride: Sequence[int]) -> bool:
    """Whether a convolution, if its arguments are valid, is faster this way, and the C++ is there."""
    return (
        input.dtype is weight.dtype is torch.float32
        and (input.is_contiguous() or _is_depthwise_of_pixels(input, weight))
        and weight.is_contiguous()
        and input.shape[2] * input.shape[3] >= _LEAST_PIXELS * stride[0] * stride[1]
        and _library() is not None
    )


def plan(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Geometry | None:
    """How to convolve these, of two dimensions or one; None where another way is for them, or the C++ is not there."""
    if (
        input.dtype is not torch.float32
        or weight.dtype is not torch.float32
        or not weight.is_contiguous()
        or not (bias is None or (bias.dtype is torch.float32 and bias.is_contiguous()))
        or _library() is None
    ):
        return None
    layout = torch.contiguous_format
    if not input.is_contiguous():
        if not _is_depthwise_of_pixels(input, weight):
            return None
        layout = torch.channels_last
    many = None if bias is None else bias.shape
    return _plan(
        input.shape, weight.shape, many, tuple(stride), tuple(padding), tuple(dilation), groups, layout
    )


def _is_depthwise_of_pixels(input: Tensor, weight: Tensor) -> bool:
    """Whether an image is channels_last, each of its channels has a filter, and memory is not all that it takes."""
    return (
        input.dim() == weight.dim() == 4
        and (
            input.shape[2] * input.shape[3] <= _MOST_PIXELS or weight.shape[2] * weight.shape[3] >= _MANY_TAPS
        )
        and weight.shape[0] == input.shape[1] > weight.shape[1] == 1
        and input.is_contiguous(memory_format=torch.channels_last)
    )


@lru_cache(maxsize=4096)
def _plan(
    input: torch.Size,
    weight: torch.Size,
    bias: torch.Size | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    layout: torch.memory_format,
) -> Geometry | None:
    is_line = len(input) == len(weight) == 3
    if is_line:
        input, weight = torch.Size((*input[:2], 1, input[2])), torch.Size((*weight[:2], 1, weight[2]))
        stride, padding, dilation = (1, *stride), (0, *padding), (1, *dilation)
    geometry = (stride, padding, dilation, groups)
    if not reference.has_regular_sizes(input, weight, bias, *geometry) or minimal.takes_sizes(
        input, weight, stride, dilation, groups
    ):
        return None
    shape = reference.output_shape(input, weight, stride, padding, dilation)
    if shape[2] * shape[3] < _LEAST_PIXELS:
        return None
    batch, channels, height, width = input
    filters, _, rows, columns = weight
    sizes = (batch, channels, filters, groups, height, width, rows, columns)
    numbers = (*sizes, *stride, *dilation, *padding, *shape[2:])
    return Geometry(
        (ctypes.c_int64 * len(numbers))(*numbers), (*shape[:2], shape[3]) if is_line else shape, layout
    )


def convolve(
    geometry: Geometry, input: Tensor, weight: Tensor, bias: Tensor | None, followers: Followers | None = None
) -> Tensor:
    """conv2d(input) + bias, laid out as the input, of arguments that have it; then what follows."""
    output = torch.empty(geometry.shape, dtype=torch.float32, device="cpu", memory_format=geometry.layout)
    library = _library()
    assert library is not None
    run = library.planes_run if geometry.layout is torch.contiguous_format else library.pixels_run
    run(
        geometry.numbers,
        input.data_ptr(),
        weight.data_ptr(),
        None if bias is None else bias.data_ptr(),
        None if followers is None else ctypes.byref(followers),
        output.data_ptr(),
    )
    return output


def is_built() -> bool:
    """Whether the C++ is there, or never will be."""
    return _library() is not None


@when_built
def _library() -> ctypes.CDLL | None:
    folders = [Path(folder) for folder in sys.modules[__package__ or ""].__path__]
    headers = next(folder for folder in folders if (folder / "conv_shape.h").exists())
    library = load(Path(__file__).with_name("planes.cpp"), headers, is_extra=True)
    if library is not None:
        address = ctypes.c_void_p
        for run in (library.planes_run, library.pixels_run):
            run.argtypes = (
                ctypes.POINTER(ctypes.c_int64),
                *[address] * 3,
                ctypes.POINTER(Followers),
                address,
            )
            run.restype = None
    return library
