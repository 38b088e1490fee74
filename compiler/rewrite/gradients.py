"""Drops what only derivatives need, for graphs that are run and not differentiated.

`differentiate` comes first; it refuses a graph in which one of these rules fired.
"""

from __future__ import annotations

from kernels_hub.compiler.rewrite.pattern import Any, Op
from kernels_hub.compiler.rewrite.rule import Rule

X = Any("x")

INFERENCE = (
    Rule("stop_gradient", Op("stop_gradient", X), lambda match: match["x"], doc="stop_gradient(x) -> x"),
    Rule("with_derivative", Op("with_derivative", X, Any(), Any()), lambda match: match["x"],
         doc="with_derivative(x, y, d) -> x"),
)  # fmt: skip
