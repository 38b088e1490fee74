"""Modules that run kernels have ranges of their own in PyTorch's profiler."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.profiler import ProfilerActivity, profile

from kernels_hub import (
    CompiledLayer,
    Mode,
    kernelize,
    load_kernel_mapping,
    profiler_ranges,
    report,
    restore,
    use_kernel_forward_from_hub,
    use_kernel_mapping,
)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.norm = nn.Linear(8, 8), nn.GELU(), nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.act(self.up(x)))


@use_kernel_forward_from_hub("ProfiledBlock")
class Compiled(Block):
    pass


@pytest.fixture(autouse=True)
def default_mapping() -> Iterator[None]:
    with use_kernel_mapping(load_kernel_mapping("default"), inherit_mapping=False), torch.no_grad():
        yield


@pytest.fixture
def model() -> nn.Module:
    return kernelize(nn.Sequential(Block(), Block()).eval(), mode=Mode.INFERENCE, wait=True)


def ranges(recorded: profile) -> list[str]:
    return sorted(event.key for event in recorded.key_averages() if "bundled:" in event.key)


def test_modules_with_kernels_have_ranges(model: nn.Module) -> None:
    x = torch.randn(3, 8)
    with profile(activities=[ProfilerActivity.CPU]) as recorded, profiler_ranges(model):
        model(x)
        model(x)
    found = ranges(recorded)
    assert [name.partition("@")[0] for name in found] == [
        "0.act (GELU): bundled:activation",
        "0.up (Linear): bundled:linear",
        "1.act (GELU): bundled:activation",
        "1.up (Linear): bundled:linear",
    ]
    assert {event.count for event in recorded.key_averages() if event.key in found} == {2}
    (first, _) = (event for event in recorded.events() if event.key == found[1])
    assert any("::linear" in child.key for child in first.cpu_children)


def test_nothing_is_left_behind(model: nn.Module) -> None:
    x = torch.randn(3, 8)
    with profiler_ranges(model):
        pass
    assert not torch_module._global_forward_hooks and not torch_module._global_forward_pre_hooks
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        model(x)
    assert ranges(recorded) == []
    restore(model)
    with profile(activities=[ProfilerActivity.CPU]) as recorded, profiler_ranges(model):
        model(x)
    assert ranges(recorded) == []


def test_a_forward_that_raises_closes_its_range(model: nn.Module) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as recorded, profiler_ranges(model):
        with pytest.raises(RuntimeError):
            model(torch.randn(3, 7))
        model(torch.randn(3, 8))
    assert len(ranges(recorded)) == 4
    (first, second) = sorted(
        (event.time_range for event in recorded.events() if event.key.startswith("0.up ")),
        key=lambda span: span.start,
    )
    assert first.end <= second.start


def test_several_threads(model: nn.Module) -> None:
    x = torch.randn(3, 8)
    failures: list[RuntimeError] = []

    def run() -> None:
        try:
            with torch.no_grad():
                for _ in range(20):
                    model(x)
        except RuntimeError as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    with profiler_ranges(model):
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert not failures


def test_a_compiled_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_HUB_JIT", "wait")
    model, x = nn.Sequential(Compiled()).eval(), torch.randn(3, 8)
    expected = model(x)
    mapping = {"ProfiledBlock": {"cpu": CompiledLayer("ProfiledBlock", dynamic={"x": {0: "batch"}})}}
    with use_kernel_mapping(mapping, inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE, wait=True)
    model(x)
    row = report(model).rows[1]
    with profile(activities=[ProfilerActivity.CPU]) as recorded, profiler_ranges(model):
        torch.testing.assert_close(model(x), expected)
    keys = {event.key for event in recorded.key_averages()}
    assert (f"0 (Compiled): {row.kernel}" in keys) == row.swapped
