"""The layers of this repository; all stand in for functions and read nothing from `self`."""

from __future__ import annotations

from torch import Tensor, nn

from .rotation import (
    apply_rotary_pos_emb,
    apply_rotary_pos_emb_cast_back,
    apply_rotary_pos_emb_interleaved,
    apply_rotary_pos_emb_of_halves,
)


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


class rotary_pos_emb_of_halves(nn.Module):  # noqa: N801
    """Half-split rotation by angles that both halves share, as GPT-OSS's `apply_rotary_pos_emb`."""

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(
        self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
    ) -> tuple[Tensor, Tensor]:
        return apply_rotary_pos_emb_of_halves(q, k, cos, sin, unsqueeze_dim)


class rotary_pos_emb_cast_back(nn.Module):  # noqa: N801
    """Half-split rotation in the dtype of the angles, cast back, as OLMo's `apply_rotary_pos_emb`."""

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(
        self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
    ) -> tuple[Tensor, Tensor]:
        return apply_rotary_pos_emb_cast_back(q, k, cos, sin, unsqueeze_dim)
