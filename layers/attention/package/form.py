"""What an attention computes besides its tensors, and which tensors the kernels take."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Form(NamedTuple):
    """In the order in which the operators take them."""

    causal: bool
    """Query i sees keys 0 .. i + offset."""
    offset: int
    scale: float
    softcap: float
    """softcap tanh(score / softcap) in the place of each scaled score; 0 for none."""


def takes(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether the kernels take these; the PyTorch formula serves the others."""
    return query.dtype in DTYPES and query.dtype == key.dtype == value.dtype


def result_like(query: Tensor, value: Tensor) -> Tensor:
    """An empty (batch, heads, lq, dv), in memory (batch, lq, heads, dv): what projects it next reads whole rows."""
    batch, heads, length, _ = query.shape
    return query.new_empty((batch, length, heads, value.shape[-1])).transpose(1, 2)


def broadcast(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """A mask as (batch, heads, lq, lk), of bool or float32, with strides of 0 where it is broadcast."""
    if mask is None:
        return None
    if mask.dtype not in (torch.bool, torch.float32):
        mask = mask.float()
    return mask.expand(*query.shape[:3], key.shape[2])


def attends_to_another(block: Any) -> bool:
    """Whether a decoder's block reads keys and values of an encoder: they are not projected from what queries are."""
    return bool(getattr(block, "is_decoder", False)) and not getattr(block, "is_causal", True)
