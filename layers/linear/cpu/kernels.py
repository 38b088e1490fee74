"""Linear layers, on weights as they are or on those that are packed for oneDNN once: see `few_or_many`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import Parameter

from . import few_or_many, weights
from .direct import is_transformed
from .operands import applies, dense, operand
from .packing import products

__all__ = [
    "LINEAR", "TRANSPOSED_LINEAR", "applies", "dense", "linear_directly", "linear_with_gradient", "operand",
    "transposed_linear_pays", "weights",
]  # fmt: skip

LINEAR = {"CPU": few_or_many.linear}
linear_directly: Callable[..., Tensor | None] | None = few_or_many.linear_directly
"""What is done past the dispatcher; None on a backend that has nothing so short."""

TRANSPOSED_LINEAR = {"CPU": few_or_many.transposed_linear}


def transposed_linear_pays(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Whether the operator of transposed weights is for these operands: plain ones, of a large enough product."""
    return (
        type(weight) is Parameter
        and type(bias) is Parameter
        and type(x) is Tensor
        and x.dim() > 0
        and weight.dim() == 2
        and x.device.type == "cpu"
        and x.dtype is weight.dtype
        and (torch.compiler.is_compiling() or products.pays_transposed(x, weight))
        and not torch.is_autocast_enabled("cpu")
        and not is_transformed()
    )


linear_with_gradient = None
"""Training changes the weights at every step: packing them would be work for nothing."""
