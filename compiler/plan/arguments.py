"""Converts a caller's arrays (PyTorch, NumPy, DLPack) to engine tensors."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
import torch.utils.dlpack

from kernels_hub.compiler.engines.tensors import to_array, to_tensor, torch_dtype
from kernels_hub.compiler.errors import PlanError, TypeRuleError
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.types import Array, DType

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


def tensor_of(given: Any, row: DType, device: torch.device, what: str) -> torch.Tensor:
    """A tensor over the memory of what is given: dense, without gradient, its bits as they are read.

    NumPy's arrays are copied to a device that is not the CPU; tensors have to be there. what: its name in errors.
    Raises PlanError for other dtypes than `row`, another device, and what is no tensor.
    """
    if isinstance(given, torch.Tensor):
        tensor = _dense(given, what)
    elif isinstance(given, (np.ndarray, np.generic)):
        array = np.asarray(given)
        try:
            found = types.dtype(array.dtype)
        except TypeRuleError as error:
            raise PlanError(f"{what}: {error}") from error
        if found is not row:
            raise PlanError(f"{what} is of {found}, expected {row}: convert it first")
        return to_tensor(array).to(device)
    elif hasattr(given, "__dlpack__"):
        try:
            tensor = torch.utils.dlpack.from_dlpack(given)
        except (RuntimeError, BufferError, TypeError, ValueError) as error:
            kind = type(given).__name__
            raise PlanError(f"{what} is a {kind} whose DLPack torch cannot read: {error}") from error
    else:
        kind = type(given).__name__
        raise PlanError(f"{what} is of {kind}; give a torch.Tensor, a NumPy array, or what has __dlpack__")
    if tensor.dtype is not torch_dtype(row):
        raise PlanError(f"{what} is of {_name(tensor.dtype)}, expected {row}: convert it first")
    if tensor.device != device:
        raise PlanError(f"{what} is on {tensor.device}, the plan runs on {device}: move it there")
    return tensor


def is_array(given: Any) -> bool:
    """Whether it is NumPy's."""
    return isinstance(given, (np.ndarray, np.generic))


def array_of(tensor: torch.Tensor, row: DType) -> Array:
    """A result as a NumPy array."""
    return to_array(tensor.cpu(), row)


def given_array(given: torch.Tensor | Array) -> Array:
    """What a call was given, as a NumPy array."""
    return given.detach().cpu().numpy() if isinstance(given, torch.Tensor) else np.asarray(given)


def shapes_of(inputs: Sequence[Any], names: Collection[str], what: str) -> tuple[tuple[int, ...], ...]:
    """The shapes of a call's inputs. what: names the graph or model. Raises PlanError for others than are taken."""
    if len(inputs) != len(names):
        takes = ", ".join(map(repr, names))
        raise PlanError(f"{what} takes {len(names)} inputs ({takes}), got {len(inputs)}")
    try:
        return tuple([tuple(one.shape) for one in inputs])
    except AttributeError as error:
        raise PlanError(f"{what}: inputs are tensors or arrays: {error}") from error


def _dense(tensor: torch.Tensor, what: str) -> torch.Tensor:
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        kind = "nested" if tensor.is_nested else "quantized" if tensor.is_quantized else str(tensor.layout)
        raise PlanError(f"{what} is a {kind} tensor; plans take dense ones: use .to_dense() or .dequantize()")
    if type(tensor) not in _PLAIN:
        if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            kind = type(tensor).__name__
            raise PlanError(f"{what} is a {kind}, which has no memory of its own; give a plain tensor")
        tensor = tensor.as_subclass(torch.Tensor)
    return tensor.detach().resolve_conj().resolve_neg()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
