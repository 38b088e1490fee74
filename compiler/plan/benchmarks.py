"""Benchmarks by name: what times the candidates of a plan.

A benchmark is a function `(calls, device) -> seconds of each`; plugins register theirs under the entry points
"kernels_hub.benchmarks", and are used by name in place of "benchmark".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from kernels_hub.compiler.engines.engine import Device
from kernels_hub.compiler.errors import EngineError
from kernels_hub.entry_points import entry_points

GROUP = "kernels_hub.benchmarks"


class Benchmark(Protocol):
    """Measures calls on a device, each for as long as it likes."""

    def __call__(self, calls: Sequence[Callable[[], object]], device: Device) -> Sequence[float]:
        """Seconds of each call."""


def benchmark(name: object) -> Benchmark | None:
    """The benchmark of that name, "benchmark" or a plugin's; None where it is no benchmark's."""
    if name == "benchmark":
        from kernels_hub.compiler.judging.timing import (
            measure,  # nothing that opens a plan waits for the judge
        )

        return measure
    if not isinstance(name, str) or name == "default":
        return None
    points = {point.name: point for point in entry_points(GROUP)}
    if name not in points:
        return None
    try:
        found: Benchmark = points[name].load()
    except Exception as error:
        raise EngineError(f"the benchmark {name!r} ({points[name].value}) does not load: {error}") from error
    return found
