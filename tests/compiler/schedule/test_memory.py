"""The arena: what lives at once lies apart, in no more bytes than must be, for any sizes."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_hub.compiler import Graph
from kernels_hub.compiler.engines.calls import ScratchLayouts, ScratchSpan
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.schedule.index import Loop, row_major
from kernels_hub.compiler.schedule.kernel import Buffer, Compute, Kernel, Load, Nest, Role, Schedule, Store
from kernels_hub.compiler.schedule.memory import ALIGNMENT, lifetimes, number, place, spans
from kernels_hub.compiler.schedule.schedule import schedule


def buffer(name: str, size: int) -> Buffer:
    return Buffer(name, Role.SCRATCH, types.FLOAT32, (size,), row_major((size,)))


def kernel(name: str, reads: list[Buffer], writes: list[Buffer], shift: int = 0) -> Kernel:
    """One that reads and writes whole buffers; shift: reads are not at the place that is written."""
    loop = Loop("$i", max([one.shape[0] for one in (*reads, *writes)], default=1))
    body = [Load(f"v{i}", types.FLOAT32, one, loop.index + shift) for i, one in enumerate(reads)]
    stores = [Store(one, loop.index, "v0") for one in writes]
    return Kernel(name, (Nest((loop,), (), (*body, *stores)),))


def scheduled(*kernels: Kernel) -> Schedule:
    buffers = {one: None for each in kernels for one in (*each.reads(), *each.writes())}
    return Schedule("test", tuple(buffers), (), kernels, {}, {})


@st.composite
def programs(draw):
    """Kernels in a row, each writing new buffers of any size and reading any that are there."""
    made: list[Buffer] = []
    kernels = []
    for step in range(draw(st.integers(1, 12))):
        reads = draw(st.lists(st.sampled_from(made), max_size=3, unique=True)) if made else []
        sizes = draw(st.lists(st.integers(0, 3000), min_size=1, max_size=2))
        writes = [buffer(f"b{step}_{i}", size) for i, size in enumerate(sizes)]
        kernels.append(kernel(f"k{step}", reads, writes, shift=draw(st.integers(0, 1))))
        made += writes
    return scheduled(*kernels)


@settings(max_examples=300, deadline=None)
@given(programs())
def test_what_lives_at_once_lies_apart(program):
    arena = place(program, {})
    spans = {span.buffer: span for span in lifetimes(program.kernels)}
    assert set(arena.offsets) == set(spans)
    for a, b in itertools.combinations(spans.values(), 2):
        start_a, start_b = arena.offsets[a.buffer], arena.offsets[b.buffer]
        stop_a, stop_b = (start + number(one.buffer.bytes, {}) for start, one in ((start_a, a), (start_b, b)))
        apart = stop_a <= start_b or stop_b <= start_a
        meet = max(a.first, b.first) <= min(a.last, b.last)
        inherits = start_a == start_b and (a.last == b.first or b.last == a.first)
        assert apart or not meet or inherits, (a, b)
        assert start_a % ALIGNMENT == 0
        assert stop_a <= arena.size
    assert arena.bound <= arena.size


def test_a_chain_needs_the_memory_of_two():
    buffers = [buffer(f"b{i}", 1024) for i in range(6)]
    steps = [kernel("k0", [], buffers[:1])]
    steps += [kernel(f"k{i + 1}", [a], [b], shift=1) for i, (a, b) in enumerate(itertools.pairwise(buffers))]
    arena = place(scheduled(*steps), {})
    assert arena.size == arena.bound == 2 * 4096


def test_an_elementwise_step_works_in_place():
    buffers = [buffer(f"b{i}", 1024) for i in range(6)]
    steps = [kernel("k0", [], buffers[:1])]
    steps += [kernel(f"k{i + 1}", [a], [b]) for i, (a, b) in enumerate(itertools.pairwise(buffers))]
    arena = place(scheduled(*steps), {})
    assert arena.size == arena.bound == 4096


def test_a_second_reader_at_another_place_forbids_in_place():
    a, b = buffer("a", 64), buffer("b", 64)
    loop = Loop("$i", 64)
    twice = (
        Load("v0", types.FLOAT32, a, loop.index),
        Load("v1", types.FLOAT32, a, 63 - loop.index),
        Compute("v2", types.FLOAT32, Graph("g").input("x", (1,)).unary("neg").op, ("v0",)),
        Store(b, loop.index, "v2"),
    )
    steps = (kernel("k0", [], [a]), Kernel("k1", (Nest((loop,), (), twice),)), kernel("k2", [b], []))
    arena = place(scheduled(*steps), {})
    assert arena.offsets[a] != arena.offsets[b]


def products(rows: int | str) -> Schedule:
    """Of three products in a row."""
    graph = Graph("g")
    y = graph.input("x", (rows, 32))
    w = graph.parameter("w", (32, 32))
    for _ in range(3):
        y = y.apply("matmul", y, w).unary("exp")
    graph.output("y", y)
    return schedule(graph)


def test_sizes_of_symbols_move_the_buffers():
    planned = products("n")
    assert [place(planned, {"n": n}).size for n in (0, 1, 100)] == [0, 2 * 128, 2 * 12800]


def layouts(planned: Schedule) -> ScratchLayouts:
    """As a program of this schedule has them, for one set of sizes after another."""
    number_of = {buffer: index for index, buffer in enumerate(planned.buffers)}
    return ScratchLayouts(
        [
            ScratchSpan(
                one.buffers[0].bytes, tuple(map(number_of.__getitem__, one.buffers)), one.first, one.last
            )
            for one in spans(planned)
        ]
    )


def test_layouts_are_the_same_for_sizes_that_differ_by_little():
    scratch = layouts(products("n"))
    found = [scratch.of({"n": n}) for n in range(96, 192)]
    for n, layout in enumerate(found, 96):
        assert 2 * 128 * n <= layout.size <= 2 * 128 * n * 9 // 8
        assert {at for _, at in layout.offsets} == {0, layout.size // 2}
    assert len(set(map(id, found))) <= 12


def test_what_is_always_the_same_is_not_rounded():
    planned = products(97)
    assert layouts(planned).of({}).size == place(planned, {}).size == 2 * 128 * 97
