"""Loop nests from rewrites: each plan runs every turn once, its path is made of rewrites, its C++ has the oracle's numbers."""

from __future__ import annotations

import random
import shutil

import numpy as np
import pytest
import torch

from kernels_hub.compiler import Graph, compile, evaluate
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.schedule.choices import Choices
from kernels_hub.compiler.schedule.loop_plan import LoopPlan, parse_plan
from kernels_hub.compiler.schedule.planned_nest import check_plan
from kernels_hub.compiler.search.nests.extract import best_plans
from kernels_hub.compiler.search.nests.machine import Machine
from kernels_hub.compiler.search.nests.nests import nest_choices, rewrites_taken
from kernels_hub.compiler.search.nests.path import path
from kernels_hub.compiler.search.nests.rules import FACTS, LANGUAGE, RULES
from kernels_hub.compiler.search.nests.space import facts_of, nest_space
from kernels_hub.compiler.search.saturate import Egglog
from kernels_hub.compiler.search.terms import rule
from tests.combinations import all_but, every_value
from tests.compiler.search.random_plans import drawn, every_turn, fits, nest_of, product, visits

pytest.importorskip("egglog", reason="needs egglog")
COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


def finished(value):
    return (value * 0.5 + 1.0).maximum(0.0)


def transposed():
    graph = Graph(
        "transposed"
    )  # a weight as PyTorch's Linear has it: vectors need a copy that is turned round
    graph.output("y", graph.input("a", (20, 24)) @ graph.input("w", (40, 24)).permute(1, 0))
    return graph


def affine(kind):
    def build():
        graph = Graph(kind)  # no product: arithmetic of three operands, reduced along the middle
        a, b, c = graph.input("a", (6, 30, 20)), graph.input("b", (30, 20)), graph.input("c", (6, 1, 20))
        graph.output("y", ((a - b) * c).reduce(kind, [1]))
        return graph

    build.__name__ = kind
    return build


GRAPHS = {
    "product": lambda: product(16, 24, 32),
    "odd": lambda: product(13, 10, 37, finished),
    "vector": lambda: product(1, 96, 80, finished),
    "batch": lambda: product(6, 16, 20, batch=(3,)),
    "transposed": transposed,
    **{kind: affine(kind) for kind in ("sum", "max", "min", "prod")},
}


@every_value(name=GRAPHS, lanes=[16, 8, 4])
def test_every_plan_runs_each_turn_once(name, lanes):
    nest = nest_of(GRAPHS[name]())
    space = nest_space(nest, lanes)
    assert space.complete, f"{space.size} terms after {space.rounds} rounds"
    turns, ends = every_turn(nest)
    source, seen = random.Random(lanes), set()
    for _ in range(400):
        plan = drawn(space, source)
        if plan is None or not fits(plan, nest) or str(plan) in seen or len(seen) > 25:
            continue
        seen.add(str(plan))
        assert parse_plan(str(plan)) == plan
        check_plan(plan, nest)
        found = visits(plan, nest)
        assert sorted(index for what, index in found if what == "add") == turns
        assert sorted(index for what, index in found if what == "end") == ends
        added = [index[: nest.parallel] for what, index in found if what == "add"]
        if ends:  # a result ends when all was added to it
            last = {index: place for place, (what, index) in enumerate(found) if what == "end"}
            assert all(
                place < last[index[: nest.parallel]]
                for place, (what, index) in enumerate(found)
                if what == "add"
            )
        assert len(added) == len(turns)
    assert len(seen) > 5


@pytest.mark.parametrize("name", ["product", "odd", "vector", "transposed", "max"])
def test_each_step_of_a_path_is_a_rewrite(name):
    """egglog, with the rules that a step names and no others, finds what is behind it equal to what was before."""
    nest = nest_of(GRAPHS[name]())
    for priced in best_plans(nest_space(nest, 16), 2, Machine(threads=2)):
        before = nest.naive()
        for step in path(nest, priced.plan):
            engine = Egglog()
            engine.run(LANGUAGE)
            for one in RULES:
                if one.name in step.rules or (one.name == "unroll" and "hold" in step.rules):
                    engine.run("\n".join(rule(text, "nests") for text in one.texts))
            engine.run("\n".join(facts_of(nest, 16)))
            engine.run(
                "\n".join(f"(cut {t.numbers[0]} {t.numbers[2]})" for t in step.plan.walk() if t.op == "Each")
            )
            engine.run("\n".join(rule(text, "nests") for text in FACTS))
            engine.run(f"(let before {_rooted(before)})\n(let after {_rooted(step.plan)})")
            engine.run("(run-schedule (repeat 12 (run nests)))\n(check (= before after))")
            before = step.plan
        assert before == priced.plan


def _rooted(plan):
    if plan.op == "Share":
        return f"(Share {' '.join(map(str, plan.numbers))} {_rooted(plan.parts[0])})"
    return f"(Alone {plan})"


def test_the_path_of_a_product():
    nest = nest_of(product(128, 128, 128))
    (best, *_) = best_plans(nest_space(nest, 16), 3, Machine())
    rules = [name for step in path(nest, best.plan) for name in step.rules]
    assert {"split", "swap", "hold", "unroll", "vectorize"} <= set(rules)
    assert best.seconds < 1e-4


@COMPILER
@pytest.mark.parametrize("name", all_but(GRAPHS, "product", "sum", "min"))
def test_the_numbers_are_the_oracles(name):
    graph = GRAPHS[name]()
    generator = np.random.default_rng(0)
    inputs = {
        one: generator.standard_normal(value.shape).astype(np.float32) for one, value in graph.inputs.items()
    }
    if name in {"max", "min"}:
        inputs["a"][0, 3, 5], inputs["a"][1, 7, 2] = np.nan, np.inf
    expected = evaluate(graph, inputs)["y"]
    nest = nest_of(graph)
    space = nest_space(nest, 16)
    plans = [one.plan for one in best_plans(space, 2, Machine(threads=2))]
    source = random.Random(1)
    while len(plans) < 4:
        plan = drawn(space, source)
        if plan is not None and fits(plan, nest):
            plans.append(plan)
    for plan in (nest.naive(), *plans):
        knobs = {"cpp": {"loops": "0", "nests": f"0:{plan}", "grain": 256}}
        run = compile(graph, "cpu", engines=("cpp",), knobs=knobs)
        actual = run(*map(torch.from_numpy, inputs.values())).numpy()
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5, err_msg=str(plan))


def test_choices_say_what_was_rewritten():
    graph = product(64, 64, 64, finished)
    found = list(nest_choices(graph, Choices(), 2, Machine()))
    assert [set(one.choices) for one in found] == [{"loops", "nests"}] * 2
    lines = rewrites_taken(graph, Choices.of(found[0].choices))
    assert lines[0].startswith("loops of k0_matmul") and any("hold" in line for line in lines)
    assert "terms" in str(found[0]) and "split" in str(found[0])


def test_what_plans_are_not_for():
    free = Graph("free")
    free.output("y", free.input("a", ("n", 64)) @ free.input("b", (64, 64)))
    softmax = Graph("softmax")
    x = softmax.input("x", (64, 64))
    softmax.output("y", (x - x.reduce("max", [1], keepdims=True)).exp() @ softmax.input("v", (64, 64)))
    assert not list(nest_choices(free, Choices(), 1, Machine()))
    assert len(list(nest_choices(softmax, Choices(), 1, Machine()))) <= 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0:(Each 0 32 1 (Add 0))", "more than one element is left"),
        ("0:(Each 0 32 5 (Add 0))", "no 32 elements"),
        ("0:(Share 2 48 1 (Each 0 32 1 (Each 1 64 1 (Add 0))))", "threads share turns"),
        ("0:(Each 0 32 1 (Share 1 64 1 (Each 2 48 1 (Add 0))))", "outside of other loops"),
        ("0:(Stage 7 (Add 128))", "no operand 7"),
        ("0:(Each 1 64 1 (Each 2 48 1 (Each 0 32 1 (Add 2))))", "lies elsewhere"),
        ("0:(Hold (Tile (Unroll 0 32 1 (Unroll 1 64 1 (Point 0)))))", "results are written out"),
        ("0:(Then (Add 0) (End))", "results end once"),
        ("0:(Peel 0 32 (Add 0) (Add 0))", "no elements behind 32"),
        ("0:(Each 9 32 1 (Add 0))", "no 32 elements of axis 9"),
        ("0:(End)", "End does not stand here"),
    ],
)
def test_a_plan_that_does_not_fit(text, message):
    with pytest.raises(EngineError, match=message):
        check_plan(parse_plan(text[2:]), nest_of(product(32, 48, 64)))


@pytest.mark.parametrize(
    "text",
    ["x", "0", "0:", "0:()", "0:(Nothing)", "0:(Add)", "0:(Add 0 0)", "0:(Add -1)", "0:(Each 0 1 1 (Point 0))", "0:((Add 0)",
     "a:(Add 0)", "0:(Add 0))", "0:(Each 0 4 1)", "0:(Add 0)(Add 0)", "0:" + "(Hold " * 3000, "0:(Add 99999999999999999999)"],
)  # fmt: skip
def test_what_is_no_plan(text):
    with pytest.raises(EngineError):
        Choices(nests=text)


def test_a_plan_of_another_nest_is_refused_by_the_engine():
    plan = LoopPlan("Add", (0,))
    with pytest.raises(EngineError, match="more than one element"):
        compile(
            product(32, 48, 64), "cpu", engines=("cpp",), knobs={"cpp": {"loops": "0", "nests": f"0:{plan}"}}
        )
