"""Linear layers: many rows on weights that are packed for oneDNN once, a few on weights as they are."""

from __future__ import annotations

from . import few_or_many, weights
from .operands import applies, dense, operand

__all__ = ["LINEAR", "applies", "dense", "linear_with_gradient", "operand", "weights"]

LINEAR = {"CPU": few_or_many.linear}

linear_with_gradient = None
"""Training changes the weights at every step: packing them would be work for nothing."""
