"""Compilation under adverse conditions: a full disk, and a module that changes while it is being compiled."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kernels_hub import (
    CompiledLayer,
    Mode,
    kernelize,
    replace_kernel_forward_from_hub,
    report,
    use_kernel_mapping,
    wait_until_compiled,
)
from kernels_hub.compiler.jit import layer_compiler
from kernels_hub.kernelization import jit

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


class Shifted(nn.Module):
    """What it computes depends on a weight, a number, and whether there is a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))
        self.shift = 2.0
        self.bias: nn.Parameter | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shifted = torch.tanh(x * self.weight) + self.shift
        return shifted if self.bias is None else shifted + self.bias


def kernelized(layer: nn.Module) -> nn.Module:
    replace_kernel_forward_from_hub(type(layer), "Shifted")
    with use_kernel_mapping({"Shifted": {"cpu": CompiledLayer("Shifted")}}, inherit_mapping=False):
        return kernelize(layer.eval(), mode=Mode.INFERENCE)


def check(layer: nn.Module) -> None:
    x = torch.randn(4, 8)
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), type(layer).forward(layer, x))


def test_a_full_disk_loses_nothing_and_is_not_remembered(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def emit(*given: Any) -> None:
        (given[-1] / "half").write_text("of a file")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(layer_compiler, "_emit", emit)
        layer = kernelized(Shifted())
        check(layer)
        (row,) = report(layer).kept
        assert "No space left on device" in row.reason and "\n" not in row.reason and len(row.reason) <= 200
    assert [*store.rglob("half")] == [] and not (store / "refused").exists()
    jit._forward_of.cache_clear()
    again = kernelized(Shifted())
    check(again)
    assert len(report(again).swapped) == 1, report(again).rows[0].details


def _more_weight(layer: Shifted) -> None:
    with torch.no_grad():
        layer.weight.mul_(3)


def _other_parameter(layer: Shifted) -> None:
    layer.weight = nn.Parameter(torch.randn(8))


def _other_number(layer: Shifted) -> None:
    layer.shift = -1.0


def _a_bias(layer: Shifted) -> None:
    layer.bias = nn.Parameter(torch.randn(8))


def _another_dtype(layer: Shifted) -> None:
    layer.double()


@pytest.mark.parametrize("change", [_more_weight, _other_parameter, _other_number, _a_bias, _another_dtype])
def test_a_module_that_changes_while_it_is_compiled(
    change: Callable[[Shifted], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was compiled is of the module as it was: no call of the changed one gets its result."""
    monkeypatch.setenv("KERNELS_HUB_JIT", "background")
    begun, gate = tmp_path / "begun", tmp_path / "open"
    emit = layer_compiler._emit

    def held(*given: Any) -> None:
        begun.touch()
        while not gate.exists():
            time.sleep(0.01)
        emit(*given)

    monkeypatch.setattr(layer_compiler, "_emit", held)
    layer = kernelized(Shifted())
    check(layer)
    while not begun.exists():
        time.sleep(0.01)
    change(layer)
    check(layer)
    gate.touch()
    assert wait_until_compiled(layer, timeout=300), report(layer).rows[0].details
    for _ in range(3):
        check(layer)
