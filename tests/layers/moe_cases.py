"""Cases of mixtures of experts, shared by the CPU and the Triton tests, and their formulas in float64."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.tolerances import assert_close

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}

# tokens, experts, picked, width, inner width
SHAPES = [(1, 4, 2, 32, 64), (5, 3, 1, 7, 9), (33, 8, 3, 50, 70), (64, 4, 2, 96, 49), (9, 2, 2, 128, 17)]


class Case(NamedTuple):
    """Arguments of `gated_experts`."""

    x: Tensor
    gate_up: Tensor
    down: Tensor
    index: Tensor
    weight: Tensor

    def gradients_wanted(self) -> Case:
        index, rest = self.index, [self[at].detach().clone().requires_grad_() for at in (0, 1, 2, 4)]
        return Case(rest[0], rest[1], rest[2], index, rest[3])

    def double(self) -> Case:
        return Case(self[0].double(), self[1].double(), self[2].double(), self.index, self[4].double())


def make(shape: tuple[int, ...], dtype: torch.dtype, device: str = "cpu", absent: bool = False) -> Case:
    """Random operands; with `absent`, one token of three has an expert that is another device's."""
    tokens, experts, picked, width, inner = shape
    generator = torch.Generator().manual_seed(3)

    def random(*size: int) -> Tensor:
        return torch.randn(size, generator=generator)

    index = random(tokens, experts).argsort(dim=1)[:, :picked].contiguous()
    if absent:
        index[::3, 0] = experts
    return Case(
        random(tokens, width).to(dtype).to(device),
        (random(experts, 2 * inner, width) / width**0.5).to(dtype).to(device),
        (random(experts, width, inner) / inner**0.5).to(dtype).to(device),
        index.to(device),
        torch.softmax(random(tokens, picked), 1).to(dtype).to(device),
    )


def exact(case: Case, activation: str = "silu") -> Tensor:
    """The definition, pair by pair of a token and an expert."""
    x, gate_up, down, index, weight = case
    function = ACTIVATIONS[activation]
    rows = []
    for token in range(x.shape[0]):
        total = torch.zeros_like(x[0])
        for rank in range(index.shape[1]):
            expert = int(index[token, rank])
            if expert < gate_up.shape[0]:
                gate, up = (gate_up[expert] @ x[token]).chunk(2)
                total = total + weight[token, rank] * (down[expert] @ (function(gate) * up))
        rows.append(total)
    return torch.stack(rows)


def check_forward(package: ModuleType, case: Case, activation: str = "silu") -> None:
    found = package.gated_experts(*case, activation=activation)
    assert found.dtype == case.x.dtype
    assert_close(found, exact(case.double(), activation), factor=2)  # the inner width is rounded too


def check_backward(package: ModuleType, case: Case, activation: str = "silu") -> None:
    ours, reference = case.gradients_wanted(), case.double().gradients_wanted()
    found, expected = package.gated_experts(*ours, activation=activation), exact(reference, activation)
    assert_close(found, expected, factor=2)
    gradient = torch.randn(found.shape, generator=torch.Generator().manual_seed(4)).to(found)
    found.backward(gradient)
    expected.backward(gradient.double())
    for at in (0, 1, 2, 4):
        mine, theirs = ours[at].grad, reference[at].grad
        assert mine is not None and theirs is not None
        assert mine.dtype == case.x.dtype
        assert_close(mine, theirs, factor=3)  # of several rounded products


def check_router(
    package: ModuleType, logits: Tensor, k: int, renormalise: bool = True, rounded: bool = False
) -> None:
    """Scores against float64; the experts are those of torch.topk, whose logits have no ties."""
    score, index = package.top_k_softmax(logits, k, renormalise=renormalise, rounded=rounded)
    expected, at = torch.topk(torch.softmax(logits.double(), -1), k, dim=-1)
    if renormalise:
        expected = expected / expected.sum(-1, keepdim=True)
    assert score.dtype == (logits.dtype if rounded else torch.float32)
    assert torch.equal(index, at)
    assert_close(score, expected)


def distinct_logits(rows: int, experts: int, dtype: torch.dtype, device: str = "cpu") -> Tensor:
    """Logits (rows, experts) without ties within a row, in any dtype."""
    order = torch.rand(rows, experts, generator=torch.Generator().manual_seed(5)).argsort(dim=1)
    return (order / 8 - experts / 16).to(dtype).to(device)
