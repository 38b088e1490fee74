# ruff: noqa: D103 (what an importer does is what ONNX says of its op)
"""Linear classifiers and support vector machines of ai.onnx.ml, with the numbers of ONNX Runtime."""

from __future__ import annotations

import itertools

import numpy as np

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.importers.onnx_ops.trees import transformed
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.types import FLOAT32, Array

_DOMAIN = "ai.onnx.ml"
_NO_STRINGS = (
    "its labels are strings, which have no place in the IR: convert the model with classes that are integers, "
    "or look the names up in what the call returns"
)


def _floats(node: OnnxNode, name: str) -> Array:
    return np.asarray(node.attr(name, []), np.float32)


def int_labels(node: OnnxNode) -> Array:
    """The labels of classes. Raises TypeRuleError where they are strings."""
    if node.attr("classlabels_strings") or node.attr("classlabels_strings", None):
        raise node.refuse(_NO_STRINGS)
    return np.asarray(node.attr("classlabels_ints", node.attr("classlabels_int64s", [])), np.int64)


def _rows(node: OnnxNode) -> Value:
    x = node.input(0)
    return (x.unsqueeze(0) if x.rank == 1 else x).cast(FLOAT32)


def _best(node: OnnxNode, scores: Value, labels: Array) -> Value:
    best = node.graph.apply("argmax", scores, axis=1).reshape(-1)
    return node.constant(labels).gather(best, 0)


def _chosen(node: OnnxNode, holds: Value, labels: Array) -> Value:
    """The label of the second class where that holds, else of the first; (N,)."""
    return holds.select(node.constant(labels[1]), node.constant(labels[0])).reshape(-1)


@onnx_op("LinearClassifier", since=1, domain=_DOMAIN)
def linear_classifier(node: OnnxNode) -> list[Value]:
    """x (N, C) by coefficients (classes, C), plus intercepts: labels (N), and scores (N, classes)."""
    x, labels = _rows(node), int_labels(node)
    intercepts, weights = _floats(node, "intercepts"), _floats(node, "coefficients")
    classes = intercepts.size or len(labels)
    weight = np.ascontiguousarray(weights.reshape(classes, -1).T)
    scores = x.matmul(node.constant(weight))
    if intercepts.size:
        scores = scores + node.constant(intercepts)
    how = node.attr("post_transform", "NONE")
    if classes > 1:
        return [_best(node, scores, labels), transformed(node, scores, how)]
    pair = labels if len(labels) == 2 else np.array([0, 1], np.int64)
    chosen = _chosen(node, scores > 0.0, pair)
    if len(labels) != 2:
        return [chosen, transformed(node, scores, how)]
    return [chosen, node.graph.apply("concat", 1.0 - scores, scores, axis=1)]


# -- support vectors


def _kernel(node: OnnxNode, x: Value, vectors: Array) -> Value:
    """x (N, C) with each vector (V, C): (N, V)."""
    numbers: list[float] = [*node.attr("kernel_params", []), 0.0, 0.0, 0.0]
    gamma, constant, degree = numbers[:3]
    kind = node.attr("kernel_type", "LINEAR")
    if kind == "RBF":
        # Not by the vectors' norms and a product: that loses all digits of near points far from zero.
        apart = x.unsqueeze(2) - node.constant(np.ascontiguousarray(vectors.T))
        return ((apart * apart).sum(1) * -gamma).exp()
    product = x.matmul(node.constant(np.ascontiguousarray(vectors.T)))
    if kind == "LINEAR":
        return product
    if kind == "POLY":
        return (product * gamma + constant) ** degree
    if kind == "SIGMOID":
        return (product * gamma + constant).tanh()
    raise node.refuse(f"the kernel {kind!r} is none of LINEAR, POLY, RBF, SIGMOID")


@onnx_op("SVMRegressor", since=1, domain=_DOMAIN)
def svm_regressor(node: OnnxNode) -> Value:
    x, coefficients, count = _rows(node), _floats(node, "coefficients"), node.attr("n_supports", 0)
    if count:
        vectors = _floats(node, "support_vectors").reshape(count, -1)
        held = _kernel(node, x, vectors).matmul(node.constant(coefficients[:count].reshape(-1, 1)))
    else:
        held = _kernel(node, x, coefficients.reshape(1, -1))
    result = held + float(_floats(node, "rho")[0])
    if node.attr("one_class", 0):
        return (result > 0.0).select(result.like(1.0), result.like(-1.0))
    return transformed(node, result, node.attr("post_transform", "NONE"))


@onnx_op("SVMClassifier", since=1, domain=_DOMAIN)
def svm_classifier(node: OnnxNode) -> list[Value]:
    """Labels (N), and scores: one for each pair of classes, or probabilities of classes."""
    x, labels = _rows(node), int_labels(node)
    counts: list[int] = node.attr("vectors_per_class", [])
    rho, coefficients = _floats(node, "rho"), _floats(node, "coefficients")
    how = node.attr("post_transform", "NONE")
    if not counts:
        scores = _kernel(node, x, coefficients.reshape(len(labels), -1)) + float(rho[0])
        return [_best(node, scores, labels), transformed(node, scores, how)]
    pairs = _decisions(node, x, counts, coefficients, rho)
    votes = _votes(node, pairs, len(counts))
    if node.attr("prob_a", []):
        likely = node.graph.apply("pairwise_coupling", _sure(node, pairs))
        return [_best(node, votes, labels), transformed(node, likely, how)]
    if len(counts) == 2:
        both = node.graph.apply("concat", -pairs, pairs, axis=1)
        return [_chosen(node, pairs > 0.0, labels[::-1]), transformed(node, both, how)]
    return [_best(node, votes, labels), transformed(node, pairs, how)]


def _decisions(node: OnnxNode, x: Value, counts: list[int], coefficients: Array, rho: Array) -> Value:
    """(N, pairs): each pair of classes by the support vectors of both, as libsvm stores them."""
    total = sum(counts)
    vectors = _floats(node, "support_vectors").reshape(total, -1)
    own = coefficients.reshape(len(counts) - 1, total)
    starts = np.cumsum([0, *counts])
    weights = np.zeros((total, len(rho)), np.float32)
    for index, (i, j) in enumerate(itertools.combinations(range(len(counts)), 2)):
        first, second = slice(starts[i], starts[i + 1]), slice(starts[j], starts[j + 1])
        weights[first, index] = own[j - 1, first]
        weights[second, index] = own[i, second]
    return _kernel(node, x, vectors).matmul(node.constant(weights)) + node.constant(rho)


def _votes(node: OnnxNode, pairs: Value, classes: int) -> Value:
    """(N, classes): how many pairs each class wins."""
    order = list(itertools.combinations(range(classes), 2))
    wins, losses = np.zeros((len(order), classes), np.float32), np.zeros((len(order), classes), np.float32)
    for index, (i, j) in enumerate(order):
        wins[index, i], losses[index, j] = 1, 1
    won = (pairs > 0.0).cast(FLOAT32)
    return won.matmul(node.constant(wins)) + (1.0 - won).matmul(node.constant(losses))


def _sure(node: OnnxNode, pairs: Value) -> Value:
    """How likely the first class of each pair is against the second, (N, pairs), by Platt's sigmoid."""
    a, b = node.constant(_floats(node, "prob_a")), node.constant(_floats(node, "prob_b"))
    return (0.0 - (pairs * a + b)).sigmoid().clamp(1e-7, 1.0 - 1e-7)
