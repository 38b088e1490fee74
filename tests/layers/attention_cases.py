"""Cases of attention, shared by the CPU and the Triton tests, and PyTorch's formula in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tests.tolerances import assert_close

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

# batch, heads, heads of keys, queries, keys, width, width of values
Shape = tuple[int, int, int, int, int, int, int]

# Gradients are sums over all queries or keys of differences that nearly cancel.
GRADIENT_FACTOR = 4.0


@dataclass(frozen=True)
class Case:
    """One call. layout: "heads first" is contiguous, "positions first" as models pass it, "joined" parts of one
    tensor, "strided" has gaps within rows. mask: a shape that broadcasts, with "bool" or "float" before it."""

    shape: Shape
    mask: str = ""
    causal: bool = False
    offset: int = 0
    scale: float | None = None
    softcap: float | None = None
    layout: str = "positions first"

    def __str__(self) -> str:
        extra = [self.mask, f"causal+{self.offset}" if self.causal else "", self.layout]
        extra.append(f"softcap {self.softcap}" if self.softcap else "")
        return " ".join([str(self.shape), *filter(None, extra)])


PLAIN = Case((2, 4, 2, 5, 7, 16, 16))
CASES = [
    PLAIN,
    Case((1, 3, 3, 33, 40, 20, 12), layout="heads first"),
    Case((1, 2, 1, 19, 19, 33, 33), causal=True, layout="joined"),
    Case((1, 4, 2, 6, 11, 16, 16), causal=True, offset=5),
    Case((1, 2, 2, 9, 4, 16, 24), causal=True, offset=-3),  # the first three see nothing
    Case((2, 2, 1, 1, 37, 16, 16), layout="strided"),
    Case((2, 2, 2, 8, 9, 16, 16), "bool 2 1 8 9"),
    Case((2, 2, 1, 8, 9, 16, 16), "bool 1 9", causal=True),
    Case((2, 4, 2, 8, 9, 16, 16), "float 2 4 8 9", scale=0.3),
    Case((1, 2, 2, 8, 9, 16, 16), "float 8 1"),
    Case((1, 4, 2, 10, 12, 16, 16), causal=True, softcap=3.0),
    Case((1, 2, 1, 7, 8, 32, 32), "bool 1 1 7 8", softcap=2.0),
]
EMPTY = [Case((1, 2, 2, 3, 0, 16, 16)), Case((1, 2, 2, 0, 3, 16, 16)), Case((0, 2, 1, 3, 3, 16, 16))]


@dataclass(frozen=True)
class Call:
    """The tensors of a case."""

    case: Case
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None

    def options(self) -> dict[str, object]:
        case = self.case
        return {"causal": case.causal, "offset": case.offset, "scale": case.scale, "softcap": case.softcap}


def make(case: Case, dtype: torch.dtype, device: str = "cpu") -> Call:
    batch, heads, shared, queries, keys, width, values = case.shape
    generator = torch.Generator().manual_seed(11)

    def random(heads: int, length: int, width: int) -> Tensor:
        if case.layout == "heads first":
            x = torch.randn(batch, heads, length, width, generator=generator)
        elif case.layout == "positions first":
            x = torch.randn(batch, length, heads, width, generator=generator).transpose(1, 2)
        elif case.layout == "joined":
            x = torch.randn(batch, length, heads * width + 7, generator=generator)[..., 3:-4]
            x = x.unflatten(-1, (heads, width)).transpose(1, 2)
        else:
            x = torch.randn(batch, length, heads, 2 * width, generator=generator).transpose(1, 2)[..., ::2]
        return _laid_as(x, x.to(dtype), device)

    mask = None
    if case.mask:
        kind, *sizes = case.mask.split()
        mask = torch.randn([int(size) for size in sizes], generator=generator)
        mask = (mask > -0.5 if kind == "bool" else mask.to(dtype)).to(device)
    return Call(
        case, random(heads, queries, width), random(shared, keys, width), random(shared, keys, values), mask
    )


def _laid_as(like: Tensor, x: Tensor, device: str) -> Tensor:
    size = 1 + sum((n - 1) * s for n, s in zip(like.shape, like.stride(), strict=True)) if like.numel() else 0
    room = torch.zeros(size, dtype=x.dtype, device=device)
    return room.as_strided(like.shape, like.stride()).copy_(x)


def formula(call: Call) -> Tensor:
    """In float64, through the whole matrix of weights."""
    case = call.case
    query, key, value = (x.double() for x in (call.query, call.key, call.value))
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = (query @ key.mT) * (query.shape[-1] ** -0.5 if case.scale is None else case.scale)
    if case.softcap:
        scores = case.softcap * torch.tanh(scores / case.softcap)
    seen = torch.ones_like(scores, dtype=torch.bool)
    if case.causal:
        seen = seen.tril(case.offset)
    if call.mask is not None:
        if call.mask.dtype == torch.bool:
            seen = seen & call.mask
        else:
            scores = scores + call.mask
    if scores.shape[-1]:
        scores = scores - scores.detach().amax(-1, keepdim=True)
    weights = torch.where(seen, scores.exp(), 0.0)
    total = weights.sum(-1, keepdim=True)
    return (weights / torch.where(total == 0, 1.0, total)) @ value


Attention = Callable[..., Tensor]


def check_forward(attention: Attention, call: Call) -> None:
    found = attention(call.query, call.key, call.value, call.mask, **call.options())
    assert found.dtype == call.query.dtype
    assert found.transpose(1, 2).is_contiguous()
    assert_close(found, formula(call))


def check_backward(attention: Attention, call: Call) -> None:
    inputs = [x.detach().requires_grad_() for x in (call.query, call.key, call.value)]
    ours = replace(call, query=inputs[0], key=inputs[1], value=inputs[2])
    found = attention(*inputs, call.mask, **call.options())
    gradient = torch.randn(found.shape, generator=torch.Generator().manual_seed(5)).to(found)
    got = torch.autograd.grad(found, inputs, gradient)
    expected = torch.autograd.grad(formula(ours), inputs, gradient.double())
    for mine, theirs, like in zip(got, expected, inputs, strict=True):
        assert mine.dtype == like.dtype
        assert_close(mine, theirs, dtype=like.dtype, factor=GRADIENT_FACTOR)
