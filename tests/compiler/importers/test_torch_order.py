"""Medians, modes, running extrema, binary search, counts and sets against torch: values, places, NaN, free sizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.export import Dim

from kernels_hub.compiler import Graph, compile, differentiate, evaluate, import_torch
from kernels_hub.compiler.errors import EvaluateError, ImportFailure
from tests.compiler.importers.test_torch_export_ops import rand
from tests.compiler.importers.torch_programs import (
    Function,
    as_far_as_pytorch_traces,
    assert_matches,
    check,
    check_function,
)
from tests.compiler.oracle import assert_same

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export's own

NAN, INF = float("nan"), float("inf")
X, I32 = rand(4, 7), rand(4, 7, dtype=torch.int32, seed=3)
HOLES = torch.tensor([[1, NAN, 3, 0.5], [NAN, NAN, NAN, NAN], [2, -INF, INF, 2.5], [-1, 4, NAN, NAN]])
STEPS = torch.tensor([-2.0, -0.5, 0.0, 0.0, 1.5, 4.0])
SPECIAL = torch.tensor([[NAN, INF, -INF], [0.0, -0.5, 9.0]])
REPEATS, IDS = torch.tensor([2, 0, 3, 1]), torch.tensor([[3, 1, 1, 4], [4, 4, 0, 1]])
EMPTY = torch.zeros(0, 3)

CASES = {
    "median": (lambda x: [x.median(), *x.median(0), *x.median(-1, keepdim=True), x[0, 0].median(), *x[0, 0].median(0),
                          x[:, :4].median()], X),
    "median of integers": (lambda x: [x.median(), x.nanmedian(), *x[:, :3].median(1)], torch.randperm(28).reshape(4, 7)),
    "median of holes": (lambda x: [x.median(), *x.median(1), x.nanmedian(), x.nanmedian(1).values], HOLES),
    "median of nothing": (lambda x: [x.median(), x.nanmedian(), x.long().median(), x.reshape(3, 0).sum()], EMPTY),
    "kthvalue": (lambda x: [*x.kthvalue(1), *x.kthvalue(4, 0, keepdim=True), *x.kthvalue(7, -1), *x[0, 0].kthvalue(1)], X),
    "kthvalue of holes": (lambda x: [x.kthvalue(k, 1).values for k in (1, 2, 4)], HOLES),
    "mode": (lambda x, b: [*x.mode(), *x.mode(0, keepdim=True), *b.mode(), *(x[0, 0] * 1.0).mode()], I32 // 8, I32 > 0),
    "running extrema": (lambda x, i, b: [*x.cummax(1), *x.cummin(0), *i.cummax(-1), *i.cummin(-1), *b.cummax(1), *b.cummin(0),
                                         *x[0, 0].cummax(0), *x[:0].cummax(1)], X, I32 // 4, I32 > 0),
    "running extrema of holes": (lambda x: [*x.cummax(1), *x.cummin(1), *x.cummax(0)], HOLES),
    "logcumsumexp": (lambda x: [x.logcumsumexp(1), x.logcumsumexp(0), (x * 100).logcumsumexp(-1), x[:0].logcumsumexp(1)], X),
    "logcumsumexp of holes": (lambda x: [x.logcumsumexp(1), x.logcumsumexp(0)], HOLES),
    "searchsorted": (lambda s, x, h: [
        torch.searchsorted(s, x), torch.searchsorted(s, x, right=True), torch.searchsorted(s, h, side="right"),
        torch.searchsorted(s, h, out_int32=True), torch.searchsorted(x.sort(1).values, x.flip(1)),
        torch.searchsorted(s, 0.0), torch.searchsorted(s, 0, right=True), torch.searchsorted(s[:0], x),
        torch.searchsorted(s, x[:0]), torch.searchsorted(s.flip(0), x, sorter=torch.arange(5, -1, -1))], STEPS, X, SPECIAL),
    "searchsorted of integers": (lambda x, y: [torch.searchsorted(x[0].sort().values, x), torch.bucketize(y, x[0].sort().values)],
                                 I32, torch.tensor([3, -100, 100], dtype=torch.int32)),
    "bucketize": (lambda x, s: [torch.bucketize(x, s), torch.bucketize(x, s, right=True), torch.bucketize(1.5, s),
                                torch.bucketize(x[0, 0], s, out_int32=True)], X, STEPS),
    "isin": (lambda i, t, x: [
        torch.isin(i, t), torch.isin(i, t, invert=True), torch.isin(i, 3), torch.isin(i, t[:0]), torch.isin(x, x[0]),
        torch.isin(i, torch.arange(0, 90, 3)), torch.isin(i, torch.arange(0, 90, 3), invert=True),
        torch.isin(x, torch.arange(40.0)), torch.isin(x, torch.tensor([NAN] * 20)),
        torch.isin(i, torch.arange(90).reshape(9, 10)[3:])], IDS, torch.tensor([1, 4]), HOLES),
    "repeats": (lambda r, x: [r.repeat_interleave(r), x.repeat_interleave(r, 0), x.repeat_interleave(r, 0, output_size=6)],
                REPEATS, rand(4, 3)),
    "counts": (lambda i, w, d: [i.bincount(), i.bincount(minlength=9), i.bincount(w), i.bincount(d, 2), i[:0].bincount()],
               IDS.flatten(), rand(8), rand(8).double()),
    "sets": (lambda i, b: [i.unique(), *i.unique(return_inverse=True), *i.unique(return_inverse=True, return_counts=True),
                           b.unique()], IDS, IDS > 1),
    "runs": (lambda i, x: [i.unique_consecutive(), i[:0].unique_consecutive(), *i.unique_consecutive(return_inverse=True, return_counts=True),
                           x.unique_consecutive()], IDS, HOLES),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@as_far_as_pytorch_traces()
def test_ops(name):
    function, *args = CASES[name]
    check_function(function, *args)


NARROW = (
    "median",
    "kthvalue",
    "running extrema",
    "searchsorted",
    "bucketize",
    "logcumsumexp",
    "running extrema of holes",
)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", NARROW)
def test_other_dtypes(name, dtype):
    function, *args = CASES[name]
    check_function(function, *(one.to(dtype) if one.is_floating_point() else one for one in args))


@pytest.mark.parametrize("name", CASES)
@as_far_as_pytorch_traces()
def test_the_library_runs_them(name):
    function, *args = CASES[name]
    if name == "median of holes":  # any place of a NaN is right
        function = lambda x: [x.median(), x.median(1).values, x.nanmedian(1).values]  # noqa: E731
    run = compile((Function(function), tuple(args), {}), "cpu", engines=("library",))
    for one, other in zip(run(*args), function(*args), strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


def test_free_sizes():
    def forward(x, s, i, r):
        return (
            x.median(1).values, x.median(), x.kthvalue(2, 0).values, *x.cummax(1), x.logcumsumexp(0),
            torch.searchsorted(s, x), torch.bucketize(x, s, right=True), i.bincount(minlength=3),
            x.repeat_interleave(r, 0), *i.unique_consecutive(return_inverse=True, return_counts=True), torch.isin(i, r),
        )  # fmt: skip

    def sizes(rows, columns, steps):
        ids = rand(columns, dtype=torch.int64, seed=5).abs() // 4
        return rand(rows, columns), rand(steps, seed=1).sort().values, ids, torch.arange(rows) % 3

    rows, columns = Dim("rows", min=2), Dim("columns")
    dims = (({0: rows, 1: columns}, {0: Dim("steps")}, {0: columns}, {0: rows}),)
    others = [(sizes(*one), {}) for one in ((2, 9, 1), (6, 3, 20))]
    check(Function(forward), sizes(4, 7, 5), dynamic_shapes=dims, others=others)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.floats(-4, 4, width=16) | st.sampled_from([NAN, INF, -INF]), max_size=9),
    st.lists(st.floats(-4, 4, width=16) | st.sampled_from([NAN, INF, -INF]), min_size=1, max_size=5),
    st.booleans(),
)
def test_search_is_that_of_torch_in_any_order(rows, values, right):
    graph = Graph("search")
    ordered, wanted = graph.input("s", ("n",)), graph.input("x", ("m",))
    graph.output("y", graph.apply("searchsorted", ordered, wanted, right=right))
    given_ = [np.array(one, np.float32) for one in (rows, values)]
    expected = torch.searchsorted(*map(torch.from_numpy, given_), right=right)
    assert_matches(evaluate(graph, given_)["y"], expected)


@pytest.mark.parametrize("low", [-1.0, 60.0])
def test_the_gradient_of_logcumsumexp(low):
    graph = Graph("running")
    graph.output("y", graph.apply("logcumsumexp", graph.input("x", (2, 5), "float64"), axis=1))
    both = differentiate(graph)
    x, g = rand(2, 5).double() - low * 10, rand(2, 5, seed=1).double()
    forward = evaluate(both.forward, {"x": x.numpy()})
    found = evaluate(both.backward, both.backward_inputs({"x": x.numpy()}, forward, {"y": g.numpy()}))[
        "grad.x"
    ]
    leaf = x.clone().requires_grad_()
    torch.logcumsumexp(leaf, 1).backward(g)
    assert_same(found, leaf.grad)


def test_what_is_wrong_is_told():
    with pytest.raises(ImportFailure, match=r"k .* is not in|out of range"):
        import_torch(Function(lambda x: x.kthvalue(9, 1).values), (X,))
    graph = import_torch(Function(lambda i: i.bincount()), (IDS.flatten(),))
    with pytest.raises(EvaluateError, match="below 0"):
        evaluate(graph, [np.array([1, -1] * 4)])
    with pytest.raises(ImportFailure, match="each NaN is one of its own"):
        import_torch(Function(lambda x: x.unique()), (X,))
