"""Sums of products: one product in every layout and from every front end, or the reason why not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from kernels_hub.compiler import Graph, compile, evaluate, import_onnx, import_torch, verify
from kernels_hub.compiler.rewrite.contraction import CONTRACTION
from kernels_hub.compiler.rewrite.explain import explain_rule
from kernels_hub.compiler.rewrite.pipeline import rewrite
from tests.compiler.rewrite.structure import kinds

RULE = next(rule for rule in CONTRACTION if rule.name == "sum_of_product")
SIZES = {"m": 3, "n": 5, "k": 4, "b": 2, "a": 2, "l": 6, "j": 3, "p": 2, "q": 3}

LAYOUTS = {
    "vector by matrix": ("k", "nk", "n"),
    "matrix by matrix": ("mk", "kn", "mn"),
    "depth first": ("km", "kn", "mn"),
    "transposed result": ("mk", "kn", "nm"),
    "batch": ("bmk", "bkn", "bmn"),
    "batch of one": ("bmk", "kn", "bmn"),
    "two batches, one last": ("amkb", "akbn", "abmn"),
    "two summed": ("mkl", "kln", "mn"),
    "summed apart": ("kml", "lkn", "mn"),
    "rows of two": ("mpk", "kn", "mpn"),
    "rows and columns of two": ("mpk", "knq", "mnpq"),
    "one sums alone": ("mkj", "kn", "mn"),
    "result between batches": ("bmak", "kna", "bnma"),
}


def space(x, y, out):
    """The dims of the product: kept, then summed, as in the text of a matmul by Mul and SumReduce."""
    return "".join(dict.fromkeys(out + x + y))


def spread(letters, dims):
    """How an operand becomes one of the product's space: the order of its dims, and their shape with ones."""
    order = sorted(range(len(letters)), key=lambda place: dims.index(letters[place]))
    return order, [SIZES[one] if one in letters else 1 for one in dims]


def from_builder(x, y, out):
    dims, graph = space(x, y, out), Graph("builder")
    shape = tuple(SIZES[one] for one in dims)
    factors = []
    for name, letters in (("x", x), ("y", y)):
        order, _ = spread(letters, dims)
        value = graph.input(name, tuple(SIZES[one] for one in letters)).permute(*order)
        factors.append(value.broadcast(shape, tuple(dims.index(letters[place]) for place in order)))
    product = factors[0] * factors[1]
    graph.output("z", product.sum([place for place, one in enumerate(dims) if one not in out]))
    return graph


class Summed(torch.nn.Module):
    def __init__(self, x, y, out):
        super().__init__()
        self.dims, self.letters, self.out = space(x, y, out), (x, y), out

    def forward(self, *values):
        x, y = (
            value.permute(*spread(letters, self.dims)[0]).reshape(spread(letters, self.dims)[1])
            for value, letters in zip(values, self.letters, strict=True)
        )
        return (x * y).sum([place for place, one in enumerate(self.dims) if one not in self.out])


def from_torch(x, y, out):
    args = tuple(torch.zeros([SIZES[one] for one in letters]) for letters in (x, y))
    return import_torch(Summed(x, y, out), args)


def from_onnx(x, y, out):
    dims, nodes, constants = space(x, y, out), [], []
    for name, letters in (("x", x), ("y", y)):
        order, shape = spread(letters, dims)
        constants.append(helper.make_tensor(f"{name}_shape", TensorProto.INT64, [len(shape)], shape))
        nodes.append(helper.make_node("Transpose", [name], [f"{name}_turned"], perm=order))
        nodes.append(helper.make_node("Reshape", [f"{name}_turned", f"{name}_shape"], [f"{name}_wide"]))
    axes = [place for place, one in enumerate(dims) if one not in out]
    constants.append(helper.make_tensor("axes", TensorProto.INT64, [len(axes)], axes))
    nodes.append(helper.make_node("Mul", ["x_wide", "y_wide"], ["product"]))
    nodes.append(helper.make_node("ReduceSum", ["product", "axes"], ["z"], keepdims=0))

    def described(name, letters):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [SIZES[one] for one in letters])

    inputs = [described("x", x), described("y", y)]
    graph = helper.make_graph(nodes, "summed", inputs, [described("z", out)], constants)
    return import_onnx(
        helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    )


@pytest.mark.filterwarnings("ignore")  # torch.export's own
@pytest.mark.parametrize("front", [from_builder, from_torch, from_onnx])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sum_of_products_is_one_product(layout, front):
    x, y, out = LAYOUTS[layout]
    graph = front(x, y, out)
    result = rewrite(graph, after=lambda _, one: verify(one)).graph
    found = kinds(result)
    assert found["matmul"] == 1 and not found["mul"] and found["reduce_sum"] == ("j" in x)
    inputs = [
        np.random.default_rng(len(one)).normal(size=[SIZES[c] for c in one]).astype(np.float32)
        for one in (x, y)
    ]
    (got,) = evaluate(result, inputs).values()
    np.testing.assert_allclose(got, np.einsum(f"{x},{y}->{out}", *inputs), 1e-5, 1e-5)


def test_special_numbers_and_symbolic_dims():
    graph = Graph("symbolic")
    x, w = graph.input("x", ("m", "k")), graph.input("w", ("n", "k"))
    wide = (x.shape[0], w.shape[0], x.shape[1])
    graph.output("y", (x.broadcast(wide, (0, 2)) * w.broadcast(wide, (1, 2))).sum(2))
    result = rewrite(graph).graph
    assert kinds(result)["matmul"] == 1
    given = np.array([[1.0, np.inf, -0.0], [np.nan, 2.0, 1.0]], np.float32), np.ones((4, 3), np.float32)
    (expected,), (got,) = (list(evaluate(one, given).values()) for one in (graph, result))
    np.testing.assert_array_equal(got, expected)
    empty = np.zeros((2, 0), np.float32), np.zeros((4, 0), np.float32)
    np.testing.assert_array_equal(*(next(iter(evaluate(one, empty).values())) for one in (graph, result)))


def test_the_example_of_a_linear_layer():
    """[1, 2, 3, 4] times a 4 x 5 matrix by broadcasts, Mul and SumReduce(2): see docs/searching.md."""
    graph = Graph("linear")
    x, w = graph.input("x", (1, 4)), graph.input("weight", (4, 5))
    product = x.reshape(1, 1, 4).broadcast_to((1, 5, 4)) * w.permute(1, 0).reshape(1, 5, 4)
    graph.output("y", product.sum(2))
    (node,) = [node for node in rewrite(graph).graph.live() if node.op.name == "matmul"]
    assert node.results[0].shape[-1] == 5
    weight = np.arange(1, 21, dtype=np.float32).reshape(4, 5) / 10
    run = compile(graph, "cpu", engines=("cpp",))
    got = run(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.from_numpy(weight))
    np.testing.assert_allclose(got, [[11.0, 12.0, 13.0, 14.0, 15.0]], 1e-6)


def windows(x, w, *, stride=1, turned=False):
    """(n, c, h, w) by (o, c, ky, kx): windows, broadcast, multiplied, summed."""
    v = x.windows(2, w.shape[2], stride).windows(3, w.shape[3], stride)
    n, c, rows, columns, ky, kx = v.shape
    wide = (n, w.shape[0], c, rows, columns, ky, kx)
    product = v.broadcast(wide, (0, 2, 3, 4, 5, 6)) * w.broadcast(wide, (1, 2, 5, 6))
    return product.permute(3, 4, 1, 0, 2, 5, 6).sum((4, 5, 6)) if turned else product.sum((2, 5, 6))


def depthwise(x, w):
    v = x.windows(2, w.shape[1], 1).windows(3, w.shape[2], 2)
    return (v * w.broadcast(v.shape, (1, 4, 5))).sum((4, 5))


WINDOWS = {
    "convolution": (lambda x, w: windows(x, w), ("n", 3, 6, 7), (4, 3, 3, 2)),
    "strided": (lambda x, w: windows(x, w, stride=2), ("n", 3, 6, 7), (4, 3, 3, 2)),
    "turned result": (lambda x, w: windows(x, w, turned=True), ("n", 3, 6, 7), (4, 3, 3, 2)),
    "padded": (lambda x, w: windows(around(x), w), ("n", 3, 6, 7), (4, 3, 3, 3)),
    "depthwise": (depthwise, ("n", 3, 6, 7), (3, 3, 2)),
    "signal": (lambda x, w: (x.windows(0, 3) * w.broadcast((8, 3), (1,))).sum(1), (10,), (3,)),
}  # fmt: skip


def around(x):
    return x.graph.apply("pad", x, x.graph.constant(0.0), padding=[(0, 0), (0, 0), (1, 1), (1, 1)])


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_times_weights_are_a_convolution(name):
    build, shape, weights = WINDOWS[name]
    graph = Graph(name)
    array = np.random.default_rng(0).normal(size=weights).astype(np.float32)
    graph.output("y", build(graph.input("x", shape), graph.parameter("w", weights, "float32", array)))
    result = rewrite(graph, after=lambda _, one: verify(one)).graph
    found = kinds(result)
    assert found["conv"] == 1 and not {"mul", "reduce_sum", "strided", "pad"} & set(found)
    inputs = graph.dummy_inputs(0, {"n": 2})
    expected, got = (evaluate(one, inputs)["y"] for one in (graph, result))
    np.testing.assert_allclose(got, expected, 1e-5, 1e-5)


def outer(x, y):
    """(m, k) and (k, n) in (m, k, n)."""
    wide = (*x.shape, y.shape[1])
    return x.broadcast(wide, (0, 1)) * y.broadcast(wide, (1, 2))


def many(x, *shape):
    return x.graph.input(f"many {len(shape)}", shape)


DECLINES = {
    "sums of their own": (lambda x, y: (x * x).sum(1), "each result is a sum of its own"),
    "nothing shared": (lambda x, y: outer(x, y).sum(0), "no dim that is summed is of both factors"),
    "used twice": (lambda x, y: (p := outer(x, y)).sum(1) + p.exp().sum(1), "is used 2 times"),
    "many small": (
        lambda x, y: (many(x, 40, 3, 4) * many(x, 40, 4).broadcast((40, 3, 4), (0, 2))).sum(2),
        "40 matrices of 12 multiplications each are left to loops",
    ),
    "a weighted sum of two": (
        lambda x, y: (many(x, 8, 2, 300) * many(x, 8, 2).broadcast((8, 2, 300), (0, 1))).sum(1),
        "sums of 2 products of matrices with vectors are left to loops",
    ),
}


@pytest.mark.parametrize("name", DECLINES)
def test_what_does_not_fit_says_why(name):
    build, reason = DECLINES[name]
    graph = Graph(name)
    graph.output("z", build(graph.input("x", (3, 4)), graph.input("y", (4, 5))))
    assert not rewrite(graph).total["sum_of_product"]
    assert reason in str(explain_rule(graph, RULE))
