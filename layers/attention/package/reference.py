"""The formulas in plain PyTorch: what the kernels are compared with, and what runs where none is.

Computed in float32, or in float64 for float64 inputs. The two functions are the interface of a
backend: `kernels.py` of each has the same two.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .form import Form, result_like


def forward(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, form: Form, save: bool
) -> tuple[Tensor, Tensor | None]:
    """query (B, H, Lq, D), key (B, Hk, Lk, D), value (B, Hk, Lk, Dv), mask broadcast to (B, H, Lq, Lk) ->
    (result like query (B, H, Lq, Dv), statistics (2, B, H, Lq) where they are asked for).

    The statistics of a row are its greatest score and 1 / sum(exp(score - greatest)); 0 and 0 of a row
    that sees no key, whose result is 0.
    """
    scores, _ = _scores(query, key, mask, form)
    weights, statistics = _weights(scores)
    result = (weights @ _repeated(_wide(value), query)).to(query.dtype)
    return result_like(query, value).copy_(result), statistics if save else None


def backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    result: Tensor,
    statistics: Tensor,
    form: Form,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value, in the layouts of these."""
    scores, slopes = _scores(query, key, mask, form)
    maximum, share = statistics.to(scores.dtype).unsqueeze(-1)
    weights = (scores - maximum).exp() * share
    grad, wide = _wide(grad), _wide(query)
    delta = (grad * _wide(result)).sum(-1, keepdim=True)
    changes = weights * (grad @ _repeated(_wide(value), query).mT - delta)
    changes = (changes if slopes is None else changes * slopes) * form.scale
    return (
        _like(changes @ _repeated(_wide(key), query), query),
        _like(_summed(changes.mT @ wide, key), key),
        _like(_summed(weights.mT @ grad, value), value),
    )


def differentiable(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, form: Form, sinks: Tensor | None = None
) -> Tensor:
    """The result by operators that have gradients of every order, for every input.

    sinks (H,): one more score a head, whose share nobody gets.
    """
    scores, _ = _scores(query, key, mask, form)
    blank = (scores.detach() == -torch.inf).all(-1, keepdim=True)
    scores = scores.masked_fill(blank, 0.0)
    if sinks is not None:
        scores = torch.cat((scores, _wide(sinks).view(-1, 1, 1).expand(*scores.shape[:-1], 1)), -1)
    weights = torch.softmax(scores, -1)[..., : key.shape[2]].masked_fill(blank, 0.0)
    return (weights @ _repeated(_wide(value), query)).to(query.dtype)


def _scores(query: Tensor, key: Tensor, mask: Tensor | None, form: Form) -> tuple[Tensor, Tensor | None]:
    """(the scores, derivative of the softcap or None), both (B, H, Lq, Lk)."""
    scores = (_wide(query) * form.scale) @ _repeated(_wide(key), query).mT
    slopes = None
    if form.softcap:
        turned = torch.tanh(scores / form.softcap)
        scores, slopes = form.softcap * turned, 1 - turned.square()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    if form.causal:
        rows = torch.arange(query.shape[2], device=query.device).unsqueeze(1)
        hidden = torch.arange(key.shape[2], device=query.device) > rows + form.offset
        scores = scores.masked_fill(hidden, -torch.inf)
    return scores, slopes


def _weights(scores: Tensor) -> tuple[Tensor, Tensor]:
    if scores.shape[-1] == 0:
        return scores, scores.new_zeros((2, *scores.shape[:-1]))
    maximum = scores.amax(-1, keepdim=True)
    maximum = maximum.masked_fill(maximum == -torch.inf, 0.0)
    powers = (scores - maximum).exp()
    total = powers.sum(-1, keepdim=True)
    share = torch.where(total == 0, 0.0, 1 / total)
    return powers * share, torch.stack((maximum, share)).squeeze(-1)


def _repeated(x: Tensor, query: Tensor) -> Tensor:
    """A head of keys or values for each head of queries."""
    group = query.shape[1] // x.shape[1] if x.shape[1] else 1
    return x if group == 1 else x.repeat_interleave(group, dim=1)


def _summed(x: Tensor, like: Tensor) -> Tensor:
    """The gradient of what `_repeated` repeated."""
    return x if x.shape[1] == like.shape[1] else x.unflatten(1, (like.shape[1], -1)).sum(2)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _like(values: Tensor, x: Tensor) -> Tensor:
    return torch.empty_like(x).copy_(values)
