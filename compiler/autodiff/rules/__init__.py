"""The table of derivatives: `DERIVATIVES["mul"]` is its row. Ops without a row have no derivative.

A new derivative is a row in the file of its op's family (or, in a plugin, `add_derivative(row)`); the tests go through
the table and want a case for each.
"""

from __future__ import annotations

from kernels_hub.compiler.autodiff.rule import Derivative
from kernels_hub.compiler.autodiff.rules import contract, indexing, pointwise, pool, reduce, resize, views
from kernels_hub.compiler.errors import TypeRuleError
from kernels_hub.compiler.ir.graph import Node
from kernels_hub.compiler.ir.ops import op

DERIVATIVES: dict[str, Derivative] = {}


def add_derivative(row: Derivative) -> Derivative:
    """Enter a row. Raises TypeRuleError for an op that there is not, or that has a derivative already."""
    op(row.op)
    if DERIVATIVES.setdefault(row.op, row) is not row:
        raise TypeRuleError(f"the op {row.op!r} has a derivative already")
    return row


for family in (pointwise, views, reduce, contract, pool, resize, indexing):
    for row_ in family.ROWS:
        add_derivative(row_)

FLAT: frozenset[str] = pointwise.FLAT
"""Ops on floats whose derivative is zero wherever there is one: gradients end there."""


def is_flat(node: Node) -> bool:
    """Whether gradients end at a node."""
    return node.op.name in FLAT or (node.op.name == "stop_gradient" and not node.attrs["reason"])


def is_unknown(node: Node) -> bool:
    """Whether there is a reason why a node's gradient cannot be told."""
    return node.op.name == "stop_gradient" and bool(node.attrs["reason"])
