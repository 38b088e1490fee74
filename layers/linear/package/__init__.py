"""Linear layers with fused bias and activation."""

from . import layers
from .fused_linear import linear
from .kernels import weights

__all__ = ["layers", "linear", "weights"]
