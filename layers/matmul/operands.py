"""Which tensors the Triton operators take."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Parameter
from triton.knobs import runtime

from .direct import is_transformed

DEVICES = ("cuda", "cpu") if runtime.interpret else ("cuda",)
"""Where the kernels run; "cuda" is also what PyTorch calls ROCm, and the CPU is Triton's interpreter."""

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def applies(x: Tensor, weights: tuple[Tensor, ...], biases: tuple[Tensor | None, ...]) -> bool:
    """Whether the operators are for these operands.

    Not for tensor subclasses (DTensor, quantised weights), symbolic values, operands that do not
    fit together (torch.nn.functional.linear says so best), nor under autocast or transforms.
    """
    for tensor in (x, *weights, *biases):
        if tensor is not None and type(tensor) is not Parameter and type(tensor) is not Tensor:
            return False
    if is_transformed():
        return False
    return (
        x.dtype in _DTYPES
        and all(
            weight.dtype is x.dtype and weight.dim() == 2 and weight.shape[1:] == x.shape[-1:]
            for weight in weights
        )
        and all(
            bias is None or bias.shape == weight.shape[:1]
            for weight, bias in zip(weights, biases, strict=True)
        )
        and x.device.type in DEVICES
        and not torch.is_autocast_enabled(x.device.type)
    )


def operand(weight: Tensor) -> Tensor:
    """What stands for a weight in an operator: on this backend, the weight."""
    return weight


def dense(weight: Tensor) -> Tensor:
    """The weight for PyTorch's own functions: on this backend, the weight."""
    return weight
