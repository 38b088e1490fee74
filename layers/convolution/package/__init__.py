"""2-d convolution for PyTorch: the plain layer, and ResNet's blocks fused for inference.

CPU: weights packed once for oneDNN, channels-last data, batch norm folded into the packed copy.
CUDA and ROCm: an implicit matrix product in Triton, with the batch norm in its epilogue.
"""

from . import layers, weights
from .operators import conv2d, conv_norm

__all__ = ["conv2d", "conv_norm", "layers", "weights"]
