"""Cases for `benchmarks/layers.py`: the rotary embedding as a Llama's attention calls it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Case = tuple[str, Callable[[], nn.Module], tuple[Tensor, ...]]


class Original(nn.Module):
    """The function as transformers writes it."""

    def __init__(self, interleaved: bool) -> None:
        super().__init__()
        self.interleaved = interleaved

    def forward(
        self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
    ) -> tuple[Tensor, Tensor]:
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        if self.interleaved:
            dtype = q.dtype
            q, k = q.float(), k.float()
            return tuple((x * cos + _every_two(x) * sin).to(dtype) for x in (q, k))  # type: ignore[return-value]
        return tuple(x * cos + _half(x) * sin for x in (q, k))  # type: ignore[return-value]


def _half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def _every_two(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


def cases(device: str, dtype: torch.dtype) -> list[Case]:
    """(layer and shape, factory of the original, inputs): one small and one large shape for each form."""
    shapes = [(1, 8, 8, 128, 64), (4, 32, 8, 2048, 128) if device == "cuda" else (1, 32, 8, 1024, 128)]
    found: list[Case] = []
    for name, interleaved in (("rotary_pos_emb", False), ("rotary_pos_emb_interleaved", True)):
        for batch, q_heads, k_heads, positions, width in shapes:
            q, k = (
                torch.randn(batch, positions, heads, width, device=device, dtype=dtype).transpose(1, 2)
                for heads in (q_heads, k_heads)
            )
            angles = torch.randn(batch, positions, width, device=device, dtype=dtype)
            label = f"{name} ({batch}, {q_heads}+{k_heads}, {positions}, {width})"
            found.append(
                (
                    label,
                    lambda interleaved=interleaved: Original(interleaved),
                    (q, k, angles.cos(), angles.sin()),
                )
            )
    return found
