"""Scaled dot-product attention, and attention blocks."""

from . import kernels, layers
from .functional import attention, attention_with_sinks

weights = kernels.weights

__all__ = ["attention", "attention_with_sinks", "layers", "weights"]
