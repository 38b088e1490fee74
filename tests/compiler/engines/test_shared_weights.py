"""Packed and copied weights are in memory once, however many plans are made of them, and as long as one of those lives."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from torch import nn

from kernels_hub.compiler import Graph, compile, evaluate
from kernels_hub.compiler.engines import shared as registry
from kernels_hub.compiler.engines.cpp import ENGINE
from kernels_hub.compiler.engines.engine import Device
from kernels_hub.compiler.engines.shared import SMALL, shared
from kernels_hub.compiler.runtime.toolchain import find_compiler

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")


def block(*, size=2 * SMALL, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, size, np.uint8))


def held(plan):
    """Address -> bytes of what a plan of the C++ engine keeps in memory."""
    return {one.data_ptr(): one.nbytes for one in plan.weights.held.values() if isinstance(one, torch.Tensor)}


def bytes_of(*plans):
    return sum({address: size for plan in plans for address, size in held(plan).items()}.values())


def test_equal_blocks_are_one():
    a, b = block(), block()
    assert shared(a) is a
    assert shared(b) is a
    assert shared(a) is a


def test_a_difference_in_any_byte_counts():
    first = shared(block(seed=1))
    for place in (0, 1, first.numel() // 2 + 1, first.numel() - 1):
        other = block(seed=1)
        other[place] ^= 1
        assert shared(other) is other


def test_what_is_gone_is_forgotten():
    gc.collect()  # of other tests
    before = len(registry._KNOWN)
    kept = shared(block(seed=2))
    assert len(registry._KNOWN) == before + 1
    del kept
    gc.collect()
    assert len(registry._KNOWN) == before
    again = block(seed=2)
    assert shared(again) is again


def test_small_blocks_stay_as_they_are():
    a, b = block(size=64), block(size=64)
    assert shared(a) is a
    assert shared(b) is b


@needs_compiler
def test_plans_for_several_shapes_share():
    module = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64), nn.LayerNorm(64)).eval()
    plans = []
    for rows in (3, 5):
        run = compile((module, (torch.randn(rows, 64),)), "cpu", engines="cpp")
        x = torch.randn(rows, 64)
        with torch.no_grad():
            torch.testing.assert_close(run(x), module(x), atol=1e-5, rtol=1e-5)
        plans.append(run.plan.segments[0].plan.plan)
    weights = 4 * 2 * 64 * 96
    assert weights <= bytes_of(plans[0]) < 1.5 * weights
    assert bytes_of(*plans) - bytes_of(plans[0]) < SMALL, "but for what is small"


@needs_compiler
def test_other_weights_are_others():
    rng = np.random.default_rng(0)
    plans, graphs = [], []
    for _ in range(2):
        graph = Graph("product")
        x = graph.input("x", (2, 64))
        weight = graph.parameter("w", (64, 64), data=rng.standard_normal((64, 64)).astype(np.float32))
        graph.output("y", x.apply("matmul", x, weight))
        graphs.append(graph)
        plans.append(ENGINE.compile(graph, Device("cpu"), {}))
    assert not held(plans[0]).keys() & held(plans[1]).keys()
    given = np.ones((2, 64), np.float32)
    for graph, plan in zip(graphs, plans, strict=True):
        (found,) = plan.compute([torch.from_numpy(given)])
        np.testing.assert_allclose(found.numpy(), evaluate(graph, {"x": given})["y"], rtol=1e-4, atol=1e-4)


@needs_compiler
def test_weights_that_are_only_packed_are_not_kept_besides():
    module = nn.Sequential(nn.Conv2d(16, 32, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU()).eval()
    run = compile((module, (torch.randn(1, 16, 8, 8),)), "cpu", engines="cpp")
    plan = run.plan.segments[0].plan.plan
    weights = 4 * 32 * 16 * 9
    assert weights <= bytes_of(plan) < 1.3 * weights
    loaded = run.graph.weight(next(name for name in run.graph.parameters if name.startswith("folded")))
    assert not loaded.flags.writeable
