"""Weights in oneDNN's blocked layout: the cache, tensors that are held packed only, and products with them."""

from types import ModuleType

from . import cache, held, products

__all__ = ["cache", "held", "products"]

guard: ModuleType
"""The weight guards of the package that this was imported for; see packing.py."""
