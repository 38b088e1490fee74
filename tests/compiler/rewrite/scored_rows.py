"""Reductions of scores that are no softmax, as users write them: in several ranks and layouts; one kernel each."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.compiler.rewrite.naive_attention import (
    GROUPS_LAST,
    K5,
    Q5,
    B,
    Case,
    D,
    H,
    K,
    Q,
    S,
    T,
    product,
    scores,
)


def turned(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-1, -2)


def relu_of_loops(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return product(torch.relu(scores(q, k) * -0.3), v)


def sigmoid(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.sigmoid(turned(q, k) * 0.3 + mask) @ v


def hidden(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.relu(turned(q, k).masked_fill(mask > 0, -torch.inf)) @ v


def squared(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.relu(turned(q, k)).square() @ v


def gelu(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.gelu(turned(q, k)) @ v


def silu(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.silu(turned(q, k)) @ v


def decayed(q: Tensor, k: Tensor, v: Tensor, decay: Tensor) -> Tensor:
    return (turned(q, k) * decay) @ v


def by_length(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.bmm(torch.relu(torch.bmm(q, k.transpose(1, 2))) / T, v)


def merged(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.reshape(B * H, -1, D) for x in (q, k, v))
    return torch.bmm(torch.sigmoid(torch.bmm(q, k.transpose(1, 2))), v).reshape(B, H, S, D)


def einsum_groups(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    of = torch.einsum("bsgrd,btgd->bgrst", q, k) * 0.3
    return torch.einsum("bgrst,btgd->bsgrd", torch.sigmoid(of + mask), v)


def groups_of_loops(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.relu(scores(q, k.unsqueeze(2))) @ v.unsqueeze(2)


def repeated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    return torch.relu(turned(q, k)) @ v


def logsumexp(q: Tensor, k: Tensor) -> Tensor:
    return torch.logsumexp(turned(q, k) * 0.3, -1)


def logsumexp_kept(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    return torch.logsumexp(scores(q, k).masked_fill(mask > 0, -torch.inf), -1, keepdim=True)


def by_hand(q: Tensor, k: Tensor) -> Tensor:
    of = scores(q, k) * -0.3
    top = of.amax(-1, keepdim=True)
    return (of - top).exp().sum(-1).log() + top.squeeze(-1)


def by_hand_kept(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    of = turned(q, k) + mask
    top = of.amax(-1, keepdim=True)
    return top + (of - top).exp().sum(-1, keepdim=True).log()


def without_maximum(q: Tensor, k: Tensor) -> Tensor:
    return (scores(q, k) * 0.3).exp().sum(-1).log()


def logsumexp_of_groups(q: Tensor, k: Tensor) -> Tensor:
    return torch.logsumexp(torch.einsum("bsgrd,btgd->bgrst", q, k) * 0.3, -1)


THREE = (H, S, D), (H, T, D), (H, T, D)
WEIGHED: dict[str, Case] = {
    "relu, of loops": Case(relu_of_loops, (Q, K, K)),
    "sigmoid and a mask": Case(sigmoid, (Q, K, K, (S, T))),
    "relu of what is hidden": Case(hidden, (Q, K, K, (B, 1, S, T))),
    "squared relu": Case(squared, (Q, K, K)),
    "gelu": Case(gelu, (Q, K, K)),
    "silu": Case(silu, (Q, K, K)),
    "a decay": Case(decayed, (Q, K, K, (H, S, T))),
    "three dims": Case(by_length, THREE),
    "sigmoid, three dims, a mask of heads": Case(sigmoid, (*THREE, (H, S, T))),
    "two dims": Case(squared, ((S, D), (T, D), (T, D))),
    "heads merged with the batch": Case(merged, (Q, K, K)),
    "one head of keys and values": Case(squared, (Q, (B, 1, T, D), (B, 1, T, D))),
    "einsum of groups, and a mask": Case(einsum_groups, (*GROUPS_LAST, (S, T))),
    "groups, of loops": Case(groups_of_loops, (Q5, K5, K5)),
    "repeated heads": Case(repeated, (Q, (B, 2, T, D), (B, 2, T, D))),
    "no keys": Case(sigmoid, (Q, (B, H, 0, D), (B, H, 0, D), (S, 0))),
}
TOTALS: dict[str, Case] = {
    "logsumexp": Case(logsumexp, (Q, K)),
    "logsumexp of what is hidden": Case(logsumexp_kept, (Q, K, (S, T))),
    "by hand": Case(by_hand, (Q, K)),
    "by hand, with a mask": Case(by_hand_kept, (Q, K, (B, 1, 1, T))),
    "no maximum": Case(without_maximum, (Q, K)),
    "no maximum, three dims": Case(without_maximum, THREE[:2]),
    "by hand, two dims": Case(by_hand, ((S, D), (T, D))),
    "groups": Case(logsumexp_of_groups, GROUPS_LAST[:2]),
}
