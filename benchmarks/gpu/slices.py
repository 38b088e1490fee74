"""The slices: what each proves, and how long it takes at most."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.gpu import faults, graphs, layers, machine, models, suite, tuning
from benchmarks.gpu.target import Case, Target


@dataclass(frozen=True)
class Slice:
    """A part of a run. minutes: when it stops, to be gone on with; case_minutes: when a case has failed."""

    number: int
    name: str
    proves: str
    cases: Callable[[Target], Iterator[Case]]
    minutes: float = 8.0
    case_minutes: float = 4.0


SLICES = (
    Slice(
        1,
        "machine",
        "the versions, and the roofs: bandwidth of a copy, products a second",
        machine.cases,
        2.0,
    ),
    Slice(2, "tests", "the tests that need a GPU pass", suite.cases),
    Slice(
        3,
        "layers",
        "each Triton layer is right, and its speed beside eager, torch.compile and Liger",
        layers.cases,
    ),
    Slice(
        4, "graphs", "compiled graphs are right, with and without CUDA graphs, and their speed", graphs.cases
    ),
    Slice(5, "models", "kernelized models, generated text and the first call of a new process", models.cases),
    Slice(6, "tuning", "what a search finds for this architecture", tuning.cases),
    Slice(
        7,
        "faults",
        "memory that is out, streams, threads, capture: right numbers or a clear error",
        faults.cases,
    ),
)
