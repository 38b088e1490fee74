"""The CPU backend: attention in C++, projections as in `few_or_many`."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from . import few_or_many
from . import joined_weights as weights
from .attention_kernels import backward, forward
from .operands import applies, dense, operand

__all__ = [
    "DISPATCH_KEYS",
    "LINEAR",
    "applies",
    "backward",
    "dense",
    "forward",
    "linear_directly",
    "linear_with_gradient",
    "operand",
    "weights",
]

DISPATCH_KEYS = ("CPU",)

LINEAR = {"CPU": few_or_many.linear}
linear_directly: Callable[..., Tensor | None] | None = few_or_many.linear_directly

linear_with_gradient = None
"""Training changes the weights at every step: packing them would be work for nothing."""
