"""Numbers beside bfloat16 and float16: rounded before an operation or not, as PyTorch does on a CPU."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kernels_hub import compiler

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export's own

ROWS, COLUMNS = 8, 512
CASES = {
    "product": lambda x: x * 0.1,
    "product, number first": lambda x: 1.1 * x,
    "product with a large int": lambda x: x * 257,
    "product with a tensor without dims": lambda x: x * torch.tensor(0.1),
    "quotient": lambda x: x / 3.3,
    "quotient by a float64 without dims": lambda x: x / torch.tensor(0.1, dtype=torch.float64),
    "quotient by a size": lambda x: x / (x.shape[0] + 249),
    "quotient, floor": lambda x: torch.div(x, 0.1, rounding_mode="floor"),
    "quotient, trunc": lambda x: torch.div(x, 0.1, rounding_mode="trunc"),
    "sum": lambda x: x + 0.1,
    "difference": lambda x: 0.1 - x,
    "sum with a tensor without dims": lambda x: x + torch.tensor(0.1),
    "sum, alpha": lambda x: torch.add(x, x.flip(0), alpha=0.1),
    "difference, alpha": lambda x: torch.sub(x, x.flip(0), alpha=1.1),
    "comparison": lambda x: (x > 0.1).to(x.dtype),
    "remainder": lambda x: x % 0.7,
    "addcdiv": lambda x: torch.addcdiv(x, x, x.flip(0), value=1.1),
}


class Each(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(case(x) for case in CASES.values())


def differing(actual: Tensor, expected: Tensor) -> int:
    assert actual.dtype is expected.dtype and actual.shape == expected.shape
    return int((actual != expected).sum())


@pytest.mark.parametrize("engine", ["reference", "cpp"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_numbers_are_rounded_where_eager_rounds_them(dtype: torch.dtype, engine: str):
    if engine == "cpp" and shutil.which("g++") is None:
        pytest.skip("needs g++")
    x = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = compiler.compile((Each(), (x,)), "cpu", engines=[engine])(x)
    wrong = {name: differing(one, CASES[name](x)) for name, one in zip(CASES, found, strict=True)}
    assert not any(wrong.values()), {name: count for name, count in wrong.items() if count}


def test_rounding_the_number_first_would_be_seen():
    x = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0)).bfloat16()
    number = torch.tensor(0.1, dtype=x.dtype).float()
    assert differing((x.float() * number).bfloat16(), CASES["product"](x)) > ROWS * COLUMNS // 20


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_subnormal_halves_are_numbers():
    """All 2046 of them, alone and beside vectors, by the two ways in which programs widen halves."""

    class Model(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return x * 0.75, x.t() * 4 + 0, x.float() * 1.5

    bits = np.concatenate(
        [np.arange(0x400), np.arange(0x8000, 0x8400), [0x400, 0x7BFF, 0x7C00, 0xFC00, 0x3C01, 0x8400, 0x3C00]]
    )
    x = torch.from_numpy(bits.astype(np.uint16).view(np.float16)).reshape(-1, 3)
    found = compiler.compile((Model(), (x,)), "cpu", engines=["cpp"])(x)
    for actual, expected in zip(found, Model()(x), strict=True):
        assert torch.equal(actual, expected)
