"""Mappings: normalised once, scoped to a block, thread or task, chosen deterministically."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels_hub import (
    CUDAProperties,
    Device,
    MappingError,
    Mode,
    register_kernel_mapping,
    use_kernel_mapping,
)
from kernels_hub.kernelization.device import Target
from kernels_hub.kernelization.mapping import active_mapping, normalise_mapping
from kernels_hub.kernelization.mapping_records import DeviceEntry, choose_mode
from kernels_hub.kernelization.mode import FALLBACK_CHAIN, REGISTRABLE_MODES


class Source:
    """A repository that only has a name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def load(self) -> Any:
        raise AssertionError("nothing is loaded here")


A, B, C = Source("a"), Source("b"), Source("c")


def chosen(layer: str, target: Target = Target("cpu"), mode: Mode = Mode.INFERENCE) -> object:
    entry = active_mapping().find(layer, target)
    if entry is None:
        return None
    found = choose_mode(entry.modes, mode)
    return None if found is None else found[1].repository


def test_a_block_adds_and_takes_away() -> None:
    register_kernel_mapping({"L": {"cpu": A}})
    with use_kernel_mapping({"M": {"cpu": B}}):
        assert (chosen("L"), chosen("M")) == (A, B)
        with use_kernel_mapping({"L": {"cpu": C}}, inherit_mapping=False):
            assert (chosen("L"), chosen("M")) == (C, None)
        assert (chosen("L"), chosen("M")) == (A, B)
    assert (chosen("L"), chosen("M")) == (A, None)


def test_registering_inside_a_block_ends_with_the_block() -> None:
    with use_kernel_mapping({"L": {"cpu": A}}):
        register_kernel_mapping({"M": {"cpu": B}})
        assert (chosen("L"), chosen("M")) == (A, B)
    assert (chosen("L"), chosen("M")) == (None, None)


def test_register_without_inheriting_replaces() -> None:
    register_kernel_mapping({"L": {"cpu": A}})
    register_kernel_mapping({"M": {"cpu": B}}, inherit_mapping=False)
    assert (chosen("L"), chosen("M")) == (None, B)


def test_an_exception_in_a_block_leaks_nothing() -> None:
    with pytest.raises(RuntimeError), use_kernel_mapping({"L": {"cpu": A}}):
        raise RuntimeError
    assert chosen("L") is None


BAD: list[tuple[object, str]] = [
    (["L"], "is a dict"),
    ({3: {"cpu": A}}, "layer names"),
    ({"L": A}, "expected {device: repository}"),
    ({"L": {3: A}}, "device key"),
    ({"L": {"gpu": A}}, "unknown device type 'gpu'"),
    ({"L": {"cpu": {"inference": A}}}, "mode key"),
    ({"L": {"cpu": {Mode.TORCH_COMPILE: A}}}, "mode key"),
    ({"L": {"cpu": {Mode(0): A}}}, "mode key"),
    ({"L": {"cpu": {}}}, "no repository"),
    ({"L": {"cpu": "org/name"}}, "expected a repository"),
    ({"L": {"cpu": Source}}, "expected a repository"),
    ({"L": {"cpu": None}}, "expected a repository"),
]


@pytest.mark.parametrize(("mapping", "message"), BAD)
def test_a_bad_mapping_raises_before_anything_changes(mapping: Any, message: str) -> None:
    register_kernel_mapping({"L": {"cpu": A}})
    with pytest.raises(MappingError, match=message):
        register_kernel_mapping(mapping)
    with pytest.raises(MappingError, match=message), use_kernel_mapping(mapping):
        pytest.fail("the block must not be entered")
    assert chosen("L") is A


def test_blocks_are_invisible_to_other_threads_but_registrations_are_not() -> None:
    register_kernel_mapping({"R": {"cpu": A}})
    seen: list[object] = []
    with use_kernel_mapping({"L": {"cpu": B}}, inherit_mapping=False):
        thread = threading.Thread(target=lambda: seen.extend((chosen("L"), chosen("R"))))
        thread.start()
        thread.join()
        assert chosen("R") is None
    assert seen == [None, A]


def test_tasks_do_not_see_each_other() -> None:
    async def task(source: Source, gate: asyncio.Event, wait: bool) -> object:
        with use_kernel_mapping({"L": {"cpu": source}}):
            if wait:
                await gate.wait()
            else:
                gate.set()
                await asyncio.sleep(0)
            return chosen("L")

    async def main() -> list[object]:
        gate = asyncio.Event()
        return list(await asyncio.gather(task(A, gate, True), task(B, gate, False)))

    assert asyncio.run(main()) == [A, B]
    assert chosen("L") is None


def test_concurrent_registrations_are_all_kept() -> None:
    def register(index: int) -> None:
        register_kernel_mapping({f"L{index}": {"cpu": Source(str(index))}})

    threads = [threading.Thread(target=register, args=(index,)) for index in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {f"L{index}" for index in range(32)} <= active_mapping().names()


def cuda(low: int, high: int = sys.maxsize) -> Device:
    return Device("cuda", CUDAProperties(low, high))


def test_the_narrowest_range_wins() -> None:
    with use_kernel_mapping({"L": {cuda(75, 89): A, cuda(80, 89): B, "cuda": C}}):
        assert chosen("L", Target("cuda", 86)) is B
        assert chosen("L", Target("cuda", 75)) is A
        assert chosen("L", Target("cuda", 90)) is C
        assert chosen("L", Target("cuda", None)) is C


def test_equal_widths_go_to_the_first_registered_and_equal_bounds_replace() -> None:
    with use_kernel_mapping({"L": {cuda(80, 90): A, cuda(85, 95): B}}):
        assert chosen("L", Target("cuda", 86)) is A
        with use_kernel_mapping({"L": {cuda(80, 90): C}}):
            assert chosen("L", Target("cuda", 86)) is C
        register_kernel_mapping({"L": {cuda(80, 90): C}})
        assert chosen("L", Target("cuda", 86)) is C, "replaced in its place, so still the first"


@given(
    st.lists(
        st.tuples(st.integers(0, 12), st.integers(0, 12)).map(lambda pair: (min(pair), max(pair))),
        min_size=1,
        max_size=9,
    ),
    st.integers(0, 12),
    st.randoms(use_true_random=False),
)
def test_selection_is_that_of_a_plain_search(
    ranges: list[tuple[int, int]], capability: int, rng: random.Random
) -> None:
    """Oracle: walk the registrations in order; later equal bounds replace in place; first narrowest wins."""
    sources = [Source(str(index)) for index in range(len(ranges))]
    mapping = normalise_mapping({"L": {"cpu": A}})
    for bounds, source in zip(ranges, sources, strict=True):
        mapping = mapping.extended(normalise_mapping({"L": {cuda(*bounds): source}}))
    expected: dict[tuple[int, int], Source] = {}
    for bounds, source in zip(ranges, sources, strict=True):
        expected[bounds] = source
    fitting = [(high - low, source) for (low, high), source in expected.items() if low <= capability <= high]
    best = min(fitting, key=lambda pair: pair[0], default=(0, None))[1]
    entry = mapping.find("L", Target("cuda", capability))
    found = entry.modes[Mode.FALLBACK].repository if isinstance(entry, DeviceEntry) else None
    assert found is best


@given(
    st.sets(st.sampled_from(sorted(REGISTRABLE_MODES, key=lambda mode: mode.value)), min_size=1),
    st.sampled_from(list(FALLBACK_CHAIN)),
)
def test_mode_choice_is_the_first_of_the_chain(registered: set[Mode], asked: Mode) -> None:
    sources = {mode: Source(str(mode)) for mode in registered}
    entry = normalise_mapping({"L": {"cpu": sources}}).find("L", Target("cpu"))
    assert entry is not None
    found = choose_mode(entry.modes, asked)
    expected = [mode for mode in FALLBACK_CHAIN[asked] if mode in registered]
    if not expected:
        assert found is None
    else:
        assert found is not None and found[0] is expected[0] and found[1].repository is sources[expected[0]]
