# ruff: noqa: D103 (what an importer does is what ONNX says of its op)
"""Ops of ai.onnx.ml that are arithmetic."""

from __future__ import annotations

import numpy as np

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.types import FLOAT32, Array


@onnx_op("Binarizer", since=1, domain="ai.onnx.ml")
def binarizer(node: OnnxNode) -> Value:
    x = node.input(0)
    return (x > x.like(node.attr("threshold", 0.0))).cast(x.dtype)


@onnx_op("LabelEncoder", since=2, domain="ai.onnx.ml")
def label_encoder(node: OnnxNode) -> Value:
    """Numbers for numbers: the last key that is equal wins."""
    x = node.input(0)
    keys, values = _table(node, "keys"), _table(node, "values")
    if keys is None or values is None:
        raise node.refuse("strings have no place in the IR")
    default = node.attr("default_tensor")
    if default is None:
        default = (
            node.attr("default_float", -0.0) if values.dtype.kind == "f" else node.attr("default_int64", -1)
        )
    default = np.asarray(default, values.dtype).reshape(())
    result = node.constant(default).broadcast_to(x.shape)
    for key, value in zip(keys, values, strict=True):
        wanted = (
            x.unary("isnan") if isinstance(key, np.floating) and np.isnan(key) else x.eq(x.like(key.item()))
        )
        result = wanted.select(node.constant(value), result)
    return result


def _table(node: OnnxNode, which: str) -> Array | None:
    if node.has(f"{which}_tensor"):
        found = node.attr(f"{which}_tensor")
        return np.asarray(found) if found.dtype.kind in "iuf" else None
    for kind, dtype in (("int64s", np.int64), ("floats", np.float32)):
        if node.has(f"{which}_{kind}"):
            return np.asarray(node.attr(f"{which}_{kind}"), dtype)
    return None


@onnx_op("Scaler", since=1, domain="ai.onnx.ml")
def scaler(node: OnnxNode) -> Value:
    """(x - offset) * scale, each a number or one a feature; float32."""
    x = node.input(0).cast(FLOAT32)
    for name, op in (("offset", "sub"), ("scale", "mul")):
        if node.has(name):
            numbers = np.asarray(node.attr(name), np.float32)
            given = node.constant(numbers if numbers.size > 1 else numbers.reshape(()))
            x = x.binary(op, given.broadcast_to(x.shape))
    return x


@onnx_op("LinearRegressor", since=1, domain="ai.onnx.ml")
def linear_regressor(node: OnnxNode) -> Value:
    """x (N, C) by coefficients (targets, C), plus intercepts."""
    if node.attr("post_transform", "NONE") != "NONE":
        raise node.refuse(f"post_transform {node.attr('post_transform')} is not taken")
    x, targets = node.input(0).cast(FLOAT32), node.attr("targets", 1)
    weight = np.asarray(node.attr("coefficients"), np.float32).reshape(targets, -1)
    result = x.matmul(node.constant(np.ascontiguousarray(weight.T)))
    if node.has("intercepts"):
        result = result + node.constant(np.asarray(node.attr("intercepts"), np.float32)).broadcast_to(
            result.shape
        )
    return result
