"""Seeded inputs and weights for a graph that has none at hand."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np

from kernels_hub.compiler.errors import DimError
from kernels_hub.compiler.ir.dims import dim_symbols, substitute
from kernels_hub.compiler.ir.graph import Graph, Value
from kernels_hub.compiler.ir.op import TensorType, Trait
from kernels_hub.compiler.ir.ops.conversion import convert
from kernels_hub.compiler.ir.types import Array

_DEPTH = 8


def dummy_inputs(graph: Graph, seed: int = 0, bindings: Mapping[str, int] | None = None) -> dict[str, Array]:
    """An array for each input, a function of the seed and the input's name alone.

    Floats are standard normal; integers that end up as indices (through views and casts) are in range of what they
    index, others 0 to 9; bools are fair. Raises DimError where a symbol of a shape is not bound.
    """
    return {
        name: random_array(value.type, seed, name, bindings, index_limit(value, bindings or {}))
        for name, value in graph.inputs.items()
    }


def dummy_weights(graph: Graph, seed: int = 0, bindings: Mapping[str, int] | None = None) -> dict[str, Array]:
    """An array for each parameter that has none, scaled so that sums of products keep their size."""
    made = {}
    for name, value in graph.parameters.items():
        if name not in graph.weights:
            array = random_array(value.type, seed, name, bindings)
            fan = (
                int(np.prod(array.shape[1:])) if array.ndim > 2 else array.shape[0] if array.ndim == 2 else 1
            )
            floating = value.dtype.is_float
            made[name] = (
                convert(array.astype(np.float32) / np.sqrt(max(fan, 1)), value.dtype) if floating else array
            )
    return made


def random_array(
    of: TensorType, seed: int, name: str, bindings: Mapping[str, int] | None = None, limit: int | None = None
) -> Array:
    """A random array of a type; integers are below the limit."""
    shape = tuple(substitute(dim, bindings or {}) for dim in of.shape)
    if unbound := sorted(one.name for one in dim_symbols(shape)):
        raise DimError(f"{name!r} is {of}: bind {', '.join(unbound)}")
    random = np.random.default_rng([seed, zlib.crc32(name.encode())])
    if of.dtype.kind == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if of.dtype.is_integer:
        top = min(10 if limit is None else max(limit, 1), int(of.dtype.limits[1]) + 1)
        return convert(random.integers(0, top, shape), of.dtype)
    if of.dtype.is_complex:
        return (random.standard_normal(shape) + 1j * random.standard_normal(shape)).astype(of.dtype.numpy)
    return convert(random.standard_normal(shape), of.dtype, saturate=True)


def index_limit(value: Value, bindings: Mapping[str, int], depth: int = _DEPTH) -> int | None:
    """The least dim that a value indexes, directly or through views and casts."""
    limits: list[int] = []
    for node in value.users if depth else ():
        found = None
        if node.op.name in {"gather", "gather_elements", "scatter_elements"} and node.operands[1] is value:
            found = substitute(node.operands[0].shape[node.attrs["axis"]], bindings)
        elif node.op.name in {"gather_nd", "scatter_nd"} and node.operands[1] is value:
            found = min((substitute(dim, bindings) for dim in node.operands[0].shape), default=1)
        elif Trait.VIEW in node.op.traits or node.op.name in {"cast", "concat", "select"}:
            found = index_limit(node.results[0], bindings, depth - 1)
        if isinstance(found, int):
            limits.append(found)
    return min(limits, default=None)
