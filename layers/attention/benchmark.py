"""Cases for `benchmarks/layers.py`: attention as models call it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Case = tuple[str, Callable[[], nn.Module], tuple[Any, ...]]


class Original(nn.Module):
    """PyTorch's function."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = True,
    ) -> Tensor:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )


def cases(device: str, dtype: torch.dtype) -> list[Case]:
    """(layer and shape, factory of the original, inputs): an encoder, a masked one, a decoder's prefill and step."""
    large = device == "cuda"
    shapes: list[tuple[str, int, int, int, int, int, int, bool, bool]] = [
        ("encoder", 8, 12, 12, 128, 128, 32, False, False),
        ("masked encoder", 8, 12, 12, 128, 128, 32, False, True),
        ("image", 1, 12, 12, 197, 197, 64, False, False),
        (
            "prefill",
            2 if large else 1,
            32,
            8,
            2048 if large else 512,
            2048 if large else 512,
            64,
            True,
            False,
        ),
        ("decoding", 1, 32, 8, 1, 1024, 64, False, False),
    ]
    found: list[Case] = []
    for name, batch, heads, shared, queries, keys, width, causal, masked in shapes:
        query, key, value = (
            torch.randn(batch, length, count, width, device=device, dtype=dtype).transpose(1, 2)
            for length, count in ((queries, heads), (keys, shared), (keys, shared))
        )
        mask = torch.ones(batch, 1, queries, keys, device=device, dtype=torch.bool) if masked else None
        label = f"scaled_dot_product_attention {name} ({batch}, {heads}/{shared}, {queries}x{keys}, {width})"
        # With grouped heads PyTorch's function must be told; the arguments are the same for both.
        inputs = (query, key, value, mask, 0.0, causal, None, True)
        found.append((label, Original, inputs))
    return found
