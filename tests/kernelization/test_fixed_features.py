"""Under the mapping `compiled`, a size that a module takes one number of alone is fixed, and its others stay free."""

from __future__ import annotations

import copy
import shutil

import pytest
import torch
from torch import Tensor, nn

from kernels_hub import Mode, kernelize, report
from kernels_hub.kernelization import jit_compilations

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.usefixtures("mapping_compiled"),
]


class Subsampled(nn.Module):
    """The front end of speech recognizers: a linear layer of the features that strided convolutions leave."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 3, 3, 2)
        self.linear = nn.Linear(3 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        found = self.convolution(x[:, None]).relu()
        batch, channels, steps, features = found.shape
        return self.linear(found.transpose(1, 2).contiguous().view(batch, steps, channels * features))


def test_one_program_takes_every_batch_and_length():
    model = Subsampled().eval()
    original = copy.deepcopy(model)
    kernelize(model, mode=Mode.INFERENCE)
    for size in ((2, 21, 9), (3, 40, 9), (5, 8, 9), (2, 13, 9)):
        x = torch.randn(*size)
        torch.testing.assert_close(model(x), original(x))
    assert [row.swapped for row in report(model).rows if row.path == ""] == [True]
    forwards = model.__dict__["forward"].func.forwards(model)
    (program,) = [jit_compilations.program_of(one) for one in forwards]
    assert program.fallbacks == {}
    x = torch.randn(2, 21, 10)  # other features, of which as many are left
    torch.testing.assert_close(model(x), original(x))


class Running(nn.Module):
    """A sum of exponentials up to each step, which is written out for a length that is a number."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sigmoid().logcumsumexp(1) * 2


def test_what_is_of_a_length_alone_is_compiled_for_that_of_the_call():
    model = Running()
    original = copy.deepcopy(model)
    kernelize(model, mode=Mode.INFERENCE)
    for size in ((2, 9, 3), (2, 9, 3), (2, 12, 3)):
        x = torch.randn(*size)
        torch.testing.assert_close(model(x), original(x))
    assert [row.swapped for row in report(model).rows if row.path == ""] == [True]
