# ruff: noqa: D103 (what an importer does is what ONNX Runtime says of its op)
"""Experimental ops of the first releases of ONNX, which it gave up, and ONNX Runtime still runs in old files.

Source: onnxruntime, core/graph/contrib_ops/contrib_defs.cc.
"""

from __future__ import annotations

import numpy as np

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.importers.onnx_ops.elementwise import softplus_of
from kernels_hub.compiler.importers.onnx_ops.shape import slice_inputs
from kernels_hub.compiler.ir.graph import Value

onnx_op("DynamicSlice", since=1)(slice_inputs)


def _number(node: OnnxNode, name: str, default: float = 1.0) -> float:
    number: float = node.attr(name, default)
    return number


@onnx_op("Affine", since=1)
def affine(node: OnnxNode) -> Value:
    return node.input(0) * _number(node, "alpha") + _number(node, "beta", 0.0)


@onnx_op("ParametricSoftplus", since=1)
def parametric_softplus(node: OnnxNode) -> Value:
    return softplus_of(node.input(0) * _number(node, "beta")) * _number(node, "alpha")


@onnx_op("ScaledTanh", since=1)
def scaled_tanh(node: OnnxNode) -> Value:
    return (node.input(0) * _number(node, "beta")).tanh() * _number(node, "alpha")


@onnx_op("Scale", since=1)
def scale(node: OnnxNode) -> Value:
    return node.input(0) * _number(node, "scale")


@onnx_op("ImageScaler", since=1)
def image_scaler(node: OnnxNode) -> Value:
    """x (N, C, H, W), scaled, with a bias for each channel."""
    x, bias = node.input(0), node.attr("bias", [])
    scaled = x * _number(node, "scale")
    return (
        scaled + node.constant(np.asarray(bias, x.dtype.numpy)).reshape((len(bias), 1, 1)) if bias else scaled
    )


@onnx_op("Crop", since=1)
def crop(node: OnnxNode) -> Value:
    """x (N, C, H, W) without a border (left, top, right, bottom), or so much (height, width) of what is behind it."""
    x, (left, top, right, bottom) = node.input(0), node.attr("border")
    height, width = x.shape[2] - bottom, x.shape[3] - right
    if size := node.attr("scale"):
        height, width = top + size[0], left + size[1]
    return x.slice(2, top, height).slice(3, left, width)
