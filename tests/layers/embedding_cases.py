"""Cases of embeddings, shared by the CPU and the Triton tests, and PyTorch's formula in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.tolerances import assert_close

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Case:
    """shape: of the indices. gaps: neither indices nor rows of the table are contiguous."""

    shape: tuple[int, ...]
    rows: int
    width: int
    padding: int | None = None
    scale: float | None = None
    indices: torch.dtype = torch.int64
    gaps: bool = False


CASES = [
    Case((3, 5), 7, 16),
    Case((4, 9), 3, 33, padding=1, indices=torch.int32),
    Case((2, 3, 2), 50, 5, padding=-1, scale=4.7),
    Case((6,), 1, 20, scale=0.3, gaps=True),
    Case((2, 8), 11, 1, gaps=True),
    Case((), 4, 8),
    Case((0, 3), 5, 8, padding=0),
]


def make(case: Case, dtype: torch.dtype, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """(indices, weight); each index occurs several times where there are more places than rows."""
    generator = torch.Generator().manual_seed(2)
    indices = torch.randint(case.rows, case.shape, generator=generator, dtype=case.indices).to(device)
    weight = torch.randn(case.rows, case.width, generator=generator).to(dtype).to(device)
    if case.gaps:
        indices = torch.stack((indices, indices), -1)[..., 0]
        weight = torch.cat((weight, weight), -1)[:, : case.width]
    return indices, weight


def check(embedding: Callable[..., Tensor], case: Case, indices: Tensor, weight: Tensor) -> None:
    """Forward and backward against float64."""
    weight = weight.detach().requires_grad_()
    found = embedding(indices, weight, case.padding, case.scale)
    exact = weight.detach().double().requires_grad_()
    expected = F.embedding(indices, exact, case.padding)
    if case.scale is not None:
        expected = expected * torch.tensor(case.scale, dtype=weight.dtype).double()
    assert found.dtype == weight.dtype
    assert_close(found, expected)
    gradient = torch.randn(found.shape, generator=torch.Generator().manual_seed(3)).to(found)
    (got,) = torch.autograd.grad(found, weight, gradient)
    (wanted,) = torch.autograd.grad(expected, exact, gradient.double())
    assert got.dtype == weight.dtype
    assert_close(got, wanted)
