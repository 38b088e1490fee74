"""The operator, and the two functions that call it.

`rotate(q, k, cos, sin, interleaved, inverse)` is linear in q and k, and its gradient is itself with
`inverse` flipped, so one operator serves forward, backward and every order after that.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import rotation_kernels as kernels
from . import rotation_reference as reference
from .direct import is_transformed, is_unwatched
from .registration import define_twice, implementations


def _fake(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, _, cos, sin, ctx.interleaved, ctx.inverse = inputs
    ctx.save_for_backward(cos, sin)


def _derivative(ctx: Any, dq: Tensor, dk: Tensor) -> tuple[Tensor | None, ...]:
    operator = _ROTATE_WITH_GRAD if torch.is_grad_enabled() else _ROTATE
    dq, dk = operator(dq, dk, *ctx.saved_tensors, ctx.interleaved, not ctx.inverse)
    return dq, dk, None, None, None, None


_ROTATE, _ROTATE_WITH_GRAD = define_twice(
    "rotate",
    "(Tensor q, Tensor k, Tensor cos, Tensor sin, bool interleaved, bool inverse) -> (Tensor, Tensor)",
    implementations(kernels.DISPATCH_KEYS, kernels.rotate_pair, reference.rotate_pair),
    _fake,
    backward=_derivative,
    setup_context=_save,
)


def apply_rotary_pos_emb(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys, halves against halves: `q cos + rotate_half(q) sin`.

    q (…, S, D) and k (…, S, D), usually (B, H, S, D) with other numbers of heads; cos, sin (B or 1,
    S, D), unsqueezed at `unsqueeze_dim` to broadcast. Returns like q and k, in their memory layout.
    Rounds each product and the sum, as the original does; gradients are rounded once. float64, other
    ranks than 4, and cosines of another dtype take the PyTorch formula, with its promotions. Of cosines that
    are narrower than q and k only so much of each row is rotated, the rest is copied (GPT-NeoX, Phi 3).
    Source: arXiv 2104.09864.
    """
    if 1 < (width := cos.shape[-1]) < q.shape[-1]:
        parts = q[..., :width], k[..., :width]
        if not torch.compiler.is_compiling() and q.numel() < kernels.SMALL_PART:
            angles = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
            turned = reference.rotate_pair(*parts, *angles, False, False)
        else:
            turned = apply_rotary_pos_emb(*parts, cos, sin, unsqueeze_dim)
        both = ((turned[0], q), (turned[1], k))
        q, k = (torch.cat((part, whole[..., width:]), dim=-1) for part, whole in both)
        return q, k
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    if q.dtype != cos.dtype or k.dtype != cos.dtype:
        return reference.rotate_pair(q, k, cos, sin, False, False)
    return _rotate(q, k, cos, sin, False)


def apply_rotary_pos_emb_of_halves(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    """As `apply_rotary_pos_emb`, of cosines and sines (B or 1, S, D / 2) that both halves share (GPT-OSS)."""
    if 2 * cos.shape[-1] != q.shape[-1]:
        raise ValueError(
            f"apply_rotary_pos_emb_of_halves: expected cosines half as wide as q, got {cos.shape[-1]} and {q.shape[-1]}"
        )
    cos, sin = torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)
    return apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim)


def apply_rotary_pos_emb_cast_back(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    """As `apply_rotary_pos_emb`, and back to the dtypes of q and k; of wider cosines it rounds once (OLMo)."""
    if cos.dtype == torch.float32 and q.dtype == k.dtype and q.dtype in (torch.bfloat16, torch.float16):
        return _rotate(q, k, cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim), False)
    turned = apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim)
    return turned[0].to(q.dtype), turned[1].to(k.dtype)


def apply_rotary_pos_emb_interleaved(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys, each even element against the odd one after it.

    Shapes as for `apply_rotary_pos_emb`; cos and sin hold every angle twice in a row. As the
    originals in transformers do, computes in float32 and returns q's dtype for both.
    """
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    if q.dtype != k.dtype or q.dtype == torch.float64 or cos.dtype not in (q.dtype, torch.float32):
        dtype = q.dtype
        q, k = reference.rotate_pair(q.float(), k.float(), cos, sin, True, False)
        return q.to(dtype), k.to(dtype)
    return _rotate(q, k, cos, sin, True)


def _rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    grad = torch.is_grad_enabled()
    if (
        grad and (cos.requires_grad or sin.requires_grad)
    ) or is_transformed():  # learned angles have gradients, too
        dtype = q.dtype
        if interleaved and dtype != torch.float64:
            q, k = q.float(), k.float()
        q, k = reference.rotate_pair(q, k, cos, sin, interleaved, False)
        return q.to(dtype), k.to(dtype)
    if grad and (q.requires_grad or k.requires_grad):
        return _ROTATE_WITH_GRAD(q, k, cos, sin, interleaved, False)  # type: ignore[no-any-return]
    if is_unwatched(kernels.DISPATCH_KEYS, q, k, cos, sin):
        return kernels.rotate_pair(q, k, cos, sin, interleaved, False)
    return _ROTATE(q, k, cos, sin, interleaved, False)  # type: ignore[no-any-return]
