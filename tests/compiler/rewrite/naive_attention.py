"""Attention as users write it by hand: sums of products over broadcast dims, in many layouts; one kernel each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

B, H, S, T, D = 2, 4, 5, 7, 8
Q, K = (B, H, S, D), (B, H, T, D)
Q5, K5 = (B, 2, 2, S, D), (B, 2, T, D)
"""Groups of two queries' heads for each of two heads of keys and values."""


def product(a: Tensor, b: Tensor) -> Tensor:
    return (a.unsqueeze(-1) * b.unsqueeze(-3)).sum(-2)


def scores(q: Tensor, k: Tensor) -> Tensor:
    return (q.unsqueeze(-2) * k.unsqueeze(-3)).sum(-1)


def weights(of: Tensor) -> Tensor:
    powers = (of - of.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


def naive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return product(weights(scores(q, k) * 0.3), v)


def capped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return product(weights(20 * torch.tanh(scores(q, k) * 0.3 / 20) + mask), v)


def without_maximum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    powers = (scores(q, k) * 0.3).exp()
    return product(powers / powers.sum(-1, keepdim=True), v)


def divided_behind(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    of = scores(q, k) * 0.3
    powers = (of - of.amax(-1, keepdim=True)).exp()
    return product(powers, v) / powers.sum(-1, keepdim=True)


def heads(x: Tensor) -> Tensor:
    return x.reshape(B, -1, H, D).permute(0, 2, 1, 3)


def split_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return naive(*map(heads, (q, k, v))).permute(0, 2, 1, 3).reshape(B, S, H * D)


def merged_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (heads(x).reshape(B * H, -1, D) for x in (q, k, v))
    soft = torch.softmax(torch.bmm(q, k.transpose(1, 2)) * 0.3, -1)
    return torch.bmm(soft, v).reshape(B, H, S, D).transpose(1, 2).reshape(B, S, H * D)


def heads_last(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.permute(1, 0, 2) for x in (q, k, v))
    return naive(q, k, v).permute(1, 0, 2)


def einsum_heads_last(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    soft = (torch.einsum("qhd,khd->hqk", q, k) * 0.3).softmax(-1)
    return torch.einsum("hqk,khd->qhd", soft, v)


def groups(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return naive(q, k.unsqueeze(2), v.unsqueeze(2))


def groups_of_a_product(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    of = (q @ k.unsqueeze(2).transpose(-1, -2)) * 0.3
    return of.masked_fill(mask > 0, -1e9).softmax(-1) @ v.unsqueeze(2)


def groups_last(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = q.permute(0, 2, 3, 1, 4), k.permute(0, 2, 1, 3), v.permute(0, 2, 1, 3)
    return groups(q, k, v).permute(0, 3, 1, 2, 4)


def einsum_groups(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    soft = (torch.einsum("bsgrd,btgd->bgrst", q, k) * 0.3 + mask).softmax(-1)
    return torch.einsum("bgrst,btgd->bsgrd", soft, v)


@dataclass(frozen=True)
class Case:
    """A forward, and the shapes of its inputs."""

    forward: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]


GROUPS_LAST = ((B, S, 2, 2, D), (B, T, 2, D), (B, T, 2, D))
CASES: dict[str, Case] = {
    "four dims": Case(naive, (Q, K, K)),
    "soft cap and mask": Case(capped, (Q, K, K, (S, T))),
    "no maximum": Case(without_maximum, (Q, K, K)),
    "divided behind the product": Case(divided_behind, (Q, K, K)),
    "heads split and put back": Case(split_heads, ((B, S, H * D), (B, T, H * D), (B, T, H * D))),
    "heads merged with the batch": Case(merged_heads, ((B, S, H * D), (B, T, H * D), (B, T, H * D))),
    "three dims": Case(naive, ((H, S, D), (H, T, D), (H, T, D))),
    "two dims": Case(naive, ((S, D), (T, D), (T, D))),
    "heads in the middle": Case(heads_last, ((S, H, D), (T, H, D), (T, H, D))),
    "einsum, heads in the middle": Case(einsum_heads_last, ((S, H, D), (T, H, D), (T, H, D))),
    "one head of keys and values": Case(naive, (Q, (B, 1, T, D), (B, 1, T, D))),
    "keys and values without a batch": Case(naive, (Q, (H, T, D), (H, T, D))),
    "one matrix of keys and values": Case(naive, ((B, S, D), (T, D), (T, D))),
    "groups": Case(groups, (Q5, K5, K5)),
    "groups, products and a mask": Case(groups_of_a_product, (Q5, K5, K5, (B, 1, 1, S, T))),
    "groups behind the length": Case(groups_last, GROUPS_LAST),
    "einsum of groups, and a mask": Case(einsum_groups, (*GROUPS_LAST, (S, T))),
}


class Module(nn.Module):
    """One case, or a function of tensors."""

    def __init__(self, forward: Callable[..., Tensor]) -> None:
        super().__init__()
        self.written = forward

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.written(*inputs)


def inputs_of(case: Case) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    return tuple(torch.randn(shape) for shape in case.shapes)
