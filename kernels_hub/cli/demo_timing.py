"""Times two functions in turn, for `kernels-hub demo`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any


def paired(first: Callable[[], Any], second: Callable[[], Any], pairs: int) -> tuple[float, float, float]:
    """Median seconds of both, and the median ratio first / second, over interleaved calls."""
    for _ in range(3):
        first(), second()
    times: list[tuple[float, float]] = []
    for _ in range(pairs):
        start = time.perf_counter()
        first()
        middle = time.perf_counter()
        second()
        times.append((middle - start, time.perf_counter() - middle))
    return (
        statistics.median(a for a, _ in times),
        statistics.median(b for _, b in times),
        statistics.median(a / b for a, b in times),
    )
