"""Maxima and averages over windows of images, for inference on the CPU."""

from . import layers
from .functional import avg_pool2d, max_pool2d

__all__ = ["avg_pool2d", "layers", "max_pool2d"]
