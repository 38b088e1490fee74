"""What the C++ is told of what follows a convolution: `finish.h`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from .activation_numbers import ACTIVATION_NUMBERS


class Followers(ctypes.Structure):
    """Followers of finish.h: the activation, the addresses of the norm's weight, bias, mean and variance, its eps."""

    _fields_ = (
        ("activation", ctypes.c_int64),
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("mean", ctypes.c_void_p),
        ("variance", ctypes.c_void_p),
        ("eps", ctypes.c_double),
    )


def as_followers(
    channels: int, tensors: Sequence[Tensor | None], eps: float, activation: str
) -> Followers | None:
    """A norm's weight, bias, mean and variance and an activation for the C++; None where it does not take them.

    What it returns holds addresses: the tensors must live as long.
    """
    for tensor in tensors:
        if tensor is not None and not (
            tensor.dtype is torch.float32 and tensor.shape == (channels,) and tensor.is_contiguous()
        ):
            return None
    addresses = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    return Followers(ACTIVATION_NUMBERS[activation], *addresses, eps)
