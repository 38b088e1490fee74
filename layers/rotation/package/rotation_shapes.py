"""Which tensors the kernels take; the PyTorch formula serves the others."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def fits(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """q (B, Hq, S, D), k (B, Hk, S, D), cos and sin (B or 1, 1, S, D) in q's dtype or float32; D even."""
    return (
        q.dim() == k.dim() == cos.dim() == 4
        and q.dtype == k.dtype
        and q.dtype in DTYPES
        and cos.dtype == sin.dtype
        and cos.dtype in (q.dtype, torch.float32)
        and cos.shape == sin.shape
        and cos.shape[0] in (1, q.shape[0])
        and cos.shape[1] == 1
        and q.shape[2:] == k.shape[2:] == cos.shape[2:]
        and q.shape[0] == k.shape[0]
        and q.shape[3] % 2 == 0
    )


def contiguous_rows(x: Tensor) -> Tensor:
    """x, copied only if its last dimension is not contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()
