"""Decision trees of ai.onnx.ml: the op "tree_ensemble", or tensor arithmetic for what that has no form for.

As tensor arithmetic all trees go down one level at a time, for all rows at once: of float64, of members of sets, and of
nodes that several lead to. A step looks up the node that each row has reached in each tree, compares, and goes on; a
leaf leads to itself. Source: Hummingbird's TreeTraversal, OSDI 2020.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.graph import Value
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
)
from kernels_hub.compiler.ir.types import Array

_DOMAIN = "ai.onnx.ml"
_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
_LEAF = -1
_DEEPEST = 256
"""Levels, each of which is written out."""


@dataclass(frozen=True)
class Forest:
    """Nodes of all trees in one numbering; a leaf's ways lead to itself.

    modes: places in `_MODES`, or `_LEAF`. members: what nodes of BRANCH_MEMBER compare with, in their order.
    """

    roots: Array
    features: Array
    splits: Array
    modes: Array
    yes: Array
    no: Array
    missing: Array
    members: Sequence[Array] = ()

    def depth(self, node: OnnxNode) -> int:
        """Steps to the deepest leaf. Raises TypeRuleError for ways to nowhere, and for those without an end."""
        count = len(self.modes)
        for ways in (self.roots, self.yes, self.no):
            if ways.size and not (ways.min() >= 0 and ways.max() < count):
                raise node.refuse(f"a way leads to a node that is none of the {count}")
        reached, steps = _distinct(self.roots), 0
        while (inner := reached[self.modes[reached] != _LEAF]).size:
            if steps == min(count, _DEEPEST):
                raise node.refuse(
                    "its nodes form a cycle" if steps == count else f"its trees are deeper than {_DEEPEST}"
                )
            reached, steps = _distinct(np.concatenate([self.yes[inner], self.no[inner]])), steps + 1
        return steps


def _distinct(places: Array) -> Array:
    """Each number once, in order, as np.unique gives them, which imports numpy.ma: 4 ms of the opening of a forest."""
    distinct: Array = places[_firsts(places)]
    return distinct


def _firsts(places: Array) -> Array:
    """Where each number stands first, in the order of the numbers."""
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    firsts: Array = order[is_first]
    return firsts


def _common(forest: Forest, x: Value) -> types.DType:
    """The dtype that features and splits are compared in."""
    return types.dtype(np.result_type(forest.splits.dtype, x.dtype.numpy if x.dtype.is_float else np.float32))


def _descend(node: OnnxNode, x: Value, forest: Forest) -> Value:
    """The leaf that each row of x (N, F) reaches in each tree: (N, trees)."""
    x = x.cast(_common(forest, x))
    features, yes, no = (
        node.constant(one.astype(np.int64)) for one in (forest.features, forest.yes, forest.no)
    )
    at = node.constant(forest.roots.astype(np.int64)).broadcast_to((x.shape[0], len(forest.roots)))
    for _ in range(forest.depth(node)):
        seen = x.gather_elements(features.gather(at, 0), 1)
        at = _goes_on(node, forest, seen, at).select(yes.gather(at, 0), no.gather(at, 0))
    return at


def _goes_on(node: OnnxNode, forest: Forest, seen: Value, at: Value) -> Value:
    """Whether the true way is taken, from what is seen at each node."""
    modes = sorted({int(mode) for mode in forest.modes} - {_LEAF})
    split = node.constant(forest.splits.astype(seen.dtype.numpy)).gather(at, 0)
    mine = node.constant(forest.modes.astype(np.int64)).gather(at, 0)
    way: Value | None = None
    for mode in modes:
        holds = _holds(node, forest, _MODES[mode], seen, split, at)
        holds = holds if len(modes) == 1 else holds & mine.eq(mode)
        way = holds if way is None else way | holds
    assert way is not None
    if forest.missing.any():
        way = way | (seen.unary("isnan") & node.constant(forest.missing.astype(bool)).gather(at, 0))
    return way


def _holds(node: OnnxNode, forest: Forest, mode: str, seen: Value, split: Value, at: Value) -> Value:
    if mode == "BRANCH_MEMBER":
        places = np.cumsum(forest.modes == _MODES.index(mode)) - 1
        table = np.full((len(forest.members), max(map(len, forest.members), default=0)), np.nan)
        for row, members in zip(table, forest.members, strict=True):
            row[: len(members)] = members
        which = node.constant(places.clip(0).astype(np.int64)).gather(at, 0)
        sets = node.constant(table.astype(seen.dtype.numpy)).gather(which, 0)
        return seen.unsqueeze(-1).eq(sets).reduce("any", -1)
    compare = {
        "BRANCH_LEQ": seen.__le__, "BRANCH_LT": seen.__lt__, "BRANCH_GTE": seen.__ge__, "BRANCH_GT": seen.__gt__,
        "BRANCH_EQ": seen.eq, "BRANCH_NEQ": seen.ne,
    }  # fmt: skip
    return compare[mode](split)


# -- the same as an op


@dataclass(frozen=True)
class _Nodes:
    """Operands of the op. own: of the `Forest`, where each node was."""

    roots: Array
    nodes: Array
    own: Array


def _as_nodes(forest: Forest) -> _Nodes | None:
    """The nodes by tree, from the root down, those behind a node side by side; None of what the op has no form for."""
    inner = forest.modes != _LEAF
    if forest.members or np.isnan(forest.splits[inner]).any():
        return None
    level, trees = forest.roots.astype(np.int64), np.arange(len(forest.roots))
    levels, of_trees = [level], [trees]
    while (goes_on := inner[level]).any():
        before, trees = level[goes_on], trees[goes_on].repeat(2)
        level = np.stack([_ways_of(forest, before, 0), _ways_of(forest, before, 1)], 1).reshape(-1)
        levels.append(level)
        of_trees.append(trees)
        if sum(map(len, levels)) > len(forest.modes):  # some are there twice
            return None
    order = np.argsort(np.concatenate(of_trees), kind="stable")
    own = np.concatenate(levels)[order]
    place = np.full(len(forest.modes), -1)
    place[own] = np.arange(len(own))
    if len(own) > len(forest.modes) or not np.array_equal(place[own], np.arange(len(own))):
        return None
    kind, negated = _KINDS[forest.modes[own]], _NEGATED[forest.modes[own]]
    missing = forest.missing[own].astype(bool)
    nan_holds = np.where(negated, ~missing & (kind != EQUAL), missing) & (kind != LEAF)
    first = np.where(inner[own], place[_ways_of(forest, own, 0)], np.arange(len(own)))
    splits = forest.splits[own].astype(np.float32).view(np.int32)
    nodes = np.zeros((len(own), 4), np.int32)
    nodes[:, FEATURE], nodes[:, KIND] = forest.features[own], kind + NAN_HOLDS * nan_holds
    nodes[:, CHILD], nodes[:, SPLIT] = first, splits
    return _Nodes(place[forest.roots], nodes, own)


_KINDS = np.array([LESS_OR_EQUAL, LESS, LESS, LESS_OR_EQUAL, EQUAL, EQUAL, LEAF, LEAF])
_NEGATED = np.array([False, False, True, True, False, True, False, False])
"""By place in `_MODES`, and of `_LEAF`: kinds of the op's nodes, and whether those compare the other way round."""


def _ways_of(forest: Forest, which: Array, way: int) -> Array:
    """Where nodes lead if what the op compares holds (0), or not (1)."""
    negated = _NEGATED[forest.modes[which]]
    return np.where(negated == (way == 0), forest.no[which], forest.yes[which])


# -- what leaves say


@dataclass(frozen=True)
class Leaves:
    """What leaves say: at those places, a weight for a target each. aggregate: SUM, AVERAGE, MIN or MAX.

    Where there is one target alone, the first weight of a leaf counts, as in ONNX Runtime: skl2onnx writes the number
    of a leaf once a class.
    """

    aggregate: str
    places: Array
    targets: Array
    weights: Array

    def tables(self, node: OnnxNode, shape: tuple[int, int]) -> tuple[Array, Array | None]:
        """By leaf and target, the weight; and whether there is one, where that makes a difference."""
        if self.targets.size and not (self.targets.min() >= 0 and self.targets.max() < shape[1]):
            raise node.refuse(
                f"a leaf is of target {self.targets.min()} to {self.targets.max()} of {shape[1]}"
            )
        counted = slice(None) if shape[1] > 1 else _firsts(self.places)
        at, weights = (self.places[counted], self.targets[counted]), self.weights[counted]
        if self.aggregate in {"SUM", "AVERAGE"}:
            table = np.zeros(shape, weights.dtype)
            np.add.at(table, at, weights)
            return table, None
        if self.aggregate not in {"MIN", "MAX"}:
            raise node.refuse(f"the aggregate function {self.aggregate!r} is none of SUM, AVERAGE, MIN, MAX")
        least = self.aggregate == "MIN"
        table = np.full(shape, np.inf if least else -np.inf, weights.dtype)
        (np.minimum if least else np.maximum).at(table, at, weights)
        said = np.zeros(shape, bool)
        said[at] = True
        return table, said


def _aggregated(node: OnnxNode, x: Value, forest: Forest, leaves: Leaves, targets: int) -> Value:
    """(N, targets) out of the leaves that rows of x (N, F) reach.

    A target of which no leaf that was reached says anything is 0 (before base values), as in ONNX Runtime.
    """
    width, inner = x.shape[1], forest.modes != _LEAF
    forest.depth(node)
    if isinstance(width, int) and inner.any() and int(forest.features[inner].max()) >= width:
        raise node.refuse(f"it looks at feature {forest.features[inner].max()} of {width}")
    table, said = leaves.tables(node, (len(forest.modes), targets))
    how = {"SUM": "sum", "AVERAGE": "sum", "MIN": "min", "MAX": "max"}[leaves.aggregate]
    native = _common(forest, x) is types.FLOAT32 and table.dtype == np.float32 and table.size > 0
    if native and (made := _as_nodes(forest)) is not None:
        x = x.cast(types.FLOAT32)
        roots, nodes = node.constant(made.roots), node.constant(made.nodes)

        def out_of(values: Array, kind: str) -> Value:
            weights = node.constant(values[made.own].astype(np.float32))
            return node.graph.apply("tree_ensemble", x, roots, nodes, weights, aggregate=kind)

        found = out_of(table, how)
        if said is not None:
            found = (out_of(said, "max") > 0.0).select(found, 0.0)
    else:
        at = _descend(node, x, forest)
        found = node.constant(table).gather(at, 0).reduce(how, 1)
        if said is not None:
            found = node.constant(said).gather(at, 0).reduce("any", 1).select(found, 0.0)
    return found / float(len(forest.roots)) if leaves.aggregate == "AVERAGE" else found


def transformed(node: OnnxNode, scores: Value, how: str) -> Value:
    """Scores after a post-transform. Raises TypeRuleError for one that is not known."""
    if how == "NONE":
        return scores
    if how == "LOGISTIC":
        return scores.sigmoid()
    if how == "SOFTMAX":
        return scores.softmax(-1)
    if how == "SOFTMAX_ZERO":
        top = scores.max(-1, keepdims=True)
        parts = (abs(scores) > 1e-7).select((scores - top).exp(), scores * (-top).exp())
        total = parts.sum(-1, keepdims=True)
        return total.eq(0.0).select(0.5, parts / total)
    raise node.refuse(f"the post-transform {how!r} is none of NONE, LOGISTIC, SOFTMAX, SOFTMAX_ZERO")


# -- the ops


@onnx_op("TreeEnsemble", since=5, domain=_DOMAIN)
def tree_ensemble(node: OnnxNode) -> Value:
    """Nodes that branch, then leaves, in one numbering."""
    x = node.input(0)
    modes = np.asarray(node.attr("nodes_modes")).astype(np.int64)
    weights, targets = np.asarray(node.attr("leaf_weights")), np.array(node.attr("leaf_targetids"), np.int64)
    inner, count = len(modes), len(weights)
    own = np.arange(inner, inner + count)
    yes, no = (
        np.array(node.attr(f"nodes_{way}nodeids"), np.int64)
        + inner * np.array(node.attr(f"nodes_{way}leafs"), np.int64)
        for way in ("true", "false")
    )
    padding = np.zeros(count, np.int64)
    forest = Forest(
        roots=np.array(node.attr("tree_roots"), np.int64),
        features=np.concatenate([np.array(node.attr("nodes_featureids"), np.int64), padding]),
        splits=np.concatenate([node.attr("nodes_splits"), padding]).astype(x.dtype.numpy),
        modes=np.concatenate([modes, padding + _LEAF]),
        yes=np.concatenate([yes, own]),
        no=np.concatenate([no, own]),
        missing=np.concatenate([node.attr("nodes_missing_value_tracks_true", [0] * inner), padding]),
        members=_members(node, int((modes == _MODES.index("BRANCH_MEMBER")).sum())),
    )
    how = ("AVERAGE", "SUM", "MIN", "MAX")[node.attr("aggregate_function", 1)]
    transform = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")[node.attr("post_transform", 0)]
    leaves = Leaves(how, own, targets, weights.astype(x.dtype.numpy))
    scores = _aggregated(node, x, forest, leaves, node.attr("n_targets", int(targets.max()) + 1))
    return transformed(node, scores, transform)


def _members(node: OnnxNode, count: int) -> list[Array]:
    """The sets, each of which ends with NaN."""
    found = np.asarray(node.attr("membership_values", ()))
    ends = np.flatnonzero(np.isnan(found))
    if len(ends) != count:
        raise node.refuse(f"there are {len(ends)} sets of members for {count} nodes of BRANCH_MEMBER")
    return [one[:-1] for one in np.split(found, ends + 1)[:count]]


def _by_names(node: OnnxNode) -> tuple[Forest, Mapping[tuple[int, int], int]]:
    """Of the older ops, whose nodes have names (tree, node); the first of each tree is its root."""
    names = list(zip(node.attr("nodes_treeids"), node.attr("nodes_nodeids"), strict=True))
    places = {name: index for index, name in enumerate(names)}
    words = node.attr("nodes_modes")
    unknown = sorted(set(words) - {*_MODES[:-1], "LEAF"})
    if unknown:
        raise node.refuse(f"the node modes {', '.join(unknown)} are unknown")
    modes = np.array([_LEAF if word == "LEAF" else _MODES.index(word) for word in words], np.int64)
    trees: dict[int, int] = {}
    for position, (tree, _) in enumerate(names):
        trees.setdefault(tree, position)
    yes, no = (_ways(node, names, places, modes, f"nodes_{way}nodeids") for way in ("true", "false"))
    forest = Forest(
        roots=np.array(list(trees.values()), np.int64),
        features=np.where(modes == _LEAF, 0, np.array(node.attr("nodes_featureids"), np.int64)),
        splits=_numbers(node, "nodes_values"),
        modes=modes,
        yes=yes,
        no=no,
        missing=np.array(node.attr("nodes_missing_value_tracks_true", [0] * len(names)), np.int64),
    )
    return forest, places


def _ways(
    node: OnnxNode,
    names: Sequence[tuple[int, int]],
    places: Mapping[tuple[int, int], int],
    modes: Array,
    which: str,
) -> Array:
    """Where each node leads: its own place for a leaf, -1 for a name that no node has."""
    to = zip(names, modes, node.attr(which), strict=True)
    ways = [
        index if mode == _LEAF else places.get((tree, name), -1)
        for index, ((tree, _), mode, name) in enumerate(to)
    ]
    return np.array(ways, np.int64)


def _numbers(node: OnnxNode, name: str) -> Array:
    """Floats, or what is given in their place as a tensor (of float64, where that matters)."""
    if node.has(f"{name}_as_tensor"):
        return np.asarray(node.attr(f"{name}_as_tensor"))
    return np.array(node.attr(name, []), np.float32)


def _scores(node: OnnxNode, what: str, count: int, how: str) -> Value:
    """(N, count), before the post-transform: `what` names the attributes that leaves' weights are in."""
    x = node.input(0)
    x = x.unsqueeze(0) if x.rank == 1 else x
    forest, places = _by_names(node)
    pairs = zip(node.attr(f"{what}_treeids"), node.attr(f"{what}_nodeids"), strict=True)
    at = np.array([places[pair] for pair in pairs], np.int64)
    targets, weights = np.array(node.attr(f"{what}_ids"), np.int64), _numbers(node, f"{what}_weights")
    scores = _aggregated(node, x, forest, Leaves(how, at, targets, weights), count)
    base = _numbers(node, "base_values")
    return scores + node.constant(base.astype(scores.dtype.numpy).reshape(1, -1)) if base.size else scores


@onnx_op("TreeEnsembleRegressor", since=1, domain=_DOMAIN)
def tree_ensemble_regressor(node: OnnxNode) -> Value:
    """Always float32, as ONNX says."""
    scores = _scores(node, "target", node.attr("n_targets", 1), node.attr("aggregate_function", "SUM"))
    return transformed(node, scores, node.attr("post_transform", "NONE")).cast("float32")


@onnx_op("TreeEnsembleClassifier", since=1, domain=_DOMAIN)
def tree_ensemble_classifier(node: OnnxNode) -> list[Value]:
    """Labels and scores. Of two classes the leaves may tell one alone, as ONNX Runtime reads it: see `_of_one`."""
    labels, transform = list(node.attr("classlabels_int64s", [])), node.attr("post_transform", "NONE")
    if not labels:
        raise node.refuse(
            "its labels are strings, which have no place in the IR: convert the model with classes that are integers"
        )
    scores = _scores(node, "class", len(labels), "SUM")
    told = set(node.attr("class_ids"))
    if len(told) == 1 and len(labels) <= 2:
        return _of_one(node, scores, labels, transform, told.pop())
    if len(labels) != scores.shape[1]:
        raise node.refuse(f"it has {len(labels)} labels for {scores.shape[1]} classes")
    scores = transformed(node, scores, transform).cast("float32")
    best = node.graph.apply("argmax", scores, axis=1)
    return [node.constant(np.array(labels, np.int64)).gather(best.reshape(-1), 0), scores]


def _of_one(node: OnnxNode, scores: Value, labels: list[int], transform: str, told: int) -> list[Value]:
    """Of leaves that tell one class: the label, and scores of both (of one, where there is one label).

    Where all weights are positive they are probabilities: the second class is chosen above a half, and the first has
    the rest. Else it is chosen above zero, and the first has the negative. Only LOGISTIC is applied to these.
    """
    positive = bool((_numbers(node, "class_weights") >= 0).all())
    one = scores.slice(1, told, told + 1)
    holds = one > (0.5 if positive else 0.0)
    pair = labels if len(labels) == 2 else [0 if not positive else labels[0], labels[0]]
    chosen = holds.select(
        node.constant(np.array(pair[1], np.int64)), node.constant(np.array(pair[0], np.int64))
    ).reshape(-1)
    if len(labels) == 1:
        return [chosen, one.cast("float32")]
    if told:
        both = transformed(node, node.graph.apply("concat", one * 0.0, one, axis=1), transform)
    elif transform == "LOGISTIC":
        both = node.graph.apply("concat", -one, one, axis=1).sigmoid()
    else:
        both = node.graph.apply("concat", 1.0 - one if positive else -one, one, axis=1)
    return [chosen, both.cast("float32")]
