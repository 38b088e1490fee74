"""Linear layers in one Triton kernel: product, bias and activation."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .linear_gradient import linear, linear_with_gradient, on_triton
from .operands import applies, dense, operand

__all__ = [
    "LINEAR", "TRANSPOSED_LINEAR", "applies", "dense", "linear_directly", "linear_with_gradient", "operand",
    "transposed_linear_pays", "weights",
]  # fmt: skip

LINEAR = on_triton(linear)
linear_directly = None

TRANSPOSED_LINEAR: dict[str, Any] = {}


def transposed_linear_pays(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """PyTorch's own products take transposed weights as they lie."""
    return False


weights = None
"""Nothing is packed on this backend."""
