"""Element types: one table of what is known of each.

`DType` is a row; rows are singletons, compared by identity. Narrow floats and integers live in NumPy
through ml_dtypes (extra `onnx`), imported when such an array is first made. Four- and two-bit types
take one byte an element in NumPy arrays; `bits` is what they take when packed, see `pack` and `unpack`.

No dtype is ever converted to another implicitly: ops demand equal dtypes, `promote` says which dtype
two may be cast to without loss of range, and the builder's `cast` does it.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels_hub.compiler.errors import MissingDependencyError, TypeRuleError

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class DType:
    """An element type.

    kind: "bool", "int", "uint", "float" or "complex". bits: of one element when packed.
    module: "numpy" or "ml_dtypes", which defines the NumPy scalar type of this name.
    """

    name: str
    kind: str
    bits: int
    module: str
    triton: str | None
    cpp: str | None

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype, (self.name,)

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype. Raises MissingDependencyError where it needs ml_dtypes and that is missing."""
        return _numpy(self)

    @property
    def is_float(self) -> bool:
        """Of any width; complex is not."""
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """Signed or unsigned; bool is no integer."""
        return self.kind in {"int", "uint"}

    @property
    def is_complex(self) -> bool:
        """Pairs of floats."""
        return self.kind == "complex"

    @property
    def compute(self) -> DType:
        """What arithmetic on it is done in: float32 for narrower floats, itself for all others."""
        return FLOAT32 if self.kind == "float" and self.bits < 32 else self

    @property
    def accumulate(self) -> DType:
        """What sums of products are kept in by default: float32 or wider, int32 or wider."""
        if self.kind in {"int", "uint"} and self.bits < 32:
            return INT32
        return self.compute

    @property
    def limits(self) -> tuple[int, int] | tuple[float, float]:
        """Smallest and largest finite value."""
        if self.kind == "bool":
            return 0, 1
        if self.kind == "int":
            return -(1 << self.bits - 1), (1 << self.bits - 1) - 1
        if self.kind == "uint":
            return 0, (1 << self.bits) - 1
        if self.kind == "float":
            if self.module == "numpy":
                info: Any = np.finfo(self.numpy)
            else:
                info = _ml_dtypes(self).finfo(self.numpy)
            return float(info.min), float(info.max)
        raise TypeRuleError(f"{self} has no smallest and largest value")


def _row(
    name: str, kind: str, bits: int, triton: str | None, cpp: str | None, module: str = "numpy"
) -> DType:
    return DType(name, kind, bits, module, triton, cpp)


BOOL = _row("bool", "bool", 8, "tl.int1", "bool")
INT8 = _row("int8", "int", 8, "tl.int8", "std::int8_t")
INT16 = _row("int16", "int", 16, "tl.int16", "std::int16_t")
INT32 = _row("int32", "int", 32, "tl.int32", "std::int32_t")
INT64 = _row("int64", "int", 64, "tl.int64", "std::int64_t")
UINT8 = _row("uint8", "uint", 8, "tl.uint8", "std::uint8_t")
UINT16 = _row("uint16", "uint", 16, "tl.uint16", "std::uint16_t")
UINT32 = _row("uint32", "uint", 32, "tl.uint32", "std::uint32_t")
UINT64 = _row("uint64", "uint", 64, "tl.uint64", "std::uint64_t")
FLOAT16 = _row("float16", "float", 16, "tl.float16", "c10::Half")
FLOAT32 = _row("float32", "float", 32, "tl.float32", "float")
FLOAT64 = _row("float64", "float", 64, "tl.float64", "double")
COMPLEX64 = _row("complex64", "complex", 64, None, "std::complex<float>")
COMPLEX128 = _row("complex128", "complex", 128, None, "std::complex<double>")
BFLOAT16 = _row("bfloat16", "float", 16, "tl.bfloat16", "c10::BFloat16", "ml_dtypes")
FLOAT8_E4M3FN = _row("float8_e4m3fn", "float", 8, "tl.float8e4nv", "c10::Float8_e4m3fn", "ml_dtypes")
FLOAT8_E4M3FNUZ = _row("float8_e4m3fnuz", "float", 8, "tl.float8e4b8", "c10::Float8_e4m3fnuz", "ml_dtypes")
FLOAT8_E5M2 = _row("float8_e5m2", "float", 8, "tl.float8e5", "c10::Float8_e5m2", "ml_dtypes")
FLOAT8_E5M2FNUZ = _row("float8_e5m2fnuz", "float", 8, "tl.float8e5b16", "c10::Float8_e5m2fnuz", "ml_dtypes")
FLOAT8_E8M0FNU = _row("float8_e8m0fnu", "float", 8, None, "c10::Float8_e8m0fnu", "ml_dtypes")
FLOAT4_E2M1FN = _row("float4_e2m1fn", "float", 4, None, None, "ml_dtypes")
INT4 = _row("int4", "int", 4, None, None, "ml_dtypes")
UINT4 = _row("uint4", "uint", 4, None, None, "ml_dtypes")
INT2 = _row("int2", "int", 2, None, None, "ml_dtypes")
UINT2 = _row("uint2", "uint", 2, None, None, "ml_dtypes")

DTYPES: dict[str, DType] = {
    row.name: row
    for row in (
        BOOL, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64, FLOAT16, FLOAT32, FLOAT64,
        COMPLEX64, COMPLEX128, BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E4M3FNUZ, FLOAT8_E5M2, FLOAT8_E5M2FNUZ,
        FLOAT8_E8M0FNU, FLOAT4_E2M1FN, INT4, UINT4, INT2, UINT2,
    )
}  # fmt: skip

FLOATS = ("float",)
INTEGERS = ("int", "uint")
REALS = ("int", "uint", "float")
NUMBERS = (*REALS, "complex")
ALL_KINDS = ("bool", *NUMBERS)

_OF_NUMPY: dict[np.dtype[Any], DType] = {}
"""Rows of NumPy's dtypes that were asked for: NumPy makes up their names anew each time."""
_RANK = {kind: rank for rank, kind in enumerate(("bool", "uint", "int", "float", "complex"))}


def dtype(spec: DType | str | np.dtype[Any] | type) -> DType:
    """A dtype by its row, its name, or NumPy's dtype or scalar type. Raises TypeRuleError."""
    if isinstance(spec, DType):
        return spec
    if isinstance(spec, np.dtype) and (known := _OF_NUMPY.get(spec)) is not None:
        return known
    name = spec if isinstance(spec, str) else np.dtype(spec).name
    try:
        row = DTYPES[name]
        if isinstance(spec, np.dtype):
            _OF_NUMPY[spec] = row
        return row
    except KeyError:
        raise TypeRuleError(f"no dtype is called {name!r}; there are {', '.join(DTYPES)}") from None


def of_python(number: complex) -> DType:
    """What a Python number becomes where nothing else is said: bool, int64, float32 or complex64."""
    if isinstance(number, bool):
        return BOOL
    if isinstance(number, int):
        return INT64
    return FLOAT32 if isinstance(number, float) else COMPLEX64


def promote(a: DType, b: DType) -> DType:
    """The narrowest dtype of the wider kind that holds the range of both; never applied by itself.

    float16 with bfloat16 is float32; uint8 with int8 is int16; an integer with a float is that float.
    Raises TypeRuleError for uint64 with a signed integer, which nothing holds.
    """
    if a is b:
        return a
    if _RANK[a.kind] < _RANK[b.kind]:
        a, b = b, a
    if a.kind == b.kind:
        if a.bits != b.bits:
            return a if a.bits > b.bits else b
        return next(row for row in (FLOAT16, FLOAT32) if row.bits > a.bits)
    if a.kind == "int" and b.kind == "uint" and b.bits >= a.bits:
        for row in (INT8, INT16, INT32, INT64):
            if row.bits > b.bits:
                return row
        raise TypeRuleError(f"no dtype holds every {a} and every {b}")
    if a.kind == "complex" and b is FLOAT64:
        return COMPLEX128
    return a


def pack(array: Array) -> Array:
    """Elements of four or two bits as bytes (uint8, one dim), the first element in the lowest bits.

    What ONNX and PyTorch store; the last byte is filled up with zeros. Wider dtypes give their bytes.
    """
    row = dtype(array.dtype)
    codes: Array = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if row.bits >= 8:
        return codes
    each = 8 // row.bits
    codes = np.concatenate([codes & (1 << row.bits) - 1, np.zeros(-len(codes) % each, np.uint8)]).reshape(
        -1, each
    )
    shifted = codes << (np.arange(each, dtype=np.uint8) * np.uint8(row.bits))
    return np.asarray(np.bitwise_or.reduce(shifted, axis=1, dtype=np.uint8))


def unpack(data: Array, row: DType, shape: tuple[int, ...]) -> Array:
    """What `pack` packed. Raises TypeRuleError where the bytes are not as many as the shape needs."""
    count = math.prod(shape)
    if len(data) != (count * row.bits + 7) // 8:
        raise TypeRuleError(f"{row}{list(shape)} takes {(count * row.bits + 7) // 8} bytes, got {len(data)}")
    data = np.ascontiguousarray(data, np.uint8)
    if row.bits >= 8:
        return data.view(row.numpy).reshape(shape)
    each = 8 // row.bits
    shifts = np.arange(each, dtype=np.uint8) * np.uint8(row.bits)
    codes: Array = ((data[:, None] >> shifts) & np.uint8((1 << row.bits) - 1)).reshape(-1)[:count]
    if row.kind == "int":
        signed = codes.astype(np.int8)
        codes = np.where(signed > row.limits[1], signed - (1 << row.bits), signed).astype(np.int8)
    elements: Array = codes.view(row.numpy) if row.is_float else codes.astype(row.numpy)
    return elements.reshape(shape)


@functools.cache
def _numpy(row: DType) -> np.dtype[Any]:
    module: Any = np if row.module == "numpy" else _ml_dtypes(row)
    found: np.dtype[Any] = np.dtype(getattr(module, "bool_" if row is BOOL else row.name))
    return found


def _ml_dtypes(row: DType) -> Any:
    try:
        import ml_dtypes
    except ImportError as error:
        raise MissingDependencyError(
            f"{row} needs the package ml_dtypes: pip install 'kernels-hub[onnx]'"
        ) from error
    return ml_dtypes
