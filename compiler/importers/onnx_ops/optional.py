# ruff: noqa: D103 (what an importer does is what ONNX says of its op)
"""Optional values: resolved while the model is imported, so an If on whether one is there is, too."""

from __future__ import annotations

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.importers.onnx_sequences import Named, Nothing
from kernels_hub.compiler.ir.graph import Value


@onnx_op("OptionalHasElement", since=15)
def optional_has_element(node: OnnxNode) -> Value:
    there = bool(node.operands) and node.operands[0] is not None
    return node.constant(value=there and not isinstance(node.operands[0], Nothing))


@onnx_op("OptionalGetElement", since=15)
def optional_get_element(node: OnnxNode) -> Named:
    found = node.operand(0)
    if isinstance(found, Nothing):
        raise node.refuse("the optional value is empty")
    return found


@onnx_op("Optional", since=15)
def optional(node: OnnxNode) -> Named:
    if node.operands and node.operands[0] is not None:
        return node.operands[0]
    if "type" not in node.attributes():
        raise node.refuse("it has neither an operand nor the type of what is missing")
    return Nothing()
