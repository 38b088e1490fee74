"""Kernels of unknown gain are tried at a model's own calls: one call in two, until it is known which side is faster."""

from __future__ import annotations

import copy
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from kernels_hub import Mode, kernelize, load_kernel_mapping, report, restore, use_kernel_mapping
from kernels_hub.calibration import database
from kernels_hub.calibration.gain_table import Shape
from kernels_hub.calibration.kinds import class_of
from kernels_hub.kernelization import apply, gain_trial
from kernels_hub.kernelization.bind import bind_forward
from kernels_hub.kernelization.gain_trial import GainTrial, tried_forward
from kernels_hub.kernelization.outcome import RECORD_ATTRIBUTE, ModuleRecord, SwapDecision

MACHINE = database.Machine("unheard-of", 2, (("torch", "0"),))
SIZE, ROWS = 256, 16
CELL = class_of(Shape("TorchRMSNorm", "float32", SIZE, 1))


class Doubled(nn.Module):
    """Notes who ran, and takes as long as it is told to."""

    def __init__(self, seconds: float, of_kernel: float) -> None:
        super().__init__()
        self.seconds, self.of_kernel = seconds, of_kernel
        self.ran: list[str] = []

    def forward(self, x: Tensor) -> Tensor:
        self.ran.append("original")
        time.sleep(self.seconds)
        return x * 2

    def generate(self, x: Tensor, count: int) -> Tensor:
        for _ in range(count):
            result = self(x)
        return result


def kernel(self: Any, x: Tensor) -> Tensor:
    self.ran.append("kernel")
    time.sleep(self.of_kernel)
    return x + x


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv("KERNELS_HUB_CALIBRATION", "")
    monkeypatch.setenv("KERNELS_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(gain_trial, "_TOGETHER_S", 0.05)
    monkeypatch.setattr("kernels_hub.kernelization.gain_gate.this_machine", lambda: MACHINE)
    monkeypatch.setattr(apply, "measure_beside", lambda *_: False)
    with use_kernel_mapping(load_kernel_mapping("default"), inherit_mapping=False):
        yield database.calibration_folder() / MACHINE.file_name
    for thread in threading.enumerate():  # it writes to the folder that the variable names then
        if thread.name == gain_trial._WRITER:
            thread.join()


def on_trial(*modules: Doubled) -> None:
    own = SwapDecision("Doubled", swapped=True)

    def gated(sizes: tuple[tuple[int, float], ...]) -> Callable[..., Tensor]:
        def forward(self: Any, x: Tensor) -> Tensor:
            fits = any(first <= x.numel() <= last for first, last in sizes)
            return kernel(self, x) if fits else Doubled.forward(self, x)

        return forward

    trial = GainTrial(kernel, own, CELL, SIZE, MACHINE, gated)
    forward = tried_forward(trial, Doubled)
    for module in modules:
        bind_forward(module, forward)
        module.__dict__[RECORD_ATTRIBUTE] = ModuleRecord(SwapDecision("Doubled", reason="unknown"))


def own_of(module: nn.Module) -> SwapDecision:
    own: SwapDecision = module.__dict__[RECORD_ATTRIBUTE].own
    return own


@torch.no_grad()
def call(module: nn.Module, times: int, rows: int = ROWS) -> None:
    x = torch.randn(rows, SIZE)
    for _ in range(times):
        torch.testing.assert_close(module(x), x * 2)


def test_a_faster_kernel_stays_for_the_sizes_that_it_was_tried_at(kept: Path):
    module = Doubled(20e-3, 1e-3)
    on_trial(module)
    call(module, 2 + 2 * 5)
    assert module.ran == ["original", "kernel"] * 6
    call(module, 3)
    assert module.ran[-3:] == ["kernel"] * 3
    call(module, 1, rows=8 * ROWS)
    assert module.ran[-1] == "original"
    own = own_of(module)
    assert own.swapped and own.gain is not None and own.gain.ratio > 2 and own.gain.source == "this machine"
    assert own.sizes == ((12 * SIZE, 22 * SIZE),)
    deadline = time.monotonic() + 20
    while not kept.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert list(database.load(MACHINE).cells) == [CELL]


def test_a_slower_one_is_taken_off_after_two_pairs():
    module = Doubled(1e-3, 20e-3)
    on_trial(module)
    call(module, 6 + 3)
    assert module.ran == ["original", "kernel"] * 3 + ["original"] * 3
    assert "forward" not in module.__dict__
    assert not own_of(module).swapped and str(own_of(module).reason).startswith("kept: 0.")


def test_modules_of_one_class_of_shape_are_tried_together():
    modules = [Doubled(20e-3, 1e-3) for _ in range(5)]
    on_trial(*modules)
    for _ in range(5):
        for module in modules:
            call(module, 1)
    assert all(module.ran == ["original", "kernel"] * 2 + ["kernel"] for module in modules)


def test_a_module_whose_arguments_change_at_each_call_is_not_tried_for_ever():
    module = Doubled(0, 0)
    on_trial(module)
    for index in range(60):
        call(module, 1, rows=13 + index % 2)
    assert "forward" not in module.__dict__
    assert own_of(module).reason == "kept: its calls did not tell (this machine)"


def test_calls_in_which_it_would_show_run_the_original():
    module = Doubled(0, 0)
    on_trial(module)
    x = torch.randn(ROWS, SIZE)
    for _ in range(4):
        module(x)  # with gradients
    with torch.no_grad():
        module.generate(x, 4)
        with FlopCounterMode(display=False):
            for _ in range(4):
                module(x)
        torch.use_deterministic_algorithms(True)
        try:
            for _ in range(4):
                module(x)
        finally:
            torch.use_deterministic_algorithms(False)
    assert module.ran == ["original"] * 16
    call(module, 2)
    assert module.ran[-1] == "kernel"


def test_where_no_call_can_be_tried_they_are_asked_no_more():
    modules = [Doubled(0, 0) for _ in range(2)]
    on_trial(*modules)
    x = torch.randn(ROWS, SIZE)
    with torch.no_grad():
        modules[0].generate(x, gain_trial._MOST_UNTRIED + 2)
        modules[1](x)
    for module in modules:
        assert "kernel" not in module.ran and "forward" not in module.__dict__
        assert own_of(module).reason == "kept: its calls did not tell (this machine)"


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.Conv2d(8, 8, 3, padding=1), nn.SiLU()).eval()


def test_a_model_on_an_unknown_processor_gets_its_kernels_at_its_first_calls():
    model, x = _model(), torch.randn(1, 8, 224, 224)
    expected = model(x)
    kernelize(model, mode=Mode.INFERENCE, wait=True)
    assert "unknown on this processor (unheard-of); tried at its first calls" in str(report(model))
    with torch.inference_mode():
        for _ in range(30):
            torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-5)
    rows = {row.path: row for row in report(model)}
    assert rows["0"].swapped and rows["0"].gain_source == "this machine"
    assert "unknown" not in str(report(model))
    assert all(
        "forward" in module.__dict__ or not rows[name].swapped for name, module in model.named_children()
    )
    calls = torch.randn(1, 8, 224, 224)
    torch.testing.assert_close(copy.deepcopy(model)(calls), _model()(calls), rtol=1e-5, atol=1e-5)


def test_a_model_on_trial_is_copied_pickled_restored_and_kernelized_again():
    model, x = _model(), torch.randn(1, 8, 64, 64)
    expected = model(x)
    kernelize(model, mode=Mode.INFERENCE, wait=True)
    with torch.inference_mode():
        for _ in range(3):
            model(x)
    for each in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        kernelize(model, mode=Mode.INFERENCE),
    ):
        with torch.inference_mode():
            torch.testing.assert_close(each(x), expected, rtol=1e-5, atol=1e-5)
    restore(model)
    assert all("forward" not in module.__dict__ for module in model.modules())
    torch.testing.assert_close(model(x), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "given",
    [{"copy_budget": 0.5}, {"strict_weights": True}, {"free_weights": True}],
    ids=lambda given: next(iter(given)),
)
def test_kernels_are_not_tried_where_that_would_break_a_promise(given: dict[str, Any]):
    model = kernelize(_model(), mode=Mode.INFERENCE, **given)
    assert all("forward" not in module.__dict__ for module in model.modules())


@pytest.mark.parametrize("setting", ["off", "ignore"])
def test_nothing_is_tried_where_the_setting_says_what_counts(setting: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KERNELS_HUB_CALIBRATION", setting)
    model = kernelize(_model(), mode=Mode.INFERENCE)
    assert "tried" not in str(report(model))
