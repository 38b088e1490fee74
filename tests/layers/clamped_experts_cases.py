"""Cases of GPT-OSS's experts, shared by the CPU and the Triton tests, and their formula in float64."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.tolerances import assert_close

# tokens, experts, picked, width, inner width
SHAPES = [(1, 4, 2, 32, 64), (5, 3, 1, 7, 9), (33, 8, 3, 50, 70), (9, 2, 2, 160, 17), (90, 2, 2, 33, 40)]
ALPHA, LIMIT = 1.3, 0.8
"""A limit that many elements reach."""


class Case(NamedTuple):
    """Arguments of `clamped_experts`."""

    x: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor
    down: Tensor
    down_bias: Tensor
    index: Tensor
    weight: Tensor

    def double(self) -> Case:
        return Case(*(t if t.dtype == torch.int64 else t.double() for t in self))

    def gradients_wanted(self) -> Case:
        return Case(*(t if t.dtype == torch.int64 else t.detach().clone().requires_grad_() for t in self))


def make(shape: tuple[int, ...], dtype: torch.dtype, device: str = "cpu", absent: bool = False) -> Case:
    """Random operands; with `absent`, one token of three has an expert that is another device's."""
    tokens, experts, picked, width, inner = shape
    generator = torch.Generator().manual_seed(3)

    def random(*size: int) -> Tensor:
        return torch.randn(size, generator=generator)

    index = random(tokens, experts).argsort(dim=1)[:, :picked].contiguous()
    if absent:
        index[::3, 0] = experts
    case = (
        random(tokens, width),
        random(experts, width, 2 * inner) / width**0.5,
        random(experts, 2 * inner),
        random(experts, inner, width) / inner**0.5,
        random(experts, width),
        index,
        torch.softmax(random(tokens, picked), 1),
    )
    return Case(*(t.to(device) if t.dtype == torch.int64 else t.to(dtype).to(device) for t in case))


def exact(case: Case) -> Tensor:
    """The definition, pair by pair of a token and an expert."""
    rows = []
    for token, row in enumerate(case.x):
        total = torch.zeros_like(row)
        for rank, e in enumerate(case.index[token].tolist()):
            if e < case.gate_up.shape[0]:
                pre = row @ case.gate_up[e] + case.gate_up_bias[e]
                gate, up = pre[::2].clamp(max=LIMIT), pre[1::2].clamp(-LIMIT, LIMIT)
                hidden = (up + 1) * gate * torch.sigmoid(ALPHA * gate)
                total = total + case.weight[token, rank] * (hidden @ case.down[e] + case.down_bias[e])
        rows.append(total)
    return torch.stack(rows)


def run(package: ModuleType | Any, case: Case) -> Tensor:
    found: Tensor = package.clamped_experts(*case, alpha=ALPHA, limit=LIMIT)
    return found


def check_forward(package: ModuleType | Any, case: Case) -> None:
    found = run(package, case)
    assert found.dtype == case.x.dtype
    assert_close(found, exact(case.double()), factor=2)  # the inner width is rounded too
