"""Feed-forward blocks, on weights as they are or on those that are packed for oneDNN once: see `few_or_many`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from . import few_or_many, weights
from .operands import applies, dense, operand

__all__ = [
    "GATED_LINEAR",
    "GATED_MLP",
    "LINEAR",
    "PROJECTS",
    "applies",
    "dense",
    "gated_linear_with_gradient",
    "gated_mlp_directly",
    "linear_directly",
    "linear_with_gradient",
    "operand",
    "weights",
]

LINEAR = {"CPU": few_or_many.linear}
linear_directly: Callable[..., Tensor | None] | None = few_or_many.linear_directly
"""What is done past the dispatcher; None on a backend that has nothing so short."""
GATED_LINEAR = {"CPU": few_or_many.gated}
GATED_MLP: Mapping[str, Callable[..., Tensor]] | None = {"CPU": few_or_many.gated_mlp}
"""The whole block in one operator; None on a backend that leaves its last product to PyTorch."""
gated_mlp_directly: Callable[..., Tensor | None] | None = few_or_many.gated_mlp_directly

PROJECTS = True
"""Whether a product without activation is better off on this backend than on torch.nn.functional.linear."""

linear_with_gradient = None
gated_linear_with_gradient = None
"""Training changes the weights at every step: packing them would be work for nothing."""
