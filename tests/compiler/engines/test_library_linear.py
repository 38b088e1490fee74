"""Linear layers on the library engine: what joins a product, what does not, and which kernel multiplies."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels_hub.compiler import Graph
from kernels_hub.compiler.engines import guard
from kernels_hub.compiler.engines.library import ENGINE
from kernels_hub.compiler.engines.library_linear import LEAST_FOR_FEW, LEAST_FOR_MANY
from kernels_hub.compiler.engines.tensors import to_tensor
from kernels_hub.compiler.rewrite.pipeline import rewrite
from tests.compiler.engines.executed import CPU, array, assert_agrees

WIDE = 900
"""A product with a square of it is worth packing, for one row and for many."""


class Recorder(TorchDispatchMode):
    """The names of ops that PyTorch runs."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket._qualified_op_name)
        return func(*args, **(kwargs or {}))


def silu(x):
    return x * x.unary("sigmoid")


def linear(batch=("n", 5), inner=6, outer=4, bias=True, activation=None, dtype="float32", transposed=True):
    graph = Graph("linear")
    graph.symbol("n", 1)
    x = graph.input("x", (*batch, inner), dtype)
    shape = (outer, inner) if transposed else (inner, outer)
    weight = graph.parameter("w", shape, dtype, array(shape, dtype, seed=1))
    y = x @ (weight.transpose() if transposed else weight)
    if bias:
        y = y + graph.parameter("b", (outer,), dtype, array((outer,), dtype, seed=2))
    graph.output("y", activation(y) if activation else y)
    return rewrite(graph).graph


def steps(graph):
    return [row.name.split(" ", 1)[1] for row in plan_of(graph).profile([torch.ones(2, *_rest(graph))], 1)]


def _rest(graph):
    (x,) = graph.inputs.values()
    return [int(dim) for dim in x.shape[1:]]


def plan_of(graph):
    return guard.compiled(ENGINE, graph, CPU)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("batch", [("n",), ("n", 5), ("n", 2, 5)])
def test_numbers(batch, transposed, dtype):
    graph = linear(batch, dtype=dtype, transposed=transposed)
    for n in (3, 1):
        x = array((*(n if dim == "n" else dim for dim in batch), 6), dtype)
        assert_agrees(ENGINE, graph, [x])


def test_what_joins():
    assert steps(linear(bias=False)) == ["matmul"]
    assert steps(linear()) == ["matmul + add"]
    assert steps(linear(activation=silu)) == ["matmul + add + silu"]
    assert steps(linear(bias=False, activation=silu)) == ["matmul + silu"]
    assert steps(linear(activation=lambda x: x.unary("tanh"))) == ["matmul + add", "tanh"]


def test_what_somebody_else_reads_does_not_join():
    graph = Graph("read twice")
    x, w = graph.input("x", (2, 6)), graph.parameter("w", (6, 4), data=array((6, 4), "float32"))
    product = x @ w
    total = product + graph.parameter("b", (4,), data=array((4,), "float32"))
    graph.output("y", silu(total))
    graph.output("total", total)
    graph.output("product", product)
    assert [one for one in steps(graph) if "+" in one] == []
    assert_agrees(ENGINE, graph, [array((2, 6), "float32")])


@pytest.mark.parametrize("activation", [None, silu])
@pytest.mark.parametrize("rows", [1, 4, 64])
def test_packed_weights(rows, activation):
    graph = linear((rows,), WIDE, WIDE, activation=activation)
    plan, x = plan_of(graph), array((rows, WIDE), "float32")
    with Recorder() as seen:
        plan.compute([to_tensor(x)])
    work = rows * WIDE * WIDE
    packed = work >= (LEAST_FOR_FEW if rows <= 16 else LEAST_FOR_MANY)
    assert ("mkldnn::_linear_pointwise" in seen.names) is packed
    assert packed or rows == 0 or "aten::addmm" in seen.names
    assert_agrees(ENGINE, graph, [x])


def test_sizes_decide_when_they_are_known():
    """One plan: few elements go to MKL, many to oneDNN; rows of nothing, and what is not contiguous, to either."""
    graph = linear(("n",), 300, 300)
    plan = plan_of(graph)
    for rows, packed in ((1, False), (7, False), (8, True), (20, False), (100, True)):
        with Recorder() as seen:
            plan.compute([torch.ones(rows, 300)])
        assert ("mkldnn::_linear_pointwise" in seen.names) is packed, rows
    turned = np.asfortranarray(array((100, 300), "float32"))
    assert_agrees(ENGINE, graph, [turned])


def test_special_values_go_through():
    graph = linear((4,), WIDE, WIDE, bias=False)
    x = array((4, WIDE), "float32")
    x[0, 0], x[1, 3] = np.nan, np.inf
    assert_agrees(ENGINE, graph, [x])


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_convolutions_with_a_bias(dtype, rank):
    """Also where the padding is not the same on both sides, sums are wider than operands, or spatial dims are many."""
    for padding, wide in (((1, 1), None), ((1, 0), None), ((0, 0), "float32")):
        graph = Graph("biased")
        graph.symbol("n", 0)
        x = graph.input("x", ("n", 4, *(4,) * rank), dtype)
        w = graph.parameter("w", (6, 4, *(2,) * rank), dtype, array((6, 4, *(2,) * rank), dtype, seed=1))
        ones = (1,) * rank
        y = graph.apply("conv", x, w, strides=ones, dilations=ones, padding=(padding,) * rank, dtype=wide)
        bias = graph.parameter("b", (6,), y.dtype, array((6,), y.dtype.name, seed=2))
        graph.output("y", y + graph.apply("broadcast", bias, shape=y.shape, axes=(1,)))
        plan = plan_of(graph)
        assert [
            row.name.split(" ", 1)[1] for row in plan.profile([to_tensor(array((2, *x.shape[1:]), dtype))], 1)
        ] == ["conv + add"]
        for n in (2, 0):
            assert_agrees(ENGINE, graph, [array((n, *x.shape[1:]), dtype)])
        with Recorder() as seen:
            plan.compute([to_tensor(array((2, *x.shape[1:]), dtype))])
        joins = rank < 4 and (wide is None or wide == dtype)
        assert ("aten::add" in seen.names) is not joins
