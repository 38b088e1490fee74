"""3 x 3 convolutions of stride 1 in float32 by minimal filtering: 16 multiplications for four pixels, not 36.

The C++ of `minimal.cpp` through ctypes. Measured on two cores of a Zen 4 server: 1.5 to 2.1 times as fast as
oneDNN's direct convolution on packed weights, at 64 to 640 channels, with no more rounding error (the sums are
shorter). The packed weights are 16/9 of the weights' size. An infinity or NaN of the input reaches all four pixels
of the 2 x 2 tiles that see it.
Source: Lavin & Gray, arXiv 1509.09308.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from .finish import Followers
from .native import load, when_built

_LINE = 16
_LEAST_CHANNELS = 32
_LEAST_WORK = 2_000_000
"""Multiplications of a direct convolution below which the transforms are not worth their start."""


class Filter:
    """The transformed weights of one convolution, and its bias. `fits`: they are finite."""

    __slots__ = ("bias", "filters", "fits", "packed")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight (O, C, 3, 3), bias (O,): float32."""
        self.fits = bool(weight.isfinite().all() and (bias is None or bias.isfinite().all()))
        self.filters = weight.shape[0]
        self.bias = None if bias is None else bias.detach().contiguous()
        self.packed = torch.empty(0, dtype=torch.float32, device="cpu")
        if self.fits:
            weight = weight.detach()
            shape = _numbers(1, weight.shape[1], weight.shape[0], 1, 1, 1, 1)
            library = _library()
            assert library is not None
            self.packed = torch.empty(library.minimal_size(shape), dtype=torch.float32, device="cpu")
            library.minimal_pack(shape, weight.data_ptr(), _numbers(*weight.stride()), self.packed.data_ptr())

    def nbytes(self) -> int:
        """Bytes held beside the original weight."""
        return self.packed.nbytes + (0 if self.bias is None else self.bias.nbytes)


def takes(
    input: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> bool:
    """Whether a convolution, if its arguments are valid, is faster this way, and the C++ is there.

    weight: in the dtype of the input, or to be cast to it.
    """
    return (
        input.dtype is torch.float32
        and takes_sizes(input.shape, weight.shape, stride, dilation, groups)
        and _library() is not None
    )


def takes_sizes(
    input: Sequence[int], weight: Sequence[int], stride: Sequence[int], dilation: Sequence[int], groups: int
) -> bool:
    """Whether a convolution of these shapes of input and weight is faster this way."""
    if len(weight) != 4 or len(input) != 4:
        return False
    filters, channels, rows, columns = weight
    return (
        rows == columns == 3
        and groups == 1
        and channels % _LINE == 0
        and channels >= _LEAST_CHANNELS
        and filters >= _LEAST_CHANNELS
        and tuple(stride) == tuple(dilation) == (1, 1)
        and math.prod(input) * filters * 9 >= _LEAST_WORK
    )


def convolve(
    input: Tensor, filter: Filter, padding: Sequence[int], residual: Tensor | None = None, relu: bool = False
) -> Tensor:
    """act(conv2d(input) + bias + residual), channels_last. input (N, C, H, W); residual (N, O, P, Q) or None."""
    input = input.contiguous(memory_format=torch.channels_last)
    numbers, output = _arguments(input, filter, padding, torch.channels_last)
    if residual is not None:
        residual = residual.contiguous(memory_format=torch.channels_last)
    library = _library()
    assert library is not None
    library.minimal_run(
        numbers, input.data_ptr(), filter.packed.data_ptr(), _address(filter.bias), _address(residual), int(relu),
        output.data_ptr(),
    )  # fmt: skip
    return output


def convolve_planes(
    input: Tensor, filter: Filter, padding: Sequence[int], followers: Followers | None = None
) -> Tensor:
    """conv2d(input) + bias, then what follows, contiguous. input (N, C, H, W)."""
    input = input.contiguous()
    numbers, output = _arguments(input, filter, padding, torch.contiguous_format)
    library = _library()
    assert library is not None
    library.minimal_run_planes(
        numbers, input.data_ptr(), filter.packed.data_ptr(), _address(filter.bias),
        None if followers is None else ctypes.byref(followers), output.data_ptr(),
    )  # fmt: skip
    return output


def _arguments(
    input: Tensor, filter: Filter, padding: Sequence[int], layout: torch.memory_format
) -> tuple[ctypes.Array[ctypes.c_int64], Tensor]:
    """The sizes of a convolution, and an empty tensor for its result."""
    batch, channels, height, width = input.shape
    shape = (batch, filter.filters, height + 2 * padding[0] - 2, width + 2 * padding[1] - 2)
    numbers = _numbers(batch, channels, filter.filters, height, width, *padding)
    return numbers, torch.empty(shape, dtype=torch.float32, device="cpu", memory_format=layout)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _numbers(*values: int) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(values))(*values)


def is_built() -> bool:
    """Whether the C++ is there, or never will be."""
    return _library() is not None


@when_built
def _library() -> ctypes.CDLL | None:
    folders = [Path(folder) for folder in sys.modules[__package__ or ""].__path__]
    headers = next(folder for folder in folders if (folder / "winograd.h").exists())
    library = load(Path(__file__).with_name("minimal.cpp"), headers, is_extra=True)
    if library is not None:
        numbers, address = ctypes.POINTER(ctypes.c_int64), ctypes.c_void_p
        library.minimal_size.argtypes, library.minimal_size.restype = (numbers,), ctypes.c_int64
        library.minimal_pack.argtypes, library.minimal_pack.restype = (
            (numbers, address, numbers, address),
            None,
        )
        library.minimal_run.argtypes = (numbers, *[address] * 4, ctypes.c_int64, address)
        library.minimal_run.restype = None
        library.minimal_run_planes.argtypes = (
            numbers,
            *[address] * 3,
            ctypes.POINTER(Followers),
            address,
        )
        library.minimal_run_planes.restype = None
    return library
