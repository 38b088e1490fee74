"""Graphs to look at."""

from __future__ import annotations

import random

from kernels_hub.compiler import Graph

NAMES = ("query", "key", "value")


def encoder(layers, width=64, heads=4, name="encoder"):
    """A transformer encoder: about 97 nodes a layer, weights included."""
    graph = Graph(name)
    ids, mask = graph.input("ids", ("batch", "seq"), "int64"), graph.input("mask", ("batch", "seq"))
    batch, seq = ids.shape
    with graph.origin("embeddings"):
        x = graph.apply("gather", graph.parameter("embeddings.weight", (1000, width)), ids, axis=0)
        hidden = graph.apply("broadcast", mask, shape=(batch, heads, seq, seq), axes=(0, 3))
    for number in range(layers):
        x = _layer(graph, x, hidden, f"encoder.layer.{number}", heads)
    graph.output("last_hidden_state", x)
    return graph


def _layer(graph, x, hidden, at, heads):
    batch, seq, width = x.shape
    heads_shape = (batch, seq, heads, width // heads)
    q, k, v = (
        _linear(graph, x, width, f"{at}.attention.{name}").reshape(heads_shape).permute(0, 2, 1, 3)
        for name in NAMES
    )
    with graph.origin(f"{at}.attention"):
        scores = graph.apply("matmul", q, k.permute(0, 1, 3, 2)) + hidden
        seen = (
            graph.apply("matmul", graph.apply("softmax", scores, axis=3), v)
            .permute(0, 2, 1, 3)
            .reshape(x.shape)
        )
    x = _norm(graph, _linear(graph, seen, width, f"{at}.attention.output") + x, f"{at}.attention.norm")
    up = graph.apply("erf", _linear(graph, x, 4 * width, f"{at}.up"))
    return _norm(graph, _linear(graph, up, width, f"{at}.down") + x, f"{at}.norm")


def _linear(graph, x, outputs, at):
    with graph.origin(at):
        weight, bias = (
            graph.parameter(f"{at}.weight", (outputs, x.shape[-1])), graph.parameter(f"{at}.bias", (outputs,))
        )  # fmt: skip
        flat = graph.apply("matmul", x.reshape((x.shape[0] * x.shape[1], x.shape[2])), weight.permute(1, 0))
        y = flat.reshape((*x.shape[:2], outputs))
        return y + bias.broadcast_to(*y.shape)


def _norm(graph, x, at):
    with graph.origin(at):
        weight = graph.parameter(f"{at}.weight", (x.shape[-1],))
        mean = graph.apply("broadcast", graph.apply("reduce_mean", x, axes=(2,)), shape=x.shape, axes=(0, 1))
        centered = x - mean
        variance = graph.apply("reduce_mean", centered * centered, axes=(2,))
        scale = graph.apply("broadcast", graph.apply("rsqrt", variance), shape=x.shape, axes=(0, 1))
        return centered * scale * weight.broadcast_to(*x.shape)


def tangle(seed, nodes, name="tangle"):
    """Pointwise ops on any of the values before, nothing repeated on purpose."""
    chance = random.Random(seed)
    graph = Graph(name)
    values = [graph.input(f"x{k}", (4,)) for k in range(3)]
    values.append(graph.parameter("w", (4,)))
    while len(graph.nodes) < nodes:
        op = chance.choice(["add", "sub", "mul", "exp", "neg", "maximum"])
        few = 1 if op in {"exp", "neg"} else 2
        back = chance.choice([3, 3, 10, len(values)])
        values.append(graph.apply(op, *(chance.choice(values[-back:]) for _ in range(few))))
    graph.output("y", values[-1])
    for value in [one for one in values[3:-1] if not one.users]:
        graph.output(f"y{len(graph.outputs)}", value)
    return graph
