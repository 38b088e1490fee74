"""The table of importers against ONNX's own: no op that there is not, and none left out without a reason."""

from __future__ import annotations

import onnx
import pytest

from kernels_hub.compiler.importers.onnx_functions import has_body
from kernels_hub.compiler.importers.onnx_node import importer_of, known_ops, onnx_op
from kernels_hub.compiler.importers.onnx_ops import DOMAINS, enter_domains

enter_domains(DOMAINS)

REFUSED = {
    # strings and text
    "StringConcat", "StringNormalizer", "StringSplit", "RegexFullMatch",
    # images
    "ImageDecoder",
    # superseded by RoiAlign; no case of it among the official ones
    "MaxRoiPool",
}  # fmt: skip


def schemas() -> dict[tuple[str, str], int]:
    """(domain, op) -> its newest version that is not deprecated."""
    found: dict[tuple[str, str], int] = {}
    for one in onnx.defs.get_all_schemas():
        if not one.deprecated:
            found[one.domain, one.name] = one.since_version
    return found


def test_every_importer_is_of_an_op_that_onnx_has():
    history = {(one.domain, one.name) for one in onnx.defs.get_all_schemas_with_history()}
    runtime = {
        "Attention", "BiasGelu", "CDist", "DequantizeLinear", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul",
        "EmbedLayerNormalization", "ExpandDims", "FastGelu", "FusedConv", "FusedGemm", "FusedMatMul",
        "GatherBlockQuantized", "GatherND", "Gelu", "GridSample", "GroupQueryAttention", "MatMulBnb4",
        "MatMulInteger16", "MatMulIntegerToFloat", "MatMulNBits", "MultiHeadAttention", "NhwcMaxPool", "Pad", "QAttention",
        "QEmbedLayerNormalization", "QGemm", "QLinearAdd", "QLinearAveragePool", "QLinearConcat", "QLinearConv",
        "QLinearGlobalAveragePool", "QLinearLeakyRelu", "QLinearMul", "QLinearReduceMean", "QLinearSigmoid",
        "QLinearSoftmax", "QLinearWhere", "QuantizeLinear", "QuickGelu", "Range", "RotaryEmbedding",
        "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "TransposeMatMul", "Trilu", "UnfoldTensor", "Unique",
    }  # fmt: skip
    legacy = {"Affine", "Crop", "DynamicSlice", "ImageScaler", "ParametricSoftplus", "Scale", "ScaledTanh"}
    blocks = {
        "AveragePool", "Conv", "GlobalAveragePool", "GlobalMaxPool", "MaxPool", "ReorderInput", "ReorderOutput",
        "Upsample",
    }  # fmt: skip
    others = {
        ("", "SimplifiedLayerNormalization"),
        *(("", name) for name in legacy),
        *(("com.microsoft", name) for name in runtime),
        *(("com.microsoft.nchwc", name) for name in blocks),
    }
    assert [entry for entry in known_ops() if entry[:2] not in history | others] == []


def test_every_op_of_onnx_is_imported_expanded_or_refused():
    left = set()
    for (domain, name), version in schemas().items():
        newest = onnx.defs.onnx_opset_version()
        if not domain and importer_of(domain, name, newest) is None and not has_body(domain, name, version):
            left.add(name)
    assert left == REFUSED


def test_the_importer_is_that_of_the_version():
    clip = {opset: importer_of("", "Clip", opset) for opset in (6, 10, 11, 13)}
    assert clip[6] is clip[10]
    assert clip[11] is clip[13]
    assert clip[10] is not clip[11]
    assert importer_of("", "Mod", 9) is None
    with pytest.raises(ValueError, match=r"ai\.onnx Clip since 11 is entered twice"):
        onnx_op("Clip", since=11)(clip[11])
