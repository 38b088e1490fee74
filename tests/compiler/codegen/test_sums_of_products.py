"""How exact products are: errors stay those of a block's sum, however many products are summed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from kernels_hub.compiler import compile
from tests.compiler.codegen.runtime_harness import needs_compiler

pytestmark = needs_compiler

Function = Callable[..., torch.Tensor]
PRODUCT: Function = torch.matmul
CASES: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "packed": (PRODUCT, ((40, 16384), (16384, 40))),
    "few rows, columns beside each other": (PRODUCT, ((3, 16384), (16384, 70))),
    "few rows, depth beside each other": (F.linear, ((3, 16384), (40, 16384))),
    "a dot product": (PRODUCT, ((200_000,), (200_000,))),
    "a batch": (PRODUCT, ((3, 20, 16384), (3, 16384, 20))),
    "a convolution": (F.conv2d, ((1, 1024, 9, 9), (64, 1024, 3, 3))),
    "a convolution of a few output channels": (F.conv2d, ((1, 1024, 9, 9), (4, 1024, 3, 3))),
    "attention over many keys": (
        F.scaled_dot_product_attention, ((1, 2, 16, 32), (1, 2, 16384, 32), (1, 2, 16384, 32)),
    ),
}  # fmt: skip


class Computes(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs)


def relative_error(actual: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(actual - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize("name", CASES)
def test_errors_do_not_grow_with_the_depth(name: str) -> None:
    function, shapes = CASES[name]
    generator = torch.Generator().manual_seed(0)
    inputs = tuple(torch.rand(shape, generator=generator) for shape in shapes)
    exact = function(*(one.double() for one in inputs)).numpy()
    run = compile((Computes(function).eval(), inputs), "cpu", engines=("cpp",))
    assert relative_error(run(*inputs).numpy(), exact) < 3e-7


def test_a_sum_in_one_chain_would_not_be_as_exact() -> None:
    """What the bound above tells apart: the same products, added one after the other."""
    random = np.random.default_rng(0)
    a, b = random.random((1, 16384), np.float32), random.random((16384, 40), np.float32)
    chain = np.cumsum(a.T * b, axis=0, dtype=np.float32)[-1]
    assert relative_error(chain, (a.astype(np.float64) @ b.astype(np.float64))[0]) > 6e-7


@pytest.mark.parametrize("taps", [1, 3])
@pytest.mark.parametrize("channels", [127, 128, 129, 255, 256, 257, 300, 513])
def test_convolutions_of_a_few_output_channels(channels: int, taps: int) -> None:
    """Sums that end within a tap, with one, and at the last channel."""
    generator = torch.Generator().manual_seed(channels)
    inputs = (
        torch.randn(2, channels, 5, 11, generator=generator),
        torch.randn(4, channels, taps, taps, generator=generator),
    )
    run = compile((Computes(F.conv2d).eval(), inputs), "cpu", engines=("cpp",))
    exact = F.conv2d(*(one.double() for one in inputs)).numpy()
    assert relative_error(run(*inputs).numpy(), exact) < 5e-7
