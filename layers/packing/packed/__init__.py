"""Weights in oneDNN's blocked layout: the cache, tensors that are held packed only, and products with them."""

from . import cache, held, products

__all__ = ["cache", "held", "products"]
