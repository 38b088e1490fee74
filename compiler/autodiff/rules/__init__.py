"""Derivatives of ops: `derivative_of(op)`.

That of a pointwise op is formulas in its row of the op table, that of another a function there (`Op.derivative`) or,
where several ops share it, a row in the file of the family (in a plugin, `add_derivative(row)`). The tests want a case
for each.
"""

from __future__ import annotations

from kernels_hub.compiler.autodiff.rule import Derivative
from kernels_hub.compiler.autodiff.rules import (
    contract,
    fourier,
    indexing,
    pointwise,
    pool,
    reduce,
    resize,
    views,
)
from kernels_hub.compiler.errors import TypeRuleError
from kernels_hub.compiler.ir.graph import Node
from kernels_hub.compiler.ir.op import Op, Pull, Trait
from kernels_hub.compiler.ir.ops import op

DERIVATIVES: dict[str, Derivative] = {}
"""Those that are no formulas in rows of the op table."""


def add_derivative(row: Derivative) -> Derivative:
    """Enter a row. Raises TypeRuleError for an op that there is not, or that has a derivative already."""
    if op(row.op).derivative is not None or DERIVATIVES.setdefault(row.op, row) is not row:
        raise TypeRuleError(f"the op {row.op!r} has a derivative already")
    return row


for family in (pointwise, views, reduce, contract, fourier, pool, resize, indexing):
    for row_ in family.ROWS:
        add_derivative(row_)


def derivative_of(row: Op) -> Derivative | None:
    """The derivative of an op, None where it has none."""
    if isinstance(row.derivative, Pull):
        return Derivative(row.name, row.derivative.gradients, row.derivative.doc)
    return pointwise.of_formulas(row) or DERIVATIVES.get(row.name)


def is_flat(node: Node) -> bool:
    """Whether gradients end at a node."""
    return Trait.STEP in node.op.traits or (node.op.name == "stop_gradient" and not node.attrs["reason"])


def is_unknown(node: Node) -> bool:
    """Whether there is a reason why a node's gradient cannot be told."""
    return node.op.name == "stop_gradient" and bool(node.attrs["reason"])
