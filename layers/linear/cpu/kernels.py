"""Linear layers on weights that are packed for oneDNN once, and multiplied from then on."""

from __future__ import annotations

from . import weights
from .operands import applies, dense, operand
from .packing import products

__all__ = ["LINEAR", "applies", "dense", "linear_with_gradient", "operand", "weights"]

LINEAR = {"CPU": products.linear}

linear_with_gradient = None
"""Training changes the weights at every step: packing them would be work for nothing."""
