"""Rotary position embedding. Source: Su et al., RoFormer, arXiv 2104.09864."""

from . import layers
from .rotation import apply_rotary_pos_emb, apply_rotary_pos_emb_interleaved

__all__ = ["apply_rotary_pos_emb", "apply_rotary_pos_emb_interleaved", "layers"]
