"""What sorting or counting decides, by PyTorch's own kernels: of equal elements they take any.

To `unique` of floats the op table has NaN as one value, PyTorch each as its own: that is left to other engines.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels_hub.compiler.engines.library_ops.site import (
    BOOL,
    NATIVE_FLOATS,
    NATIVE_INTS,
    LibraryKernel,
    Reason,
    Run,
    Site,
)
from kernels_hub.compiler.ir.graph import Node

_ORDERED = NATIVE_FLOATS | NATIVE_INTS


def _make_kth(site: Site) -> Run:
    k, axis = site["k"], site["axis"]
    return lambda x: torch.kthvalue(x, k, axis).indices


def _make_median(site: Site) -> Run:
    axis = site["axis"]
    median: Callable[..., tuple[Tensor, Tensor]] = torch.nanmedian if site["ignore_nan"] else torch.median
    return lambda x: median(x, axis)[1]


def _make_mode(site: Site) -> Run:
    axis = site["axis"]
    return lambda x: torch.mode(x, axis).indices


def _make_search(site: Site) -> Run:
    right = site["right"]
    return lambda ordered, values: torch.searchsorted(ordered.contiguous(), values.contiguous(), right=right)


def _make_bincount(site: Site) -> Run:
    least = site["least"]

    def run(x: Tensor, weights: Tensor | None = None) -> Tensor:
        return torch.bincount(x, weights, least)

    return run


def _make_unique(_: Site) -> Run:
    def run(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        _, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
        places = torch.arange(x.numel(), device=x.device)
        first = torch.full_like(counts, x.numel()).scatter_reduce_(0, inverse, places, "amin")
        return first, inverse, counts

    return run


def _declines_slices(node: Node, _: str) -> Reason:
    return "unique of slices" if node.operands[0].rank != 1 else None


KERNELS = {
    "argkth": LibraryKernel(_make_kth, _ORDERED),
    "argmedian": LibraryKernel(_make_median, _ORDERED),
    "argmode": LibraryKernel(_make_mode, _ORDERED | BOOL),
    "searchsorted": LibraryKernel(_make_search, _ORDERED),
    "bincount": LibraryKernel(_make_bincount, NATIVE_FLOATS | NATIVE_INTS),
    "unique": LibraryKernel(_make_unique, NATIVE_INTS | BOOL, _declines_slices),
    "repeat_places": LibraryKernel(lambda _: torch.repeat_interleave, NATIVE_INTS),
}
