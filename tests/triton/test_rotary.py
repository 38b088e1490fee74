"""The Triton variant of `layers/rotary`, under the interpreter or on a GPU."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.combinations import every_pair
from tests.layers.rotary_cases import DTYPES, ORIGINALS, check_backward, check_forward, make

SHAPES = [(2, 3, 1, 5, 6), (1, 4, 2, 1, 128), (2, 2, 1, 0, 8), (1, 3, 2, 3, 80)]


@pytest.fixture(scope="module")
def package() -> ModuleType:
    return import_kernel(source_variant(bundled_folder() / "rotary", "cuda"))


@every_pair(name=ORIGINALS, dtype=DTYPES, shape=SHAPES, layout=["heads first", "positions first", "strided"])
def test_forward(
    package: ModuleType, device: str, name: str, dtype: torch.dtype, shape: tuple[int, ...], layout: str
) -> None:
    check_forward(getattr(package, name), ORIGINALS[name], make(shape, dtype, layout, device))


@pytest.mark.parametrize("name", ORIGINALS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_backward(package: ModuleType, device: str, name: str, dtype: torch.dtype) -> None:
    check_backward(
        getattr(package, name), ORIGINALS[name], make((2, 3, 1, 5, 6), dtype, "positions first", device)
    )


def test_many_heads_take_several_programs(package: ModuleType, device: str) -> None:
    tensors = make((1, 40, 8, 2, 128), torch.float32, "positions first", device)
    check_forward(package.apply_rotary_pos_emb, ORIGINALS["apply_rotary_pos_emb"], tensors)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ORIGINALS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_large(package: ModuleType, device: str, name: str, dtype: torch.dtype) -> None:
    tensors = make((2, 32, 8, 2048, 128), dtype, "positions first", device)
    check_forward(getattr(package, name), ORIGINALS[name], tensors)
    check_backward(getattr(package, name), ORIGINALS[name], tensors)
