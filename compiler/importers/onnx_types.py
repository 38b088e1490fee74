"""ONNX's element types, tensors and type messages, to and from those of the IR."""

from __future__ import annotations

import math

import numpy as np

from kernels_hub.compiler.errors import ImportFailure, TypeRuleError
from kernels_hub.compiler.importers.external_data import ExternalData, FewBitElements, unpacked
from kernels_hub.compiler.importers.onnx_messages import (
    AnyMessage,
    Dimension,
    Message,
    TensorProto,
    TensorShapeProto,
    TensorType,
    TypeProto,
)
from kernels_hub.compiler.ir import op, types
from kernels_hub.compiler.ir.types import Array, DType

ELEMENT_TYPES: dict[int, DType] = {
    TensorProto.DataType["FLOAT"]: types.FLOAT32,
    TensorProto.DataType["UINT8"]: types.UINT8,
    TensorProto.DataType["INT8"]: types.INT8,
    TensorProto.DataType["UINT16"]: types.UINT16,
    TensorProto.DataType["INT16"]: types.INT16,
    TensorProto.DataType["INT32"]: types.INT32,
    TensorProto.DataType["INT64"]: types.INT64,
    TensorProto.DataType["BOOL"]: types.BOOL,
    TensorProto.DataType["FLOAT16"]: types.FLOAT16,
    TensorProto.DataType["DOUBLE"]: types.FLOAT64,
    TensorProto.DataType["UINT32"]: types.UINT32,
    TensorProto.DataType["UINT64"]: types.UINT64,
    TensorProto.DataType["COMPLEX64"]: types.COMPLEX64,
    TensorProto.DataType["COMPLEX128"]: types.COMPLEX128,
    TensorProto.DataType["BFLOAT16"]: types.BFLOAT16,
    TensorProto.DataType["FLOAT8E4M3FN"]: types.FLOAT8_E4M3FN,
    TensorProto.DataType["FLOAT8E4M3FNUZ"]: types.FLOAT8_E4M3FNUZ,
    TensorProto.DataType["FLOAT8E5M2"]: types.FLOAT8_E5M2,
    TensorProto.DataType["FLOAT8E5M2FNUZ"]: types.FLOAT8_E5M2FNUZ,
    TensorProto.DataType["UINT4"]: types.UINT4,
    TensorProto.DataType["INT4"]: types.INT4,
    TensorProto.DataType["FLOAT4E2M1"]: types.FLOAT4_E2M1FN,
    TensorProto.DataType["FLOAT8E8M0"]: types.FLOAT8_E8M0FNU,
    TensorProto.DataType["UINT2"]: types.UINT2,
    TensorProto.DataType["INT2"]: types.INT2,
}
_NUMBERS = {row: number for number, row in ELEMENT_TYPES.items()}


def dtype_of(number: int) -> DType:
    """The dtype of an ONNX element type. Raises TypeRuleError for strings and what the IR does not have."""
    row = ELEMENT_TYPES.get(number)
    if row is None:
        known = TensorProto.DataType.items()
        name = next((name for name, value in known if value == number), f"number {number}")
        raise TypeRuleError(f"elements of type {name} have no place in the IR, which is of numbers")
    return row


def element_type(row: DType) -> int:
    """The number that ONNX has for a dtype."""
    return int(_NUMBERS[row])


def type_proto(of: op.TensorType) -> TypeProto:
    """A tensor type as ONNX writes it; symbolic dims by name."""
    dims = [
        Dimension(dim_value=dim) if isinstance(dim, int) else Dimension(dim_param=str(dim))
        for dim in of.shape
    ]
    shape = TensorShapeProto(dim=dims)
    return TypeProto(tensor_type=TensorType(elem_type=element_type(of.dtype), shape=shape))


def few_bit_elements(tensor: TensorProto, data: ExternalData) -> FewBitElements | None:
    """A tensor of 4 or 2 bits an element as it is packed; None of others, and where its size is wrong."""
    row, shape = dtype_of(tensor.data_type), tuple(tensor.dims)
    if row.bits >= 8 or any(dim < 0 for dim in shape) or tensor.HasField("segment"):
        return None
    size = (math.prod(shape) * row.bits + 7) // 8
    if tensor.data_location == TensorProto.EXTERNAL:
        raw = data.bytes(tensor.name, {one.key: one.value for one in tensor.external_data}, size)
    elif tensor.HasField("raw_data"):
        raw = np.frombuffer(tensor.raw_data, np.uint8)
    else:
        return None
    return FewBitElements(raw, row, shape) if len(raw) == size else None


def tensor_array(tensor: TensorProto, data: ExternalData) -> Array:
    """A tensor's array: a view of the message's bytes or of the mapped file where it has such.

    Raises ImportFailure where size and shape contradict each other, TypeRuleError for types outside of the IR.
    """
    row, shape = dtype_of(tensor.data_type), tuple(tensor.dims)
    if any(dim < 0 for dim in shape):
        raise ImportFailure(f"tensor {tensor.name!r} has the shape {list(shape)}")
    if tensor.HasField("segment"):
        raise ImportFailure(f"tensor {tensor.name!r} is stored in segments, which nothing writes any more")
    if tensor.data_location == TensorProto.EXTERNAL:
        return data.array(tensor.name, {one.key: one.value for one in tensor.external_data}, row, shape)
    try:
        if tensor.HasField("raw_data"):
            raw = np.frombuffer(tensor.raw_data, np.uint8)
            if row.bits < 8:
                return unpacked(raw, row, shape)
            return raw.view(row.numpy.newbyteorder("<")).reshape(shape)
        found = _typed(tensor, row, shape)
    except ValueError as error:
        raise ImportFailure(
            f"tensor {tensor.name!r} is {row}{list(shape)} by its type, its data are of another size: {error}"
        ) from error
    return np.asarray(found, row.numpy)


_TYPED = {
    types.FLOAT32: "float_data", types.FLOAT64: "double_data", types.INT64: "int64_data",
    types.UINT32: "uint64_data", types.UINT64: "uint64_data", types.INT8: "int32_data", types.INT16: "int32_data",
    types.INT32: "int32_data", types.UINT8: "int32_data", types.UINT16: "int32_data", types.BOOL: "int32_data",
}  # fmt: skip
"""Where the elements of a tensor are that has no bytes; others lie there by their bits."""


def _typed(tensor: AnyMessage, row: DType, shape: tuple[int, ...]) -> Array:
    if row in _TYPED:
        return np.asarray(getattr(tensor, _TYPED[row])).astype(row.numpy).reshape(shape)
    import onnx

    known = onnx.TensorProto.FromString(tensor.SerializeToString()) if isinstance(tensor, Message) else tensor
    found: Array = onnx.numpy_helper.to_array(known)
    return found
