"""Products of one column, and elements at places that data give, which loops of C++ check later."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from torch import nn

from kernels_hub.compiler import Graph, compile, import_torch
from kernels_hub.compiler.codegen.cpp.translation_unit import generate
from kernels_hub.compiler.errors import EvaluateError
from kernels_hub.compiler.schedule.schedule import schedule

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def product(left, right):
    graph = Graph("column")
    graph.output("y", graph.input("a", left).matmul(graph.input("b", right)))
    return graph


@needs_compiler
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((5, 7), (7, 1)),
        ((1, 3000), (3000, 1)),
        ((3, 4, 33), (3, 33, 1)),
        ((4, 1), (1, 1)),
        ((2, 3, 9), (9, 1)),
    ],
    ids=str,
)
def test_products_of_one_column(left, right):
    random = np.random.default_rng(5)
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in (left, right))
    made = compile(product(left, right), "cpu", engines=["cpp"])
    for special in (None, np.nan, np.inf):
        if special is not None:
            a[(0,) * a.ndim] = special
        got = made(torch.from_numpy(a), torch.from_numpy(b)).numpy()
        np.testing.assert_allclose(got, (a.astype(np.float64) @ b).astype(np.float32), 1e-5, 1e-5)


@needs_compiler
def test_a_layer_of_one_output():
    module = nn.Sequential(nn.Linear(70, 33), nn.ReLU(), nn.Linear(33, 1), nn.Sigmoid())
    x = torch.randn(19, 70)
    dims = ({0: torch.export.Dim("n", min=2, max=64)},)
    made = compile((module, (x,)), "cpu", engines=["cpp"], dims=dims)
    for count in (19, 2, 64):
        x = torch.randn(count, 70)
        assert torch.allclose(made(x), module(x), 1e-5, 1e-6)


class Picked(nn.Module):
    def forward(self, x, i, j):
        return x.gather(1, i) + x.gather(1, j)


def test_places_of_a_loop_over_vectors_are_checked_behind_it():
    given = torch.zeros(3, 20), torch.zeros(3, 37, dtype=torch.int64), torch.zeros(3, 37, dtype=torch.int64)
    text = generate(schedule(import_torch(Picked(), given))).source
    assert text.count("kh::check(") == 2
    assert text.count("reduction(| :") == 2


@needs_compiler
@pytest.mark.parametrize("wrong", [20, -21, 2**40])
def test_a_place_out_of_range_fails(wrong):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 20, generator=generator)
    i, j = (torch.randint(20, (3, 37), generator=generator) for _ in range(2))
    made = compile((Picked(), (x, i, j)), "cpu", engines=["cpp"])
    expected = x.gather(1, i) + x.gather(1, j)
    assert torch.equal(made(x, i, j), expected)
    for places in (i, j):
        kept = int(places[1, 30])
        places[1, 30] = wrong
        with pytest.raises(EvaluateError, match="out of range"):
            made(x, i, j)
        places[1, 30] = kept
    assert torch.equal(made(x, i, j), expected)
