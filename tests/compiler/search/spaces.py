"""Whether what equations call equal is: every term of every class of a space, evaluated."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kernels_hub.compiler import Graph, evaluate
from kernels_hub.compiler.search.saturate import Class, Space
from tests.compiler.differences import difference


def disagreements(
    space: Space, inputs: Mapping[str, np.ndarray], sizes: Mapping[str, int], *, bits: bool
) -> list[str]:
    """Terms that compute something else than others of their class; bits: also where only bits differ, NaN's apart."""
    given = space.graph
    graph = Graph("space")
    graph.symbols = dict(given.symbols)
    for value in (*given.inputs.values(), *given.parameters.values()):
        graph.copy(value.node, ())
    typical, waiting = {}, [(of, term) for of, terms in space.classes.items() for term in terms]
    waiting.sort(key=lambda pair: space.original.get(pair[0]) != pair[1])
    named: dict[str, tuple[Class, str]] = {}
    while waiting:
        left = []
        for of, term in waiting:
            if not all(not isinstance(one, Class) or one in typical for one in term.args):
                left.append((of, term))
                continue
            args = [typical[one] if isinstance(one, Class) else one for one in term.args]
            value = space.terms.build(graph, term.op, args)
            name = f"t{len(named)}"
            graph.output(name, value)
            named[name] = (of, str(term))
            typical.setdefault(of, value)
        if len(left) == len(waiting):
            break
        waiting = left
    graph.weights = dict(given.weights)
    found = evaluate(graph, inputs, bindings=sizes)
    first: dict[Class, str] = {}
    wrong = []
    for name, (of, text) in named.items():
        reference = first.setdefault(of, name)
        a, b = found[name], found[reference]
        if bits:
            nan = np.isnan(a) if a.dtype.kind == "f" else np.zeros(a.shape, bool)
            same = (
                a.dtype == b.dtype
                and a.shape == b.shape
                and np.array_equal(nan, np.isnan(b) & (a.dtype.kind == "f"))
            )
            if not same or a[~nan].tobytes() != b[~nan].tobytes():
                wrong.append(f"{text} has not the bits of {named[reference][1]}")
        elif (reason := difference({"y": a}, {"y": b})) is not None:
            wrong.append(f"{text} is not {named[reference][1]}: {reason}")
    return wrong
