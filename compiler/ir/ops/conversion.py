"""Casts between dtypes, and arrays in the dtype that arithmetic on them is done in."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kernels_hub.compiler.errors import TypeRuleError
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.flops import moves_only
from kernels_hub.compiler.ir.op import (
    BOOL,
    DTYPE,
    Attr,
    Attrs,
    Op,
    Operands,
    ReferenceCall,
    Trait,
    from_attr,
    same_shape,
    spelled,
)
from kernels_hub.compiler.ir.types import Array, DType


def widened(array: Array) -> Array:
    """An array in the dtype that arithmetic on it is done in: float32 for narrower floats, int8 for int4."""
    row = types.dtype(array.dtype)
    if row.compute is not row:
        return array.astype(np.float32)
    if row.is_integer and row.bits < 8:
        return array.astype(np.int8 if row.kind == "int" else np.uint8)
    return array


def accumulator(array: Array) -> Array:
    """An array in the dtype that the oracle sums in: float64, complex128, or 64-bit integers (which wrap)."""
    kind = types.dtype(array.dtype).kind
    wide = {
        "bool": np.int64,
        "int": np.int64,
        "uint": np.uint64,
        "float": np.float64,
        "complex": np.complex128,
    }
    return array.astype(wide[kind])


def made_once(array: Array, make: Callable[[Array], Array]) -> Array:
    """What `make` gives, element by element, of an array; once of what strides of 0 repeat: not to be written to then.

    A weight that a product sees once for each matrix of a batch is as large as the batch when it is converted.
    """
    first = tuple(
        slice(0, 1) if stride == 0 and size > 1 else slice(None)
        for size, stride in zip(array.shape, array.strides, strict=True)
    )
    if slice(0, 1) not in first:
        return make(array)
    return np.broadcast_to(make(array[first]), array.shape)


def of_parts(real: Array, imaginary: Array) -> Array:
    """Complex numbers; of arithmetic, an infinity in one part would make NaN of the other."""
    whole: Array = np.empty(real.shape, np.complex128)
    whole.real, whole.imag = real, imaginary
    return whole


@np.errstate(all="ignore")
def convert(array: Array, to: DType, *, saturate: bool = False) -> Array:
    """The array cast to another dtype.

    To bool: whether it is not zero. Float to integer: towards zero. Out of range, with `saturate`: the
    nearest finite value, NaN to integer 0; without: integers wrap around, floats overflow as their format does.
    Complex to real: the real part.
    """
    source = types.dtype(array.dtype)
    if source is to:
        return array
    array = widened(array)
    if to.kind == "bool":
        return np.asarray(array != 0)
    if source.is_complex and not to.is_complex:
        array = array.real
    if to.is_integer and array.dtype.kind == "f":
        array = _float_to_integer(array, to, saturate=saturate)
    elif saturate and (to.is_integer or (to.is_float and to.bits < 32)) and array.dtype.kind != "b":
        low, high = to.limits
        info_low, info_high = types.dtype(array.dtype).limits
        array = np.clip(array, max(low, info_low), min(high, info_high))
    if to.module == "ml_dtypes" and array.dtype.kind in "iub" and to.is_float:
        array = array.astype(np.float32)
    if to.is_integer and to.bits < 8:
        # ml_dtypes does not say what it does with more bits than fit.
        mask = (1 << to.bits) - 1
        low_bits = array.astype(np.int64) & mask
        wrapped = np.where(low_bits > to.limits[1], low_bits - (mask + 1), low_bits)
        return wrapped.astype(np.int8).astype(to.numpy)
    return np.asarray(array).astype(to.numpy)


def _float_to_integer(array: Array, to: DType, *, saturate: bool) -> Array:
    wide = np.trunc(array.astype(np.float64))
    finite = np.isfinite(wide)
    if not saturate:
        wide = np.where(finite, wide, 0)
        signed = np.where(wide < 2.0**63, wide, wide - 2.0**64).astype(np.int64)
        return signed.view(np.uint64) if to is types.UINT64 else signed
    low, high = to.limits
    result = np.where(finite & (wide > low) & (wide < high), wide, 0).astype(
        to.numpy if to.bits >= 8 else np.int8
    )
    result = np.where(wide <= low, np.asarray(low, result.dtype), result)
    return np.where(wide >= high, np.asarray(high, result.dtype), result)


def _cast(step: ReferenceCall) -> Array:
    return convert(step.operands[0], step.results[0].dtype, saturate=step.attrs["saturate"])


def _same_width(operands: Operands, attrs: Attrs) -> DType:
    (operand,), to = operands, attrs["dtype"]
    if operand.dtype.bits != to.bits or to.bits < 8:
        raise TypeRuleError(
            f"takes dtypes of the same whole bytes, not {operand.dtype} ({operand.dtype.bits} bits) as {to}"
        )
    return to  # type: ignore[no-any-return]


ROWS = (
    Op(
        "cast", "The nearest value of another dtype; see `conversion.convert` for what is out of range.", 1,
        _cast, from_attr(), same_shape,
        attrs=(Attr("dtype", DTYPE), Attr("saturate", BOOL, False, "out of range becomes the nearest finite value")),
        traits=Trait.POINTWISE, spellings=spelled(triton="({0}).to({dtype})", cpp="static_cast<{dtype}>({0})"),
        flops=moves_only, source="ONNX Cast; torch.Tensor.to",
    ),
    Op(
        "bitcast", "The same bits read as another dtype of the same width.", 1,
        lambda step: np.ascontiguousarray(step.operands[0]).view(step.dtype).reshape(step.shape),
        _same_width, same_shape, attrs=(Attr("dtype", DTYPE),), traits=Trait.POINTWISE,
        spellings=spelled(triton="({0}).to({dtype}, bitcast=True)", cpp="std::bit_cast<{dtype}>({0})"),
        flops=moves_only, source="ONNX BitCast; torch.Tensor.view(dtype)",
    ),
)  # fmt: skip
