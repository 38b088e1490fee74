"""Blocks that real models hold and that are faster in another form than the one they are written in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Block = tuple[nn.Module, tuple[Any, ...]]


class Adapted(nn.Module):
    """A linear layer with a low-rank adapter that was not merged, as fine-tuned models are kept (arXiv 2106.09685)."""

    def __init__(self, size: int = 768, rank: int = 16) -> None:
        super().__init__()
        self.base = nn.Linear(size, size)
        self.down, self.up = nn.Linear(size, rank, bias=False), nn.Linear(rank, size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.base(x) + 2.0 * self.up(self.down(x))
        return found


class LowRank(nn.Module):
    """A linear layer whose weight is kept as a product of two thin ones (torch.nn.utils.parametrize)."""

    def __init__(self, size: int = 1024, rank: int = 32) -> None:
        super().__init__()
        self.left, self.right = (nn.Parameter(torch.randn(size, rank) / rank) for _ in range(2))
        self.bias = nn.Parameter(torch.randn(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.left @ self.right.T, self.bias)


class GraphConvolution(nn.Module):
    """Two layers of a graph network over a dense adjacency (arXiv 1609.02907)."""

    def __init__(self, features: int = 512, hidden: int = 32, classes: int = 7) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(features, hidden) / features**0.5)
        self.second = nn.Parameter(torch.randn(hidden, classes) / hidden**0.5)

    def forward(self, adjacency: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(adjacency @ x @ self.first)
        return torch.log_softmax(adjacency @ hidden @ self.second, -1)


class FactorisedEmbedding(nn.Module):
    """Embeddings of a small size, brought to the model's by a projection (arXiv 1909.11942)."""

    def __init__(self, vocabulary: int = 30000, size: int = 128, hidden: int = 768) -> None:
        super().__init__()
        self.tokens, self.project = nn.Embedding(vocabulary, size), nn.Linear(size, hidden)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.project(self.tokens(ids))
        return found


class LinearAttention(nn.Module):
    """Attention with a feature map in the place of the softmax (arXiv 2006.16236), as the formula is written."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k = functional.elu(q) + 1, functional.elu(k) + 1
        return (q @ k.transpose(-1, -2)) @ v


class MeanSquaredError(nn.Module):
    """A loss over all elements of a batch."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(x, y)


class Sampling(nn.Module):
    """Chances of the next token, of one row over a large vocabulary."""

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return torch.softmax(logits / 0.7, -1)


class LastToken(nn.Module):
    """A head that computes logits of every place, of which the last is taken, as simple generation loops do."""

    def __init__(self, hidden: int = 512, vocabulary: int = 8000) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.norm(x))
        return logits[:, -1]


class Pooled(nn.Module):
    """A sentence embedding: tokens are projected, then averaged."""

    def __init__(self, hidden: int = 768, size: int = 384) -> None:
        super().__init__()
        self.project = nn.Linear(hidden, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.normalize(self.project(x).mean(1), dim=-1)


class Projections(nn.Module):
    """Queries, keys and values of one token, with fewer heads for keys and values (arXiv 2305.13245)."""

    def __init__(self, hidden: int = 512, small: int = 128) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.q, self.k, self.v = nn.Linear(hidden, hidden), nn.Linear(hidden, small), nn.Linear(hidden, small)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = self.norm(x)
        return self.q(x), self.k(x), self.v(x)


def _attention() -> Block:
    return LinearAttention(), tuple(torch.randn(1, 8, 1024, 64) / 8 for _ in range(3))


def _graph() -> Block:
    adjacency = torch.softmax(torch.randn(1024, 1024), -1)
    return GraphConvolution(), (adjacency, torch.randn(1024, 512))


BLOCKS: Mapping[str, Callable[[], Block]] = {
    "adapted": lambda: (Adapted(), (torch.randn(1, 16, 768),)),
    "low_rank": lambda: (LowRank(), (torch.randn(64, 1024),)),
    "graph_convolution": _graph,
    "factorised_embedding": lambda: (FactorisedEmbedding(), (torch.randint(0, 30000, (8, 128)),)),
    "linear_attention": _attention,
    "mse": lambda: (MeanSquaredError(), (torch.randn(2048, 4096), torch.randn(2048, 4096))),
    "sampling": lambda: (Sampling(), (torch.randn(1, 151936),)),
    "last_token": lambda: (LastToken(), (torch.randn(2, 64, 512),)),
    "pooled": lambda: (Pooled(), (torch.randn(8, 128, 768),)),
    "projections": lambda: (Projections(), (torch.randn(1, 1, 512),)),
}


def block(name: str) -> Block:
    """A block with random weights of a fixed seed, and what it is called with."""
    torch.manual_seed(0)
    module, args = BLOCKS[name]()
    return module.eval(), args
