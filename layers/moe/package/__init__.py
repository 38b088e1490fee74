"""Mixtures of experts: which experts a token goes to, and a gated MLP over all experts at once."""

from . import layers
from .functional import clamped_experts, gated_experts, top_k_softmax

__all__ = ["clamped_experts", "gated_experts", "layers", "top_k_softmax"]
