"""Feed-forward blocks on weights that are packed for oneDNN once, and multiplied from then on."""

from __future__ import annotations

from . import weights
from .operands import applies, dense, operand
from .packing import products

__all__ = [
    "GATED_LINEAR",
    "LINEAR",
    "PROJECTS",
    "applies",
    "dense",
    "gated_linear_with_gradient",
    "linear_with_gradient",
    "operand",
    "weights",
]

LINEAR = {"CPU": products.linear}
GATED_LINEAR = {"CPU": products.gated}

PROJECTS = True
"""Whether a product without activation is better off on this backend than on torch.nn.functional.linear."""

linear_with_gradient = None
gated_linear_with_gradient = None
"""Training changes the weights at every step: packing them would be work for nothing."""
