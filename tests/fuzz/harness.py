"""Feeds a parser many variants of valid inputs and counts how it answers.

A fuzzer is a table row: seeds (valid inputs), a way to mutate them, the parser, and the errors that the
parser documents. Anything else that is raised fails the test with the variant that did it, as does a variant
that takes longer or more memory than a parser may.

The order of variants depends on nothing but the seed number, so that a failure repeats. A variant that broke
a parser once is kept under `tests/fuzz/kept/<format>/` and run first, every time.
"""

from __future__ import annotations

import os
import random
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

KEPT = Path(__file__).parent / "kept"
EXHAUSTIVE = os.environ.get("KERNELS_HUB_TEST_EXHAUSTIVE") == "1"
LONGEST = 2.0  # seconds that one variant may take
LARGEST = 200 << 20  # bytes of memory that one variant may take

Mutate = Callable[[bytes, random.Random], bytes]
Parse = Callable[[bytes], object]


def budget(short: int = 400, exhaustive: int = 20_000) -> int:
    """How many variants to try: `short` in `make test`, `exhaustive` in `make test-all`."""
    return exhaustive if EXHAUSTIVE else short


@dataclass
class Tally:
    """What became of the variants."""

    parsed: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Refusals by class of error."""

    @property
    def total(self) -> int:
        return self.parsed + sum(self.refused.values())

    @property
    def share_parsed(self) -> float:
        return self.parsed / self.total if self.total else 0.0


def kept(name: str) -> Iterator[bytes]:
    """Variants of the format `name` that broke its parser once."""
    for path in sorted((KEPT / name).glob("*")):
        yield path.read_bytes()


def run(
    name: str,
    seeds: Sequence[bytes],
    mutate: Mutate,
    parse: Parse,
    errors: tuple[type[BaseException], ...],
    *,
    count: int,
    seed: int = 0,
    least_parsed: float = 0.2,
) -> Tally:
    """Parse `count` variants of `seeds`; each must parse or raise one of `errors`.

    least_parsed: the share that must still parse, as a parser that refuses everything is not tested by variants.
    Raises AssertionError with the variant, written out in full, where any other error is raised, or where it takes
    over `LONGEST` seconds or `LARGEST` bytes of Python's memory.
    """
    chance = random.Random(seed)
    tally = Tally()
    for data in kept(name):
        _one(name, data, parse, errors, Tally())
    for _ in range(count):
        _one(name, mutate(chance.choice(seeds), chance), parse, errors, tally)
    assert tally.share_parsed >= least_parsed, (
        f"{name}: {tally.share_parsed:.1%} of {tally.total} variants parse; at least {least_parsed:.0%} should: {tally.refused}"
    )
    return tally


def _one(name: str, data: bytes, parse: Parse, errors: tuple[type[BaseException], ...], tally: Tally) -> None:
    traced = tracemalloc.is_tracing()
    if traced:
        tracemalloc.reset_peak()
    start = time.perf_counter()
    try:
        parse(data)
    except errors as error:
        tally.refused[type(error).__name__] += 1
    except Exception as error:
        raise AssertionError(
            f"{name}: {type(error).__name__}: {error}; expected {[e.__name__ for e in errors]}, for {data!r}"
        ) from error
    else:
        tally.parsed += 1
    took = time.perf_counter() - start
    assert took <= LONGEST, f"{name}: {took:.1f} s for {data[:2000]!r}"
    if traced:
        peak = tracemalloc.get_traced_memory()[1]
        assert peak <= LARGEST, f"{name}: {peak >> 20} MiB for {data[:2000]!r}"
