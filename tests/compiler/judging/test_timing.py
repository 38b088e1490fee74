"""Times on a clock that tests turn: what is noise is never a gain, what is a gain is found beside noise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernels_hub.compiler.engines.engine import Device
from kernels_hub.compiler.judging.timing import REPEATS, gain, measure
from tests.compiler.judging.machine import Machine

CPU = Device("cpu")


def noisy(
    machine: Machine, seconds: float, *, share: float = 0.3, times: float = 8.0
) -> Callable[[int], float]:
    """One call in a few is interrupted for a time slice."""

    def of(_: int) -> float:
        slow = machine.random.random() < share
        return seconds * (machine.random.uniform(1, times) if slow else machine.random.uniform(1, 1.02))

    return of


def cold(seconds: float, first: float) -> Callable[[int], float]:
    return lambda calls: first if calls < 2 else seconds


def test_first_calls_never_count():
    machine = Machine()
    original, other = machine.call(cold(1e-3, 2.0)), machine.call(cold(1e-3, 1e-3))
    found = gain(original, other, CPU, clock=machine.clock)
    assert found.ratio == pytest.approx(1.0) and not found.faster
    a, b = measure([machine.call(cold(1e-3, 5.0)), machine.call(1.1e-3)], CPU, clock=machine.clock)
    assert a == pytest.approx(1e-3) and b == pytest.approx(1.1e-3)


def test_a_slow_start_does_not_leave_out_the_original():
    """The original was dropped as hopeless where its first calls were disturbed, and everything beside it won."""
    machine = Machine()
    slow = machine.call(lambda calls: 76e-3 if calls < 5 else 4e-4)
    a, b = measure([slow, machine.call(4.2e-4)], CPU, clock=machine.clock)
    assert a == pytest.approx(4e-4) and b == pytest.approx(4.2e-4)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("true", [1.0, 1.14, 2.0, 6.72])
def test_a_stored_gain_is_the_true_one_beside_noise(seed, true):
    machine = Machine(seed)
    original = machine.call(noisy(machine, 1e-3 * true))
    other = machine.call(noisy(machine, 1e-3))
    found = gain(original, other, CPU, clock=machine.clock)
    if found.holds:
        assert found.ratio == pytest.approx(true, rel=REPEATS)
    assert not (true == 1.0 and found.holds)


@pytest.mark.parametrize("seed", range(10))
def test_a_clean_gain_is_found(seed):
    machine = Machine(seed)
    original = machine.call(noisy(machine, 1.14e-3, share=0.02))
    other = machine.call(noisy(machine, 1e-3, share=0.02))
    found = gain(original, other, CPU, clock=machine.clock)
    assert found.holds and found.ratio == pytest.approx(1.14, rel=0.03)
    assert found.candidate == pytest.approx(found.original / found.ratio)


@pytest.mark.parametrize("period", [0.03, 0.1, 0.3, 1.0])
def test_a_gain_that_comes_and_goes_is_the_least_or_none(period):
    machine = Machine()

    def slow(_: int) -> float:
        return 6.72e-3 if int(machine.now / period) % 2 == 0 else 1.14e-3

    found = gain(machine.call(slow), machine.call(1e-3), CPU, clock=machine.clock)
    assert not found.holds or found.ratio == pytest.approx(1.14, rel=REPEATS) or period == 1.0
    assert found.holds or "does not repeat" in str(found) or "no more than" in str(found)


def test_what_others_take_all_the_time_is_no_gain():
    """Threads of the original wait for a core that is busy, nearly always: it is not 4.4 times slower, but 1.95."""
    machine = Machine()
    original = machine.call(lambda calls: 1.95e-5 if calls % 50 == 7 else 4.4e-5)
    found = gain(original, machine.call(1e-5), CPU, clock=machine.clock)
    assert not found.holds and "does not repeat" in str(found)


def test_a_gain_within_the_controls_spread_does_not_hold():
    machine = Machine()
    turns = iter(range(10**9))
    original = machine.call(lambda _: 1e-3 * (1.3 if next(turns) % 2 else 1.0))
    found = gain(original, machine.call(0.97e-3), CPU, clock=machine.clock)
    assert found.control > 0.1 and not found.holds


def test_slow_calls_are_made_few_times():
    machine = Machine()
    calls = []
    original = machine.call(lambda calls_: calls.append(calls_) or 2.0)
    found = gain(original, machine.call(1.0), CPU, clock=machine.clock)
    assert found.holds and found.ratio == pytest.approx(2.0)
    assert len(calls) <= 2 + 2 * 2 * 5


def test_what_is_slower_is_said_to_be():
    machine = Machine()
    found = gain(machine.call(1e-3), machine.call(2e-3), CPU, clock=machine.clock)
    assert found.repeats and not found.faster and found.ratio == pytest.approx(0.5)
