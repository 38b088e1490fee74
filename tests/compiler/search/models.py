"""Small graphs of blocks that have a better form, built by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kernels_hub.compiler import Graph, Value


def weight(graph: Graph, name: str, *shape: int) -> Value:
    random = np.random.default_rng(len(name) + shape[0])
    return graph.parameter(
        name, shape, data=random.standard_normal(shape).astype(np.float32) / shape[0] ** 0.5
    )


def linear(x: Value, name: str, size: int, *, bias: bool = True) -> Value:
    """As importers give it: the weight (size, in), transposed, for all of the batch."""
    graph, (*batch, rows, inner) = x.graph, x.shape
    w = graph.apply("permute", weight(graph, name, size, inner), order=(1, 0))
    if batch:
        axes = (len(batch), len(batch) + 1)
        w = graph.apply("broadcast", w, shape=(*batch, inner, size), axes=axes)
    y = x @ w
    if bias:
        b = weight(graph, f"{name}.bias", size)
        y = y + graph.apply("broadcast", b, shape=(*batch, rows, size), axes=(len(batch) + 1,))
    return y


def adapted(rows: int = 64, size: int = 96, rank: int = 4) -> Graph:
    """x W' + b + 2 (x A') B'"""
    graph = Graph("adapted")
    x = graph.input("x", ("n", rows, size))
    low = linear(linear(x, "down", rank, bias=False), "up", size, bias=False)
    graph.output("y", linear(x, "base", size) + low * 2.0)
    return graph


def low_rank(size: int = 128, rank: int = 4) -> Graph:
    """x (A B), A and B weights: multiplied out, it is a product with a large weight."""
    graph = Graph("low_rank")
    x = graph.input("x", (32, size))
    graph.output("y", x @ (weight(graph, "a", size, rank) @ weight(graph, "b", rank, size)))
    return graph


def graph_convolution(nodes: int = 64, features: int = 96, hidden: int = 4) -> Graph:
    """(A X) W, where A (X W) is less."""
    graph = Graph("graph_convolution")
    a, x = graph.input("a", (nodes, nodes)), graph.input("x", (nodes, features))
    graph.output("y", (a @ x @ weight(graph, "w", features, hidden)).maximum(0.0))
    return graph


def projections(size: int = 32) -> Graph:
    """Three products of one operand."""
    graph = Graph("projections")
    x = graph.input("x", (1, 1, size))
    for name, width in (("q", size), ("kk", size // 2), ("vvv", size // 2)):
        graph.output(name, linear(x, name, width).unary("tanh"))
    return graph


def layers(count: int = 3, size: int = 32, *, odd: bool = False) -> Graph:
    """The same block several times: a product, a low-rank one beside it, an activation, a residual."""
    graph = Graph("layers")
    x = graph.input("x", ("n", 8, size))
    for number in range(count):
        name = f"layer{number}."
        y = linear(x, name + "base", size)
        y = y + linear(linear(x, name + "down", 2, bias=False), name + "up", size, bias=False)
        x = x + y.unary("sin" if odd and number == 1 else "tanh")
    graph.output("y", linear(x, "head", 4))
    return graph


BETTER: dict[str, Callable[[], Graph]] = {
    "adapted": adapted,
    "low_rank": low_rank,
    "graph_convolution": graph_convolution,
}


def flops(graph: Graph) -> int:
    """Of what a call computes: what is made of weights alone is not counted."""
    from kernels_hub.compiler.ir.cost import Costs
    from kernels_hub.compiler.rewrite.fold import FoldParameters
    from kernels_hub.compiler.rewrite.rule import Options

    folded = FoldParameters().run(graph, Options()).graph
    total = Costs(dict.fromkeys(folded.symbols, 3)).total(folded).flops
    assert total is not None
    return total


def products(graph: Graph) -> int:
    """How many products there are that depend on an input."""
    from kernels_hub.compiler.rewrite.fold import FoldParameters
    from kernels_hub.compiler.rewrite.rule import Options

    folded = FoldParameters().run(graph, Options()).graph
    return sum(node.op.name == "matmul" and bool(_inputs(node.results[0])) for node in folded.live())


def _inputs(value: Value) -> set[Value]:
    found, stack = set(), [value]
    while stack:
        one = stack.pop()
        if one.op_name == "input":
            found.add(one)
        stack += one.operands
    return found
