"""PyTorch's kernels by op: `KERNELS["add"]` says what it takes, and makes a function of tensors of a node.

Each module is a family of the op table; `composites` has what rewrites recognised (layer norm, attention …).
"""

from __future__ import annotations

from kernels_hub.compiler.engines.library_ops import (
    contract,
    conversion,
    indexing,
    pointwise,
    pool,
    reduce,
    resize,
    sources,
    views,
)
from kernels_hub.compiler.engines.library_ops.site import Kernel

KERNELS: dict[str, Kernel] = {
    **sources.KERNELS,
    **pointwise.KERNELS,
    **conversion.KERNELS,
    **views.KERNELS,
    **reduce.KERNELS,
    **contract.KERNELS,
    **pool.KERNELS,
    **resize.KERNELS,
    **indexing.KERNELS,
}
