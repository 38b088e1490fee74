"""Rotary position embedding. Source: Su et al., RoFormer, arXiv 2104.09864."""

from . import layers
from .rotation import (
    apply_rotary_pos_emb,
    apply_rotary_pos_emb_cast_back,
    apply_rotary_pos_emb_interleaved,
    apply_rotary_pos_emb_of_halves,
)

__all__ = [
    "apply_rotary_pos_emb",
    "apply_rotary_pos_emb_cast_back",
    "apply_rotary_pos_emb_interleaved",
    "apply_rotary_pos_emb_of_halves",
    "layers",
]
