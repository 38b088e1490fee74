"""A machine that a test turns the clock of."""

from __future__ import annotations

import random
from collections.abc import Callable


class Machine:
    """A clock, and calls that take as long as they are told: `seconds`, or a function of how often they were called."""

    def __init__(self, seed: int = 0) -> None:
        self.now, self.random = 0.0, random.Random(seed)
        self.busy_until = -1.0

    def clock(self) -> float:
        return self.now

    def call(self, seconds: float | Callable[[int], float]) -> Callable[[], None]:
        calls = 0

        def run() -> None:
            nonlocal calls
            self.now += seconds(calls) if callable(seconds) else seconds
            calls += 1

        return run
