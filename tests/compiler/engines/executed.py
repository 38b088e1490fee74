"""Run a graph on an engine and hold it against the oracle."""

from __future__ import annotations

import numpy as np

from kernels_hub.compiler import Graph, evaluate
from kernels_hub.compiler.engines import guard
from kernels_hub.compiler.engines.engine import Device
from kernels_hub.compiler.engines.tensors import to_array, to_tensor
from kernels_hub.compiler.ir import types

CPU = Device("cpu")
TOLERANCE = {
    "float64": 1e-12, "float32": 3e-6, "float16": 2e-3, "bfloat16": 1.6e-2, "complex64": 3e-6, "complex128": 1e-12,
    "float8_e4m3fn": 0.07, "float8_e4m3fnuz": 0.07, "float8_e5m2": 0.13, "float8_e5m2fnuz": 0.13,
}  # fmt: skip
"""Of an element, relative: a few units in its last place."""


def results(engine, graph, arrays, knobs=None, **options):
    """What an engine makes of arrays, by name. Raises what the engine raises; a decline is an AssertionError."""
    answer = guard.checked(engine, graph, CPU)
    assert answer, answer.reason
    plan = guard.compiled(engine, graph, CPU, knobs)
    found = plan.compute([to_tensor(array) for array in arrays], **options)
    return {
        name: to_array(tensor, of.dtype)
        for (name, of), tensor in zip(plan.signature.outputs.items(), found, strict=True)
    }


def assert_agrees(engine, graph, arrays, *, scale=True, tolerance=None):
    """The engine's results are the oracle's. scale: errors relative to the largest magnitude, not to each element."""
    expected = evaluate(graph, arrays)
    actual = results(engine, graph, arrays)
    assert list(actual) == list(expected)
    for name, array in actual.items():
        assert_close(array, expected[name], scale=scale, tolerance=tolerance)


def assert_close(actual, expected, *, scale=True, tolerance=None):
    """Same dtype, shape, places and signs of NaN and infinities; numbers up to the dtype's tolerance; integers equal."""
    assert actual.dtype == expected.dtype, f"{actual.dtype}, expected {expected.dtype}"
    assert actual.shape == expected.shape, f"{actual.shape}, expected {expected.shape}"
    row = types.dtype(actual.dtype)
    if not (row.is_float or row.is_complex) or row.name not in TOLERANCE:
        same = actual.view(np.uint8) == expected.view(np.uint8) if row.bits < 8 else actual == expected
        if row.is_float:  # formats that are only moved
            same = np.ascontiguousarray(actual).view(np.uint8) == np.ascontiguousarray(expected).view(
                np.uint8
            )
        assert np.all(same), f"{actual[~same][:4]}, expected {expected[~same][:4]}"
        return
    wide = np.complex128 if row.is_complex else np.float64
    with np.errstate(invalid="ignore"):
        a, e = actual.astype(wide), expected.astype(wide)
        special = ~np.isfinite(e)
        assert np.array_equal(a[special], e[special], equal_nan=True), "NaN or infinity at other places"
        assert np.isfinite(a[~special]).all(), "NaN or infinity where there is none"
        a, e = a[~special], e[~special]
        bound = TOLERANCE[row.name] if tolerance is None else tolerance
        limit = bound * (max(1.0, np.abs(e).max(initial=0.0)) if scale else np.abs(e) + 1e-30)
        wrong = np.abs(a - e) > limit
    assert not wrong.any(), f"{a[wrong][:4]}, expected {e[wrong][:4]}"


def graph_of(op, arrays, **attrs):
    """A graph of one op on inputs of the arrays' types."""
    graph = Graph("case")
    values = [graph.input(f"x{i}", one.shape, types.dtype(one.dtype)) for i, one in enumerate(arrays)]
    for i, value in enumerate(graph.add(op, values, attrs).results):
        graph.output(f"y{i}", value)
    return graph


def array(shape, dtype, low=-8, high=8, seed=0):
    """Standard normal floats, integers in low..high as far as the dtype has them, fair bools."""
    random = np.random.default_rng([seed, *shape])
    row = types.dtype(dtype)
    if row.kind == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if row.is_integer:
        least, most = row.limits
        numbers = random.integers(max(least, low), min(most, high) + 1, shape)
        return np.asarray(numbers.astype(np.int8 if row.bits < 8 else np.int64).astype(row.numpy))
    if row.is_complex:
        return np.asarray(
            (random.standard_normal(shape) + 1j * random.standard_normal(shape)).astype(row.numpy)
        )
    return np.asarray(
        random.standard_normal(shape).astype(np.float64 if row.bits == 64 else np.float32)
    ).astype(row.numpy)


FLOATS = (
    0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 3, 7, -7, 0.1, -0.3, 1e-3, 20, -20, 100, 1e30, -1e30, 1e-40,
    np.inf, -np.inf, np.nan,
)  # fmt: skip


def special(dtype):
    """Numbers at which implementations differ: zeros, halves, infinities, NaN, the ends of integers."""
    row = types.dtype(dtype)
    if row.kind == "bool":
        return np.array([False, True])
    if row.is_integer:
        low, high = row.limits
        chosen = {
            low,
            low + 1,
            -100,
            -7,
            -3,
            -2,
            -1,
            0,
            1,
            2,
            3,
            5,
            7,
            8,
            15,
            16,
            31,
            33,
            64,
            100,
            high - 1,
            high,
        }
        return np.array([one for one in sorted(chosen) if low <= one <= high], object).astype(row.numpy)
    if row.is_complex:
        return np.array([complex(x, y) for x in (0, 1, -1, 0.5, -2) for y in (0, 1, -1, 0.5)]).astype(
            row.numpy
        )
    with np.errstate(all="ignore"):
        return np.array(FLOATS).astype(row.numpy)
