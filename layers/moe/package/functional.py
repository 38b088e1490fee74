"""Routing and experts as functions of tensors."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Parameter

from . import operators, reference
from .blocks import FORMULAS, needs_gradient
from .direct import is_transformed


def gated_experts(
    x: Tensor, gate_up: Tensor, down: Tensor, index: Tensor, weight: Tensor, activation: str = "silu"
) -> Tensor:
    """The sum over a token's experts e of weight * (activation(x gate[e]^T) * (x up[e]^T)) down[e]^T.

    x (T, H); gate_up (E, 2 I, H), the gates' rows first; down (E, H, I), all of one dtype; index (T, k)
    int64, the experts of each token (E stands for none); weight (T, k) float. Returns (T, H) in x's
    dtype; sums are float32. activation: "none", "relu", "silu", "gelu", "gelu_tanh" or "quick_gelu".
    Source: arXiv 2101.03961, arXiv 2401.04088 (Mixtral).

    Raises ValueError for shapes, dtypes or an activation that do not fit; IndexError for an expert
    that does not exist (on the CPU).
    """
    if activation not in FORMULAS:
        raise ValueError(f"gated_experts: unknown activation {activation!r}; known: {', '.join(FORMULAS)}")
    experts, width, inner = down.shape
    if x.dim() != 2 or x.shape[1] != width or gate_up.shape != (experts, 2 * inner, width):
        raise ValueError(
            "gated_experts: expected x (T, H), gate_up (E, 2 I, H) and down (E, H, I); got "
            f"{tuple(x.shape)}, {tuple(gate_up.shape)} and {tuple(down.shape)}"
        )
    _check_choice("gated_experts", x, index, weight)
    if gate_up.dtype != x.dtype or down.dtype != x.dtype:
        raise ValueError(
            f"gated_experts: expected operands of one dtype, got {x.dtype}, {gate_up.dtype} and {down.dtype}"
        )
    if not _are_plain(x, gate_up, down, index, weight):
        return reference.gated_experts(x, gate_up, down, index, weight, activation)
    if needs_gradient(x, gate_up, down, weight):
        found: Tensor = operators.gated_experts_with_gradient(x, gate_up, down, index, weight, activation)[0]
        return found
    return operators.gated_experts(x, gate_up, down, index, weight, activation)  # type: ignore[no-any-return]


def clamped_experts(
    x: Tensor,
    gate_up: Tensor,
    gate_up_bias: Tensor,
    down: Tensor,
    down_bias: Tensor,
    index: Tensor,
    weight: Tensor,
    *,
    alpha: float = 1.702,
    limit: float = 7.0,
) -> Tensor:
    """The sum over a token's experts e of weight * (h down[e] + down_bias[e]), with biases and clamps in the gate:

        gate, up = every other column of x gate_up[e] + gate_up_bias[e], from the first and from the second
        h = (clamp(up, -limit, limit) + 1) * g * sigmoid(alpha * g), where g = min(gate, limit)

    x (T, H); gate_up (E, H, 2 I) and gate_up_bias (E, 2 I); down (E, I, H) and down_bias (E, H), all of one
    dtype; index (T, k) int64, the experts of each token (E stands for none); weight (T, k) float. Returns
    (T, H) in x's dtype; sums are float32. Source: arXiv 2508.10925 (GPT-OSS).

    Raises ValueError for shapes or dtypes that do not fit; IndexError for an expert that does not exist
    (on the CPU).
    """
    experts, inner, width = down.shape
    if (
        x.dim() != 2
        or x.shape[1] != width
        or gate_up.shape != (experts, width, 2 * inner)
        or gate_up_bias.shape != (experts, 2 * inner)
        or down_bias.shape != (experts, width)
    ):
        raise ValueError(
            "clamped_experts: expected x (T, H), gate_up (E, H, 2 I), gate_up_bias (E, 2 I), down (E, I, H) and "
            f"down_bias (E, H); got {tuple(x.shape)}, {tuple(gate_up.shape)}, {tuple(gate_up_bias.shape)}, "
            f"{tuple(down.shape)} and {tuple(down_bias.shape)}"
        )
    _check_choice("clamped_experts", x, index, weight)
    dtypes = {t.dtype for t in (x, gate_up, gate_up_bias, down, down_bias)}
    if len(dtypes) > 1:
        raise ValueError(
            f"clamped_experts: expected operands of one dtype, got {', '.join(map(str, dtypes))}"
        )
    operands = (x, gate_up, gate_up_bias, down, down_bias, index, weight)
    if needs_gradient(*operands) or not _are_plain(*operands):
        return reference.clamped_experts(*operands, alpha, limit)
    return operators.clamped_experts(*operands, alpha, limit)  # type: ignore[no-any-return]


def top_k_softmax(
    logits: Tensor, k: int, *, renormalise: bool = True, rounded: bool = False
) -> tuple[Tensor, Tensor]:
    """(the k largest of softmax(logits), where they are), largest first, in float32.

    logits (..., E). renormalise: they are divided by their sum. rounded: they are returned in logits'
    dtype, else in float32 (float64 for float64). Of equal ones the first. Returns (..., k) and int64.

    Raises ValueError for a k that is not in [1, E].
    """
    if not 1 <= k <= logits.shape[-1]:
        raise ValueError(f"top_k_softmax: expected k in [1, {logits.shape[-1]}], got {k}")
    if needs_gradient(logits) or not _are_plain(logits):
        return reference.top_k_softmax(logits, k, renormalise, rounded)
    return operators.top_k_softmax(logits, k, renormalise, rounded)  # type: ignore[no-any-return]


def _check_choice(name: str, x: Tensor, index: Tensor, weight: Tensor) -> None:
    if (
        index.dtype != torch.int64
        or index.shape != (x.shape[0], index.shape[-1])
        or weight.shape != index.shape
    ):
        raise ValueError(
            f"{name}: expected index ({x.shape[0]}, k) int64 and weight of its shape; got "
            f"{index.dtype} {tuple(index.shape)} and {tuple(weight.shape)}"
        )


def _are_plain(*tensors: Tensor) -> bool:
    if is_transformed():
        return False
    return all(type(tensor) is Tensor or type(tensor) is Parameter for tensor in tensors)
