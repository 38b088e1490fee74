"""Tree ensembles and pairwise coupling with PyTorch: each step for all trees and rows at once."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from kernels_hub.compiler.engines.library_ops.site import LibraryKernel, Run, Site
from kernels_hub.compiler.errors import EvaluateError
from kernels_hub.compiler.ir.ops.ensembles import (
    CHILD,
    EQUAL,
    FEATURE,
    KIND,
    LEAF,
    LESS,
    LESS_OR_EQUAL,
    NAN_HOLDS,
    SPLIT,
    classes_of,
)


def _make(site: Site) -> Run:
    aggregate = site["aggregate"]

    def run(x: Tensor, roots: Tensor, nodes: Tensor, weights: Tensor) -> Tensor:
        if not len(roots):
            return x.new_zeros(len(x), weights.shape[1])
        said = weights[_leaves(x, roots, nodes)]
        if aggregate == "sum":
            return said.sum(1, dtype=torch.float64).to(torch.float32)
        return said.amin(1) if aggregate == "min" else said.amax(1)

    return run


def _leaves(x: Tensor, roots: Tensor, nodes: Tensor) -> Tensor:
    """As `ir.ops.ensembles.leaves_of`."""
    columns = nodes.long()
    features, kinds, children = columns[:, FEATURE], columns[:, KIND], columns[:, CHILD]
    splits = nodes[:, SPLIT].contiguous().view(torch.float32)
    at = roots.long().expand(len(x), -1)
    for _ in range(len(nodes) + 1):
        if at.numel() and not (int(at.min()) >= 0 and int(at.max()) < len(nodes)):
            raise EvaluateError(f"a tree leads to a node that is none of the {len(nodes)}")
        kind = kinds[at] & 3
        leaf = kind == LEAF
        if bool(leaf.all()):
            return at
        seen, split = x.gather(1, features[at].masked_fill(leaf, 0)), splits[at]
        holds = (kind == LESS_OR_EQUAL) & (seen <= split) | (kind == LESS) & (seen < split)
        holds |= (kind == EQUAL) & (seen == split) | seen.isnan() & (kinds[at] & NAN_HOLDS != 0)
        at = torch.where(leaf, at, children[at] + (~holds).long())
    raise EvaluateError("the nodes of a tree form a cycle")


def _make_coupling(site: Site) -> Run:
    classes, dtype = classes_of(site.operand_shape(0)[1]), site.dtype
    compute = torch.float64 if dtype is torch.float64 else torch.float32
    return lambda sure: _couple(sure.to(compute), classes).to(dtype)


def _couple(sure: Tensor, classes: int) -> Tensor:
    """As the reference of "pairwise_coupling" in `ir.ops.ensembles`."""
    wins = sure.new_zeros(len(sure), classes, classes)
    for index, (i, j) in enumerate(itertools.combinations(range(classes), 2)):
        wins[:, i, j], wins[:, j, i] = sure[:, index], 1 - sure[:, index]
    table = -wins.mT * wins + torch.diag_embed((wins * wins).sum(1))
    p = sure.new_full((len(sure), classes), 1 / classes)
    going = torch.ones(len(sure), 1, dtype=torch.bool, device=sure.device)
    for _ in range(max(100, classes) if len(sure) else 0):
        sums = (table * p[:, None]).sum(2)
        total = (sums * p).sum(1, keepdim=True)
        going = going & ((sums - total).abs().amax(1, keepdim=True) >= 0.005 / classes)
        if not bool(going.any()):
            break
        new = p.clone()
        for t in range(classes):
            own, mine = table[:, t, t, None], sums[:, t, None]
            step = (total - mine) / own
            new[:, t, None] += step
            grown = step + 1
            total = (total + step * (step * own + mine * 2)) / grown / grown
            sums = (sums + step * table[:, t]) / grown
            new = new / grown
        p = torch.where(going, new, p)
    return p


KERNELS = {
    "tree_ensemble": LibraryKernel(_make),
    "pairwise_coupling": LibraryKernel(_make_coupling, frozenset({"float32", "float64"})),
}
