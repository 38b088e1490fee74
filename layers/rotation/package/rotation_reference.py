"""The formulas in plain PyTorch: the oracle, and what runs where no kernel does.

A rotation takes pairs (a, b) of a row, (x[i], x[i + D/2]) or, interleaved, (x[2i], x[2i + 1]), with
the cosines and sines at the same two places, which need not be equal:

    a' = a cos_a - b sin_a        b' = b cos_b + a sin_b
"""

from __future__ import annotations

import torch
from torch import Tensor


def _rotated(x: Tensor, interleaved: bool) -> Tensor:
    """(-b, a) in the places of (a, b)."""
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool) -> Tensor:
    """The rotation of one tensor, or its transpose, which is its gradient. cos and sin broadcast to x."""
    if inverse:  # (R x)ᵀ: the sines move with the elements that they multiplied
        return x * cos - _rotated(x * sin, interleaved)
    return x * cos + _rotated(x, interleaved) * sin


def rotate_pair(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool
) -> tuple[Tensor, Tensor]:
    """`rotate` of queries and keys."""
    return rotate(q, cos, sin, interleaved, inverse), rotate(k, cos, sin, interleaved, inverse)
