"""Padding as loop bounds in C++: windows and blocks at every border, of what is not finite, too, against PyTorch's."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernels_hub.compiler import Graph, compile, evaluate, import_torch
from kernels_hub.compiler.codegen.cpp.translation_unit import generate
from kernels_hub.compiler.codegen.guard_runs import run_of
from kernels_hub.compiler.schedule.index import Loop, Ranges
from kernels_hub.compiler.schedule.kernel import Guard
from kernels_hub.compiler.schedule.schedule import schedule

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

POOLS = {
    "max 3 / 2": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max 3": lambda x: F.max_pool2d(x, 3, 1, 1),
    "max 5 x 3": lambda x: F.max_pool2d(x, (5, 3), (1, 2), (2, 1)),
    "max 2, ceil": lambda x: F.max_pool2d(x, 2, 2, 0, ceil_mode=True),
    "max 3 / 3, ceil": lambda x: F.max_pool2d(x, 3, 3, 1, ceil_mode=True),
    "max 3, dilated": lambda x: F.max_pool2d(x, 3, 2, 1, dilation=2),
    "max along": lambda x: F.max_pool1d(x.flatten(2), 3, 2, 1),
    "max of volumes": lambda x: F.max_pool3d(x.flatten(0, 1)[None, None], 3, 2, 1),
    "mean 3 / 2": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "mean 3, of what is there": lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
    "mean 3 / 2, ceil": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "mean 3 / 2, ceil, of what is there": lambda x: F.avg_pool2d(
        x, 3, 2, 1, ceil_mode=True, count_include_pad=False
    ),
    "mean along": lambda x: F.avg_pool1d(x.flatten(2), 5, 2, 2),
    "mean of volumes": lambda x: F.avg_pool3d(x.flatten(0, 1)[None, None], 2, 1, 1),
    "power mean": lambda x: F.lp_pool2d(x.abs(), 2, 3, 2),
    "channels last": lambda x: F.max_pool2d(x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2), 3, 2, 1),
}
BLOCKS = {
    "3 x 3": lambda x: F.unfold(x, 3, padding=1),
    "3 x 2 / 2": lambda x: F.unfold(x, (3, 2), padding=(0, 1), stride=2),
    "dilated": lambda x: F.unfold(x, 2, dilation=2, padding=3),
    "no padding": lambda x: F.unfold(x, 2, stride=2),
    "of one image": lambda x: F.unfold(x[0], 3, padding=1),
}
SHAPES = [(2, 3, 7, 9), (1, 2, 33, 70), (1, 2, 5, 130)]


class Each(nn.Module):
    """All results of a table of functions."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def forward(self, x):
        return [function(x) for function in self.table.values()]


def image(shape, *, special):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    if special:
        x[..., 0, 0], x[..., -1, -1], x[..., 2, 0] = torch.nan, torch.inf, -torch.inf
        x[0, 0, 3:, -2:] = -torch.inf
        x[0, 0, 1, 3] = torch.nan
    return x


def assert_as_eager(table, got, x):
    for (name, function), result in zip(table.items(), got, strict=True):
        expected = function(x)
        assert torch.allclose(result, expected, 1e-5, 1e-6, equal_nan=True), name


@needs_compiler
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("table", [POOLS, BLOCKS], ids=["windows", "blocks"])
def test_borders_are_pytorchs(shape, table):
    x = image(shape, special=False)
    made = compile((Each(table), (x,)), "cpu", engines=["cpp"])
    for special in (False, True):
        x = image(shape, special=special)
        assert_as_eager(table, made(x), x)


@needs_compiler
def test_borders_of_sizes_that_are_free():
    height, width = torch.export.Dim("h", min=6, max=200), torch.export.Dim("w", min=6, max=200)
    table = {name: POOLS[name] for name in ("max 3 / 2", "max 3", "max 5 x 3", "mean 3 / 2")}
    x = image((2, 3, 9, 12), special=False)
    dims = ({2: height, 3: width},)
    made = compile((Each(table), (x,)), "cpu", engines=["cpp"], dims=dims)
    for shape in ((2, 3, 9, 12), (2, 3, 7, 9), (2, 3, 33, 71)):
        x = image(shape, special=True)
        assert_as_eager(table, made(x), x)


@needs_compiler
def test_whole_numbers_at_borders():
    """Padding of the least number there is."""
    x = torch.randint(-9, 9, (1, 2, 9, 11), dtype=torch.int32) - 2**31 + 9
    graph = Graph("whole")
    given = graph.input("x", tuple(x.shape), "int32")
    window = {
        "kernel": (3, 3),
        "strides": (2, 1),
        "dilations": (1, 1),
        "padding": ((1, 1), (1, 1)),
        "ceil": False,
    }
    graph.output("y", graph.apply("max_pool", given, **window))
    expected = evaluate(graph, {"x": x.numpy()})["y"]
    assert np.array_equal(compile(graph, "cpu", engines=["cpp"])(x).numpy(), expected)


def text_of(function, *shape):
    return generate(schedule(import_torch(Each({"": function}), (torch.zeros(shape),)))).source


@pytest.mark.parametrize("name", ["max 3 / 2", "max 3, dilated", "mean 3 / 2", "mean 3, of what is there"])
def test_no_element_of_a_window_asks_whether_it_is_padding(name):
    text = text_of(POOLS[name], 1, 64, 56, 56)
    assert "_first" in text
    assert "?" not in text


def test_no_element_of_a_block_asks_whether_it_is_padding():
    text = text_of(BLOCKS["3 x 3"], 1, 4, 56, 56)
    loops = [line for line in text.splitlines() if "const float v" in line]
    assert len(loops) == 1
    assert "?" not in loops[0]


def test_guards_of_other_reductions_stay():
    """Of a product, 0 is not what changes nothing."""
    text = text_of(lambda x: F.pad(x, (1, 1)).unfold(-1, 3, 1).prod(-1), 1, 4, 40)
    assert "_first" not in text.split("kh_pack")[0] or "?" in text


@pytest.mark.parametrize(
    ("step", "shift", "low", "high"),
    [(1, -1, 0, 5), (2, -3, 0, 7), (3, 4, 1, 9), (2, 0, -5, 3), (5, -2, 0, 100)],
)
def test_runs_are_the_turns_in_which_a_guard_holds(step, shift, low, high):
    loop = Loop("$i", 12)
    run = run_of([Guard(loop.index * step + shift, low, high)], loop, Ranges((loop,)))
    turns = range(max([0, *run.firsts]), min([12, *run.ends]))
    assert list(turns) == [i for i in range(12) if low <= i * step + shift < high]


def test_a_guard_that_counts_down_has_no_run():
    loop = Loop("$i", 12)
    assert run_of([Guard(5 - loop.index, 0, 9)], loop, Ranges((loop,))) is None


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gelu_is_one_function_and_as_exact_as_pytorchs(dtype):
    x = torch.cat(
        [torch.linspace(-12, 12, 20011), torch.tensor([torch.nan, torch.inf, -1e30, 1e30, -0.0])]
    ).to(dtype)
    made = compile((nn.GELU(), (x,)), "cpu", engines=["cpp"])
    got, exact = made(x).double(), F.gelu(x.double())
    finite = torch.isfinite(exact)
    assert torch.equal(torch.isfinite(got), finite)
    bound = 1.5e-7 if dtype is torch.float32 else 2**-8
    assert bool(((got - exact).abs()[finite] <= bound * x.double().abs()[finite]).all())
    assert "kh::gelu" in generate(schedule(import_torch(nn.GELU(), (torch.zeros(8),)))).source


def test_what_only_looks_like_gelu_stays():
    for function in (
        lambda x: x * 0.5 * (torch.erf(x * 0.7) + 1),
        lambda x: x * 0.5 * (torch.erf(x * 0.5**0.5) + 2),
        lambda x: x * 0.25 * (torch.erf(x * 0.5**0.5) + 1),
    ):
        assert "kh::gelu" not in text_of(function, 8)


@needs_compiler
def test_limits_hand_nan_on():
    x = torch.tensor([torch.nan, -torch.inf, torch.inf, -1.0, 0.0, 2.0, 7.0])
    table = {
        "relu": torch.relu, "relu6": F.relu6, "clamp": lambda x: x.clamp(-0.5, 1.5),
        "least": lambda x: torch.clamp(x, max=-1.0), "hardswish": F.hardswish,
    }  # fmt: skip
    assert_as_eager(table, compile((Each(table), (x,)), "cpu", engines=["cpp"])(x), x)
