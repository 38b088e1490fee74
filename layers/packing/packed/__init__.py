"""Weights in oneDNN's blocked layout: the cache, tensors that are held packed only, and products with them."""

import sys
from types import ModuleType

guard: ModuleType = vars(sys.modules[__name__])["guard"]
"""The weight guards of the package that this is imported for, which packing.py puts here before."""

from . import cache, held, products  # noqa: E402

__all__ = ["cache", "held", "products"]
