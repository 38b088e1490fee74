"""Linear layers in one Triton kernel: product, bias and activation."""

from __future__ import annotations

from .linear_gradient import linear, linear_with_gradient, on_triton
from .operands import applies, dense, operand

__all__ = ["LINEAR", "applies", "dense", "linear_directly", "linear_with_gradient", "operand", "weights"]

LINEAR = on_triton(linear)
linear_directly = None

weights = None
"""Nothing is packed on this backend."""
