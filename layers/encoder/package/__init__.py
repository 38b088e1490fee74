"""Layers of encoders for inference on the CPU, each as one call of native code on weights packed once."""

from . import layers, weights

__all__ = ["layers", "weights"]
