"""THE op table: every op of the IR, once. `OPS["add"]` is its row.

A new op is a row in the file of its family (or, in a plugin, `add_op(row)`); everything else reads it here.
"""

from __future__ import annotations

from kernels_hub.compiler.errors import TypeRuleError
from kernels_hub.compiler.ir.op import Op
from kernels_hub.compiler.ir.ops import (
    contract,
    control,
    conversion,
    ensembles,
    few_bits,
    fourier,
    indexing,
    order,
    pointwise,
    pool,
    recurrent,
    reduce,
    regions,
    resize,
    selection,
    sources,
    special,
    views,
)

FAMILIES = (
    sources,
    pointwise,
    special,
    conversion,
    views,
    reduce,
    contract,
    pool,
    resize,
    regions,
    indexing,
    order,
    selection,
    recurrent,
    ensembles,
    few_bits,
    fourier,
    control,
)

OPS: dict[str, Op] = {}


def add_op(row: Op) -> Op:
    """Enter a row. Raises TypeRuleError if another has its name."""
    if OPS.setdefault(row.name, row) is not row:
        raise TypeRuleError(f"there is an op {row.name!r} already")
    return row


def op(name: str) -> Op:
    """The row of that name. Raises TypeRuleError."""
    try:
        return OPS[name]
    except KeyError:
        raise TypeRuleError(f"no op is called {name!r}") from None


for family in FAMILIES:
    for row_ in family.ROWS:
        add_op(row_)
