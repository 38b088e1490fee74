"""Measuring: what is yielded, the budget, what cannot be measured; the command; what starts it beside."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from kernels_hub.calibration import background, database
from kernels_hub.calibration import measure as measuring
from kernels_hub.calibration.gain_table import Shape
from kernels_hub.calibration.kinds import from_memory
from kernels_hub.calibration.measure import measure, shortest_ratio
from kernels_hub.cli.app import app

SMALL = Shape("Linear", "float32", 64, 64)


def _sleeping(seconds: float) -> Any:
    def swap(module: nn.Module) -> None:
        own = module.forward

        def forward(*args: torch.Tensor) -> torch.Tensor:
            time.sleep(seconds)
            result: torch.Tensor = own(*args)
            return result

        module.__dict__["forward"] = forward

    return swap


def _no_skip(shape: Shape, reason: str) -> None:
    raise AssertionError((shape, reason))


@pytest.fixture
def _on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """All times count, whatever else runs beside the tests."""
    monkeypatch.setattr("kernels_hub.calibration.waiting._MOST_WAITING", float("inf"))
    monkeypatch.setattr(measuring, "_AGREEMENT", float("inf"))


@pytest.mark.usefixtures("_on_a_busy_machine")
def test_a_slow_kernel_has_a_ratio_below_one():
    ((shape, rows, ratio),) = measure([(SMALL, [1])], _sleeping(0.002), _no_skip)
    assert (shape, rows) == (SMALL, 1)
    assert 0 < ratio < 0.5


class Clock:
    """Stands for the module `time`: it goes on where something is said to take time, whatever else runs."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def taking(self, *seconds: float) -> Callable[[], None]:
        """A run that takes these times, in turn, again and again."""
        times = itertools.cycle(seconds)
        return lambda: self.sleep(next(times))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(measuring, "time", made)
    return made


@pytest.mark.usefixtures("_on_a_busy_machine")
def test_the_shortest_times_count(clock: Clock):
    ratio = shortest_ratio(clock.taking(0.004, 0.03), clock.taking(0.002, 0.002, 0.03))
    assert ratio == pytest.approx(2.0)


def test_calls_that_take_long_are_timed_as_often_as_it_takes(clock: Clock):
    """A large layer on a slow machine: five pairs take longer than an example has by default."""
    assert shortest_ratio(clock.taking(0.3), clock.taking(0.15)) == pytest.approx(2.0)


@pytest.mark.usefixtures("_on_a_busy_machine")
def test_a_chance_is_not_trusted(monkeypatch: pytest.MonkeyPatch, clock: Clock):
    monkeypatch.setattr(measuring, "_AGREEMENT", 1.1)
    growing = (0.001 * 1.4**step for step in range(1000))
    assert shortest_ratio(lambda: clock.sleep(next(growing)), clock.taking(0.002)) is None


def test_times_in_which_a_thread_waited_for_a_core_do_not_count(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
):
    waited = itertools.accumulate(itertools.cycle([0.0, 0.0, 0.0, 0.0, 0.005]))

    @contextmanager
    def waiting() -> Iterator[Callable[[], float]]:
        yield lambda: next(waited)

    monkeypatch.setattr(measuring, "waiting", waiting)
    assert shortest_ratio(clock.taking(0.002), clock.taking(0.001)) == pytest.approx(2.0)
    waited = itertools.accumulate(itertools.repeat(0.005))
    assert shortest_ratio(clock.taking(0.002), clock.taking(0.001)) is None


@pytest.mark.usefixtures("_on_a_busy_machine")
def test_other_layers_run_before_each_call(monkeypatch: pytest.MonkeyPatch):
    """As in a model, where a module's code and weights are not in the caches any more."""
    ran: list[str] = []
    monkeypatch.setattr(measuring, "_other_layers", lambda: lambda: ran.append("others"))
    shortest_ratio(lambda: ran.append("original"), lambda: ran.append("kernel"))
    timed = ran[ran.index("others") :]
    assert timed[::2] == ["others"] * (len(timed) // 2) and timed[1::2][:2] == ["original", "kernel"]


def test_waiting_is_read_from_this_processs_threads():
    with measuring.waiting() as waited_s:
        before = waited_s()
        time.sleep(0.01)
        assert 0 <= before <= waited_s()


@pytest.mark.usefixtures("_on_a_busy_machine")
def test_what_is_built_for_a_measurement_does_not_count(monkeypatch: pytest.MonkeyPatch):
    built: list[int] = []

    def swap(module: nn.Module) -> None:
        own = module.forward

        def forward(x: torch.Tensor) -> torch.Tensor:
            if not built:
                built.append(time.sleep(1.2) or 1)
            result: torch.Tensor = own(x)
            return result

        module.__dict__["forward"] = forward

    monkeypatch.setattr(measuring, "_LEAST_PAIRS", 5)
    assert [rows for _, rows, _ in measure([(SMALL, [1, 2])], swap, _no_skip, seconds=1.0)] == [1, 2]


def test_of_a_class_that_is_read_from_memory_so_many_modules_are_called_that_no_cache_holds_them(
    monkeypatch: pytest.MonkeyPatch,
):
    called: list[int] = []

    def swap(module: Any) -> None:
        def forward(x: Any) -> Any:
            called.append(id(module))
            return type(module).forward(module, x)

        module.__dict__["forward"] = forward

    def ratio(original: Callable[[], Any], kernel: Callable[[], Any]) -> float:
        for _ in range(7):
            original(), kernel()
        return 2.0

    monkeypatch.setattr(measuring, "shortest_ratio", ratio)
    monkeypatch.setattr(measuring, "last_level_cache", lambda: 1 << 20)
    shape = from_memory(Shape("Linear", "float32", 256, 256))  # 256 KiB
    assert list(measure([(shape, [1])], swap, _no_skip)) == [(shape, 1, 2.0)]
    modules = list(dict.fromkeys(called))
    assert len(modules) == 3  # with as many of PyTorch's, 1.5 times the cache
    assert called == [modules[call % 3] for call in range(3 + 7)]


def test_nothing_is_begun_after_the_budget():
    assert list(measure([(SMALL, [1, 2, 4])], _sleeping(0), _no_skip, seconds=0)) == []


def test_what_cannot_be_measured_is_told_with_its_reason():
    told: list[tuple[Shape, str]] = []
    unknown = Shape("NoSuchLayer", "float32", 1, 1)
    wanted = [(unknown, [1]), (SMALL, [1])]
    found = list(measure(wanted, lambda module: None, lambda shape, reason: told.append((shape, reason))))
    assert found == []
    assert [shape for shape, _ in told] == [unknown, SMALL]
    assert "no kind" in told[0][1] and "no kernel of the mapping" in told[1][1]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNELS_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("KERNELS_HUB_CALIBRATION", "off")
    return tmp_path


def test_the_command_measures_what_is_wanted_goes_on_and_exports(
    cache: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("os.nice", lambda _: 0)
    monkeypatch.setattr(measuring, "shortest_ratio", lambda original, kernel: 2.0)
    wanted = json.dumps([["Linear", "float32", 64, 64]])
    machine = database.this_machine()
    database.add(machine, _one_row())
    runner = CliRunner()
    done = runner.invoke(app, ["calibrate", "--wanted", "-", "--budget", "60"], input=wanted)
    assert done.exit_code == 0, done.output
    ratios = database.load(machine).cells[SMALL]
    assert ratios == {1: 42.0, **dict.fromkeys((2, 4, 16, 64, 256, 1024), 2.0)}
    out = cache / "export.json"
    assert runner.invoke(app, ["calibrate", "--export", str(out)]).exit_code == 0
    assert database.read(out, machine).cells[SMALL] == ratios


def _one_row() -> Any:
    from kernels_hub.calibration.gain_table import GainTable

    table = GainTable()
    table.put(SMALL, 1, 42.0)
    return table


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--kind", "Linea"], "no kind"),
        (["--dtype", "int8"], "expected float32"),
        (["--threads", "9999"], "cores this process may use"),
    ],
)
def test_the_command_refuses_what_it_does_not_know(arguments: list[str], message: str, cache: Path):
    done = CliRunner().invoke(app, ["calibrate", *arguments])
    assert done.exit_code == 2
    assert message in done.output


class _Started:
    """Stands for subprocess.Popen."""

    def __init__(self, command: list[str], **options: Any) -> None:
        _Started.commands.append(command)
        self.stdin = (Path(options["env"]["KERNELS_HUB_CACHE"]) / "stdin").open("wb")

    def wait(self) -> int:
        return 0

    commands: list[list[str]] = []


@pytest.fixture
def started(cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    monkeypatch.setattr(subprocess, "Popen", _Started)
    monkeypatch.setattr(background, "_STARTED", threading.Event())
    monkeypatch.setattr(background, "_is_tested", lambda: False)
    monkeypatch.delenv("KERNELS_HUB_CALIBRATION")
    _Started.commands = []
    return _Started.commands


def test_what_is_missing_is_measured_beside_once_in_a_process(started: list[list[str]], cache: Path):
    machine = database.this_machine()
    assert background.measure_beside([SMALL], machine)
    assert not background.measure_beside([SMALL], machine)
    (command,) = started
    assert float(command[command.index("--budget") + 1]) * machine.threads <= background.CORE_SECONDS
    assert json.loads((cache / "stdin").read_text()) == [["Linear", "float32", 64, 64]]


def test_processes_that_start_together_measure_once(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch
):
    machine = database.this_machine()
    assert background.measure_beside([SMALL], machine)
    monkeypatch.setattr(background, "_STARTED", threading.Event())
    assert not background.measure_beside([SMALL], machine)
    (mark,) = database.calibration_folder().glob("*.measuring")
    os.utime(mark, (0, 0))
    monkeypatch.setattr(background, "_STARTED", threading.Event())
    assert background.measure_beside([SMALL], machine)
    assert len(started) == 2


def test_many_threads_measure_less_long(started: list[list[str]]):
    assert background.measure_beside([SMALL], database.Machine("x", 8, ()))
    assert float(started[0][started[0].index("--budget") + 1]) == 0.5


@pytest.mark.parametrize("value", ["off", "ignore", "/some/file.json"])
def test_nothing_is_measured_beside_where_the_variable_is_set(
    value: str, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("KERNELS_HUB_CALIBRATION", value)
    assert not background.measure_beside([SMALL], database.this_machine())
    assert started == []


def test_nothing_is_measured_beside_tests_or_under_determinism(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch
):
    torch.use_deterministic_algorithms(True)
    try:
        assert not background.measure_beside([SMALL], database.this_machine())
    finally:
        torch.use_deterministic_algorithms(False)
    monkeypatch.undo()
    assert background._is_tested()
    assert not background.measure_beside([SMALL], database.this_machine())
