"""The table of derivatives: `DERIVATIVES["mul"]` is its row. Ops without a row have no derivative.

A new derivative is a row in the file of its op's family; the tests go through the table and want a case for each.
"""

from __future__ import annotations

from kernels_hub.compiler.autodiff.rule import Derivative
from kernels_hub.compiler.autodiff.rules import contract, indexing, pointwise, pool, reduce, views

DERIVATIVES: dict[str, Derivative] = {
    row.op: row for family in (pointwise, views, reduce, contract, pool, indexing) for row in family.ROWS
}

FLAT: frozenset[str] = pointwise.FLAT
"""Ops on floats whose derivative is zero wherever there is one: gradients end there."""
