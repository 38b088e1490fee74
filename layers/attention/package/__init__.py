"""Scaled dot-product attention, and attention blocks."""

from . import kernels, layers
from .functional import attention

weights = kernels.weights

__all__ = ["attention", "layers", "weights"]
