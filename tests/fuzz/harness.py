"""Feeds a parser many variants of valid inputs and counts how it answers.

A fuzzer is a table row: seeds (valid inputs), a way to mutate them, the parser, and the errors that the
parser documents. Anything else that is raised fails the test with the variant that did it, as does a variant
that takes longer or more memory than a parser may.

The order of variants depends on nothing but the seed number, so that a failure repeats. A variant that broke
a parser once is kept under `tests/fuzz/kept/<format>/` and run first, every time.
"""

from __future__ import annotations

import ctypes
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from kernels_hub.compiler.ir.uncollected import uncollected

KEPT = Path(__file__).parent / "kept"
EXHAUSTIVE = os.environ.get("KERNELS_HUB_TEST_EXHAUSTIVE") == "1"
LONGEST = 2.0  # seconds of processor time that one variant may take
LARGEST = 200 << 20  # bytes of memory that one variant may take
TOGETHER = 50
"""Variants whose memory is watched together: in a process that ran for long, to begin to watch takes some 40 ms."""

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
    What became of them is printed, which pytest shows under `-s`. Raises AssertionError with the variant, written out
    in full, where any other error is raised, or where it takes over `LONGEST` seconds of processor time or `LARGEST`
    bytes of memory.
    """
    chance = random.Random(seed)
    tally = Tally()
    _all(name, list(kept(name)), parse, errors, Tally())
    for begin in range(0, count, TOGETHER):
        some = [mutate(chance.choice(seeds), chance) for _ in range(min(TOGETHER, count - begin))]
        _all(name, some, parse, errors, tally)
    print(f"{name}: {tally.total} variants, {tally.share_parsed:.1%} parse, refused {dict(tally.refused)}")
    assert tally.share_parsed >= least_parsed, (
        f"{name}: {tally.share_parsed:.1%} of {tally.total} variants parse; at least {least_parsed:.0%} should: {tally.refused}"
    )
    return tally


@contextmanager
def limited(name: str, data: object, process: int | None = None) -> Iterator[None]:
    """Assert that a process takes no more than `LONGEST` and `LARGEST` for what is done inside; by default, this one.

    What other work on the machine takes meanwhile does not count, nor does memory that was there before.
    """
    with memory_taken(process) as taken, _timed(name, data, process):
        yield
    assert taken.peak <= LARGEST, f"{name}: {taken.peak >> 20} MiB for {str(data)[:2000]}"


@dataclass
class Taken:
    """Bytes of memory that a process took at most, beyond what it had; 0 until they are known."""

    peak: int = 0


@contextmanager
def memory_taken(process: int | None = None) -> Iterator[Taken]:
    """Watch the memory of a process, by default this one, for what is done inside."""
    place, taken = Path("/proc") / ("self" if process is None else str(process)), Taken()
    with ExitStack() as stack:
        if process is None:
            stack.enter_context(uncollected())  # garbage that goes meanwhile would hide as much that is taken
            stack.enter_context(_no_free_memory())
        with suppress(OSError):  # else the peak is that of the whole run
            (place / "clear_refs").write_text("5")
        before = _memory(place)
        try:
            yield taken
        finally:
            taken.peak = _memory(place, "VmHWM") - before


@contextmanager
def _timed(name: str, data: object, process: int | None = None) -> Iterator[None]:
    begin = _processor_time(process)
    yield
    took = _processor_time(process) - begin
    assert took <= LONGEST, f"{name}: {took:.1f} s for {str(data)[:2000]}"


class _Allocated(ctypes.Structure):
    """What glibc's `mallinfo2` tells of its heap."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


@contextmanager
def _no_free_memory() -> Iterator[None]:
    """The allocator has no memory that was freed: what is taken from it would not be seen to be taken.

    It gives back what it can. The end of its heap it cannot, where another has moved the program break since; that is
    taken from it meanwhile.
    """
    taken: list[int] = []
    library = ctypes.CDLL(None)
    with suppress(OSError, AttributeError):  # a C library other than glibc
        library.malloc_trim(0)
        allocated, allocate = library.mallinfo2, library.malloc
        allocated.restype, allocate.restype = _Allocated, ctypes.c_void_p
        while len(taken) < 8 and (free := allocated().keepcost) > 1 << 20:
            taken.append(allocate(ctypes.c_size_t(free - (64 << 10))))
    try:
        yield
    finally:
        for pointer in taken:
            library.free(ctypes.c_void_p(pointer))


def _memory(place: Path, field: str = "VmRSS") -> int:
    """Bytes of memory that a process has, or had at most ("VmHWM"); 0 on systems that do not tell."""
    with suppress(OSError):
        for line in (place / "status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) << 10
    return 0


def _processor_time(process: int | None) -> float:
    if process is None:
        return time.process_time()
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _all(
    name: str, some: Sequence[bytes], parse: Parse, errors: tuple[type[BaseException], ...], tally: Tally
) -> None:
    """Parse variants, together; where they take too much memory, once more, each by itself, to tell which does."""
    with memory_taken() as taken:
        for data in some:
            with _timed(name, data):
                _one(name, data, parse, errors, tally)
    for data in some if taken.peak > LARGEST else ():
        with limited(name, data):
            _one(name, data, parse, errors, Tally())


def _one(name: str, data: bytes, parse: Parse, errors: tuple[type[BaseException], ...], tally: Tally) -> None:
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
