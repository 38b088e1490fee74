"""Loops whose steps are small run on one thread, others on all; and the number of threads is what it was behind them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels_hub.compiler import Graph
from kernels_hub.compiler import compile as compile_graph
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


@pytest.fixture
def threads(monkeypatch):
    """What the number of threads is set to, from 3."""
    kept, seen = torch.get_num_threads(), []
    torch.set_num_threads(3)
    set_threads = torch.set_num_threads
    monkeypatch.setattr(torch, "set_num_threads", lambda count: (seen.append(count), set_threads(count)))
    yield seen
    set_threads(kept)


@pytest.mark.parametrize(("size", "expected"), [(8, [1, 3]), (2048, [])])
def test_small_steps_run_on_one_thread(threads, size, expected):
    run = compile_graph(scan(size), "cpu", engines=("library",))
    inputs = {name: np.full(value.shape, 0.5 / size, np.float32) for name, value in scan(size).inputs.items()}
    run.arrays(inputs)
    threads.clear()
    run.arrays(inputs)
    assert threads == expected
    assert torch.get_num_threads() == 3


def test_the_number_of_threads_comes_back_after_a_failure(threads):
    with pytest.raises(RuntimeError), one_thread(applies=True):
        raise RuntimeError
    assert threads == [1, 3]
    with one_thread(applies=False):
        assert torch.get_num_threads() == 3


def test_a_step_whose_sizes_only_the_data_tell_is_not_small():
    body = Graph("step")
    body.output("y", body.input("x", ("n", 4)) @ body.input("w", (4, 4)))
    assert not is_small(body, {})
    assert is_small(body, {"n": 100})
