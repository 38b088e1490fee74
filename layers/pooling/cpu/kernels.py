"""The CPU backend: `pooling.cpp` through ctypes, on the memory of the tensors themselves.

Where the C++ cannot be built, and for what it does not take, `reference` runs, which raises PyTorch's errors, too.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import reference
from .native import load, when_built
from .reference import Pair

DISPATCH_KEYS = ("CPU",)

# The record of pooling.cpp, field for field.
_GEOMETRY = struct.Struct("=15q")
_MOST = 1 << 31
"""Of numbers that PyTorch takes."""


class _Plan(NamedTuple):
    """A call for tensors of one shape. plane: elements of one, the stride of channels in memory without gaps."""

    geometry: bytes
    shape: tuple[int, ...]
    plane: int


@when_built
def _library() -> ctypes.CDLL | None:
    folders = [Path(folder) for folder in sys.modules[__package__ or ""].__path__]
    headers = next(folder for folder in folders if (folder / "parallel.h").exists())
    library = load(Path(__file__).with_name("pooling.cpp"), headers)
    if library is not None:
        for function in (library.pooling_maximum, library.pooling_average):
            function.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p)
            function.restype = None
    return library


def max_pool2d(
    input: Tensor, kernel_size: Pair, stride: Pair | None, padding: Pair, dilation: Pair, ceil_mode: bool
) -> Tensor:
    """See `reference.max_pool2d`. Of 0 and -0 it may be the other."""
    library = _library()
    if library is not None and (plan := _plan_for(input, kernel_size, stride, padding, dilation, ceil_mode)):
        return _pooled(library.pooling_maximum, input, plan)
    return reference.max_pool2d(input, kernel_size, stride, padding, dilation, ceil_mode)


def avg_pool2d(
    input: Tensor,
    kernel_size: Pair,
    stride: Pair | None,
    padding: Pair,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    """See `reference.avg_pool2d`."""
    library = _library()
    if library is not None and (
        plan := _plan_for(
            input, kernel_size, stride, padding, 1, ceil_mode, count_include_pad, divisor_override
        )
    ):
        return _pooled(library.pooling_average, input, plan)
    return reference.avg_pool2d(
        input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


def _pooled(function: Callable[..., None], input: Tensor, plan: _Plan) -> Tensor:
    output = input.new_empty(plan.shape)
    function(plan.geometry, input.data_ptr(), output.data_ptr())
    return output


def _plan_for(input: Tensor, *arguments: Any) -> _Plan | None:
    """How the C++ is to be called; None where PyTorch has to be."""
    if input.dtype is not torch.float32 or not input.is_contiguous():
        return None
    try:
        plan = _plan(input.shape, *arguments)
    except TypeError:  # a list has no hash
        plan = _plan(input.shape, *(tuple(each) if isinstance(each, list) else each for each in arguments))
    # A single channel may be contiguous and channels_last at once, and the result has to be as the strides say.
    return plan if plan is not None and input.stride(-3) == plan.plane else None


@lru_cache(maxsize=1024, typed=True)
def _plan(
    shape: torch.Size,
    kernel_size: Pair,
    stride: Pair | None,
    padding: Pair,
    dilation: Pair,
    ceil_mode: bool,
    count_include_pad: bool = False,
    divisor_override: int | None = None,
) -> _Plan | None:
    """Refused is what PyTorch refuses, an override of 0 too, and what a plane of one pixel leaves open: its format."""
    given = (kernel_size, kernel_size if stride is None else stride, padding, dilation)
    kernel, step, pad, apart = map(pair, given)
    if not (kernel and step and pad and apart) or len(shape) not in (3, 4):
        return None
    size = shape[-2:]
    if shape.numel() == 0 or size.numel() == 1 or max(shape) >= _MOST:
        return None
    if (
        min(*kernel, *step, *apart) < 1
        or min(pad) < 0
        or any(2 * p > k for p, k in zip(pad, kernel, strict=True))
    ):
        return None
    if divisor_override is not None and (
        type(divisor_override) is not int or not 0 < abs(divisor_override) < _MOST
    ):
        return None
    out = [_windows(*axis, ceil_mode) for axis in zip(size, kernel, step, pad, apart, strict=True)]
    if min(out) < 1:
        return None
    geometry = _GEOMETRY.pack(
        shape[:-2].numel(),
        *size,
        *out,
        *kernel,
        *step,
        *pad,
        *apart,
        count_include_pad,
        divisor_override or 0,
    )
    return _Plan(geometry, (*shape[:-2], *out), size.numel())


def _windows(size: int, kernel: int, stride: int, pad: int, dilation: int, ceil_mode: bool) -> int:
    """How many windows an axis has. Source: aten/src/ATen/native/Pool.h, pooling_output_shape."""
    count = (size + 2 * pad - dilation * (kernel - 1) - 1 + (stride - 1 if ceil_mode else 0)) // stride + 1
    # The last window has to begin in the image or in the padding before it.
    return count - 1 if ceil_mode and (count - 1) * stride >= size + pad else count


def pair(numbers: Pair) -> tuple[int, int] | None:
    """Of rows and of columns; None where it is neither a number nor one or two of them, or out of range."""
    first = last = numbers
    if isinstance(numbers, tuple | list) and len(numbers) in (1, 2):
        first, last = numbers[0], numbers[-1]
    if type(first) is int and type(last) is int and max(abs(first), abs(last)) < _MOST:
        return first, last
    return None
