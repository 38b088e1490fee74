# ruff: noqa: D103 (what an importer does is what ONNX says of its op)
"""Ops of ai.onnx.ml that prepare features, and that put results into maps: as arithmetic on tensors."""

from __future__ import annotations

import logging
import math

import numpy as np

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.ir.dims import product
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.types import FLOAT32, FLOAT64, INT64

_DOMAIN = "ai.onnx.ml"
_LOGGER = logging.getLogger(__name__)


@onnx_op("Normalizer", since=1, domain=_DOMAIN)
def normalizer(node: OnnxNode) -> Value:
    """Rows by their greatest element, the sum of magnitudes, or the length; rows of zeros stay."""
    x, norm = node.input(0).cast(FLOAT32), node.attr("norm", "MAX")
    axis = x.rank - 1
    if norm == "MAX":
        size = x.max(axis, keepdims=True)
    elif norm == "L1":
        size = abs(x).sum(axis, keepdims=True)
    elif norm == "L2":
        size = (x * x).sum(axis, keepdims=True).sqrt()
    else:
        raise node.refuse(f"the norm {norm!r} is none of MAX, L1, L2")
    return size.eq(0.0).select(x, x / size)


@onnx_op("Imputer", since=1, domain=_DOMAIN)
def imputer(node: OnnxNode) -> Value:
    """One value, or one a feature, in place of those that are missing."""
    x = node.input(0)
    kind = "floats" if x.dtype.is_float else "int64s"
    values = np.asarray(node.attr(f"imputed_value_{kind}", []), x.dtype.numpy)
    if not values.size:
        raise node.refuse(f"imputed_value_{kind} must be given")
    if x.dtype.is_float:
        wanted = node.attr("replaced_value_float", 0.0)
        gone = x.unary("isnan") if math.isnan(wanted) else x.eq(wanted)
    else:
        gone = x.eq(node.attr("replaced_value_int64", 0))
    return gone.select(
        node.constant(values if values.size > 1 else values.reshape(())).broadcast_to(x.shape), x
    )


@onnx_op("OneHotEncoder", since=1, domain=_DOMAIN)
def one_hot_encoder(node: OnnxNode) -> Value:
    """(…) of numbers -> (…, categories). What is no category is a row of zeros, or fails the call where zeros is 0."""
    if not node.has("cats_int64s"):
        raise node.refuse(
            "its categories are strings, which have no place in the IR: encode them as numbers before, and convert "
            "the rest of the pipeline"
        )
    categories = np.asarray(node.attr("cats_int64s"), np.int64)
    x = node.input(0).cast(INT64)
    same = x.unsqueeze(-1).eq(node.constant(categories))
    if node.attr("zeros", 1):
        return same.cast(FLOAT32)
    # A lookup that fails the call with an index out of range, where there is no place for what is no category.
    place = same.reduce("any", -1).select(node.constant(0), node.constant(2))
    known = node.constant(np.array([True, False])).gather(place, 0)
    return (same & known.unsqueeze(-1)).cast(FLOAT32)


@onnx_op("FeatureVectorizer", since=1, domain=_DOMAIN)
def feature_vectorizer(node: OnnxNode) -> Value:
    """Operands (N, C) side by side, in float32; of one that has more than inputdimensions says, the first."""
    columns = []
    wanted = node.attr("inputdimensions", [])
    for index, x in enumerate(node.all_inputs()):
        flat = x.reshape((x.shape[0], 1 if x.rank == 1 else product(x.shape[1:]))).cast(FLOAT32)
        if index < len(wanted):
            width = flat.shape[1]
            if isinstance(width, int) and width < wanted[index]:
                flat = flat.pad([(0, 0), (0, wanted[index] - width)])
            flat = flat.slice(1, 0, wanted[index])
        columns.append(flat)
    return columns[0] if len(columns) == 1 else node.graph.apply("concat", *columns, axis=1)


@onnx_op("ZipMap", since=1, domain=_DOMAIN)
def zip_map(node: OnnxNode) -> Value:
    """The scores themselves, (N, classes), in the order of the labels: maps have no place in the IR."""
    labels = node.attr("classlabels_int64s") or node.attr("classlabels_strings", [])
    _LOGGER.info(
        "%s: output %r is the array of scores, its columns in the order %s, instead of a list of maps",
        node.graph.name, node.proto.output[0], list(labels),
    )  # fmt: skip
    return node.input(0)


def _strings(what: str) -> str:
    return (
        f"{what}, which have no place in the IR: turn them into numbers before, and convert the model from there on "
        "(skl2onnx: leave the vectorizer or encoder out of the pipeline)"
    )


@onnx_op("CategoryMapper", since=1, domain=_DOMAIN)
@onnx_op("LabelEncoder", since=1, domain=_DOMAIN)
def category_mapper(node: OnnxNode) -> Value:
    raise node.refuse(_strings("it maps strings"))


@onnx_op("DictVectorizer", since=1, domain=_DOMAIN)
@onnx_op("CastMap", since=1, domain=_DOMAIN)
def dict_vectorizer(node: OnnxNode) -> Value:
    raise node.refuse(_strings("it takes maps"))


def as_float(x: Value) -> Value:
    """float64 as it is, everything else in float32."""
    return x if x.dtype == FLOAT64 else x.cast(FLOAT32)
