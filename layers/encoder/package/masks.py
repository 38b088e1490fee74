"""The masks of torch.nn.TransformerEncoderLayer as one of scaled_dot_product_attention."""

from __future__ import annotations

import torch
from torch import Tensor


def joined_mask(mask: Tensor | None, padding: Tensor | None, heads: int) -> tuple[Tensor | None] | None:
    """A mask (B or 1, heads or 1, 1 or L, L) that hides what either hides; None for masks of other kinds.

    mask (L, L) or (B x heads, L, L), padding (B, L): True is hidden, or floats that are added to the scores.
    """
    both = []
    if mask is not None:
        if mask.dim() not in (2, 3) or (mask.dim() == 3 and mask.shape[0] % heads):
            return None
        both.append(mask[None, None] if mask.dim() == 2 else mask.unflatten(0, (-1, heads)))
    if padding is not None:
        if padding.dim() != 2:
            return None
        both.append(padding[:, None, None])
    if any(one.dtype is torch.bool for one in both):
        if not all(one.dtype is torch.bool for one in both):
            return None
        both = [~one for one in both]
    elif not all(one.dtype is torch.float32 for one in both):
        return None
    if len(both) < 2:
        return (both[0] if both else None,)
    return (both[0] & both[1] if both[0].dtype is torch.bool else both[0] + both[1],)
