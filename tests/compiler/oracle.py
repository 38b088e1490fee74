"""Run one op, or a few, through a graph: built, verified, printed and parsed back, evaluated."""

from __future__ import annotations

import numpy as np
import torch

from kernels_hub.compiler import Graph, Value, evaluate, parse_graph, print_graph, verify
from kernels_hub.compiler.ir import types

TOLERANCE = {"float64": 1e-12, "float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}
"""Relative to the largest magnitude. The oracle rounds float16 and bfloat16 once an op, as torch does."""


def run(build, *arrays, fill=None):
    """The result (or results) of build(*values) on arrays."""
    graph = Graph("case")
    values = [graph.input(f"x{i}", a.shape, types.dtype(a.dtype)) for i, a in enumerate(arrays)]
    results = build(*values) if values else build(graph)
    results = [results] if isinstance(results, Value) else list(results)
    for i, value in enumerate(results):
        graph.output(f"y{i}", value)
    verify(graph)
    text = print_graph(graph, data=True)
    again = parse_graph(text)
    assert print_graph(again, data=True) == text
    outputs = list(evaluate(verify(again), arrays).values())
    return outputs[0] if len(outputs) == 1 else outputs


def to_torch(array):
    """A torch tensor with the same elements."""
    array = np.array(array)  # writeable
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.astype(np.float32)).to(torch.bfloat16)
    return torch.from_numpy(array)


def from_torch(tensor):
    """A NumPy array with the same elements; bfloat16 as bfloat16."""
    if tensor.dtype == torch.bfloat16:
        return tensor.float().numpy().astype(types.BFLOAT16.numpy)
    return tensor.detach().resolve_conj().numpy()


def assert_same(actual, expected, tolerance=None):
    """Same dtype, shape, places of NaN and infinities; numbers equal up to the dtype's tolerance."""
    expected = from_torch(expected) if isinstance(expected, torch.Tensor) else np.asarray(expected)
    assert actual.dtype == expected.dtype, f"{actual.dtype}, expected {expected.dtype}"
    assert actual.shape == expected.shape, f"{actual.shape}, expected {expected.shape}"
    if actual.dtype.kind in "biu" or not actual.size:
        assert np.array_equal(actual, expected)
        return
    a, e = (one.astype(np.complex128 if one.dtype.kind == "c" else np.float64) for one in (actual, expected))
    special = ~np.isfinite(e)
    assert np.array_equal(special, ~np.isfinite(a)), "NaN or infinity at other places"
    assert np.array_equal(a[special], e[special], equal_nan=True)
    bound = TOLERANCE[
        {"complex64": "float32", "complex128": "float64"}.get(actual.dtype.name, actual.dtype.name)
    ]
    scale = max(1.0, np.abs(e[~special]).max(initial=0.0))
    error = np.abs(a[~special] - e[~special]).max(initial=0.0) / scale
    assert error <= (tolerance or bound), f"error {error:.3g}"


def array(*shape, dtype="float32", seed=0, low=-2.0, high=2.0):
    """Random numbers in low..high."""
    random = np.random.default_rng(seed)
    row = types.dtype(dtype)
    if row.kind == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if row.is_integer:
        return random.integers(int(low * 4), int(high * 4) + 1, shape).astype(row.numpy)
    if row.is_complex:
        return (random.uniform(low, high, shape) + 1j * random.uniform(low, high, shape)).astype(row.numpy)
    return random.uniform(low, high, shape).astype(row.numpy)
