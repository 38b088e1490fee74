"""The derivative of resizing, which is linear along each axis: a product with its matrix there, transposed.

The matrix is what the op itself makes of the unit vectors, so that every mode, and every way to place samples, is
covered as the op table states it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernels_hub.compiler.autodiff.rule import Derivative, Gradients, NotDifferentiable, Site
from kernels_hub.compiler.ir.evaluate import evaluate
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.types import Array


def _resize(site: Site) -> Gradients:
    x, g, attrs = site.x, site.gradient, site.attrs
    narrow, wide = g.dtype, g.dtype.compute
    cropped = attrs["coordinates"] == "crop"
    for axis, (size, count) in enumerate(zip(x.shape, attrs["shape"], strict=True)):
        region = (attrs["roi"][axis], attrs["roi"][axis + x.rank]) if cropped else (0.0, 1.0)
        scale = attrs["scales"][axis] if attrs["scales"] else 1.0 if size == count else None
        if size == count and scale == 1.0 and region == (0.0, 1.0):
            continue
        if not isinstance(size, int) or not isinstance(count, int):
            raise NotDifferentiable(f"dim {axis} is resized from {size} to {count}, which are no numbers")
        matrix = site.graph.constant(_matrix(site, axis, size, count).T.copy(), wide)
        last = g.cast(wide).transpose(axis, g.rank - 1) if axis != g.rank - 1 else g.cast(wide)
        g = (last @ matrix).transpose(axis, g.rank - 1)
    return [g.cast(narrow)]


def _matrix(site: Site, axis: int, size: int, count: int) -> Array:
    """(size, count): row i is what becomes of element i."""
    attrs = dict(site.attrs)
    attrs["shape"], attrs["extrapolation"] = (size, count), 0.0
    if attrs["scales"]:
        attrs["scales"] = (1.0, attrs["scales"][axis])
    if attrs["roi"]:
        attrs["roi"] = (0.0, attrs["roi"][axis], 1.0, attrs["roi"][axis + site.x.rank])
    graph = Graph("axis")
    graph.output("rows", graph.apply("resize", graph.input("units", (size, size), "float64"), **attrs))
    return evaluate(graph, [np.eye(size)])["rows"]


ROWS: Sequence[Derivative] = (Derivative("resize", _resize, "g times the matrix of each axis, transposed"),)
