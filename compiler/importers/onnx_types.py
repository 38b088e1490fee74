"""ONNX's element types, tensors and type messages, to and from those of the IR."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, TypeProto

from kernels_hub.compiler.errors import ImportFailure, TypeRuleError
from kernels_hub.compiler.importers.external_data import ExternalData, FewBitElements, unpacked
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.op import TensorType
from kernels_hub.compiler.ir.types import Array, DType

ELEMENT_TYPES: dict[int, DType] = {
    TensorProto.FLOAT: types.FLOAT32,
    TensorProto.UINT8: types.UINT8,
    TensorProto.INT8: types.INT8,
    TensorProto.UINT16: types.UINT16,
    TensorProto.INT16: types.INT16,
    TensorProto.INT32: types.INT32,
    TensorProto.INT64: types.INT64,
    TensorProto.BOOL: types.BOOL,
    TensorProto.FLOAT16: types.FLOAT16,
    TensorProto.DOUBLE: types.FLOAT64,
    TensorProto.UINT32: types.UINT32,
    TensorProto.UINT64: types.UINT64,
    TensorProto.COMPLEX64: types.COMPLEX64,
    TensorProto.COMPLEX128: types.COMPLEX128,
    TensorProto.BFLOAT16: types.BFLOAT16,
    TensorProto.FLOAT8E4M3FN: types.FLOAT8_E4M3FN,
    TensorProto.FLOAT8E4M3FNUZ: types.FLOAT8_E4M3FNUZ,
    TensorProto.FLOAT8E5M2: types.FLOAT8_E5M2,
    TensorProto.FLOAT8E5M2FNUZ: types.FLOAT8_E5M2FNUZ,
    TensorProto.UINT4: types.UINT4,
    TensorProto.INT4: types.INT4,
    # Newer than the oldest onnx that this package takes.
    23: types.FLOAT4_E2M1FN,
    24: types.FLOAT8_E8M0FNU,
    25: types.UINT2,
    26: types.INT2,
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


def type_proto(of: TensorType) -> TypeProto:
    """A tensor type as ONNX writes it; symbolic dims by name."""
    proto = TypeProto()
    proto.tensor_type.elem_type = element_type(of.dtype)
    dims = proto.tensor_type.shape
    dims.SetInParent()
    for dim in of.shape:
        one = dims.dim.add()
        if isinstance(dim, int):
            one.dim_value = dim
        else:
            one.dim_param = str(dim)
    return proto


def few_bit_elements(
    tensor: TensorProto, data: ExternalData, apart: Array | None = None
) -> FewBitElements | None:
    """A tensor of 4 or 2 bits an element as it is packed; None of others, and where its size is wrong."""
    row, shape = dtype_of(tensor.data_type), tuple(tensor.dims)
    if row.bits >= 8 or any(dim < 0 for dim in shape) or tensor.HasField("segment"):
        return None
    size = (math.prod(shape) * row.bits + 7) // 8
    if tensor.data_location == TensorProto.EXTERNAL:
        raw = data.bytes(tensor.name, {one.key: one.value for one in tensor.external_data}, size)
    elif apart is not None:
        raw = apart
    elif tensor.HasField("raw_data"):
        raw = np.frombuffer(tensor.raw_data, np.uint8)
    else:
        return None
    return FewBitElements(raw, row, shape) if len(raw) == size else None


def tensor_array(tensor: TensorProto, data: ExternalData, apart: Array | None = None) -> Array:
    """A tensor's array: a view of the message's bytes or of the mapped file where it has such.

    apart: the bytes of one that the message is without.
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
        if apart is not None or tensor.HasField("raw_data"):
            raw = np.frombuffer(tensor.raw_data, np.uint8) if apart is None else apart
            if row.bits < 8:
                return unpacked(raw, row, shape)
            return raw.view(row.numpy.newbyteorder("<")).reshape(shape)
        found: Any = onnx.numpy_helper.to_array(tensor)
    except ValueError as error:
        raise ImportFailure(
            f"tensor {tensor.name!r} is {row}{list(shape)} by its type, its data are of another size: {error}"
        ) from error
    return np.asarray(found, row.numpy)
