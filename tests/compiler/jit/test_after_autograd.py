"""Layers compiled in a process that was forked after autograd's threads had started: its engine does not run there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.warm_process import run_script

SCRIPT = """
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from kernels_hub import CompiledLayer, Mode, kernelize, replace_kernel_forward_from_hub, report, use_kernel_mapping

with FakeTensorMode():  # as torch.compile has it: PyTorch counts a device more, for which autograd starts a thread
    torch.empty(2, device="cuda")
torch.ones(2, requires_grad=True).sum().backward()

class Clamped(nn.Module):
    def forward(self, x):
        return x.clamp(min=0.0).exp()

replace_kernel_forward_from_hub(Clamped, "Clamped")
model = nn.Sequential(Clamped()).eval()
x = torch.randn(5, 4)
with use_kernel_mapping({"Clamped": {"cpu": CompiledLayer("Clamped")}}, inherit_mapping=False):
    kernelize(model, mode=Mode.INFERENCE)
with torch.no_grad():
    torch.testing.assert_close(model(x), Clamped.forward(model[0], x))
(row,) = [row for row in report(model).rows if row.path == "0"]
assert row.swapped, row.reason
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_clamp_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path))
    done = run_script(SCRIPT)
    assert done.returncode == 0, done.stderr
