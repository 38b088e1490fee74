"""Layers compiled beside the model: what serves meanwhile, when it is replaced, and what harms nothing."""

from __future__ import annotations

import copy
import itertools
import logging
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kernels_hub import report, restore, use_kernel_forward_from_hub, wait_until_compiled
from kernels_hub.kernelization import forked, jit, jit_compilations, trial
from kernels_hub.kernelization.background import Job
from kernels_hub.kernelization.compiled_layer import CompileRequest, Refusal, one_line
from kernels_hub.kernelization.forked import Child, run_forked
from kernels_hub.kernelization.trial import Timing, time_in_turn
from tests.combinations import all_but
from tests.kernelization.jit_compiler import Compiler, Scaled, X, compiler, kernelized

__all__ = ["compiler"]

PLAIN, COMPILED = 2 * X, 2 * X + 100


@pytest.fixture(autouse=True)
def _background(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_HUB_JIT", "background")


class Gate:
    """Holds a compiler, which is in another process, until it is opened."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, request: CompileRequest) -> None:
        while not self._path.exists():
            time.sleep(0.01)

    def open(self) -> None:
        self._path.touch()


@pytest.fixture
def gate(compiler: Compiler, tmp_path: Path) -> Gate:
    compiler.inside = Gate(tmp_path / "open")
    return compiler.inside


def row(model: nn.Module, place: int = 1) -> Any:
    return report(model).rows[place]


def test_the_original_serves_meanwhile_and_is_replaced_between_two_calls(
    compiler: Compiler, gate: Gate
) -> None:
    model = kernelized(Scaled())
    for _ in range(3):
        assert torch.equal(model(X), PLAIN)
    assert row(model).reason == "being compiled; the original runs meanwhile"
    assert not wait_until_compiled(model, timeout=0.1)
    gate.open()
    assert wait_until_compiled(model, timeout=60)
    assert torch.equal(model(X), COMPILED)
    assert (row(model).swapped, row(model).reason, row(model).revision) == (True, None, "layer-1")
    assert len(compiler.asked) == 1


@use_kernel_forward_from_hub("Scaled")
class Around(Scaled):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Scaled()

    def forward(self, x: torch.Tensor, bias: Any = 0) -> torch.Tensor:
        return self.inner(x, bias)


def test_a_part_waits_for_the_whole(compiler: Compiler) -> None:
    model = kernelized(Around())
    model(X)
    assert wait_until_compiled(model, timeout=60)
    assert torch.equal(model(X), COMPILED)
    assert len(compiler.asked) == 1 and row(model).swapped


def test_a_part_is_compiled_where_the_whole_cannot_be(compiler: Compiler) -> None:
    def inside(request: CompileRequest) -> None:
        if isinstance(request.module, Around):
            raise ValueError("not the whole")

    compiler.inside = inside
    model = kernelized(Around())
    for _ in range(2):
        assert torch.equal(model(X), PLAIN)
        assert wait_until_compiled(model, timeout=60)
    assert torch.equal(model(X), COMPILED)
    assert "not the whole" in row(model).reason and row(model, 2).swapped


def test_calls_adopt_what_is_ready_themselves(compiler: Compiler) -> None:
    model = kernelized(Scaled())
    assert torch.equal(model(X), PLAIN)
    deadline = time.monotonic() + 60
    while torch.equal(model(X), PLAIN):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert torch.equal(model(X), COMPILED)


def test_wait_makes_the_first_call_wait(compiler: Compiler) -> None:
    assert torch.equal(kernelized(Scaled(), wait=True)(X), COMPILED)


def test_off(compiler: Compiler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("KERNELS_HUB_JIT", "off")
    model = kernelized(Scaled(), wait=True)
    assert torch.equal(model(X), PLAIN) and torch.equal(model(X), PLAIN)
    assert row(model).reason == "KERNELS_HUB_JIT is off" and compiler.asked == []
    assert len(caplog.records) == 1
    monkeypatch.setenv("KERNELS_HUB_JIT", "soon")
    model(X)
    assert wait_until_compiled(model, timeout=60) and torch.equal(model(X), COMPILED)
    assert "KERNELS_HUB_JIT is 'soon', expected off, background or wait" in caplog.text


def test_deterministic_algorithms_are_not_replaced_while_they_run(compiler: Compiler) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        model = kernelized(Scaled())
        assert torch.equal(model(X), PLAIN) and "deterministic" in row(model).reason
        assert torch.equal(kernelized(Scaled(), wait=True)(X), COMPILED)
    finally:
        torch.use_deterministic_algorithms(False)


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = kernelized(Scaled(1), Scaled(2))
        self.between: Any = lambda: None

    def generate(self, steps: int) -> list[float]:
        found = []
        for _ in range(steps):
            found.append(float(self.layers(X).detach()[1]))
            self.between()
        return found


def test_nothing_is_replaced_inside_of_one_generate(compiler: Compiler) -> None:
    model = Generator()
    assert model.generate(1) == [4.0]

    def ready() -> None:
        for layer in model.layers:
            assert all(job.wait(60) for job in layer.forward.func.jobs(layer))

    model.between = ready
    assert len(set(model.generate(3))) == 1, "all of its steps alike"
    assert model.generate(2) == [304.0] * 2, "the next one has all"


def test_another_thread_that_generates_is_not_disturbed(compiler: Compiler, gate: Gate) -> None:
    model = Generator()
    model.layers = kernelized(Scaled())  # type: ignore[assignment]
    first, go_on = threading.Event(), threading.Event()

    def between() -> None:
        first.set()
        assert go_on.wait(60)

    model.between = between
    results: list[list[float]] = []
    thread = threading.Thread(target=lambda: results.append(model.generate(2)))
    thread.start()
    assert first.wait(60)
    gate.open()
    (job,) = model.layers[0].forward.func.jobs(model.layers[0])
    assert job.wait(60)
    assert torch.equal(model.layers(X), PLAIN), "not while the other is at it"
    go_on.set()
    thread.join(60)
    assert results == [[2.0, 2.0]]
    assert torch.equal(model.layers(X), COMPILED)


def test_a_refusal_is_of_one_signature(compiler: Compiler, caplog: pytest.LogCaptureFixture) -> None:
    model = kernelized(Scaled())
    compiler.fails = "no kernel computes this\n" + "and so on " * 100
    model(X)
    assert wait_until_compiled(model, timeout=60)
    assert torch.equal(model(X), PLAIN) and not row(model).swapped
    assert row(model).reason.startswith("it cannot be compiled: no kernel computes this and so")
    assert len(row(model).reason) <= 200 and row(model).details.count("and so on") == 100
    assert all(len(one.message) <= 200 and "\n" not in one.message for one in caplog.records)
    compiler.fails = None
    assert torch.equal(model[0](X, bias=1), PLAIN + 1)
    assert wait_until_compiled(model, timeout=60)
    assert torch.equal(model[0](X, bias=1), COMPILED + 1)
    assert torch.equal(model(X), PLAIN), "refused"
    assert row(model).swapped


@pytest.mark.parametrize("starves", [False, True])
def test_budgets(starves: bool, compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the process had its time, it is refused for good; where other work took it, for this process alone."""
    monkeypatch.setenv("KERNELS_HUB_JIT_SIGNATURES", "1")
    monkeypatch.setenv("KERNELS_HUB_JIT_SECONDS", "0.5")
    monkeypatch.setattr(forked, "_processor_time", lambda pid: 0.0 if starves else 0.6)

    def spin(request: CompileRequest) -> None:
        while True:
            pass

    compiler.inside = spin
    model = kernelized(Scaled())
    model(X)
    assert wait_until_compiled(model, timeout=60)
    assert row(model).reason.startswith("it cannot be compiled: over budget: it takes more than 0.5 s")
    assert [refusal.seconds for refusal in compiler.refusals.values()] == ([] if starves else [0.5])
    model[0](X, bias=1)
    assert wait_until_compiled(model, timeout=0) and len(compiler.asked) == 1
    assert "over budget: 1 call signatures" in row(model).details
    monkeypatch.setenv("KERNELS_HUB_JIT_SECONDS", "30")
    compiler.inside = lambda request: None
    again = kernelized(Scaled())
    again(X)
    assert wait_until_compiled(again, timeout=60) and torch.equal(again(X), COMPILED), "a larger budget"


@pytest.mark.parametrize("how", ["killed", "hangs", "exits"])
def test_a_compiler_that_dies_or_hangs(compiler: Compiler, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def inside(request: CompileRequest) -> None:
        print("the last words", flush=True)
        if how == "killed":
            os.kill(os.getpid(), signal.SIGSEGV)
        if how == "exits":
            os._exit(3)
        time.sleep(1000)

    if how == "hangs":
        monkeypatch.setenv("KERNELS_HUB_JIT_SECONDS", "0.4")
    compiler.inside = inside
    model = kernelized(Scaled())
    model(X)
    assert wait_until_compiled(model, timeout=60)
    assert torch.equal(model(X), PLAIN)
    says = {"killed": "by SIGSEGV", "exits": "exit status 3", "hangs": "over budget"}[how]
    assert says in row(model).reason and "the last words" in row(model).details
    assert compiler.refusals == {}, "not a property of the module"


def test_no_process_can_be_started(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fork)
    model = kernelized(Scaled())
    model(X)
    assert wait_until_compiled(model, timeout=60)
    assert torch.equal(model(X), PLAIN) and "no process to compile in can be started" in row(model).reason


def test_compilers_have_a_low_priority_and_half_of_the_cores(compiler: Compiler) -> None:
    def inside(request: CompileRequest) -> Any:
        return [os.nice(0), len(os.sched_getaffinity(0)), torch.get_num_threads()]

    compiler.inside = inside
    nice, cores = os.nice(0), len(os.sched_getaffinity(0))
    model = kernelized(Scaled())
    model(X)
    assert wait_until_compiled(model, timeout=60)
    (found,) = compiler.asked
    assert found[0] > nice and found[1] <= max(1, cores // 2 + cores % 2) and found[2] <= found[1]
    assert len(os.sched_getaffinity(0)) == cores, "those of this process are its own"


def test_a_process_that_lost_its_cores() -> None:
    """A machine of one core, or a process whose cores were taken away while it ran."""
    cores = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, [min(cores)])
        found = run_forked(
            lambda: (sorted(os.sched_getaffinity(0)), torch.get_num_threads(), float(torch.ones(9).sum())),
            seconds=30,
            background=True,
            child=Child(),
        )
    finally:
        os.sched_setaffinity(0, cores)
    assert found == ([min(cores)], 1, 9.0)


def test_files_of_the_model_s_process_are_let_go(compiler: Compiler, gate: Gate) -> None:
    reading, writing = os.pipe()
    model = kernelized(Scaled())
    model(X)
    while not compiler.asked:
        time.sleep(0.01)
    os.close(writing)
    assert os.read(reading, 1) == b"", "its end is seen at once"
    os.close(reading)
    gate.open()
    assert wait_until_compiled(model, timeout=60) and torch.equal(model(X), COMPILED)


@pytest.mark.parametrize("how", ["pickle", "deepcopy"])
def test_copied_meanwhile(compiler: Compiler, gate: Gate, how: str) -> None:
    model = kernelized(Scaled())
    model(X)
    twin = pickle.loads(pickle.dumps(model)) if how == "pickle" else copy.deepcopy(model)
    with torch.no_grad():
        twin[0].weight.mul_(10)
    assert torch.equal(twin(X), 20 * X)
    gate.open()
    for one, expected in ((model, COMPILED), (twin, 20 * X + 100)):
        assert wait_until_compiled(one, timeout=60) and torch.equal(one(X), expected)
    assert len(compiler.asked) == 1


def test_restored_meanwhile(compiler: Compiler, gate: Gate) -> None:
    model = kernelized(Scaled())
    model(X)
    (job,) = model[0].forward.func.jobs(model[0])
    restore(model)
    gate.open()
    assert job.wait(60)
    assert torch.equal(model(X), PLAIN) and "forward" not in vars(model[0])
    again = kernelized(model[0])
    again(X)
    assert wait_until_compiled(again, timeout=60) and torch.equal(again(X), COMPILED)


def test_a_model_that_is_gone_meanwhile(compiler: Compiler, gate: Gate) -> None:
    model = kernelized(Scaled())
    model(X)
    (job,) = model[0].forward.func.jobs(model[0])
    del model
    gate.open()
    assert job.wait(60)


def test_a_call_that_raises(compiler: Compiler) -> None:
    model = kernelized(Scaled())
    with pytest.raises(RuntimeError):
        model(torch.zeros(3))
    assert wait_until_compiled(model, timeout=60)
    assert "trial" in str(row(model).reason) or row(model).reason is None
    with pytest.raises(RuntimeError):
        model(torch.zeros(3))


def test_forked_meanwhile(compiler: Compiler, gate: Gate) -> None:
    model = kernelized(Scaled())
    model(X)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            is_plain = torch.equal(model(X), PLAIN)  # asked before anything can have been compiled
            gate.open()
            if not is_plain:
                status = 3
            elif wait_until_compiled(
                model, timeout=60
            ):  # as long as the parent: it begins anew on a busy machine
                status = 0 if torch.equal(model(X), COMPILED) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, (
        "1: not compiled in time, 2: wrong, 3: too early"
    )
    assert wait_until_compiled(model, timeout=60) and torch.equal(model(X), COMPILED)


def test_threads_ask_once(compiler: Compiler, gate: Gate) -> None:
    model = kernelized(Scaled())
    results: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: results.append(model(X))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(results) == 8 and all(torch.equal(one, PLAIN) for one in results)
    gate.open()
    assert wait_until_compiled(model, timeout=60)
    assert len(compiler.asked) == 1


def test_a_request_that_another_thread_sees_can_be_waited_for(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has been submitted: before, nobody is there who would do it, and waiting ends at once."""
    monkeypatch.setenv("KERNELS_HUB_JIT", "wait")
    model, results = kernelized(Scaled()), []
    submit, seen = jit.BACKGROUND.submit, threading.Event()
    other = threading.Thread(target=lambda: results.append(model(X)))

    def submitted(job: Job) -> Job:
        if not seen.is_set():
            seen.set()
            other.start()
            other.join(0.3)
        return submit(job)

    monkeypatch.setattr(jit.BACKGROUND, "submit", submitted)
    assert torch.equal(model(X), COMPILED)
    other.join(60)
    assert seen.is_set() and torch.equal(results[0], COMPILED)


def test_what_is_slower_is_not_used(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_HUB_JIT_TRIAL", "")
    compiler.added = "sum(range(2_000_000)) * 0 + 100"
    model = kernelized(Scaled())
    model(X)
    assert wait_until_compiled(model, timeout=60)
    found = row(model)
    assert torch.equal(model(X), PLAIN) and not found.swapped
    assert found.reason.startswith("kept: compiled, it has 0.0") and found.compiled_ms > found.original_ms > 0
    assert f"{found.original_ms:.3g} ms, compiled {found.compiled_ms:.3g} ms" in str(report(model))


def test_what_is_faster_is_used(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_HUB_JIT_TRIAL", "")
    forward = Scaled.forward

    def slow(self: Scaled, x: torch.Tensor, bias: Any = 0) -> torch.Tensor:
        time.sleep(0.02)
        return forward(self, x, bias)

    monkeypatch.setattr(Scaled, "forward", slow)
    model = kernelized(Scaled())
    model(X)
    assert wait_until_compiled(model, timeout=60)
    assert torch.equal(model(X), COMPILED)
    assert row(model).swapped and row(model).original_ms > 20 > row(model).compiled_ms


@pytest.mark.parametrize(("first", "then"), [(0.5, 2.0), (2.0, 0.5)], ids=["slower", "faster"])
def test_a_time_of_a_disturbed_machine_is_taken_again(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, first: float, then: float
) -> None:
    """Where the second time says otherwise, it counts; nothing is timed a third time."""
    monkeypatch.setenv("KERNELS_HUB_JIT_TRIAL", "")
    monkeypatch.setattr(jit, "_FIRST_RETRIAL_S", 0.0)
    timings = [Timing(1.0, 1 / first, first, disturbed=True), Timing(1.0, 1 / then, then)]
    monkeypatch.setattr(jit_compilations, "time_in_turn", lambda *_: timings.pop(0))
    monkeypatch.setattr(jit_compilations, "_QUIET_S", 1e9)
    results = {0.5: PLAIN, 2.0: COMPILED}
    model = kernelized(Scaled())
    model(X)
    assert wait_until_compiled(model, timeout=60)
    assert row(model).swapped == (first > 1) and len(timings) == 1
    assert "timed again" in row(model).reason if first < 1 else row(model).reason is None
    assert torch.equal(model(X), results[first]), "this call asks for the second time"
    assert wait_until_compiled(model, timeout=60)
    assert torch.equal(model(X), results[then]) and timings == []
    assert row(model).swapped == (then > 1) and len(compiler.asked) == 1
    assert "timed again" not in (row(model).reason or "")
    for _ in range(3):
        model(X)
    assert wait_until_compiled(model, timeout=60) and torch.equal(model(X), results[then])


def test_a_disturbed_machine_is_asked_more_and_more_rarely(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELS_HUB_JIT_TRIAL", "")
    clock = [0.0]
    trials: list[float] = []

    def disturbed(*_: Any) -> Timing:
        trials.append(clock[0])
        return Timing(1.0, 2.0, 0.5, disturbed=True)

    monkeypatch.setattr(jit, "_now", lambda: clock[0])
    monkeypatch.setattr(jit_compilations, "time_in_turn", disturbed)
    monkeypatch.setattr(jit_compilations, "_QUIET_S", 1e9)
    model = kernelized(Scaled())
    for second in range(100):
        clock[0] = float(second)
        model(X)
        assert wait_until_compiled(model, timeout=60)
    assert trials == [0.0, 10.0, 30.0, 70.0]


def test_disturbed_pairs_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a forward that is always twice as fast, but held up where it is disturbed."""
    waited = itertools.accumulate(itertools.cycle([0.0, 0.0, 0.0, 0.005]))

    @contextmanager
    def waiting() -> Iterator[Callable[[], float]]:
        yield lambda: next(waited)

    monkeypatch.setattr(trial, "waiting", waiting)
    calls = itertools.count()

    def compiled() -> None:
        call = next(calls)
        time.sleep(0.05 if call >= 2 and call % 2 else 0.002)

    timing = time_in_turn(lambda: time.sleep(0.004), compiled, lambda: ((), {}))
    assert not timing.disturbed and timing.gains and timing.compiled < 0.02
    waited = itertools.accumulate(itertools.repeat(0.005))
    monkeypatch.setattr(trial, "_SECONDS", 0.1)
    assert time_in_turn(lambda: time.sleep(0.004), lambda: time.sleep(0.002), lambda: ((), {})).disturbed


def test_a_trial_takes_both_in_turn() -> None:
    calls: list[str] = []
    timing = time_in_turn(
        lambda seconds: (calls.append("o"), time.sleep(seconds)),
        lambda seconds: (calls.append("c"), time.sleep(seconds / 2)),
        lambda: ((0.004,), {}),
    )
    assert 1.5 < timing.ratio < 2.2 and timing.gains
    assert "oc" in "".join(calls[3:]) and "co" in "".join(calls[3:])
    same = time_in_turn(time.sleep, time.sleep, lambda: ((0.01,), {}))
    assert not same.gains


def test_one_line() -> None:
    assert one_line("a\n  b") == "a b"
    assert len(one_line("word " * 100)) <= 200 and one_line("word " * 100).endswith("…")
    assert Refusal.of(KeyError()).reason == "KeyError"


ENDINGS = ("", "raise SystemExit(0)", "import os; os.kill(os.getpid(), 9)")
EXITS = """
import sys, time
sys.path.insert(0, {root!r})
import torch
from tests.kernelization import jit_compiler
import importlib.metadata
compiler = jit_compiler.Compiler(None, __import__("pathlib").Path({notes!r}))
compiler.inside = lambda request: time.sleep(600)
importlib.metadata.EntryPoint.load = lambda entry: compiler
model = jit_compiler.kernelized(jit_compiler.Scaled())
model(jit_compiler.X)
while not compiler.asked and not list(compiler.notes.iterdir()):
    time.sleep(0.01)
{ending}
"""


@pytest.mark.parametrize("ending", all_but(ENDINGS, "raise SystemExit(0)"))
def test_interpreter_exit_meanwhile(ending: str, tmp_path: Path) -> None:
    """It ends at once, with nothing said, and what compiles ends with it."""
    script = textwrap.dedent(EXITS).format(
        root=str(Path(__file__).parents[2]), notes=str(tmp_path), ending=ending
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out, err) == (-9 if "kill" in ending else 0, "", "")
    deadline = time.monotonic() + 10
    while children := _sessions_with(str(tmp_path)):
        assert time.monotonic() < deadline, children
        time.sleep(0.05)


def _sessions_with(text: str) -> list[str]:
    """Processes whose command line has a text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text in path.read_text(errors="replace"):
                found.append(str(path))
        except OSError:
            continue
    return found


def test_the_log_has_one_line_for_many_modules(compiler: Compiler, caplog: pytest.LogCaptureFixture) -> None:
    compiler.fails = "no"
    model = kernelized(*(Scaled(number) for number in range(4)))
    model(X)
    assert wait_until_compiled(model, timeout=60)
    assert len([one for one in caplog.records if one.levelno >= logging.WARNING]) == 1
    assert len(compiler.asked) == 2, "the others are believed to fail as well"
