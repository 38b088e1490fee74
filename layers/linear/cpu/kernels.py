"""Linear layers: many rows on weights that are packed for oneDNN once, a few on weights as they are."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from . import few_or_many, weights
from .operands import applies, dense, operand

__all__ = ["LINEAR", "applies", "dense", "linear_directly", "linear_with_gradient", "operand", "weights"]

LINEAR = {"CPU": few_or_many.linear}
linear_directly: Callable[..., Tensor | None] | None = few_or_many.linear_directly
"""What is done past the dispatcher; None on a backend that has nothing so short."""

linear_with_gradient = None
"""Training changes the weights at every step: packing them would be work for nothing."""
