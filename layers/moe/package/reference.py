"""The formulas in plain PyTorch: the oracle, and what runs where no kernel does. All can be differentiated."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .blocks import FORMULAS
from .routing import route


def gated_experts(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    index: Tensor,
    weight: Tensor,
    activation: str | Callable[[Tensor], Tensor],
) -> Tensor:
    """See `functional.gated_experts`; the sum over a token's experts is rounded after each, in x's dtype.

    activation: a name, or what computes another.
    """
    function = FORMULAS[activation] if isinstance(activation, str) else activation
    out = torch.zeros_like(x)
    for expert in range(gate_up.shape[0]):
        token, rank = torch.where(index == expert)
        if not token.numel():
            continue
        gate, up = F.linear(x[token], gate_up[expert]).chunk(2, dim=-1)
        y = F.linear(function(gate) * up, down[expert])
        out = out.index_add(0, token, (y * weight[token, rank, None]).to(out.dtype))
    return out


def clamped_experts(
    x: Tensor,
    gate_up: Tensor,
    gate_up_bias: Tensor,
    down: Tensor,
    down_bias: Tensor,
    index: Tensor,
    weight: Tensor,
    alpha: float,
    limit: float,
) -> Tensor:
    """See `functional.clamped_experts`: an expert at a time, the sum over a token's experts rounded once."""
    routing = route(index, gate_up.shape[0])
    ends = [0, *routing.ends.tolist()]
    rows, share = routing.gather(x), weight.flatten()[routing.order][:, None]

    def products(rows: Tensor, weights: Tensor, biases: Tensor) -> Tensor:
        parts = [
            torch.addmm(biases[expert], rows[begin:end], weights[expert])
            for expert, (begin, end) in enumerate(itertools.pairwise(ends))
            if end > begin
        ]
        return torch.cat([*parts, rows.new_zeros(rows.shape[0] - ends[-1], weights.shape[2])])

    hidden = clamped_gate(products(rows, gate_up, gate_up_bias), alpha, limit)
    return routing.sum((products(hidden, down, down_bias) * share).to(x.dtype))


def clamped_gate(pre: Tensor, alpha: float, limit: float) -> Tensor:
    """(clamp(up, -limit, limit) + 1) * g * sigmoid(alpha * g), g = min(gate, limit); a gate and an up in turn."""
    gate, up = pre[:, ::2].clamp(max=limit), pre[:, 1::2].clamp(min=-limit, max=limit)
    return (up + 1) * (gate * torch.sigmoid(gate * alpha))


def top_k_softmax(logits: Tensor, k: int, renormalise: bool, rounded: bool) -> tuple[Tensor, Tensor]:
    """See `functional.top_k_softmax`."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    score, index = torch.topk(torch.softmax(wide, dim=-1), k, dim=-1)
    if renormalise:
        score = score / score.sum(dim=-1, keepdim=True)
    return score.to(logits.dtype) if rounded else score, index


def grouped_product(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """rows (P, K) weight[e]^T for the rows of each expert e, weight (E, N, K): (P, N); 0 for rows of none."""
    out = rows.new_zeros(rows.shape[0], weight.shape[1])
    begin = 0
    for expert, end in enumerate(ends.tolist()):
        if end > begin:
            torch.mm(rows[begin:end], weight[expert].t(), out=out[begin:end])
        begin = end
    return out


def grouped_outer(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    """left^T right over the rows of each expert, left (P, N), right (P, K): (E, N, K)."""
    out = left.new_zeros(ends.shape[0], left.shape[1], right.shape[1])
    begin = 0
    for expert, end in enumerate(ends.tolist()):
        if end > begin:
            torch.mm(left[begin:end].t(), right[begin:end], out=out[expert])
        begin = end
    return out
