"""Pointwise ops by PyTorch, with the op table's meaning where PyTorch's is another.

1. integer division, remainder: 0 where the divisor is 0, and the most negative number by -1 wraps (both end the
   process, or throw, in PyTorch); guarded unless the divisor is a constant that is neither
2. sign of NaN is NaN; zeros that `mod` gives have the sign of the divisor; remainders of floats go through float64,
   as PyTorch's of float32 are NaN where the quotient overflows
3. shifts by the width or more, powers with negative exponents: as the table says
4. float8 in float32, uint16 and uint32 in int64, uint64 in the bits of int64
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernels_hub.compiler.engines.library_ops.site import (
    BOOL,
    COMPLEX,
    FLOAT8,
    FLOATS,
    INTS,
    NATIVE_FLOATS,
    NATIVE_INTS,
    NUMBERS,
    REALS,
    SUB_BYTE,
    WHOLE_BYTES,
    LibraryKernel,
    Run,
    Site,
    widened,
)
from kernels_hub.compiler.engines.tensors import codes
from kernels_hub.compiler.errors import TypeRuleError
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.op import Op, TensorType, Trait
from kernels_hub.compiler.ir.types import DTYPES

_UINT64 = frozenset({"uint64"})


def _plain(function: Callable[..., Tensor], dtypes: frozenset[str]) -> LibraryKernel:
    return LibraryKernel(lambda site: widened(site, function), dtypes)


def _bits64(function: Callable[..., Tensor], *, compares: bool = False) -> Callable[[Site], Run]:
    """As `function`, for uint64 on the bits of int64: what wraps, or (compares: the sign flipped) orders."""
    flip = -(2**63)

    def on_bits(*operands: Tensor) -> Tensor:
        signed = [
            operand.view(torch.int64) ^ flip if compares else operand.view(torch.int64)
            for operand in operands
        ]
        result = function(*signed)
        if result.dtype is not torch.int64:
            return result
        return (result ^ flip if compares else result).view(torch.uint64)

    def make(site: Site) -> Run:
        return on_bits if site.operand_row(0).name == "uint64" else widened(site, function)

    return make


def _sign(x: Tensor) -> Tensor:
    return torch.where(torch.isnan(x), x, torch.sign(x)) if x.is_floating_point() else torch.sign(x)


def _by_kind(name: str) -> Callable[[Site], Run]:
    floating, integers = _DIVISIONS[name]

    def make(site: Site) -> Run:
        if site.operand_row(0).kind in {"float", "complex"}:
            return widened(site, floating)
        known = _divisor(site.node.operands[1])
        if known is not None and not ((known == 0) | (known == -1)).any():
            return widened(site, integers.plain)
        return widened(site, integers)

    return make


def _divisor(value: Value) -> Any:
    """The elements of a constant divisor, in any order; None where they are not known."""
    while value.op_name in {"broadcast", "reshape", "permute"}:
        value = value.operands[0]
    return value.array


class _Guarded:
    """A division of integers that gives 0 by 0; by -1 what `negative` gives."""

    def __init__(
        self, plain: Callable[[Tensor, Tensor], Tensor], negative: Callable[[Tensor], Tensor]
    ) -> None:
        self.plain, self._negative = plain, negative

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        zero = b == 0
        if b.dtype is torch.uint8:
            return self.plain(a, torch.where(zero, 1, b)).masked_fill(zero, 0)
        minus = b == -1
        result = self.plain(a, torch.where(zero | minus, 1, b))
        return torch.where(minus, self._negative(a), result).masked_fill(zero, 0)


def _float_mod(a: Tensor, b: Tensor) -> Tensor:
    rest = torch.remainder(a.to(torch.float64), b.to(torch.float64))
    return torch.where(rest == 0, torch.copysign(rest, b), rest).to(a.dtype)


def _float_fmod(a: Tensor, b: Tensor) -> Tensor:
    return torch.fmod(a.to(torch.float64), b.to(torch.float64)).to(a.dtype)


_DIVISIONS: dict[str, tuple[Run, _Guarded]] = {
    "div": (torch.div, _Guarded(lambda a, b: torch.div(a, b, rounding_mode="trunc"), torch.neg)),
    "floordiv": (torch.floor_divide, _Guarded(torch.floor_divide, torch.neg)),
    "mod": (_float_mod, _Guarded(torch.remainder, torch.zeros_like)),
    "fmod": (_float_fmod, _Guarded(torch.fmod, torch.zeros_like)),
}


def _pow(a: Tensor, b: Tensor) -> Tensor:
    if a.dim() == 0 and not a.is_floating_point():  # PyTorch refuses negative exponents that are scalars
        return torch.pow(a.reshape(1), b.reshape(1)).reshape(())
    if a.is_complex():
        return torch.where((a == 0) & (b == 0), 1, torch.pow(a, b))
    return torch.pow(a, b)


_QUICK_POWERS = (2.0, 3.0, 0.5, -1.0, -2.0)
"""PyTorch has faster ways for these, with the same results; its way for -0.5 gives others of -0.0 and -inf."""


def _make_pow(site: Site) -> Run:
    exponent = site.node.operands[1].scalar
    if site.operand_row(0).name in {"float32", "float64"} and exponent in _QUICK_POWERS:
        return lambda a, _: torch.pow(a, exponent)
    return widened(site, _pow)


def _make_shift(function: Callable[[Tensor, Tensor], Tensor], *, left: bool) -> Callable[[Site], Run]:
    def make(site: Site) -> Run:
        row = site.operand_row(0)
        width = row.bits

        def shift(a: Tensor, b: Tensor) -> Tensor:
            if not left and row.kind == "int":
                return function(a, b.clamp(max=width - 1))
            return torch.where(b < width, function(a, b.clamp(max=width - 1)), 0)

        return widened(site, shift)

    return make


def _select(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(condition, a, b)


def _select_codes(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(condition, codes(a), codes(b)).view(a.dtype)


_MOVES_AS_CODES = FLOAT8 | {"uint16", "uint32", "uint64", "float8_e8m0fnu"}


def moves(run: Run, site: Site, *, place: int = 0) -> Run:
    """A kernel that moves elements, on integers of the same width where PyTorch does not move the dtype itself."""
    if site.operand_row(place).name not in _MOVES_AS_CODES:
        return run
    dtype = site.dtype

    def on_codes(*operands: Tensor) -> Tensor:
        result: Tensor = run(*(codes(operand) if operand.dtype is dtype else operand for operand in operands))
        return result.view(dtype)

    return on_codes


def _make_select(site: Site) -> Run:
    return _select_codes if site.operand_row(1).name in _MOVES_AS_CODES else _select


@functools.cache
def of_row(row: Op) -> LibraryKernel | None:
    """The kernel of an op that PyTorch has a function for, by its row (`Op.torch`)."""
    if not row.torch:
        return None
    name, _, overload = row.torch[0].partition(".")
    if Trait.POINTWISE in row.traits:
        return _plain(getattr(torch, name), _taken(row))
    function = getattr(getattr(torch.ops.aten, name), overload)

    def make(site: Site) -> Run:
        attrs = [site[attr.name] for attr in row.attrs]
        return lambda *operands: function(*operands, *attrs)

    return LibraryKernel(make, _taken(row) & (NATIVE_FLOATS | NATIVE_INTS | BOOL))


def _taken(row: Op) -> frozenset[str]:
    """The dtypes that an op takes, among those that PyTorch computes with."""
    count, _ = row.bounds
    names = set()
    for name in NUMBERS | BOOL:
        try:
            operands = [TensorType(DTYPES[name], ())] * count
            if row.dtype is None or Trait.POINTWISE in row.traits:
                row.infer(operands, row.normalise({}))
            else:
                row.dtype(operands, {})
        except TypeRuleError:
            continue
        names.add(name)
    return frozenset(names)


KERNELS: dict[str, LibraryKernel] = {
    "stop_gradient": LibraryKernel(lambda _: lambda x: x.clone(), FLOATS | COMPLEX),
    "with_derivative": LibraryKernel(lambda _: lambda x, *_: x.clone(), FLOATS),
    "neg": LibraryKernel(_bits64(torch.neg), NUMBERS | _UINT64),
    "abs": _plain(torch.abs, REALS),
    "sign": _plain(_sign, REALS),
    "add": LibraryKernel(_bits64(torch.add), NUMBERS | _UINT64),
    "sub": LibraryKernel(_bits64(torch.sub), NUMBERS | _UINT64),
    "mul": LibraryKernel(_bits64(torch.mul), NUMBERS | _UINT64),
    "div": LibraryKernel(_by_kind("div"), NUMBERS),
    "floordiv": LibraryKernel(_by_kind("floordiv"), REALS),
    "mod": LibraryKernel(_by_kind("mod"), REALS),
    "fmod": LibraryKernel(_by_kind("fmod"), REALS),
    "pow": LibraryKernel(_make_pow, NUMBERS),
    "maximum": LibraryKernel(_bits64(torch.maximum, compares=True), REALS | _UINT64),
    "minimum": LibraryKernel(_bits64(torch.minimum, compares=True), REALS | _UINT64),
    "eq": LibraryKernel(_bits64(torch.eq), NUMBERS | BOOL | _UINT64),
    "ne": LibraryKernel(_bits64(torch.ne), NUMBERS | BOOL | _UINT64),
    "lt": LibraryKernel(_bits64(torch.lt, compares=True), REALS | BOOL | _UINT64),
    "le": LibraryKernel(_bits64(torch.le, compares=True), REALS | BOOL | _UINT64),
    "isnan": _plain(torch.isnan, FLOATS | COMPLEX),
    "isinf": _plain(torch.isinf, FLOATS | COMPLEX),
    "bitnot": LibraryKernel(_bits64(torch.bitwise_not), INTS | BOOL | _UINT64),
    "bitand": LibraryKernel(_bits64(torch.bitwise_and), INTS | BOOL | _UINT64),
    "bitor": LibraryKernel(_bits64(torch.bitwise_or), INTS | BOOL | _UINT64),
    "bitxor": LibraryKernel(_bits64(torch.bitwise_xor), INTS | BOOL | _UINT64),
    "shl": LibraryKernel(_make_shift(torch.bitwise_left_shift, left=True), INTS),
    "shr": LibraryKernel(_make_shift(torch.bitwise_right_shift, left=False), INTS),
    "select": LibraryKernel(_make_select, WHOLE_BYTES | SUB_BYTE),
    "complex": LibraryKernel(lambda _: torch.complex, frozenset({"float32", "float64"})),
    "real": LibraryKernel(lambda _: torch.real, COMPLEX),
    "imag": LibraryKernel(lambda _: torch.imag, COMPLEX),
}
