"""Optional values: one that is left out, or a tensor that is there, which is all that the IR has a place for."""

from __future__ import annotations

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.ir.graph import Value


@onnx_op("OptionalHasElement", since=15)
def optional_has_element(node: OnnxNode) -> Value:
    """Known at import: whether there is an operand."""
    return node.constant(value=node.optional(0) is not None)


@onnx_op("OptionalGetElement", since=15)
def optional_get_element(node: OnnxNode) -> Value:
    """The operand."""
    return node.input(0)


@onnx_op("Optional", since=15)
def optional(node: OnnxNode) -> Value:
    """A tensor as it is. Raises TypeRuleError for one that is left out."""
    return node.input(0, "an optional value that is empty")
