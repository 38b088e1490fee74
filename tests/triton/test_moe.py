"""The Triton variant of `layers/moe`, under the interpreter or on a GPU."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.combinations import every_pair
from tests.layers import clamped_experts_cases
from tests.layers.moe_cases import DTYPES, check_backward, check_forward, check_router, distinct_logits, make


@pytest.fixture(scope="module")
def package() -> ModuleType:
    return import_kernel(source_variant(bundled_folder() / "moe", "cuda"))


@every_pair(
    absent=[False, True],
    shape=[(1, 4, 2, 32, 64), (5, 3, 1, 7, 9), (33, 3, 2, 50, 70), (70, 2, 2, 80, 17)],
    dtype=DTYPES,
)
def test_forward(
    package: ModuleType, device: str, dtype: torch.dtype, shape: tuple[int, ...], absent: bool
) -> None:
    check_forward(package, make(shape, dtype, device, absent))


@every_pair(absent=[False, True], shape=[(5, 3, 1, 7, 9), (40, 3, 2, 50, 70)], dtype=DTYPES)
def test_backward(
    package: ModuleType, device: str, dtype: torch.dtype, shape: tuple[int, ...], absent: bool
) -> None:
    check_backward(package, make(shape, dtype, device, absent))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("absent", [False, True])
def test_clamped_experts(package: ModuleType, device: str, dtype: torch.dtype, absent: bool) -> None:
    for shape in ((5, 3, 1, 7, 9), (33, 3, 2, 50, 70)):
        clamped_experts_cases.check_forward(package, clamped_experts_cases.make(shape, dtype, device, absent))


def test_an_expert_that_nobody_picks(package: ModuleType, device: str) -> None:
    case = make((9, 4, 1, 16, 8), torch.float32, device)
    check_backward(package, case._replace(index=torch.full_like(case.index, 2)))


@pytest.mark.parametrize("counts", [[0, 0, 0], [1, 0, 17], [16, 16, 16], [0, 33, 2]])
def test_every_row_is_in_one_tile(package: ModuleType, device: str, counts: list[int]) -> None:
    kernels = sys.modules[f"{package.__name__}.kernels"]
    ends = torch.tensor(counts, device=device).cumsum(0)
    rows = int(ends[-1]) + 5  # five that belong to no expert
    expert, start = (t.tolist() for t in kernels.tiles_of(ends, rows, 16))
    seen = [
        (e, row)
        for e, first in zip(expert, start, strict=True)
        if e < 3
        for row in range(first, min(first + 16, int(ends[e])))
    ]
    assert seen == [(e, row) for e in range(3) for row in range(int(ends[e]) - counts[e], int(ends[e]))]


@every_pair(
    rounded=[False, True], renormalise=[False, True], size=[(1, 1, 1), (7, 4, 2), (5, 60, 8)], dtype=DTYPES
)
def test_router(
    package: ModuleType,
    device: str,
    dtype: torch.dtype,
    size: tuple[int, int, int],
    renormalise: bool,
    rounded: bool,
) -> None:
    rows, experts, k = size
    check_router(package, distinct_logits(rows, experts, dtype, device), k, renormalise, rounded)


def test_router_takes_the_first_of_equals_and_never_an_expert_that_is_none(
    package: ModuleType, device: str
) -> None:
    assert package.top_k_softmax(torch.zeros(2, 5, device=device), 3)[1].tolist() == [[0, 1, 2]] * 2
    index = package.top_k_softmax(torch.full((2, 5), float("nan"), device=device), 2)[1]
    assert ((index >= 0) & (index < 5)).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_large(package: ModuleType, device: str, dtype: torch.dtype) -> None:
    case = make((4096, 8, 2, 1024, 2048), dtype, device)
    operands, reference = case.gradients_wanted(), case.double().gradients_wanted()
    found = package.gated_experts(*operands)
    expected = sys.modules[f"{package.__name__}.reference"].gated_experts(*reference, "silu")
    found.sum().backward()
    expected.sum().backward()
    bound = 2e-2 if dtype is torch.bfloat16 else 3e-3 if dtype is torch.float16 else 1e-5
    for mine, theirs in [(found, expected), *((operands[i].grad, reference[i].grad) for i in (0, 1, 2, 4))]:
        assert mine is not None and theirs is not None
        assert float((mine.detach().double() - theirs.detach()).norm() / theirs.detach().norm()) < bound
