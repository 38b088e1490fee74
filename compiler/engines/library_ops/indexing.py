"""Gathers, scatters and sorting.

Indices from the end are counted from the start first. Indices out of range raise on a CPU (PyTorch's error, at the
node); on a GPU they stop the device's work with an assertion, as PyTorch's own do. Where updates meet several times
the sums are kept in float32 or int64, and the last one stays of those that overwrite (on a GPU: any).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernels_hub.compiler.engines.library_ops.pointwise import moves
from kernels_hub.compiler.engines.library_ops.site import (
    BOOL,
    EVERY,
    FLOATS,
    INTS,
    NATIVE_FLOATS,
    REALS,
    LibraryKernel,
    Reason,
    Run,
    Site,
    computed_in,
    narrowed,
    widened,
)
from kernels_hub.compiler.ir.graph import Node


def _from_start(indices: Tensor, size: int) -> Tensor:
    return torch.where(indices < 0, indices + size, indices)


def _counted(site: Site, size: int) -> Run:
    """A function of indices that counts them from the start; nothing to do for constants that are not negative."""
    known = site.node.operands[1].array
    if known is not None and not (known < 0).any():
        return lambda indices: indices
    return lambda indices: _from_start(indices, size)


def _make_gather(site: Site) -> Run:
    axis, dims, shape = site["axis"], site.operand_shape(0), site.shape
    count = _counted(site, dims[axis])
    if site.node.operands[1].rank == 0 and site.device.type == "cpu":
        return moves(lambda x, indices: x.select(axis, int(indices)), site)

    def run(x: Tensor, indices: Tensor) -> Tensor:
        return x.index_select(axis, count(indices).reshape(-1)).reshape(shape)

    return moves(run, site)


def _make_gather_elements(site: Site) -> Run:
    axis = site["axis"]
    count = _counted(site, site.operand_shape(0)[axis])
    return moves(lambda x, indices: torch.gather(x, axis, count(indices).to(torch.int64)), site)


def _make_gather_nd(site: Site) -> Run:
    batch, shape, dims = site["batch_dims"], site.shape, site.operand_shape(0)
    depth = site.operand_shape(1)[-1]
    if batch + depth == 0:
        return lambda x, _: x.expand(shape)
    inner = site.node.operands[1].rank - 1
    grid = []
    for axis in range(batch):
        placed = [1] * inner
        placed[axis] = dims[axis]
        grid.append(torch.arange(dims[axis], device=site.device).reshape(placed))

    def run(x: Tensor, indices: Tensor) -> Tensor:
        wide = indices.to(torch.int64)
        return x[(*grid, *(wide[..., index] for index in range(depth)))].expand(shape)

    return moves(run, site)


_REDUCE = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _scatter(x: Tensor, axis: int, places: Tensor, updates: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return x.scatter(axis, places, updates)
    if x.is_floating_point() and x.element_size() < 4:
        wide = x.to(torch.float32).scatter_reduce(axis, places, updates.to(torch.float32), _REDUCE[reduction])
        return wide.to(x.dtype)
    return x.scatter_reduce(axis, places, updates, _REDUCE[reduction])


def _make_scatter_elements(site: Site) -> Run:
    axis, reduction = site["axis"], site["reduction"]
    size = site.operand_shape(0)[axis]

    def run(x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
        return _scatter(x, axis, _from_start(indices.to(torch.int64), size), updates, reduction)

    return _written(site, run, reduction)


def _make_scatter_nd(site: Site) -> Run:
    """The dims that are indexed become one, and so do those behind."""
    dims, reduction = site.operand_shape(0), site["reduction"]
    depth = site.operand_shape(1)[-1]
    indexed, rest = dims[:depth], math.prod(dims[depth:])
    sizes = torch.tensor(indexed, dtype=torch.int64, device=site.device)
    strides = torch.tensor([math.prod(indexed[index + 1 :]) for index in range(depth)], device=site.device)

    def run(x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
        places = indices.to(torch.int64)
        places = torch.where(places < 0, places + sizes, places)
        if places.device.type == "cpu" and ((places < 0) | (places >= sizes)).any():
            raise IndexError(f"an index is out of range of dims {list(indexed)}")
        rows = (places * strides).sum(-1).reshape(-1, 1)
        flat = x.reshape(math.prod(indexed), rest)
        result = _scatter(flat, 0, rows.expand(-1, rest), updates.reshape(-1, rest), reduction)
        return result.reshape(dims)

    return _written(site, run, reduction)


def _written(site: Site, run: Run, reduction: str) -> Run:
    if reduction == "none":
        return moves(run, site)
    wide, finish = computed_in(site.operand_row(0)), narrowed(site.row)
    if wide is None:
        return run
    return lambda x, indices, updates: finish(run(x.to(wide), indices, updates.to(wide)))


def _declines_scatter(node: Node, _: str) -> Reason:
    reduction, row = node.attrs["reduction"], node.operands[0].dtype
    if reduction != "none" and row.name not in FLOATS | INTS:
        return f"{node.op.name} with {reduction} of {row}"
    return None


def _make_argsort(site: Site) -> Run:
    axis, descending = site["axis"], site["descending"]
    return widened(site, lambda x: torch.sort(x, dim=axis, descending=descending, stable=True).indices)


def _make_argtopk(site: Site) -> Run:
    """A stable sort, as torch.topk says nothing of which of equals comes first."""
    axis, k, largest = site["axis"], site["k"], site["largest"]
    if k == 1 and (largest or not site.operand_row(0).is_float):
        best = torch.argmax if largest else torch.argmin
        return widened(site, lambda x: best(x, axis, keepdim=True))
    return widened(
        site, lambda x: torch.sort(x, dim=axis, descending=largest, stable=True).indices.narrow(axis, 0, k)
    )


def _make_nonzero(site: Site) -> Run:
    if site.operand_row(0).is_complex or site.operand_row(0).kind == "bool":
        return lambda x: torch.nonzero(x).t().contiguous()
    return lambda x: torch.nonzero(x != 0).t().contiguous()


KERNELS = {
    "gather": LibraryKernel(_make_gather, EVERY),
    "gather_elements": LibraryKernel(_make_gather_elements, EVERY),
    "gather_nd": LibraryKernel(_make_gather_nd, EVERY),
    "scatter_elements": LibraryKernel(_make_scatter_elements, EVERY, _declines_scatter),
    "scatter_nd": LibraryKernel(_make_scatter_nd, EVERY, _declines_scatter),
    "argsort": LibraryKernel(_make_argsort, REALS | BOOL),
    "argtopk": LibraryKernel(_make_argtopk, REALS),
    "nonzero": LibraryKernel(_make_nonzero, NATIVE_FLOATS | INTS | BOOL | {"complex64", "complex128"}),
}
