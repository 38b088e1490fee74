"""Cross-entropy, and cross-entropy of a linear layer's output that is never held whole."""

from . import layers
from .functional import cross_entropy, linear_cross_entropy

__all__ = ["cross_entropy", "layers", "linear_cross_entropy"]
