"""The Triton variant of `layers/attention`, under the interpreter or on a GPU."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.combinations import every_value
from tests.layers.attention_cases import CASES, EMPTY, PLAIN, Case, check_backward, check_forward, make


@pytest.fixture(scope="module")
def package() -> ModuleType:
    return import_kernel(source_variant(bundled_folder() / "attention", "cuda"))


@pytest.mark.parametrize("case", [*CASES, *EMPTY], ids=str)
def test_forward_and_backward(package: ModuleType, device: str, case: Case) -> None:
    call = make(case, torch.float32, device)
    check_forward(package.attention, call)
    check_backward(package.attention, call)


@every_value(case=[PLAIN, CASES[3], CASES[8]], dtype=[torch.bfloat16, torch.float16])
def test_narrow_types(package: ModuleType, device: str, case: Case, dtype: torch.dtype) -> None:
    call = make(case, dtype, device)
    check_forward(package.attention, call)
    check_backward(package.attention, call)


@pytest.mark.parametrize(
    "case", [Case((1, 2, 1, 70, 75, 16, 16), causal=True), Case((1, 1, 1, 40, 70, 72, 72))], ids=str
)
def test_several_blocks(package: ModuleType, device: str, case: Case) -> None:
    call = make(case, torch.float32, device)
    check_forward(package.attention, call)
    check_backward(package.attention, call)


def test_wide_heads_run_on_the_reference(package: ModuleType, device: str) -> None:
    call = make(Case((1, 1, 1, 3, 4, 300, 300)), torch.float32, device)
    check_forward(package.attention, call)
    check_backward(package.attention, call)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("width", [64, 128, 256])
def test_large(package: ModuleType, device: str, dtype: torch.dtype, width: int) -> None:
    call = make(Case((2, 8, 2, 1024, 1024, width, width), causal=True), dtype, device)
    check_forward(package.attention, call)
    check_backward(package.attention, call)
