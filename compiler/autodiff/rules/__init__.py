"""The table of derivatives: `DERIVATIVES["mul"]` is its row. Ops without a row have no derivative.

A new derivative is a row in the file of its op's family (or, in a plugin, `add_derivative(row)`); the tests go through
the table and want a case for each.
"""

from __future__ import annotations

from kernels_hub.compiler.autodiff.rule import Derivative
from kernels_hub.compiler.autodiff.rules import contract, indexing, pointwise, pool, reduce, resize, views
from kernels_hub.compiler.errors import TypeRuleError
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
