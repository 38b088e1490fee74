"""Under the mapping `compiled`, forwards whose sizes or branches depend on what tensors hold: programs of those values."""

from __future__ import annotations

import copy
import shutil
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from packaging.version import Version
from torch import Tensor, nn

from kernels_hub import Mode, kernelize, report
from kernels_hub.kernelization import jit_compilations

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.usefixtures("mapping_compiled"),
]


class Tower(nn.Module):
    """Patches of several images in a row, which attend to those of their own image; a grid says which they are."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor, grid: Tensor) -> Tensor:
        ends = F.pad(torch.repeat_interleave(grid[:, 1] * grid[:, 2], grid[:, 0]).cumsum(0), (1, 0))
        places = torch.cat([torch.arange(h * w).repeat(t) for t, h, w in grid.tolist()])
        x = self.linear(x + places[:, None])
        parts = x.split((ends[1:] - ends[:-1]).tolist())
        return torch.cat([F.scaled_dot_product_attention(one, one, one) for one in parts])


def _run(model: nn.Module, original: nn.Module, *call: Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(model(*call), original(*call))


def _programs(model: nn.Module) -> list[Any]:
    assert [row.swapped for row in report(model).rows if row.path == ""] == [True]
    return [jit_compilations.program_of(one) for one in model.__dict__["forward"].func.forwards(model)]


def test_a_grid_has_a_program_of_its_own():
    model = Tower().eval()
    original = copy.deepcopy(model)
    kernelize(model, mode=Mode.INFERENCE)
    one, other = torch.tensor([[1, 2, 3], [2, 1, 3]]), torch.tensor([[2, 1, 3], [1, 2, 3]])
    for grid in (one, one, other, other, one, other):
        _run(model, original, torch.randn(12, 6), grid)
    first, second = _programs(model)
    assert len(first.fallbacks) == 1 and not second.fallbacks
    again = copy.deepcopy(original)  # finds both on this machine
    kernelize(again, mode=Mode.INFERENCE)
    for grid in (other, one, one):
        _run(again, original, torch.randn(12, 6), grid)
    assert len(_programs(again)) == 2


class Frames(nn.Module):
    """Pads a signal to whole frames, with numbers that it keeps in buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(2, 2, 4, 3)
        self.stride, self.size = nn.Buffer(torch.tensor(3)), nn.Buffer(torch.tensor(4))
        self.left = self.size - self.stride

    def forward(self, x: Tensor) -> Tensor:
        frames = torch.ceil((x.shape[-1] - self.size + self.left) / self.stride + 1).to(torch.int64) - 1
        more = frames * self.stride + self.size - self.left - x.shape[-1]
        return self.convolution(F.pad(x, (self.left, more)))


def test_numbers_in_buffers_are_what_they_were():
    model = Frames().eval()
    original = copy.deepcopy(model)
    kernelize(model, mode=Mode.INFERENCE)
    for length in (16, 16, 20, 20):
        _run(model, original, torch.randn(2, 2, length))
    programs = _programs(model)
    assert len(programs) == 2 and not any(one.fallbacks for one in programs)
    for one in (model, original):
        one.size.fill_(6)
    _run(model, original, torch.randn(2, 2, 20))


class Marked(nn.Module):
    """Does more where anything is marked, as a decoder with global attention."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, marks: Tensor) -> Tensor:
        found = self.linear(x)
        return found * 2 if ((1.0 - marks.float()) < 0).any() else found.relu()


def test_a_question_that_is_answered_otherwise_runs_the_original():
    model = Marked().eval()
    original = copy.deepcopy(model)
    kernelize(model, mode=Mode.INFERENCE)
    plain, marked = torch.ones(3, 90, dtype=torch.int64), torch.ones(3, 90, dtype=torch.int64)
    marked[1, 4] = 2
    for marks in (plain, plain, marked, plain):
        _run(model, original, torch.randn(3, 4), marks)
    (program,) = _programs(model)
    assert list(program.fallbacks) == ["assertion"]


def test_a_question_about_activations_is_not_taken_for_answered():
    """What floats say may be otherwise at the next call: the original would run as often as the program."""
    model = Marked().eval()
    original = copy.deepcopy(model)
    kernelize(model, mode=Mode.INFERENCE)
    for _ in range(3):
        _run(model, original, torch.randn(3, 4), torch.randn(3, 9))
    (row,) = (row for row in report(model).rows if not row.path)
    assert not row.swapped and "cannot be compiled" in row.reason


class Writing(nn.Module):
    """Counts in its argument."""

    def forward(self, x: Tensor, counts: Tensor) -> Tensor:
        counts += 1
        return x.repeat_interleave(counts, 0) * 2


def test_what_is_written_is_not_known():
    model = Writing().eval()
    original = copy.deepcopy(model)
    kernelize(model, mode=Mode.INFERENCE)
    counts, others = torch.tensor([1, 2]), torch.tensor([1, 2])
    for _ in range(3):
        x = torch.randn(2, 3)
        torch.testing.assert_close(model(x, counts), original(x, others))
        assert torch.equal(counts, others)


class Windowed(nn.Module):
    """Overlapping windows by strides, where a mask hides nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        found = self.linear(x)
        if mask.any():
            found = found.masked_fill(mask, 0.0)
        rows, step = found.stride()
        return found.as_strided((3, 4, 4), (2 * rows, rows, step)).sum(1)


def test_strides_that_are_asked_for_are_those_of_contiguous_arguments():
    model = Windowed().eval()
    original = copy.deepcopy(model)
    kernelize(model, mode=Mode.INFERENCE)
    mask = torch.zeros(8, 1, dtype=torch.bool)
    for x in (torch.randn(8, 4), torch.randn(8, 4), torch.randn(4, 8).T):
        _run(model, original, x, mask)
    (program,) = _programs(model)
    assert list(program.fallbacks) == ["layout"]


class Checked(nn.Module):
    """Asserts something that cannot be computed."""

    def forward(self, x: Tensor) -> Tensor:
        torch._check_tensor_all(torch.linalg.eigvalsh(x) > 0)
        return x * 2


@pytest.mark.skipif(
    Version(torch.__version__) < Version("2.12"), reason="PyTorch 2.11 does not trace numbers read from bools"
)
def test_an_assertion_of_what_cannot_be_imported_is_a_reason():
    model = Checked()
    kernelize(model, mode=Mode.INFERENCE)
    assert torch.equal(model(torch.eye(3)), 2 * torch.eye(3))
    (reason,) = [row.reason for row in report(model).rows if row.path == ""]
    assert "AttributeError" not in reason and "no attribute" not in reason and "cannot be imported" in reason
