"""Profiles: a step for each thing that an engine does, against rates that are given or measured."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch

from kernels_hub.compiler import Graph, compile
from kernels_hub.compiler.engines.engine import StepProfile
from kernels_hub.compiler.errors import EngineError, PlanError
from kernels_hub.compiler.plan import rates
from kernels_hub.compiler.plan.profiling import Profile
from kernels_hub.compiler.plan.rates import Rates, measured_rates
from kernels_hub.compiler.plan.selection import create_plans
from tests.compiler.plan.plan_engines import PartEngine, only_engines

RATES = Rates(1e9, 1e9)


def product():
    graph = Graph("product")
    x = graph.input("x", ("n", 16))
    w = graph.parameter("w", (16, 8), data=np.ones((16, 8), np.float32))
    graph.output("y", (x @ w).tanh())
    return graph


def test_steps_of_all_segments_on_the_real_values(tmp_path):
    with only_engines(PartEngine("left", lambda op: op != "tanh"), PartEngine("right")):
        found = create_plans(product(), "cpu", rank=lambda *_: ["left", "right"])
        plan = next(one for one in found if len(one.engines) == 2).build()
    profile = plan.profile({"x": np.ones((4, 16), np.float32)}, 3, rates=RATES)
    (matmul,) = [one for one in profile.steps if one.name.endswith("matmul")]
    (tanh,) = [one for one in profile.steps if one.name.endswith("tanh")]
    assert matmul.name.startswith("0: ") and tanh.name.startswith("1: ")
    assert (matmul.engine, tanh.engine) == ("left", "right")
    assert matmul.flops == 2 * 4 * 8 * 16 and matmul.bytes == 4 * (4 * 16 + 16 * 8 + 4 * 8)
    assert tanh.flops == 32 and tanh.bytes == 2 * 4 * 32
    assert profile.seconds > 0 and all(one.seconds >= 0 for one in profile.steps)
    text = str(profile)
    assert "matmul" in text and "all steps" in text and "1.0 GB/s" in text
    profile.to_chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    timed = [one for one in events if one["ph"] == "X"]
    assert [one["name"] for one in timed] == [one.name for one in profile.steps]
    assert all(a["ts"] + a["dur"] == pytest.approx(b["ts"]) for a, b in itertools.pairwise(timed))
    assert {one["args"]["name"] for one in events if one["ph"] == "M"} == {"left", "right"}


def test_the_share_is_of_whatever_bounds_a_step():
    steps = (
        StepProfile("moves", "e", 2.0, bytes=10**9, flops=1),
        StepProfile("computes", "e", 4.0, bytes=1, flops=10**9),
        StepProfile("nothing", "e", 1.0),
    )
    profile = Profile("g", "cpu", steps, 7.0, RATES)
    assert [profile.share(one) for one in steps] == [0.5, 0.25, None]
    assert profile.total.seconds == 7.0 and profile.total.bytes == 10**9 + 1


def test_an_executable_profiles_by_position_and_name():
    run = compile(product(), "cpu", engines=("reference",))
    x = torch.ones(2, 16)
    for profile in (run.profile(x, rates=RATES), run.profile(x=x, repeats=1, rates=RATES)):
        assert any(one.name.endswith("tanh") for one in profile.steps)
    with pytest.raises(PlanError, match="missing"):
        run.profile(rates=RATES)


def test_rates_are_measured_once(monkeypatch):
    monkeypatch.setattr(rates, "COPIED_BYTES", 1 << 16)
    monkeypatch.setattr(rates, "ROUNDS", 1 << 10)
    measured_rates.cache_clear()
    try:
        run = compile(product(), "cpu", engines=("reference",))
        first = run.profile(torch.ones(2, 16), repeats=1).rates
        assert first.bandwidth > 0 and first.flops > 0
        assert run.profile(torch.ones(2, 16), repeats=1).rates is first
    finally:
        measured_rates.cache_clear()


def test_operations_are_counted_in_registers_and_without_a_compiler_by_a_product(monkeypatch):
    monkeypatch.setattr(rates, "COPIED_BYTES", 1 << 16)
    monkeypatch.setattr(rates, "ROUNDS", 1 << 10)
    products = []
    monkeypatch.setattr(rates, "_product", lambda device: products.append(device) or 1.0)
    cpu = torch.device("cpu")
    measured_rates.cache_clear()
    try:
        assert measured_rates(cpu).flops > 1e6 and not products
        monkeypatch.setattr(rates.toolchain, "find_compiler", lambda: None)
        measured_rates.cache_clear()
        assert measured_rates(cpu).flops == 1.0 and products == [cpu]
    finally:
        measured_rates.cache_clear()


def test_of_a_table_that_is_gathered_from_the_rows_are_counted():
    graph = Graph("rows")
    table = graph.parameter("table", (1000, 32), data=np.ones((1000, 32), np.float32))
    graph.output("rows", table.gather(graph.input("places", (4,), "int64")).tanh())
    run = compile(graph, "cpu", engines=("cpp",))
    (step,) = run.profile(torch.arange(4), rates=RATES).steps
    assert step.bytes == 4 * 8 + 2 * (4 * 32 * 4)


def test_an_engine_that_fails_to_profile_is_named():
    class Blind(PartEngine):
        def compile(self, graph, device, knobs):
            plan = super().compile(graph, device, knobs)
            plan.profile = lambda *_: 1 / 0
            return plan

    with only_engines(Blind("blind")):
        run = compile(product(), "cpu")
    with pytest.raises(EngineError, match="engine blind failed: ZeroDivisionError"):
        run.profile(torch.ones(2, 16), rates=RATES)
