"""The engine of bytecode: what it takes, what its plans keep, and what runs where there is no compiler."""

from __future__ import annotations

import os
import shutil

import pytest
import torch

from kernels_hub.compiler import Graph
from kernels_hub.compiler.engines import bytecode_library
from kernels_hub.compiler.engines.bytecode import ENGINE
from kernels_hub.compiler.engines.engine import Decline, Engine
from kernels_hub.compiler.engines.registry import engine
from tests.compiler.engines.executed import CPU, array, assert_agrees, graph_of
from tests.warm_process import run_script
from tests.wheel_interpreter import wheel_interpreter

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture(autouse=True)
def builds(monkeypatch):
    """The interpreter is built here, as no wheel brings it along."""
    monkeypatch.setenv("KERNELS_HUB_BYTECODE", "build")


def _perceptron() -> Graph:
    graph = Graph("perceptron")
    x = graph.input("x", ("n", 24))
    w = graph.parameter("w", (24, 40), data=array((24, 40), "float32"))
    y = x.apply("matmul", x, w)
    graph.output("y", y.apply("maximum", y, y * 0.1))
    return graph


def test_it_is_bundled():
    assert engine("bytecode").loaded() is ENGINE
    assert isinstance(ENGINE, Engine)


@pytest.mark.parametrize(
    ("op", "dtype", "attrs"),
    [("add", "float32", {}), ("add", "int8", {}), ("mul", "float16", {}), ("lt", "bfloat16", {})],
)
def test_it_agrees_with_the_oracle(op, dtype, attrs):
    given = [array((5, 70), dtype), array((5, 70), dtype, seed=1)]
    assert_agrees(ENGINE, graph_of(op, given, **attrs), given)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("form", ["full", "half", "real"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((3, 40), 1), ((600, 17), 1), ((16, 5), 0), ((2, 9, 70), 1), ((2, 1201), 1), ((0, 8), 1)],
)
def test_transforms_agree_with_the_oracle(form, dtype, shape, axis):
    """One by one, side by side and along columns; more than a tile; what is computed behind them, too."""
    graph = Graph("transform")
    names = ["x"] if form == "half" else ["x", "y"]
    operands = [graph.input(name, shape, dtype) for name in names]
    given = [array(shape, dtype, seed=place) for place in range(len(names))]
    attrs = {"length": 2 * shape[axis] - 1} if form == "real" else {"inverse": form == "full"}
    found = operands[0].apply("fourier", *operands, axis=axis, form=form, scale=0.5, **attrs)
    graph.output("z", found * 2.0 + 1.0)
    assert_agrees(ENGINE, graph, given)


@pytest.mark.parametrize("op", ["cumsum", "cumprod", "cummax", "cummin"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((3, 2500), 1), ((70, 5), 0), ((2, 9, 4), 1), ((6,), 0), ((300, 1), 1)]
)
def test_running_sums_agree_with_the_oracle(op, dtype, shape, axis):
    """Over several tiles of a row, and of rows."""
    given = [array(shape, dtype)]
    if op == "cumprod":
        given = [
            (one % 3 - 1 if dtype.startswith("int") else 1 + one / 1000).astype(one.dtype) for one in given
        ]
    assert_agrees(ENGINE, graph_of(op, given, axis=axis), given)


def test_a_running_sum_is_part_of_a_nest():
    """What feeds it and what follows it."""
    graph = Graph("positions")
    x = graph.input("x", ("n", "length"), "int64")
    total = x.apply("cumsum", (x + 1) * 2, axis=1)
    graph.output("y", x.apply("maximum", total - 1, x))
    plan = ENGINE.compile(graph, CPU, {})
    for shape in ((2, 7), (3, 3000), (1, 1)):
        given = torch.randint(-5, 5, shape)
        expected = torch.maximum(((given + 1) * 2).cumsum(1) - 1, given)
        assert torch.equal(plan.compute([given])[0], expected)


def test_a_running_maximum_keeps_nan():
    graph = graph_of("cummax", [array((8,), "float32")], axis=0)
    given = torch.tensor([1.0, 3.0, 2.0, float("nan"), 5.0, 9.0, 0.0, 1.0])
    (found,) = ENGINE.compile(graph, CPU, {}).compute([given])
    assert found[:3].tolist() == [1.0, 3.0, 3.0] and found[3:].isnan().all()


def test_a_plan_is_made_again_of_what_it_wrote():
    plan = ENGINE.compile(_perceptron(), CPU, {})
    again = ENGINE.load(plan.serialize(), CPU)
    x = torch.randn(3, 24)
    assert torch.equal(plan.compute([x])[0], again.compute([x])[0])


def test_a_profile_names_its_kernels():
    plan = ENGINE.compile(_perceptron(), CPU, {})
    (row,) = plan.profile([torch.randn(3, 24)], repeats=2)
    assert row.engine == "bytecode" and "matmul" in row.name
    assert row.flops is not None and row.flops >= 2 * 3 * 24 * 40


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (
            graph_of("argsort", [array((4,), "float32")], axis=0, descending=False),
            "argsort has no form in bytecode",
        ),
        (graph_of("neg", [array((4,), "complex64")]), "complex64"),
        (graph_of("add", [array((4,), "uint64")] * 2), "bytecode has no uint64"),
    ],
    ids=["order", "complex", "uint64"],
)
def test_it_says_what_it_does_not_take(graph, reason):
    answer = ENGINE.check(graph, CPU)
    assert isinstance(answer, Decline) and reason in answer.reason
    assert answer.values, "others take these, and it the rest"


def test_it_declines_without_an_interpreter(monkeypatch):
    monkeypatch.setenv("KERNELS_HUB_BYTECODE", "")
    monkeypatch.setenv("KERNELS_HUB_CXX", "none")
    monkeypatch.setattr(bytecode_library, "_prebuilt", lambda: None)
    answer = ENGINE.check(_perceptron(), CPU)
    assert isinstance(answer, Decline) and "in the wheels for Linux" in answer.reason


def test_it_declines_beside_a_compiler(monkeypatch):
    """Before anything of it is imported or made."""
    monkeypatch.setenv("KERNELS_HUB_BYTECODE", "")
    answer = engine("bytecode").check(_perceptron(), CPU)
    assert isinstance(answer, Decline) and "KERNELS_HUB_CXX=none" in answer.reason


_WITHOUT_A_COMPILER = """
import torch
from torch import nn
import kernels_hub.compiler as kc

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Hardswish(), nn.MaxPool2d(2), nn.Flatten(1),
    nn.Linear(256, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 5), nn.Softmax(-1),
).eval()
x = torch.randn(2, 3, 8, 8)
run = kc.compile((model, (x,)), "cpu")
with torch.inference_mode():
    torch.testing.assert_close(run(x), model(x))
print(sorted(set(run.plan.engines)))
order = kc.compile((nn.Sequential(nn.Linear(8, 8), nn.ReLU(), _Sort()), (torch.randn(2, 8),)), "cpu")
print(sorted(set(order.plan.engines)))
""".replace("_Sort()", "type('Sort', (nn.Module,), {'forward': lambda self, x: torch.sort(x)[1]})()")


def test_it_runs_where_there_is_no_compiler(tmp_path):
    """What bytecode has no form for runs on PyTorch's kernels."""
    environment = {
        **os.environ, "KERNELS_HUB_CXX": "none", "KERNELS_HUB_BYTECODE": "",
        "KERNELS_HUB_PREBUILT": str(wheel_interpreter(tmp_path)), "KERNELS_HUB_CACHE": str(tmp_path / "cache"),
    }  # fmt: skip
    done = run_script(_WITHOUT_A_COMPILER, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["['bytecode']", "['bytecode', 'library']"]
