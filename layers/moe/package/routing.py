"""Pairs of a token and an expert in the order of their experts, and back."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Routing(NamedTuple):
    """index (T, k) sorted: pair i of the sorted order is that of `token[i]`, all on the tokens' device.

    A token whose expert is number E is nobody's (expert-parallel models mark so what other devices
    have); its pair comes last, belongs to no expert, and counts as zero.
    """

    order: Tensor
    """(P,) where each sorted pair lies in index.flatten()."""
    token: Tensor
    """(P,) its token."""
    ends: Tensor
    """(E,) where each expert's pairs end."""
    picked: int

    def gather(self, x: Tensor) -> Tensor:
        """Rows of x (T, …) for each pair (P, …)."""
        return x.index_select(0, self.token)

    def sum(self, pairs: Tensor) -> Tensor:
        """The sum of each token's rows of pairs (P, N): (T, N), in float32 for narrow dtypes, rounded once."""
        wide = torch.float32 if pairs.dtype in (torch.bfloat16, torch.float16) else pairs.dtype
        unsorted = torch.empty_like(pairs)
        unsorted[self.order] = pairs
        return unsorted.unflatten(0, (-1, self.picked)).sum(1, dtype=wide).to(pairs.dtype)


def route(index: Tensor, experts: int) -> Routing:
    """The routing of index (T, k) int64, each in [0, experts] (checked where the device allows to look).

    Raises IndexError for another.
    """
    flat = index.flatten()
    if flat.device.type == "cpu" and flat.numel() and not 0 <= int(flat.min()) <= int(flat.max()) <= experts:
        raise IndexError(f"gated_experts: expected experts in [0, {experts}], got {flat.unique().tolist()}")
    order = flat.argsort(stable=True)
    counts = torch.zeros(experts + 1, dtype=torch.int64, device=flat.device)
    counts.scatter_add_(0, flat, torch.ones_like(flat))
    return Routing(order, order // index.shape[1], counts[:experts].cumsum(0), index.shape[1])
