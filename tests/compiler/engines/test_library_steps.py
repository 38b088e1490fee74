"""Loops whose steps are small run on one thread, others on all; and the number of threads is what it was behind them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from kernels_hub.compiler import Graph
from kernels_hub.compiler import compile as compile_graph
from kernels_hub.compiler.engines.library_program import LibraryProgram
from kernels_hub.compiler.engines.library_steps import is_small, one_thread


def scan(size: int) -> Graph:
    """h @ w at each of 3 steps."""
    body = Graph("step")
    h, x, w = body.input("h", (4, size)), body.input("x", (4, size)), body.input("w", (size, size))
    body.output("h", h @ w + x)
    graph = Graph("steps")
    operands = [graph.input("h", (4, size)), graph.input("x", (3, 4, size)), graph.input("w", (size, size))]
    (last,) = graph.add("scan", operands, {"body": body, "states": 1, "sequences": 1}).results
    graph.output("last", last)
    return graph


@pytest.fixture(autouse=True)
def three_threads():
    kept = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(kept)


def of_a_new_thread() -> int:
    """How many threads PyTorch's kernels have in a thread that begins now."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.get_num_threads).result()


@pytest.mark.parametrize(("size", "expected"), [(8, 1), (2048, 3)])
def test_small_steps_run_on_one_thread(monkeypatch, size, expected):
    run = compile_graph(scan(size), "cpu", engines=("library",))
    inputs = {name: np.full(value.shape, 0.5 / size, np.float32) for name, value in scan(size).inputs.items()}
    run.arrays(inputs)
    seen = set()
    monkeypatch.setattr(LibraryProgram, "__call__", watched(LibraryProgram.__call__, seen))
    run.arrays(inputs)
    assert min(seen) == expected and torch.get_num_threads() == 3


def watched(call, seen):
    """A call that notes the number of threads that it has."""

    def noted(*given, **named):
        seen.add(torch.get_num_threads())
        return call(*given, **named)

    return noted


def test_threads_that_begin_meanwhile_have_all():
    with one_thread(applies=True):
        assert (torch.get_num_threads(), of_a_new_thread()) == (1, 3)
    assert (torch.get_num_threads(), of_a_new_thread()) == (3, 3)


def test_the_number_of_threads_comes_back_after_a_failure():
    with pytest.raises(RuntimeError), one_thread(applies=True):
        raise RuntimeError
    assert torch.get_num_threads() == 3
    with one_thread(applies=False):
        assert torch.get_num_threads() == 3


def test_a_step_whose_sizes_only_the_data_tell_is_not_small():
    body = Graph("step")
    body.output("y", body.input("x", ("n", 4)) @ body.input("w", (4, 4)))
    assert not is_small(body, {})
    assert is_small(body, {"n": 100})
