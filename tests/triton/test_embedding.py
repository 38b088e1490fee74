"""The Triton variant of `layers/embedding`, under the interpreter or on a GPU."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.layers.embedding_cases import CASES, DTYPES, Case, check, make


@pytest.fixture(scope="module")
def package() -> ModuleType:
    return import_kernel(source_variant(bundled_folder() / "embedding", "cuda"))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_forward_and_backward(package: ModuleType, device: str, case: Case, dtype: torch.dtype) -> None:
    check(package.embedding, case, *make(case, dtype, device))


def test_rows_of_several_blocks(package: ModuleType, device: str) -> None:
    case = Case((2, 3), 4, 1100, padding=1)
    check(package.embedding, case, *make(case, torch.float32, device))
