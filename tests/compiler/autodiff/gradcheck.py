"""Derived gradients against finite differences, all of it in float64 through the oracle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from kernels_hub.compiler import Graph, evaluate, verify
from kernels_hub.compiler.autodiff import Differentiated, differentiate
from kernels_hub.compiler.ir.types import Array

STEP = 1e-5
TOLERANCE = 2e-6
"""Relative to the largest gradient: what is left of a central difference with that step, rounding included."""


def gradcheck(
    graph: Graph,
    inputs: Mapping[str, Array],
    *,
    weights: Mapping[str, Array] | None = None,
    wrt: Iterable[str] | None = None,
) -> Differentiated:
    """Raise AssertionError unless every gradient is that of finite differences; both graphs hold all invariants."""
    both = differentiate(graph, wrt)
    verify(both.forward)
    verify(both.backward)
    weights = dict(weights or {})
    cotangents = _cotangents(graph, inputs, weights)
    found = gradients(both, inputs, cotangents, weights)
    assert set(found) == set(both.gradients)
    for name, one in found.items():
        expected = _numeric(graph, inputs, weights, name, cotangents)
        assert_gradient(name, one, expected)
    for name in _floats(graph, wrt) - set(found):
        assert not _numeric(graph, inputs, weights, name, cotangents).any(), (
            f"{name!r} has a gradient, but was given none"
        )
    return both


def gradients(
    both: Differentiated,
    inputs: Mapping[str, Array],
    cotangents: Mapping[str, Array],
    weights: Mapping[str, Array] | None = None,
) -> dict[str, Array]:
    """Input or parameter -> its gradient, by evaluating forward and backward."""
    outputs = evaluate(both.forward, inputs, weights=weights)
    result = evaluate(both.backward, both.backward_inputs(inputs, outputs, cotangents), weights=weights)
    return {name: result[one] for name, one in both.gradients.items()}


def assert_gradient(name: str, found: Array, expected: Array, tolerance: float = TOLERANCE) -> None:
    """Raise AssertionError where two gradients differ by more than that part of the largest element."""
    assert found.shape == expected.shape, f"{name!r}: {found.shape}, expected {expected.shape}"
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    error = np.abs(found.astype(np.float64) - expected).max(initial=0)
    assert error <= tolerance * scale, f"{name!r}: off by {error:.3g} of {scale:.3g}\n{found}\n{expected}"


def _floats(graph: Graph, wrt: Iterable[str] | None) -> set[str]:
    named = graph.inputs | graph.parameters
    return {name for name, value in named.items() if value.dtype.is_float} & set(
        named if wrt is None else wrt
    )


def _cotangents(graph: Graph, inputs: Mapping[str, Array], weights: Mapping[str, Array]) -> dict[str, Array]:
    random = np.random.default_rng(11)
    outputs = evaluate(graph, inputs, weights=weights)
    return {
        name: random.standard_normal(one.shape).astype(one.dtype)
        for name, one in outputs.items()
        if one.dtype.kind == "f"
    }


def _numeric(
    graph: Graph,
    inputs: Mapping[str, Array],
    weights: Mapping[str, Array],
    name: str,
    cotangents: Mapping[str, Array],
) -> Array:
    table = inputs if name in inputs else weights
    base = table[name]
    result = np.zeros(base.shape)

    def loss(changed: Array) -> float:
        given, held = dict(inputs), dict(weights)
        (given if name in inputs else held)[name] = changed
        outputs = evaluate(graph, given, weights=held)
        return sum(float(np.sum(outputs[one] * g)) for one, g in cotangents.items())

    for place in np.ndindex(*base.shape):
        up, down = base.copy(), base.copy()
        up[place] += STEP
        down[place] -= STEP
        result[place] = (loss(up) - loss(down)) / (2 * STEP)
    return result
