"""Bodies of ops that ONNX itself defines by other ops: the importer of every op that has none here."""

from __future__ import annotations

import functools
from typing import Any

from kernels_hub.compiler.importers.onnx_messages import AnyMessage, NodeProto
from kernels_hub.compiler.importers.onnx_node import OnnxNode
from kernels_hub.compiler.importers.onnx_sequences import proto_of


@functools.cache
def _schema(domain: str, op: str, opset: int) -> Any:
    """Any: onnx's stubs lack what says that an op is a function."""
    import onnx  # late: few models have such ops

    try:
        return onnx.defs.get_schema(op, opset, domain)
    except onnx.defs.SchemaError:
        return None


def has_body(domain: str, op: str, opset: int) -> bool:
    """Whether ONNX defines an op by others."""
    schema = _schema(domain, op, opset)
    return schema is not None and bool(schema.has_function or schema.has_context_dependent_function)


def missing_attributes(proto: NodeProto, domain: str, opset: int) -> list[str]:
    """Attributes that ONNX requires of an op, and that a node lacks; [] for an op that it does not know."""
    schema = _schema(domain, proto.op_type, opset)
    given = {one.name for one in proto.attribute}
    return (
        []
        if schema is None
        else [name for name, one in schema.attributes.items() if one.required and name not in given]
    )


def function_body(node: OnnxNode) -> AnyMessage:
    """The function that an op stands for with these operands and attributes, or None where it is no function."""
    import onnx

    proto = node.proto
    domain = "" if proto.domain == "ai.onnx" else proto.domain
    schema = _schema(domain, proto.op_type, node.opset)
    if schema is None:
        return None
    if schema.has_function:
        versions = schema.function_opset_versions
        version = max((version for version in versions if version <= node.opset), default=min(versions))
        return _fixed(domain, proto.op_type, node.opset, version)
    if schema.has_context_dependent_function:
        versions = schema.context_dependent_function_opset_versions
        version = max((version for version in versions if version <= node.opset), default=min(versions))
        types = [proto_of(operand) for operand in node.operands]
        resolved = onnx.NodeProto.FromString(proto.SerializeToString())
        del resolved.attribute[:]
        for name, attribute in node.attributes().items():
            one = resolved.attribute.add()
            one.ParseFromString(attribute.SerializeToString())
            one.name = name
        data = schema.get_context_dependent_function_with_opset_version(
            version, resolved.SerializeToString(), [one.SerializeToString() for one in types]
        )
        body = onnx.FunctionProto.FromString(data)
        return _with_opset(body, domain, node.opset)
    return None


@functools.cache
def _fixed(domain: str, op: str, opset: int, version: int) -> AnyMessage:
    import onnx

    schema = _schema(domain, op, opset)
    if schema is None:
        return None
    function_with_opset_version = schema.get_function_with_opset_version(version)
    body = onnx.FunctionProto()
    if isinstance(function_with_opset_version, bytes):
        body.ParseFromString(function_with_opset_version)
    else:
        body.CopyFrom(function_with_opset_version)
    return _with_opset(body, domain, opset, defaults=schema)


def _with_opset(body: AnyMessage, domain: str, opset: int, defaults: Any = None) -> AnyMessage:
    """The body with its opset stated, and with the schema's defaults for attributes."""
    import onnx

    if not any(one.domain in {"", "ai.onnx"} for one in body.opset_import):
        one = body.opset_import.add()
        one.domain, one.version = "", opset if not domain else onnx.defs.onnx_opset_version()
    if domain and not any(one.domain == domain for one in body.opset_import):
        one = body.opset_import.add()
        one.domain, one.version = domain, opset
    if defaults is not None:
        present = {one.name for one in body.attribute_proto}
        for name, attribute in defaults.attributes.items():
            if name not in present and attribute.default_value.type:
                copy = body.attribute_proto.add()
                copy.CopyFrom(attribute.default_value)
                copy.name = name
    return body
