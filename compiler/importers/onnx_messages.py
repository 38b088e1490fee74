"""Messages of an ONNX file: what importers read of protobuf's, by the same names, without the package onnx.

To import that package takes 30 ms and 6 MiB, a quarter of what a small model takes to open. `onnx_reader` makes these
of a file; where a model was given as protobuf's messages, and in functions that ONNX defines, importers get those. So
no more may be asked of one than both kinds answer: fields by name, `HasField`, `WhichOneof`, `SerializeToString`.

A field that is not set is one of the class: 0, "", () or an empty message.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

AnyMessage = Any
"""A message of either kind: one of these, or protobuf's."""


class Field(NamedTuple):
    """A field: its number is that of onnx.proto.

    kind: "name" (a text of at most `LONGEST_NAME` characters), "text", "bytes", "int", "int32", "float", "double",
    "uint", or "message". of: its class. many: whether it is repeated; numbers are then a list or an array.
    """

    name: str
    kind: str
    many: bool = False
    of: type[Message] | None = None


class Message:
    """What is set of a message lies in its `__dict__`. fields: number -> field; others in a file are passed over."""

    fields: ClassVar[Mapping[int, Field]] = {}
    only_one: ClassVar[bool] = False
    """Whether all fields are one "oneof", of which a message has one."""

    def __init__(self, **fields: object) -> None:
        self.__dict__.update(fields)

    def HasField(self, name: str) -> bool:  # noqa: N802  (protobuf's name)
        """Whether a field that is not repeated is set."""
        return name in self.__dict__

    def WhichOneof(self, _: str) -> str | None:  # noqa: N802  (protobuf's name)
        """The field that is set, of a message that has one."""
        return next(iter(self.__dict__), None)

    def SerializeToString(self) -> bytes:  # noqa: N802  (protobuf's name)
        """As protobuf reads it; without fields that are not in `fields`."""
        return b"".join(_encoded(self))


class StringStringEntryProto(Message):
    """A key and its value."""

    key: str = ""
    value: str = ""


class OperatorSetIdProto(Message):
    """A version of a domain."""

    domain: str = ""
    version: int = 0


class Dimension(Message):
    """A dim."""

    only_one = True
    dim_value: int = 0
    dim_param: str = ""


class TensorShapeProto(Message):
    """A shape."""

    dim: Sequence[Dimension] = ()


class TensorType(Message):
    """The type of a tensor, dense or sparse."""

    elem_type: int = 0
    shape: TensorShapeProto = TensorShapeProto()


class ElementType(Message):
    """The type of a sequence, or of an optional."""

    elem_type: TypeProto


class TypeProto(Message):
    """A type."""

    only_one = True
    tensor_type: TensorType = TensorType()
    sequence_type: ElementType
    map_type: Message = Message()
    optional_type: ElementType


ElementType.elem_type = TypeProto()
TypeProto.sequence_type = TypeProto.optional_type = ElementType()


class ValueInfoProto(Message):
    """A name and its type."""

    name: str = ""
    type: TypeProto = TypeProto()


class TensorProto(Message):
    """A tensor. raw_data: bytes, or a read-only array of them where they are many."""

    DataType: ClassVar[Mapping[str, int]] = {
        name: number
        for number, name in enumerate((
            "UNDEFINED", "FLOAT", "UINT8", "INT8", "UINT16", "INT16", "INT32", "INT64", "STRING", "BOOL", "FLOAT16",
            "DOUBLE", "UINT32", "UINT64", "COMPLEX64", "COMPLEX128", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ",
            "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "UINT4", "INT4", "FLOAT4E2M1", "FLOAT8E8M0", "UINT2", "INT2",
        ))
    }  # fmt: skip
    EXTERNAL: ClassVar[int] = 1

    dims: Sequence[int] = ()
    data_type: int = 0
    segment: bytes = b""
    float_data: Sequence[float] = ()
    int32_data: Sequence[int] = ()
    string_data: Sequence[bytes] = ()
    int64_data: Sequence[int] = ()
    name: str = ""
    raw_data: Any = b""
    external_data: Sequence[StringStringEntryProto] = ()
    data_location: int = 0
    double_data: Sequence[float] = ()
    uint64_data: Sequence[int] = ()


class SparseTensorProto(Message):
    """A sparse tensor."""

    values: TensorProto = TensorProto()
    indices: TensorProto = TensorProto()
    dims: Sequence[int] = ()


class AttributeProto(Message):
    """An attribute."""

    AttributeType: ClassVar[Mapping[str, int]] = {
        name: number
        for number, name in enumerate((
            "UNDEFINED", "FLOAT", "INT", "STRING", "TENSOR", "GRAPH", "FLOATS", "INTS", "STRINGS", "TENSORS", "GRAPHS",
            "SPARSE_TENSOR", "SPARSE_TENSORS", "TYPE_PROTO", "TYPE_PROTOS",
        ))
    }  # fmt: skip
    FLOAT: ClassVar[int] = 1
    INT: ClassVar[int] = 2
    STRING: ClassVar[int] = 3
    TENSOR: ClassVar[int] = 4
    GRAPH: ClassVar[int] = 5
    FLOATS: ClassVar[int] = 6
    INTS: ClassVar[int] = 7
    STRINGS: ClassVar[int] = 8

    name: str = ""
    ref_attr_name: str = ""
    type: int = 0
    f: float = 0.0
    i: int = 0
    s: bytes = b""
    t: TensorProto = TensorProto()
    g: GraphProto
    sparse_tensor: SparseTensorProto = SparseTensorProto()
    tp: TypeProto = TypeProto()
    floats: Sequence[float] = ()
    ints: Sequence[int] = ()
    strings: Sequence[bytes] = ()
    tensors: Sequence[TensorProto] = ()
    graphs: Sequence[GraphProto] = ()
    sparse_tensors: Sequence[SparseTensorProto] = ()
    type_protos: Sequence[TypeProto] = ()


class NodeProto(Message):
    """A node."""

    input: Sequence[str] = ()
    output: Sequence[str] = ()
    name: str = ""
    op_type: str = ""
    domain: str = ""
    overload: str = ""
    attribute: Sequence[AttributeProto] = ()


class GraphProto(Message):
    """A graph."""

    node: Sequence[NodeProto] = ()
    name: str = ""
    initializer: Sequence[TensorProto] = ()
    sparse_initializer: Sequence[SparseTensorProto] = ()
    input: Sequence[ValueInfoProto] = ()
    output: Sequence[ValueInfoProto] = ()
    value_info: Sequence[ValueInfoProto] = ()


AttributeProto.g = GraphProto()


class FunctionProto(Message):
    """A function of a model."""

    name: str = ""
    input: Sequence[str] = ()
    output: Sequence[str] = ()
    attribute: Sequence[str] = ()
    attribute_proto: Sequence[AttributeProto] = ()
    node: Sequence[NodeProto] = ()
    opset_import: Sequence[OperatorSetIdProto] = ()
    domain: str = ""
    overload: str = ""


class ModelProto(Message):
    """A model."""

    ir_version: int = 0
    opset_import: Sequence[OperatorSetIdProto] = ()
    graph: GraphProto = GraphProto()
    functions: Sequence[FunctionProto] = ()


def _name(name: str) -> Field:
    return Field(name, "name")


def _names(name: str) -> Field:
    return Field(name, "name", many=True)


def _one(name: str, of: type[Message]) -> Field:
    return Field(name, "message", of=of)


def _many(name: str, of: type[Message]) -> Field:
    return Field(name, "message", many=True, of=of)


def _numbers(name: str, kind: str) -> Field:
    return Field(name, kind, many=True)


StringStringEntryProto.fields = {1: _name("key"), 2: Field("value", "text")}
OperatorSetIdProto.fields = {1: _name("domain"), 2: Field("version", "int")}
Dimension.fields = {1: Field("dim_value", "int"), 2: _name("dim_param")}
TensorShapeProto.fields = {1: _many("dim", Dimension)}
TensorType.fields = {1: Field("elem_type", "int32"), 2: _one("shape", TensorShapeProto)}
ElementType.fields = {1: _one("elem_type", TypeProto)}
TypeProto.fields = {
    1: _one("tensor_type", TensorType), 4: _one("sequence_type", ElementType), 5: _one("map_type", Message),
    7: _one("opaque_type", Message), 8: _one("sparse_tensor_type", TensorType), 9: _one("optional_type", ElementType),
}  # fmt: skip
ValueInfoProto.fields = {1: _name("name"), 2: _one("type", TypeProto)}
TensorProto.fields = {
    1: _numbers("dims", "int"), 2: Field("data_type", "int32"), 3: Field("segment", "bytes"),
    4: _numbers("float_data", "float"), 5: _numbers("int32_data", "int32"), 6: Field("string_data", "bytes", many=True),
    7: _numbers("int64_data", "int"), 8: _name("name"), 9: Field("raw_data", "bytes"),
    10: _numbers("double_data", "double"), 11: _numbers("uint64_data", "uint"),
    13: _many("external_data", StringStringEntryProto), 14: Field("data_location", "int32"),
}  # fmt: skip
SparseTensorProto.fields = {
    1: _one("values", TensorProto), 2: _one("indices", TensorProto), 3: _numbers("dims", "int"),
}  # fmt: skip
AttributeProto.fields = {
    1: _name("name"), 2: Field("f", "float"), 3: Field("i", "int"), 4: Field("s", "bytes"), 5: _one("t", TensorProto),
    6: _one("g", GraphProto), 7: _numbers("floats", "float"), 8: _numbers("ints", "int"),
    9: Field("strings", "bytes", many=True), 10: _many("tensors", TensorProto), 11: _many("graphs", GraphProto),
    14: _one("tp", TypeProto), 15: _many("type_protos", TypeProto), 20: Field("type", "int32"),
    21: _name("ref_attr_name"), 22: _one("sparse_tensor", SparseTensorProto),
    23: _many("sparse_tensors", SparseTensorProto),
}  # fmt: skip
NodeProto.fields = {
    1: _names("input"), 2: _names("output"), 3: _name("name"), 4: _name("op_type"),
    5: _many("attribute", AttributeProto), 7: _name("domain"), 8: _name("overload"),
}  # fmt: skip
GraphProto.fields = {
    1: _many("node", NodeProto), 2: _name("name"), 5: _many("initializer", TensorProto),
    11: _many("input", ValueInfoProto), 12: _many("output", ValueInfoProto), 13: _many("value_info", ValueInfoProto),
    15: _many("sparse_initializer", SparseTensorProto),
}  # fmt: skip
FunctionProto.fields = {
    1: _name("name"), 4: _names("input"), 5: _names("output"), 6: _names("attribute"), 7: _many("node", NodeProto),
    9: _many("opset_import", OperatorSetIdProto), 10: _name("domain"), 11: _many("attribute_proto", AttributeProto),
    13: _name("overload"),
}  # fmt: skip
ModelProto.fields = {
    1: Field("ir_version", "int"), 7: _one("graph", GraphProto), 8: _many("opset_import", OperatorSetIdProto),
    25: _many("functions", FunctionProto),
}  # fmt: skip

LONGEST_NAME = 256
"""Characters of a name of a graph, node, value, weight or axis; of longer ones a part is kept."""


def short_name(name: str) -> str:
    """A name of at most `LONGEST_NAME` characters; of a longer one its beginning, and a digest of it all."""
    if len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{name[: LONGEST_NAME - 33]}…{digest[:32]}"


def _encoded(message: Message) -> Iterator[bytes]:
    for number, field in message.fields.items():
        if field.name not in message.__dict__:
            continue
        value = message.__dict__[field.name]
        if field.many and field.kind in _PACKED:
            yield _delimited(number, b"".join(_PACKED[field.kind](one) for one in np.asarray(value).tolist()))
            continue
        for one in value if field.many else (value,):
            if field.kind == "message":
                yield _delimited(number, one.SerializeToString())
            elif field.kind in {"name", "text"}:
                yield _delimited(number, one.encode())
            elif field.kind == "bytes":
                yield _delimited(number, bytes(one))
            else:
                yield _varint(number << 3 | (5 if field.kind == "float" else 0)) + _PACKED[field.kind](one)


def _delimited(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    """A number of 7 bits a byte; negative ones as two's complement of 64 bits."""
    value &= (1 << 64) - 1
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)


_PACKED = {
    "int": _varint, "int32": _varint, "uint": _varint, "float": struct.Struct("<f").pack,
    "double": struct.Struct("<d").pack,
}  # fmt: skip
