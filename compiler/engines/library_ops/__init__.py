"""PyTorch's kernels by op: `kernel_of(op)` says what it takes, and makes a function of tensors of a node.

Each module is a family of the op table; `composites` has what rewrites recognised (layer norm, attention …).
"""

from __future__ import annotations

from kernels_hub.compiler.engines.library_ops import (
    contract,
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
    resize,
    sources,
    views,
)
from kernels_hub.compiler.engines.library_ops.site import LibraryKernel
from kernels_hub.compiler.ir.op import Op

KERNELS: dict[str, LibraryKernel] = {
    **sources.KERNELS,
    **pointwise.KERNELS,
    **conversion.KERNELS,
    **views.KERNELS,
    **reduce.KERNELS,
    **contract.KERNELS,
    **pool.KERNELS,
    **resize.KERNELS,
    **recurrent.KERNELS,
    **ensembles.KERNELS,
    **few_bits.KERNELS,
    **fourier.KERNELS,
    **indexing.KERNELS,
    **order.KERNELS,
}
"""By op, but for those whose rows name a function of PyTorch."""


def kernel_of(op: Op) -> LibraryKernel | None:
    """The kernel of an op, None where there is none."""
    return KERNELS.get(op.name) or pointwise.of_row(op)
