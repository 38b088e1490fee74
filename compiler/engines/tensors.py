"""Converts between NumPy arrays (of the IR and the oracle) and PyTorch tensors (of engines).

On the CPU both share memory; nothing is copied, whatever the strides. bfloat16 and the float8 types go through views
of their bits. Elements of four and two bits, which PyTorch has no dtype for, are tensors of uint8, one element a
byte, with the bytes of NumPy's arrays.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
import torch

from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.operators import scalar_array
from kernels_hub.compiler.ir.types import Array, DType

TORCH: dict[str, torch.dtype] = {
    name: torch.uint8 if row.bits < 8 else getattr(torch, name) for name, row in types.DTYPES.items()
}
"""Name of a dtype -> the dtype of tensors that hold it."""

_CODES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def torch_dtype(row: DType) -> torch.dtype:
    """The dtype of tensors that hold elements of this type."""
    return TORCH[row.name]


def codes(tensor: torch.Tensor) -> torch.Tensor:
    """The same bits as integers of the same width: what moves elements works on these for every real dtype."""
    return tensor.view(_CODES[tensor.element_size()])


def to_array(tensor: torch.Tensor, row: DType) -> Array:
    """A tensor on the CPU as an array of a dtype; they share memory."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if row.module == "numpy":
        return np.asarray(tensor.numpy())
    return np.asarray(codes(tensor).numpy().view(row.numpy))


def to_tensor(array: Array) -> torch.Tensor:
    """An array as a tensor on the CPU. They share memory; what is read-only as an array must not be written to.

    Copies what PyTorch cannot address: negative strides, another byte order, elements at odd addresses.
    """
    array = np.asarray(array)
    dtype = TORCH[types.dtype(array.dtype).name]
    if not array.size:
        return torch.empty(array.shape, dtype=dtype)
    size, strides = array.itemsize, array.strides
    if (
        not array.dtype.isnative
        or array.ctypes.data % size
        or any(stride < 0 or stride % size for stride in strides)
    ):
        array = np.array(array, array.dtype.newbyteorder("="), order="C")
        strides = array.strides
    reach = sum((count - 1) * stride for count, stride in zip(array.shape, strides, strict=True))
    memory: Any = (ctypes.c_char * (reach + size)).from_address(array.ctypes.data)
    memory.owner = (
        array  # the tensor keeps `memory`, which keeps the array; torch.from_numpy warns of read-only ones
    )
    flat = torch.frombuffer(memory, dtype=torch.uint8).view(dtype)
    return flat.as_strided(array.shape, [stride // size for stride in strides])


def scalar_tensor(number: Any, row: DType, device: torch.device | str = "cpu") -> torch.Tensor:
    """One number as a tensor of rank 0, rounded to the dtype."""
    return to_tensor(scalar_array(number, row)).to(device)


def snapshot(array: Array) -> Array:
    """An array that nobody else can write to: itself, if it is read-only from its owner on, or a copy.

    A plan takes its weights so: some are packed when it is compiled, and the others shall not change alone.
    """
    return array.copy() if may_change(array) else array


def may_change(array: Array) -> bool:
    """Whether somebody can write to an array, or to what it is a view of."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return True
        if owner.base is None:
            return False
        owner = owner.base
    return not isinstance(owner, (bytes, mmap.mmap))
