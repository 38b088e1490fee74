"""Linear layers with fused bias and activation."""

from . import layers
from .fused_linear import linear
from .kernels import weights
from .transposed_linear import transposed_linear

__all__ = ["layers", "linear", "transposed_linear", "weights"]
