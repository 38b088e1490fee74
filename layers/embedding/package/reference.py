"""The formulas in plain PyTorch: what the kernels are compared with, and what runs where none is.

The two functions are the interface of a backend: `kernels.py` of each has the same two.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def forward(indices: Tensor, weight: Tensor, scale: Tensor | None) -> Tensor:
    """indices (…) of int32 or int64, weight (N, H) -> (…, H): rows of weight, times `scale` in weight's dtype.

    Raises IndexError for an index outside of the table, where PyTorch does.
    """
    rows = F.embedding(indices, weight)
    return rows if scale is None else rows * scale.to(weight.dtype)


def backward(grad: Tensor, indices: Tensor, rows: int, padding: int, scale: Tensor | None) -> Tensor:
    """grad (…, H) -> (rows, H): for each index the sum over its places, in float32, rounded once.

    padding: an index whose row gets no gradient; -1 for none.
    """
    flat, wide = indices.reshape(-1).long(), grad.reshape(-1, grad.shape[-1])
    wide = wide if wide.dtype == torch.float64 else wide.float()
    total = wide.new_zeros((rows, wide.shape[1])).index_add_(0, flat, wide)
    if scale is not None:
        total = total * scale.to(grad.dtype)
    if padding >= 0:
        total[padding] = 0.0
    return total.to(grad.dtype)
