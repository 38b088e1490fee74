"""Casts with the op table's meaning of what is out of range, and bitcasts.

Floats to integers: NaN and infinities give 0, others wrap (saturate: the nearest number there is). PyTorch leaves
both undefined, so floats go through float64 and int64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels_hub.compiler.engines.library_ops.site import (
    EVERY,
    FLOAT8,
    SUB_BYTE,
    WHOLE_BYTES,
    LibraryKernel,
    Reason,
    Run,
    Site,
    narrowed,
)
from kernels_hub.compiler.engines.tensors import torch_dtype
from kernels_hub.compiler.ir.graph import Node
from kernels_hub.compiler.ir.types import DType


def _make_cast(site: Site) -> Run:
    source, to, saturate = site.operand_row(0), site.row, site["saturate"]
    if source is to:
        return lambda x: x
    decode, encode = _decoder(source), _encoder(to)
    convert = _converter(_held(source), to, saturate=saturate)
    if decode is None and encode is None:
        return convert
    return lambda x: _maybe(encode, convert(_maybe(decode, x)))


def _maybe(function: Run | None, x: Tensor) -> Tensor:
    return x if function is None else function(x)


def _held(row: DType) -> DType:
    """What elements are after decoding: int8 and uint8 of the integers that take less than a byte."""
    from kernels_hub.compiler.ir import types

    if row.bits >= 8:
        return row
    return types.dtype({"int": "int8", "uint": "uint8", "float": "float32"}[row.kind])


def _decoder(row: DType) -> Run | None:
    """From the bytes of elements of four or two bits to int8 or uint8."""
    if row.bits >= 8:
        return None
    mask, sign = (1 << row.bits) - 1, 1 << row.bits - 1
    if row.kind == "uint":
        return lambda x: x & mask
    return lambda x: ((x & mask) ^ sign).to(torch.int8) - sign


def _encoder(row: DType) -> Run | None:
    """From int64 to the bytes of elements of four or two bits, which wrap."""
    if row.bits >= 8:
        return None
    mask = (1 << row.bits) - 1
    return lambda x: (x & mask).to(torch.uint8)


def _converter(source: DType, to: DType, *, saturate: bool) -> Run:
    dtype = torch_dtype(to) if to.bits >= 8 else torch.int64
    if to.kind == "bool":
        return lambda x: x != 0
    if source.is_complex and not to.is_complex:
        inner = _converter_of_parts(source, to, saturate=saturate)
        return lambda x: inner(x.real)
    if source.kind == "float" and to.is_integer:
        return _float_to_integer(to, dtype, saturate=saturate)
    if source.name == "uint64" and (to.kind in {"float", "complex"}):
        finish = narrowed(to)
        return lambda x: finish(_unsigned_to_double(x))
    if saturate and (to.is_integer or (to.is_float and to.bits < 32)) and source.kind != "bool":
        return _clamped(source, to, dtype)
    if to.name in FLOAT8:
        finish = narrowed(to)
        return lambda x: finish(x.to(torch.float32))
    return lambda x: x.to(dtype)


def _converter_of_parts(source: DType, to: DType, *, saturate: bool) -> Run:
    from kernels_hub.compiler.ir import types

    part = types.FLOAT32 if source is types.COMPLEX64 else types.FLOAT64
    return (lambda x: x) if part is to else _converter(part, to, saturate=saturate)


def _unsigned_to_double(x: Tensor) -> Tensor:
    bits = x.view(torch.int64)
    return torch.where(bits < 0, bits.to(torch.float64) + 2.0**64, bits.to(torch.float64))


def _float_to_integer(to: DType, dtype: torch.dtype, *, saturate: bool) -> Run:
    low, high = (int(limit) for limit in to.limits)

    def wrap(x: Tensor) -> Tensor:
        wide = torch.nan_to_num(x.to(torch.float64), nan=0.0, posinf=0.0, neginf=0.0)
        wide = torch.where(wide >= 2.0**63, wide - 2.0**64, wide).to(torch.int64)
        return wide.view(torch.uint64) if to.name == "uint64" else wide.to(dtype)

    def clamp(x: Tensor) -> Tensor:
        wide = torch.trunc(x.to(torch.float64))
        inside = (wide > low) & (wide < high)
        numbers = torch.where(inside, wide, 0.0).to(torch.int64)
        numbers = torch.where(wide <= low, low, numbers)
        return torch.where(wide >= high, high, numbers).to(dtype)

    def clamp_narrow(x: Tensor) -> Tensor:
        """Of at most 32 bits, whose limits float64 has exactly; float32 has those of 16."""
        exact = x if x.dtype is torch.float64 else x.to(torch.float64 if to.bits > 16 else torch.float32)
        bounded = torch.nan_to_num(exact, nan=0.0).clamp(low, high)
        return bounded.to(dtype) if to.bits <= 16 else bounded.to(torch.int64).to(dtype)

    if saturate:
        return clamp if to.bits > 32 else clamp_narrow
    return wrap


def _clamped(source: DType, to: DType, dtype: torch.dtype) -> Run:
    low, high = to.limits
    least, most = source.compute.limits
    low, high = max(low, least), min(high, most)
    if source.is_integer:
        return lambda x: x.to(torch.int64).clamp(int(low), int(high)).to(dtype)
    return lambda x: x.to(torch.float64 if source.bits == 64 else torch.float32).clamp(low, high).to(dtype)


def _declines_cast(node: Node, _: str) -> Reason:
    (operand,), to = node.operands, node.results[0].dtype
    source = operand.dtype
    if source is to:
        return None
    pair = f"cast of {source} to {to}"
    if "float4_e2m1fn" in {source.name, to.name} or "float8_e8m0fnu" in {source.name, to.name}:
        return pair
    if node.attrs["saturate"] and "uint64" in {source.name, to.name}:
        return f"saturating {pair}"
    return None


KERNELS = {
    "cast": LibraryKernel(_make_cast, EVERY, _declines_cast),
    "bitcast": LibraryKernel(lambda site: lambda x: x.contiguous().view(site.dtype), WHOLE_BYTES - SUB_BYTE),
}
