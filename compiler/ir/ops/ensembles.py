"""Ensembles of decision trees, and probabilities of classes out of those of pairs of classes, each as one op."""

from __future__ import annotations

import itertools
import math

import numpy as np

from kernels_hub.compiler.errors import EvaluateError, TypeRuleError
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.op import (
    Attr,
    Attrs,
    Op,
    Operands,
    ReferenceCall,
    Shape,
    one_of,
    require_equal,
    require_integer,
    require_rank,
    same,
)
from kernels_hub.compiler.ir.types import FLOAT32, INT32, Array, DType

FEATURE, KIND, CHILD, SPLIT = range(4)
"""Columns of a tree's nodes."""
LEAF, LESS_OR_EQUAL, LESS, EQUAL = range(4)
"""Kinds of nodes: how the feature compares with the split."""
NAN_HOLDS = 4
"""Added to the kind of a node at which NaN takes the way of what holds."""


def _dtype(operands: Operands, _: Attrs) -> DType:
    x, _roots, nodes, weights = operands
    if x.dtype is not FLOAT32 or weights.dtype is not FLOAT32:
        raise TypeRuleError(
            f"features and weights are float32, not {x.dtype} (operand 0) and {weights.dtype} (3)"
        )
    if nodes.dtype is not INT32:
        raise TypeRuleError(f"nodes (operand 2) are int32, not {nodes.dtype}")
    return FLOAT32


def _shape(operands: Operands, _: Attrs) -> Shape:
    x, roots, nodes, weights = operands
    for operand, rank, what in (
        (x, 2, "the features (operand 0)"),
        (roots, 1, "the roots (operand 1)"),
        (nodes, 2, "the nodes (operand 2)"),
        (weights, 2, "the weights (operand 3)"),
    ):
        require_rank(operand, rank, what)
    require_integer(roots, "the roots (operand 1)")
    require_equal(nodes.shape[1], 4, "dim 1 of the nodes", "feature, kind, child and split")
    require_equal(weights.shape[0], nodes.shape[0], "dim 0 of the weights", "the nodes")
    return (x.shape[0], weights.shape[1])


def leaves_of(x: Array, roots: Array, nodes: Array) -> Array:
    """The leaf that each row of x reaches in each tree: (N, trees). Raises EvaluateError for nodes that are no tree."""
    count = len(nodes)
    kinds, splits = nodes[:, KIND], np.ascontiguousarray(nodes[:, SPLIT]).view(np.float32)
    at = np.broadcast_to(roots.astype(np.int64), (len(x), len(roots)))
    for _ in range(count + 1):
        if at.size and not (at.min() >= 0 and at.max() < count):
            raise EvaluateError(f"a tree leads to a node that is none of the {count}")
        kind = kinds[at] & 3
        if (kind == LEAF).all():
            return at
        features = np.where(kind == LEAF, 0, nodes[at, FEATURE])
        if not (features.min() >= 0 and features.max() < x.shape[1]):
            raise EvaluateError(f"a tree looks at feature {features.max()} of {x.shape[1]}")
        seen, split = np.take_along_axis(x, features, 1), splits[at]
        holds = np.select([kind == LESS_OR_EQUAL, kind == LESS], [seen <= split, seen < split], seen == split)
        holds |= np.isnan(seen) & (kinds[at] & NAN_HOLDS != 0)
        at = np.where(kind == LEAF, at, nodes[at, CHILD] + ~holds)
    raise EvaluateError("the nodes of a tree form a cycle")


def _trees(step: ReferenceCall) -> Array:
    x, roots, nodes, weights = step.operands
    if not len(roots):
        return np.zeros(step.shape, np.float32)
    said = weights[leaves_of(x, roots, nodes)]
    if step.attrs["aggregate"] == "sum":
        return np.asarray(said.sum(1, dtype=np.float64).astype(np.float32))
    return np.asarray(said.min(1) if step.attrs["aggregate"] == "min" else said.max(1))


def classes_of(pairs: Dim) -> int:
    """How many classes have so many pairs. Raises TypeRuleError."""
    classes = (1 + math.isqrt(1 + 8 * pairs)) // 2 if isinstance(pairs, int) and pairs > 0 else 0
    if not isinstance(pairs, int) or classes * (classes - 1) // 2 != pairs or classes < 2:
        raise TypeRuleError(f"no number of classes has {pairs} pairs: 1, 3, 6, 10 …")
    return classes


def _coupled(operands: Operands, _: Attrs) -> Shape:
    require_rank(operands[0], 2, "the probabilities of pairs")
    return (operands[0].shape[0], classes_of(operands[0].shape[1]))


def _couple(step: ReferenceCall) -> Array:
    sure = step.operands[0]
    rows, classes = step.shape
    wide = np.float64 if sure.dtype == np.float64 else np.float32
    sure = sure.astype(wide)
    wins = np.zeros((rows, classes, classes), wide)
    for index, (i, j) in enumerate(itertools.combinations(range(classes), 2)):
        wins[:, i, j], wins[:, j, i] = sure[:, index], wide(1) - sure[:, index]
    table = -wins.swapaxes(1, 2) * wins
    for t in range(classes):
        table[:, t, t] = (wins[:, :, t] ** 2).sum(1)
    p = np.full((rows, classes), 1 / classes, wide)
    going = np.ones(rows, bool)
    for _ in range(max(100, classes)):
        sums = (table * p[:, None]).sum(2)
        total = (sums * p).sum(1)
        going &= abs(sums - total[:, None]).max(1) >= wide(0.005 / classes)
        if not going.any():
            break
        new = p.copy()
        for t in range(classes):
            own = table[:, t, t]
            step_size = (total - sums[:, t]) / own
            new[:, t] += step_size
            grown = step_size + wide(1)
            total = (total + step_size * (step_size * own + sums[:, t] * wide(2))) / grown / grown
            sums = (sums + step_size[:, None] * table[:, t]) / grown[:, None]
            new /= grown[:, None]
        p = np.where(going[:, None], new, p)
    return p.astype(step.dtype)


ROWS = (
    Op("tree_ensemble", "What the leaves say that each row reaches in all trees together. Operands: x (N, F) float32; "
       "roots (trees); nodes (M, 4) int32: feature, kind, child, the bits of a float32 to compare with; weights "
       "(M, C). Kind 0: a leaf; 1: feature <= split, 2: <, 3: ==; 4 more: NaN holds, too. The way goes to node `child` "
       "where that holds, and to the next one else. Result (N, C): sums, in float64, or extremes of weights.", 4,
       _trees, _dtype, _shape, attrs=(Attr("aggregate", one_of("sum", "min", "max"), default="sum"),),
       source="ai.onnx.ml TreeEnsemble"),
    Op("pairwise_coupling", "Probabilities of classes (N, C) out of (N, C (C - 1) / 2): how likely the first class of "
       "each pair is against the second, pairs as (0, 1), (0, 2) … A row's iteration ends as early as libsvm's, after "
       "100 steps or C at the latest.", 1, _couple, same("float"), _coupled,
       source="Wu, Lin, Weng: Probability estimates for multi-class classification by pairwise coupling, JMLR 2004"),
)  # fmt: skip
