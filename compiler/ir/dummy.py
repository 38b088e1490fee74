"""Seeded weights for a graph that has none at hand; `Graph.dummy_inputs` makes its inputs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.ops.conversion import convert
from kernels_hub.compiler.ir.random_arrays import random_array
from kernels_hub.compiler.ir.types import Array


def dummy_weights(graph: Graph, seed: int = 0, bindings: Mapping[str, int] | None = None) -> dict[str, Array]:
    """An array for each parameter that has none, scaled so that sums of products keep their size.

    >>> graph = Graph()
    >>> weight = graph.parameter("weight", (4, 2))
    >>> dummy_weights(graph)["weight"].shape
    (4, 2)
    """
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
