"""Under the mapping `compiled`: complex weights and buffers, which programs read as pairs of floats."""

from __future__ import annotations

import copy
import shutil

import pytest
import torch
from torch import Tensor, nn

from kernels_hub import Mode, kernelize, report

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.usefixtures("mapping_compiled"),
]


class Spectral(nn.Module):
    """As a Fourier neural operator: complex weights of the lowest frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, 3, dtype=torch.complex64))
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x.transpose(1, 2))[..., :3]
        mixed = torch.einsum("bif,iof->bof", spectrum, self.weight)
        return self.linear(torch.fft.irfft(mixed, n=x.shape[1]).transpose(1, 2)).relu()


class Rotary(nn.Module):
    """As the first Llama: rotations as a buffer of complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        turns = torch.outer(torch.arange(32.0), 10000.0 ** (-torch.arange(4.0) / 4))
        self.register_buffer("turns", torch.polar(torch.ones_like(turns), turns))

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.view_as_complex(self.linear(x).reshape(*x.shape[:-1], 4, 2))
        return torch.view_as_real(parts * self.turns[: x.shape[1]]).flatten(2)


@pytest.mark.parametrize("kind", [Spectral, Rotary])
def test_complex_weights(kind: type[nn.Module]):
    torch.manual_seed(0)
    model = kind().eval()
    original = copy.deepcopy(model)
    kernelize(model, mode=Mode.INFERENCE)
    width = 4 if kind is Spectral else 8
    for rows in (2, 3):
        x = torch.randn(rows, 12, width)
        torch.testing.assert_close(model(x), original(x), rtol=1e-4, atol=1e-5)
    assert [row.swapped for row in report(model).rows if row.path == ""] == [True]
    with torch.no_grad():
        for one in (model, original):
            (one.weight if kind is Spectral else one.turns).mul_(1 - 2j)
    torch.testing.assert_close(model(x), original(x), rtol=1e-4, atol=1e-5)
    for one in (model, original):
        if kind is Rotary:
            one.turns = one.turns.conj()
    torch.testing.assert_close(model(x), original(x), rtol=1e-4, atol=1e-5)
