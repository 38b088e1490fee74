"""Modules whose gradients are easily got wrong, each with what becomes of it: right, or refused for a reason.

Inputs are in float64. Ties, zeros and boundaries are among them; ids of embeddings are all there, the padding one too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

INF = float("inf")


@dataclass(frozen=True)
class Tricky:
    """make: a module. args: for the trace. others: further arguments, for which gradients are compared as well.

    refused: part of the reason where there is no derivative, or no graph.
    """

    make: Callable[[], nn.Module]
    args: tuple[torch.Tensor, ...]
    others: tuple[tuple[torch.Tensor, ...], ...] = ()
    refused: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    """For import_torch."""


class Written(nn.Module):
    """A function of itself and of tensors, with a weight of four."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.tensor([0.5, -1.25, 2.0, 1.5]))
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(self, *tensors)


def grid(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X = numbers(3, 4)
EDGES = grid([0.0, -0.0, 1.0, -1.0], [3.0, -3.0, 6.0, 0.5], [2.0, -2.0, 1e-30, 1e20], [-0.5, 5.0, 1e-9, -6.0])
"""Zeros and the boundaries of activations."""
POSITIVE = grid([0.0, 1.0, 4.0, 1e-8], [2.5, 1e10, 0.25, 0.0])
TIES = grid([1.0, 2.0, 2.0, 0.0], [3.0, 3.0, 3.0, 3.0], [-1.0, -2.0, -1.0, -2.0], [0.0, -0.0, 0.0, -1.0])
ZEROS = grid([0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 2.0, 3.0], [0.0, 5.0, 0.0, 1.0], [2.0, 3.0, -1.0, 0.5])
IDS = torch.tensor([[3, 1, 4, 1], [5, 2, 5, 5]])
PADDED = torch.tensor([[0, 1, 0, 2], [5, 0, 3, 4]])

TRICKY: dict[str, Tricky] = {}


def tricky(
    name: str,
    function: Callable[..., Any],
    *args: torch.Tensor,
    others: Any = (),
    refused: str = "",
    **options: Any,
) -> None:
    TRICKY[name] = Tricky(lambda: Written(function), args, tuple(others), refused, options)


def module(
    name: str,
    make: Callable[[], nn.Module],
    *args: torch.Tensor,
    others: Any = (),
    refused: str = "",
    **options: Any,
) -> None:
    TRICKY[name] = Tricky(make, args, tuple(others), refused, options)


# -- where gradients end

tricky("detach", lambda m, x: x * m.weight * x.detach(), X)
tricky("detach in place", lambda m, x: (x * 2).detach_() * m.weight * x, X)
tricky("data", lambda m, x: x * m.weight.data + x.data * m.weight, X)
tricky("straight through", lambda m, x: (x + (x.round() - x).detach()) * m.weight, X)
tricky("minus itself detached", lambda m, x: (x - x.detach()) * m.weight, X)
tricky("all is detached but one", lambda m, x: (x.detach() * m.weight).sum(), X)


def _no_grad(m: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = (x * m.weight).abs().amax(-1, keepdim=True)
        rows = x.flip(0)
    return x / scale + rows * m.weight


@torch.no_grad()
def _decorated(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


def _enabled_again(m: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        a = x * 2
        with torch.enable_grad():
            b = a * x
        c = x * 3
    return a * m.weight + b + c


def _switched(m: Any, x: torch.Tensor) -> torch.Tensor:
    torch.set_grad_enabled(False)
    a = x * m.weight
    torch.set_grad_enabled(True)
    with torch.set_grad_enabled(False):
        b = x.exp()
    with torch.set_grad_enabled(True):
        c = x * m.weight
    return a * x + b * x + c


def _inference(m: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        y = x * m.weight
    return y.clone() * x


def _raised(m: Any, x: torch.Tensor) -> torch.Tensor:
    try:
        with torch.no_grad():
            raise ValueError
    except ValueError:
        return x * m.weight


tricky("no_grad", _no_grad, X)
tricky("no_grad as a decorator", lambda m, x: _decorated(x) * x * m.weight, X)
tricky("enable_grad in no_grad", _enabled_again, X)
tricky("set_grad_enabled", _switched, X)
tricky("inference_mode", _inference, X)
tricky("no_grad left by an exception", _raised, X)


def _view_without_gradient(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * m.weight
    with torch.no_grad():
        v = y.view(-1)[:4]
    return y + v * x


tricky("a view made in no_grad", _view_without_gradient, X)


# -- functions and hooks of their own


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 3

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * 7


class Reversed(torch.autograd.Function):
    """Its result is what it was given."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return -g


class Doubled(torch.autograd.Function):
    """In place, in two parts."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_dirty(inputs[0])

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * 5


def _hooked(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * m.weight
    y.register_hook(lambda g: g * 2)
    return y * x


def _hooked_if_needed(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * m.weight
    if y.requires_grad:
        y.register_hook(lambda g: g * 2)
    return y * x


class HookedInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4).double()
        self.inner.register_full_backward_hook(lambda module, given, got: (given[0] * 2,))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class AsksMode(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch.is_grad_enabled() else x + x.detach()


module("what the forward does depends on the mode", AsksMode, X, refused="asks torch.is_grad_enabled")
OWN = "is a torch.autograd.Function, whose backward is its own"
tricky("custom function", lambda m, x: Tripled.apply(x) * m.weight, X, refused=OWN)
tricky("gradient reversal", lambda m, x: Reversed.apply(x) * m.weight, X, refused=OWN)
tricky("custom function in place", lambda m, x: Doubled.apply(x * m.weight), X, refused=OWN)
tricky("custom function in no_grad", lambda m, x: _quietly(Tripled.apply, x) * m.weight + x, X)
tricky("hook on a tensor", _hooked, X, refused="a hook is registered on it")
tricky("hook where a gradient is needed", _hooked_if_needed, X, refused="asks whether it requires a gradient")
tricky(
    "hook on a weight",
    lambda m, x: (m.weight.register_hook(lambda g: g * 2), x * m.weight)[1],
    X,
    refused="a hook is registered on it",
)
module("backward hook of a module", HookedInside, X, refused="inner has backward hooks")
tricky("checkpoint", lambda m, x: checkpoint(lambda y: (y * m.weight).sin(), x, use_reentrant=False), X)
tricky(
    "reentrant checkpoint", lambda m, x: checkpoint(lambda y: (y * m.weight).sin(), x, use_reentrant=True), X
)


@torch.no_grad()
def _quietly(function: Any, x: torch.Tensor) -> torch.Tensor:
    return function(x)


# -- tables

module(
    "padding_idx", lambda: nn.Embedding(6, 3, padding_idx=0).double(), IDS, others=[(PADDED,), (PADDED * 0,)]
)
module("negative padding_idx", lambda: nn.Embedding(6, 3, padding_idx=-1).double(), PADDED, others=[(IDS,)])
module("repeated ids", lambda: nn.Embedding(6, 3).double(), IDS, others=[(PADDED,)])
module(
    "scale_grad_by_freq", lambda: nn.Embedding(6, 3, padding_idx=2, scale_grad_by_freq=True).double(),
    IDS, others=[(PADDED,)],
)  # fmt: skip
module("sparse", lambda: nn.Embedding(6, 3, sparse=True).double(), IDS, refused="sparse=True")
module(
    "max_norm",
    lambda: nn.Embedding(6, 3, max_norm=1.0).double(),
    IDS,
    refused="weight: a call changes this parameter",
)
tricky("index with repeated ids", lambda m, x, ids: x[ids] * m.weight, X, IDS % 3)
tricky("gather with repeated ids", lambda m, x, ids: x.gather(0, ids % 3) * m.weight, X, IDS)
tricky(
    "index_put that adds",
    lambda m, x, ids, v: x.index_put((ids[0] % 3,), v, accumulate=True),
    X,
    IDS,
    numbers(4, 4),
)
tricky(
    "index_put that overwrites",
    lambda m, x, ids, v: x.index_put((ids,), v * m.weight),
    X,
    torch.tensor([2, 0]),
    X[:2],
)
tricky("scatter_add", lambda m, x, ids, v: x.scatter_add(0, ids % 3, v * m.weight), X, IDS, numbers(2, 4))
tricky("index_add", lambda m, x, ids, v: x.index_add(0, ids[0] % 3, v, alpha=2), X, IDS, numbers(4, 4))
tricky("take_along_dim", lambda m, x: x.take_along_dim(x.argsort(-1), -1) * m.weight, X)
tricky("masked_fill", lambda m, x: (x * m.weight).masked_fill(x > 0, -INF).softmax(-1), X)
tricky("one tensor twice", lambda m, x: x * x + x @ x.mT @ x * m.weight, X)


# -- in place


def _in_place(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * m.weight
    y.add_(x).mul_(2)
    y[0].mul_(3)
    y[:, 1:3] = x[:, :2] * m.weight[0]
    return F.relu_(y + 0.1) - y * x


def _in_place_without_gradient(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    with torch.no_grad():
        y.mul_(3)
    return y * m.weight


def _in_place_detached(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.detach().add_(1)
    return y * m.weight


def _in_place_seen_detached(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    before = y.detach()
    y.add_(1)
    return y * m.weight + before * x


HIDDEN = "written in place through a tensor that autograd does not follow"
tricky("in place", _in_place, X)
tricky("in place in no_grad", _in_place_without_gradient, X, refused=HIDDEN)
tricky("in place through detach", _in_place_detached, X, refused=HIDDEN)
tricky("in place under a detached view", _in_place_seen_detached, X, refused=HIDDEN)
tricky("in place on what is made in no_grad", lambda m, x: _decorated(x).mul_(2) * x * m.weight, X)

# -- ties, zeros, boundaries

tricky("where with NaN in the other branch", lambda m, x: torch.where(x > 0, x.sqrt(), x * m.weight), X)
tricky("where with NaN avoided", lambda m, x: torch.where(x > 0, x.clamp(min=1e-3).log(), m.weight), EDGES)
tricky("sqrt at 0", lambda m, x: x.sqrt() * m.weight, POSITIVE)
tricky("rsqrt and reciprocal at 0", lambda m, x: (x.rsqrt(), x.reciprocal()), POSITIVE)
tricky("log at 0", lambda m, x: (x.log(), x.log1p(), torch.xlogy(x, x)), POSITIVE)
tricky("abs and sign at 0", lambda m, x: x.abs() * m.weight + x.sign(), EDGES)
tricky(
    "relu at 0", lambda m, x: (F.relu(x), F.relu6(x), F.leaky_relu(x), F.elu(x), F.celu(x), F.selu(x)), EDGES
)
tricky(
    "hard activations at their corners", lambda m, x: (F.hardtanh(x), F.hardsigmoid(x), F.hardswish(x)), EDGES
)
tricky(
    "shrinks and thresholds", lambda m, x: (F.softshrink(x), F.hardshrink(x), F.threshold(x, 0.5, 2.0)), EDGES
)
tricky(
    "smooth activations far out",
    lambda m, x: (F.gelu(x), F.silu(x), F.mish(x), F.softplus(x), x.tanh()),
    EDGES,
)
tricky("prelu", lambda m, x: F.prelu(x, m.weight), EDGES)
tricky("logsigmoid", lambda m, x: (F.logsigmoid(x), x.sigmoid()), EDGES)
tricky("clamp at its bounds", lambda m, x: x.clamp(-1, 3) + x.clamp(min=0) + x.clamp_max(2) * m.weight, EDGES)
tricky("clamp by tensors", lambda m, x, low, high: x.clamp(low, high), EDGES, EDGES - 1, EDGES.clone())
tricky(
    "clamp by one tensor", lambda m, x, low: (x.clamp(min=low), x.clamp(max=low)), EDGES, EDGES.flip(1) * 1
)
tricky(
    "maximum and minimum of equals",
    lambda m, x, y: torch.maximum(x, y) - torch.minimum(x, y) * m.weight,
    TIES,
    TIES.flip(1),
)
tricky("maximum of one tensor", lambda m, x: torch.maximum(x, x) * m.weight, TIES)
tricky("maximum with a number", lambda m, x: torch.maximum(x, torch.zeros_like(x)) * m.weight, TIES)
tricky(
    "fmax and fmin",
    lambda m, x, y: torch.fmax(x, y) - torch.fmin(x, y),
    TIES,
    TIES.flip(1),
)
tricky("amax and amin of equals", lambda m, x: (x.amax(1), x.amin(0), x.amax()), TIES)
tricky("max and min of equals", lambda m, x: (x.max(), x.min(), x.max(1).values, x.min(0).values), TIES)
tricky("sort of equals", lambda m, x: (x.sort(-1).values * m.weight, x.sort(0, descending=True).values), TIES)
# Which of several equals topk takes, PyTorch does not say.
tricky("topk", lambda m, x: (x.topk(2, -1).values * m.weight[:2], x.topk(2, 0, largest=False).values), X)
tricky(
    "median and kthvalue",
    lambda m, x: (x.median(-1).values, x.kthvalue(2, -1).values),
    X,
)
tricky("median of all, of equals", lambda m, x: (x.median(), x.nanmedian()), TIES)
tricky("max pooling of equals", lambda m, x: F.max_pool1d(x.unsqueeze(0), 2, 1), TIES)
tricky(
    "average pooling with padding",
    lambda m, x: F.avg_pool1d(x.unsqueeze(0), 3, 2, 1, count_include_pad=False),
    X,
)
tricky("norm at 0", lambda m, x: (x.norm(dim=-1), torch.linalg.vector_norm(x, 1, -1), x.norm()), ZEROS)
tricky(
    "other norms at 0",
    lambda m, x: (torch.linalg.vector_norm(x, 3, -1), torch.linalg.vector_norm(x, INF, -1)),
    ZEROS,
)
tricky("normalize at 0", lambda m, x: F.normalize(x, dim=-1) * m.weight, ZEROS)
tricky("cosine similarity at 0", lambda m, x: F.cosine_similarity(x, m.weight.expand_as(x), dim=-1), ZEROS)
tricky(
    "cosine similarity near 0",
    lambda m, x, y: F.cosine_similarity(x, y, dim=-1),
    ZEROS * 1e-9,
    X[0].expand(4, 4) * 1,
)
tricky("pairwise distance of equals", lambda m, x: F.pairwise_distance(x, x.flip(0)), TIES)
tricky("cdist of equals", lambda m, x: torch.cdist(x, TIES), ZEROS)
tricky("prod with zeros", lambda m, x: (x.prod(-1), x.prod()), ZEROS)
tricky("cumsum and cumprod with zeros", lambda m, x: (x.cumsum(0), x.cumprod(-1)), ZEROS)
tricky("logcumsumexp", lambda m, x: x.logcumsumexp(-1), X)
tricky(
    "cummax of equals",
    lambda m, x: (x.cummax(-1).values, x.cummin(0).values),
    TIES,
)
tricky("power of 0", lambda m, x: (x**0, x**1, x**2, x**3, x**0.5, x**1.5), POSITIVE)
tricky("negative powers", lambda m, x: (x**-1, x**-0.5), POSITIVE + 0.5)
tricky("powers by tensors", lambda m, x, y: x**y, POSITIVE, grid([0.0, 1.0, 0.5, 2.0], [0.0, 2.0, -1.0, 3.0]))
tricky("power of a number", lambda m, x: (2.0**x, 0.0 ** x.abs()), EDGES.clamp(-9, 9))
tricky("atan2 at 0", lambda m, x, y: torch.atan2(x, y), ZEROS, ZEROS.flip(1))
tricky("hypot at 0", lambda m, x, y: torch.hypot(x, y), ZEROS, ZEROS.flip(1))
tricky("remainders", lambda m, x: (x.remainder(2), x.fmod(3), x.frac()), X * 3)
tricky("remainder by tensors", lambda m, x, y: torch.remainder(x, y), X * 3, X.flip(0) + 5)
tricky("rounding", lambda m, x: x.round() + x.floor() * m.weight + x.trunc() + x, X * 3)
tricky("sinc at 0", lambda m, x: torch.sinc(x), EDGES[:2])
tricky("std and var", lambda m, x: (x.var(-1), x.std(-1), x.std(-1, correction=0)), X)
tricky("std of equals", lambda m, x: x.std(-1), TIES)
tricky("softmax of masked rows", lambda m, x: x.masked_fill(MASK, -INF).softmax(-1).nan_to_num(), X)
tricky(
    "softmax over all but one masked", lambda m, x: x.masked_fill(MASK[:1], -INF).softmax(-1) * m.weight, X
)
tricky("logsumexp of masked rows", lambda m, x: x.masked_fill(MASK[:1], -INF).logsumexp(-1), X)
tricky(
    "nan_to_num", lambda m, x: x.nan_to_num(0.5, 2.0, -2.0) * m.weight, grid([float("nan"), INF, -INF, 1.0])
)
tricky(
    "cross entropy with ignored targets",
    lambda m, x, t: F.cross_entropy(x, t, ignore_index=-100),
    X,
    torch.tensor([1, -100, 3]),
)
tricky(
    "losses at their corners",
    lambda m, x, y: (F.smooth_l1_loss(x, y), F.huber_loss(x, y, delta=0.5), F.l1_loss(x, y), F.mse_loss(x, y)),
    EDGES, EDGES + grid([0.0, 1.0, -1.0, 0.5]),
)  # fmt: skip
tricky(
    "binary cross entropy",
    lambda m, x, y: F.binary_cross_entropy_with_logits(x, y),
    EDGES.clamp(-9, 9),
    X.sigmoid().repeat(2, 1)[:4],
)
tricky("layer norm of equals", lambda m, x: F.layer_norm(x, (4,), m.weight, m.weight), TIES)
tricky("overlapping windows", lambda m, x: x.unfold(1, 3, 1).sum(-1) * m.weight[:2], X)
tricky("expanded and flipped", lambda m, x: (x[:1].expand(3, 4) * x.flip(0)).roll(1, 1) * m.weight, X)
tricky("casts there and back", lambda m, x: x.float().double() * m.weight + x.long(), X * 3)

MASK = torch.tensor([[True, True, False, True], [True, True, True, True], [False, False, False, False]])

# -- what takes part


class Frozen(nn.Module):
    """A part that does not learn, a weight used twice, one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed = nn.Linear(4, 4).requires_grad_(False)
        self.tied = nn.Linear(4, 4)
        self.again = nn.Linear(4, 4)
        self.again.weight = self.tied.weight
        self.idle = nn.Linear(4, 4)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.again(torch.tanh(self.tied(torch.relu(self.fixed(x)))))


module("frozen, tied and idle parts", Frozen, X)
tricky("integer inputs", lambda m, ids: ids * m.weight + ids.float().double().sqrt(), IDS)
tricky("no gradient at all", lambda m, ids: ids * 2.0, IDS, refused="no output that is a float depends on")
tricky("complex", lambda m, x: torch.view_as_real(torch.fft.fft(torch.complex(x, x))), X)
tricky(
    "complex products",
    lambda m, x: (torch.complex(x, x * 2) * torch.complex(x, x)).real,
    X,
)
module("dropout in training", lambda: nn.Dropout(0.5), X, refused="not supported")
module("batch norm in training", lambda: nn.BatchNorm1d(4).double(), X, refused="a call changes this buffer")
module("batch norm", lambda: nn.BatchNorm1d(4).double().eval(), X)
module(
    "batch norm in training, buffers returned",
    lambda: nn.BatchNorm1d(4).double(),
    numbers(5, 4),
    mutations="outputs",
)
tricky("traced by Dynamo", lambda m, x: x * m.weight, X, refused="strict=True", strict=True)
