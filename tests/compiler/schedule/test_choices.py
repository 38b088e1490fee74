"""What a schedule leaves open: every choice computes the same, is what the C++ is made of, and is refused if it is none."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kernels_hub.compiler import Graph, evaluate
from kernels_hub.compiler.codegen.cpp.translation_unit import generate
from kernels_hub.compiler.engines.cpp import ENGINE
from kernels_hub.compiler.engines.engine import Device
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.schedule.choices import CHOICES, Choices
from kernels_hub.compiler.schedule.expand import expanded
from kernels_hub.compiler.schedule.inlining import unsupported
from kernels_hub.compiler.schedule.schedule import schedule
from tests.compiler.schedule.run import run_schedule
from tests.compiler.strategies import SIZES, assert_same_outputs, graphs

CPU = Device("cpu")


def block() -> Graph:
    """A convolution, a product with a gelu, a shared value, a long sum and a transposition."""
    graph = Graph("block")
    x = graph.input("x", ("n", 8, 12, 12))
    w = graph.parameter("w", (8, 8, 3, 3), data=np.full((8, 8, 3, 3), 0.02, np.float32))
    v = graph.parameter("v", (12, 40), data=np.linspace(-1, 1, 480, dtype=np.float32).reshape(12, 40))
    y = graph.apply("conv", x, w, strides=(1, 1), dilations=(1, 1), padding=((1, 1), (1, 1)))
    y = (y + x).unary("tanh")
    rows = y.reshape(("96*n", 12))
    shared = (rows * 0.5).unary("exp")
    graph.output("product", (shared @ v).maximum(0.0) + 1.0)
    graph.output("norm", shared / graph.apply("broadcast", shared.sum((1,)), shape=shared.shape, axes=(0,)))
    graph.output("turned", (graph.input("t", (64, 48)) * 2.0).permute(1, 0) + 1.0)
    z = graph.input("z", (3, 20000))
    graph.output("total", (z * z).sum((0, 1)))
    graph.output("means", graph.apply("reduce_mean", z, axes=(1,)))
    graph.output("largest", graph.apply("reduce_max", z, axes=(1,)))
    graph.output("chances", graph.apply("softmax", z, axis=1))
    return graph


GRAPH = block()
USUAL = schedule(GRAPH)
GIVEN = [
    *({name: value} for name, values in CHOICES.items() for value in values[1:]),
    *({"apart": str(place)} for place in USUAL.joined),
    *({"again": str(place)} for place in USUAL.shared),
    *({"loops": str(place)} for place in USUAL.products),
    {"split": 7, "layout": "rows", "apart": ",".join(map(str, USUAL.joined)), "loops": "0,1"},
]


@pytest.mark.parametrize("given", GIVEN, ids=str)
def test_every_choice_gives_the_oracles_numbers(given):
    inputs = GRAPH.dummy_inputs(0, {"n": 2})
    planned = schedule(GRAPH, choices=Choices.of(given))
    found = run_schedule(planned, GRAPH, inputs, {"n": 2})
    assert_same_outputs(found, evaluate(GRAPH, inputs), 1e-4)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("given", [GIVEN[0], GIVEN[2], GIVEN[-1]], ids=str)
def test_and_so_does_its_cpp_also_from_a_payload(given):
    inputs = GRAPH.dummy_inputs(0, {"n": 2})
    plan = ENGINE.compile(GRAPH, CPU, given)
    again = ENGINE.load(plan.serialize(), CPU)
    assert again.schedule.choices == Choices.of(given)
    for one in (plan, again):
        found = one.compute([torch.from_numpy(inputs[name]) for name in GRAPH.inputs])
        named = {name: array.numpy() for name, array in zip(GRAPH.outputs, found, strict=True)}
        assert_same_outputs(named, evaluate(GRAPH, inputs), 1e-4)


def test_each_choice_makes_a_difference_and_the_defaults_make_none():
    usual = generate(USUAL).source
    assert generate(schedule(GRAPH, choices=Choices.of({}))).source == usual
    without = [one for one in GIVEN if generate(schedule(GRAPH, choices=Choices.of(one))).source == usual]
    assert without.pop(0) == {"layout": "channels last"}, "which is what it chooses by itself"
    assert all("again" in one for one in without), "but for values that a product reads anyway"
    assert len(without) < len(USUAL.shared)


def test_threads_share_a_long_sum():
    def parts(split: int) -> list[int]:
        kernels = schedule(GRAPH, choices=Choices(split=split)).kernels
        nests = [nest for kernel in kernels for nest in kernel.nests if nest.inner and nest.anchor is None]
        return [len(nest.outer) for nest in nests]

    assert min(parts(1)) == 0, "the sum over everything has no outer loop"
    assert sum(parts(8)) > sum(parts(1))


@settings(max_examples=10, suppress_health_check=list(HealthCheck), deadline=None)
@given(graph=graphs(max_ops=16), data=st.data())
def test_random_choices_on_random_graphs(graph, data):
    assume(not unsupported(expanded(graph)))
    usual = schedule(graph)
    places = {"apart": usual.joined, "again": usual.shared, "loops": usual.products}
    given = {
        name: ",".join(map(str, data.draw(st.sets(st.sampled_from(found)))))
        for name, found in places.items()
        if found
    }
    given["split"] = data.draw(st.sampled_from((1, 2, 8)))
    inputs = graph.dummy_inputs(0, SIZES)
    found = run_schedule(schedule(graph, choices=Choices.of(given)), graph, inputs, SIZES)
    assert_same_outputs(found, evaluate(graph, inputs, bindings=SIZES), 4e-2)


WRONG = [
    ({"tiles": 3}, "no choice 'tiles'"),
    ({"split": 0}, "from 1 to 4096"),
    ({"split": True}, "from 1 to 4096"),
    ({"grain": "much"}, "from 256"),
    ({"layout": "columns"}, "one of auto, channels last, rows"),
    ({"apart": "a,b"}, "is places"),
    ({"apart": 3}, "is places"),
    ({"again": "-1"}, "counts places from 0"),
]


@pytest.mark.parametrize(("given", "message"), WRONG, ids=str)
def test_what_is_no_choice_is_refused(given, message):
    with pytest.raises(EngineError, match=message):
        ENGINE.compile(GRAPH, CPU, given)


def test_the_engine_offers_what_may_matter():
    names = {knob.name for knob in ENGINE.check(GRAPH, CPU).knobs}
    assert names == {"split", "layout"}
    small = Graph("small")
    small.output("y", small.input("x", (4, 4)).sum((1,)))
    assert ENGINE.check(small, CPU).knobs == ()
