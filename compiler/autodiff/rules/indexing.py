"""Derivatives of gathers and scatters: a gather's gradient is added where it was read, a scatter's is gathered.

Where one element is read along an axis (the log-probability of a target), that is a comparison of places and no
scatter, which every engine fuses.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels_hub.compiler.autodiff.rule import Derivative, Gradients, NotDifferentiable, Site, zeros
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.op import Shape
from kernels_hub.compiler.ir.proofs import proves_equal


def scattered_along(g: Value, places: Value, axis: int, size: Dim) -> Value:
    """g added up, slices of an axis where `places` say; along that axis the result is `size` long."""
    rank = places.rank
    order = (*range(axis, axis + rank), *range(axis), *range(axis + rank, g.rank))
    rest = (*g.shape[:axis], *g.shape[axis + rank :])
    target = g.graph.full((size, *rest), 0, g.dtype)
    total = g.graph.apply("scatter_nd", target, places.unsqueeze(rank), g.permute(*order), reduction="add")
    return total.permute(*range(1, axis + 1), 0, *range(axis + 1, total.rank))


def _gather(site: Site) -> Gradients:
    axis = site.attrs["axis"]
    if site.operands[1].rank == 0:
        return [
            _where(site.gradient.unsqueeze(axis), site.operands[1].broadcast_to(site.x.shape), axis, site.x),
            None,
        ]
    return [scattered_along(site.gradient, site.operands[1], axis, site.x.shape[axis]), None]


def _where(g: Value, places: Value, axis: int, x: Value) -> Value:
    """g, of one element along an axis, at these places of x's shape; zero elsewhere."""
    size = x.shape[axis]
    here = x.graph.iota(size, places.dtype).broadcast(x.shape, (axis,))
    behind = places + x.graph.size(size, places.dtype).broadcast_to(x.shape)
    places = places.binary("lt", 0).select(behind, places)
    return here.eq(places).select(g.broadcast_to(x.shape), zeros(x.graph, x))


def _gather_elements(site: Site) -> Gradients:
    (x, places), axis = site.operands, site.attrs["axis"]
    whole = all(one == axis or proves_equal(dim, x.shape[one]) for one, dim in enumerate(places.shape))
    if places.shape[axis] == 1 and whole:
        return [_where(site.gradient, places.broadcast_to(x.shape), axis, x), None]
    added = site.graph.apply(
        "scatter_elements",
        zeros(site.graph, site.x),
        site.operands[1],
        site.gradient,
        axis=axis,
        reduction="add",
    )
    return [added, None]


def _gather_nd(site: Site) -> Gradients:
    x, indices = site.operands
    batch = site.attrs["batch_dims"]
    if batch:
        indices = _with_batch(indices, batch)
    if not indices.shape[-1]:
        raise NotDifferentiable("its indices are of no dim")
    added = site.graph.apply("scatter_nd", zeros(site.graph, x), indices, site.gradient, reduction="add")
    return [added, None]


def _with_batch(indices: Value, batch: int) -> Value:
    """Indices that name the places of the batch dims, too."""
    graph = indices.graph
    one: Shape = (*indices.shape[:-1], 1)
    places = [graph.iota(one[axis], indices.dtype).broadcast(one, (axis,)) for axis in range(batch)]
    return graph.apply("concat", *places, indices, axis=indices.rank - 1)


def _scatter(gather: str) -> Derivative:
    """What is written over gives no gradient; sums give theirs to both."""
    op = gather.replace("gather", "scatter")

    def pull(site: Site) -> Gradients:
        (_, indices, updates), g, attrs = site.operands, site.gradient, dict(site.attrs)
        how = attrs.pop("reduction")
        if how not in {"none", "add"}:
            raise NotDifferentiable(f"the derivative of updates that meet by {how!r} is not known")
        kept: Value | None = g
        if how == "none" and site.wanted[0]:
            kept = site.graph.apply(op, g, indices, zeros(site.graph, updates), **site.attrs)
        read = site.graph.apply(gather, g, indices, **attrs) if site.wanted[2] else None
        return [kept if site.wanted[0] else None, None, read]

    return Derivative(op, pull, "g, zero where something was written over it; none; g where updates went")


ROWS: Sequence[Derivative] = (
    Derivative("gather", _gather, "g, added where it was read; none"),
    Derivative("gather_elements", _gather_elements, "g, added where it was read; none"),
    Derivative("gather_nd", _gather_nd, "g, added where it was read; none"),
    _scatter("gather_elements"),
    _scatter("gather_nd"),
)
