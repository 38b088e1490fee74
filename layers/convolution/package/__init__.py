"""Convolutions of two dimensions and one for PyTorch: the plain layers, and ResNet's blocks fused for inference.

CPU: contiguous images as they lie; channels-last ones on weights packed once for oneDNN, a batch norm folded in.
CUDA and ROCm: an implicit matrix product in Triton, with the batch norm in its epilogue.
"""

from . import followers, layers, weights
from .operators import conv2d, conv_norm

__all__ = ["conv2d", "conv_norm", "followers", "layers", "weights"]
