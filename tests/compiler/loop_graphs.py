"""Random graphs with loops: scans and loops, nested, that end early or never begin, over states of several kinds."""

from __future__ import annotations

import random

import numpy as np

from kernels_hub.compiler import Graph, Value
from kernels_hub.compiler.ir.graph import Graph as Body

WIDTH = 5
SIZES = {"n": 3, "t": 7}
OTHER_SIZES = {"n": 1, "t": 1}
NO_TURNS = {"n": 2, "t": 0}


class _Writer:
    """Values of one shape, (n, WIDTH), combined at random."""

    def __init__(self, graph: Graph, choice: random.Random) -> None:
        self.graph, self.choice = graph, choice

    def mixed(self, values: list[Value], weights: list[Value], depth: int = 4) -> Value:
        """Some of the values, bounded: turns repeat it."""
        pool = list(values)
        for _ in range(self.choice.randint(1, depth)):
            a, b = self.choice.choice(pool), self.choice.choice(pool)
            pick = self.choice.randrange(8)
            if pick == 0:
                pool.append(a * b)
            elif pick == 1:
                pool.append(a - b * 0.5)
            elif pick == 2:
                pool.append(self.graph.apply("matmul", a, self.choice.choice(weights)))
            elif pick == 3:
                pool.append((a < b).select(a, b * 0.25))
            elif pick == 4:
                total = a.sum(1, keepdims=True)
                pool.append(b + total.broadcast_to(b.shape) * 0.125)
            elif pick == 5:
                left, right = a.slice(1, 0, 2), b.slice(1, 2, WIDTH)
                pool.append(self.graph.apply("concat", right, left, axis=1))
            elif pick == 6:
                pool.append(a.maximum(b))
            else:
                pool.append(self._either(a, b, self.choice.choice(weights)))
        return (pool[-1] + self.choice.choice(pool)).tanh()

    def _either(self, a: Value, b: Value, weight: Value) -> Value:
        condition = a.sum() < b.sum()
        parts = {"then": _branch("then", weighted=True), "otherwise": _branch("otherwise", weighted=False)}
        return self.graph.add("if", (condition, a, weight), parts).results[0]


def _branch(name: str, weighted: bool) -> Graph:
    """A product, or what it is given."""
    graph = Graph(name)
    a, w = graph.input("a", ("n", WIDTH)), graph.input("w", (WIDTH, WIDTH))
    graph.output("y", graph.apply("matmul", a, w) if weighted else a)
    graph.freeze()
    return graph


def loop_graph(seed: int) -> Graph:
    """A graph with one or two loops, what feeds them and what comes of them. Sizes: n, t."""
    choice = random.Random(seed)
    rng = np.random.default_rng(seed)
    graph = Graph(f"loops{seed}")
    n, t = graph.symbol("n"), graph.symbol("t")
    x, h = graph.input("x", (t, n, WIDTH)), graph.input("h", (n, WIDTH))
    w = graph.parameter("w", (WIDTH, WIDTH), data=_array(rng, WIDTH, WIDTH))
    v = graph.constant(_array(rng, WIDTH, WIDTH))
    sequence = x.exp() * 0.5 if choice.random() < 0.5 else x
    start = [h, graph.full((n, WIDTH), 0.0), h.tanh()][choice.randrange(3)]
    given = [w, v.permute(1, 0), h.sum(0).broadcast_to((WIDTH, WIDTH))]
    for number in range(choice.randint(1, 2)):
        make = _scan if choice.random() < 0.5 else _loop
        results = make(graph, choice, sequence, start, given, h)
        for place, result in enumerate(results):
            if choice.random() < 0.8 or place == 0:
                used = result * 2.0 if result.dtype.is_float and choice.random() < 0.5 else result
                graph.output(f"loop{number}_{place}", used)
        stacked = [one for one in results if one.rank == 3]
        sequence = stacked[0] if stacked else sequence
        start = results[0]
    if choice.random() < 0.3:
        graph.output("input again", h)
    return graph


def _array(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(0.0, 0.5, shape).astype(np.float32)


def _scan(
    graph: Graph, choice: random.Random, sequence: Value, start: Value, given: list[Value], h: Value
) -> tuple[Value, ...]:
    body = Body("turn")
    n = body.symbol("n")
    state, count = body.input("state", (n, WIDTH)), body.input("count", (), "int32")
    element = body.input("element", (n, WIDTH))
    weights = [body.input(f"w{place}", (WIDTH, WIDTH)) for place in range(len(given))]
    outside = body.input("outside", (n, WIDTH))
    writer = _Writer(body, choice)
    following = writer.mixed([state, element, outside], weights)
    if choice.random() < 0.4:
        inner = _inner(choice)
        state_again = body.add(
            "scan", (following, outside.unsqueeze(0)), {"body": inner, "states": 1, "sequences": 1}
        )
        following = state_again.results[0]
    body.output("state", following)
    body.output("count", count + 3)
    if choice.random() < 0.7:
        body.output("y", writer.mixed([following, element], weights, 2))
    if choice.random() < 0.3:
        body.output("element", element)
    body.freeze()
    operands = (start, graph.constant(np.int32(4)), sequence, *given, h)
    return graph.add("scan", operands, {"body": body, "states": 2, "sequences": 1}).results


def _inner(choice: random.Random) -> Graph:
    body = Body("inner")
    n = body.symbol("n")
    state, element = body.input("state", (n, WIDTH)), body.input("element", (n, WIDTH))
    body.output(
        "state", _Writer(body, choice).mixed([state, element], [state.sum(0).broadcast_to((WIDTH, WIDTH))], 2)
    )
    body.freeze()
    return body


def _loop(
    graph: Graph, choice: random.Random, sequence: Value, start: Value, given: list[Value], h: Value
) -> tuple[Value, ...]:
    """Over the places of a sequence, forwards or backwards; or until a condition ends it."""
    body = Body("turn")
    n, t = body.symbol("n"), body.symbol("t")
    number = body.input("number", (), "int64")
    state, same = body.input("state", (n, WIDTH)), body.input("same", (n, WIDTH))
    counter = body.input("counter", (), "int32")
    whole = body.input("whole", (t, n, WIDTH))
    weights = [body.input(f"w{place}", (WIDTH, WIDTH)) for place in range(len(given))]
    ends = choice.random() < 0.4
    forwards = choice.random() < 0.5
    if forwards:
        place = counter if choice.random() < 0.5 else number
    else:
        place = (number * -1) + (body.size(t) - 1) if choice.random() < 0.5 else number
    element = whole.gather(place, 0)
    writer = _Writer(body, choice)
    following = writer.mixed([state, element, same], weights)
    body.output("go on", number < 2 if ends else body.constant(value=True))
    body.output("state", following)
    body.output("same", same)
    body.output("counter", counter + 1)
    stacks = not ends and choice.random() < 0.8
    if stacks:
        body.output("y", following - element)
    body.freeze()
    size = graph.size(graph.symbol("t"))
    operands = (size, graph.constant(value=True), start, h, graph.constant(np.int32(0)), sequence, *given)
    attrs = {"body": body, "carried": 3, "count": graph.symbol("t") if stacks else 0}
    return graph.add("loop", operands, attrs).results
