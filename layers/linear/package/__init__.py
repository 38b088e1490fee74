"""Linear layers with fused bias and activation."""

from . import followers, layers
from .fused_linear import linear
from .kernels import weights
from .transposed_linear import transposed_linear

__all__ = ["followers", "layers", "linear", "transposed_linear", "weights"]
