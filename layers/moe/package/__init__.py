"""Mixtures of experts: which experts a token goes to, and a gated MLP over all experts at once."""

from . import layers
from .functional import gated_experts, top_k_softmax

__all__ = ["gated_experts", "layers", "top_k_softmax"]
