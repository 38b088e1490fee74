"""The layers of this repository; both stand in for functions and read nothing from `self`."""

from __future__ import annotations

from torch import Tensor, nn

from .rotation import apply_rotary_pos_emb, apply_rotary_pos_emb_interleaved


class rotary_pos_emb(nn.Module):  # noqa: N801 - the name under which the function is tagged
    """Half-split rotation of q and k, as Llama's `apply_rotary_pos_emb`."""

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(
        self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
    ) -> tuple[Tensor, Tensor]:
        return apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim)


class rotary_pos_emb_interleaved(nn.Module):  # noqa: N801
    """Rotation of neighbouring pairs of q and k, as Cohere's `apply_rotary_pos_emb`."""

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(
        self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
    ) -> tuple[Tensor, Tensor]:
        return apply_rotary_pos_emb_interleaved(q, k, cos, sin, unsqueeze_dim)
