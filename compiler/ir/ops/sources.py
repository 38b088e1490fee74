"""Ops without tensors as operands: inputs, parameters, constants, iota, sizes, random bits.

Randomness is a pure function of a key: element i of `random_bits` is the first word of Philox-4x32-10 with
counter (i, i >> 32, 0, 0) and the key's two words, which is what Triton's `tl.randint` computes. So results
are the same on every executor, and two ops with one key are one op; different streams take different keys.
"""

from __future__ import annotations

import math

import numpy as np

from kernels_hub.compiler.errors import EvaluateError, ShapeError, TypeRuleError
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.op import (
    ARRAY,
    DIM,
    DIMS,
    DTYPE,
    STR,
    SYMBOL,
    Attr,
    Attrs,
    Op,
    Operands,
    ReferenceCall,
    Shape,
    Trait,
    from_attr,
)  # fmt: skip
from kernels_hub.compiler.ir.types import INT64, UINT32, UINT64, Array, DType


def _supplied(step: ReferenceCall) -> Array:
    raise EvaluateError(f"{step.attrs['name']!r} is supplied by the caller, not computed")


def _shape(_: Operands, attrs: Attrs) -> Shape:
    for axis, dim in enumerate(attrs["shape"]):
        if isinstance(dim, int) and dim < 0:
            raise ShapeError(f"dim {axis} of {attrs['shape']} is negative")
    return attrs["shape"]  # type: ignore[no-any-return]


def philox(counter: Array, key: int) -> Array:
    """The first word of Philox-4x32-10 for each counter, uint32. Source: Salmon et al., SC 2011."""
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    c0, c1 = counter.astype(np.uint64) & low, counter.astype(np.uint64) >> shift
    c2 = c3 = np.zeros_like(c0)
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        first, second = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (
            (second >> shift) ^ c1 ^ np.uint64(k0), second & low,
            (first >> shift) ^ c3 ^ np.uint64(k1), first & low,
        )  # fmt: skip
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0.astype(np.uint32)


def _random_bits(step: ReferenceCall) -> Array:
    count = math.prod(step.shape)
    return philox(np.arange(count, dtype=np.uint64), int(step.operands[0])).reshape(step.shape)


def _key(operands: Operands, _: Attrs) -> DType:
    if operands[0].dtype is not UINT64 or operands[0].rank:
        raise TypeRuleError(f"the key is a uint64 scalar, not {operands[0]}")
    return UINT32


def _sized(operands: Operands, _: Attrs) -> DType:
    if operands[0].dtype is not INT64 or operands[0].rank:
        raise TypeRuleError(f"a size is an int64 scalar, not {operands[0]}")
    return INT64


_NAME, _DTYPE, _SHAPE = Attr("name", STR), Attr("dtype", DTYPE), Attr("shape", DIMS)
_NAMED = (_NAME, _DTYPE, _SHAPE)

ROWS = (
    Op("input", "A value that each call brings.", 0, _supplied, from_attr(), _shape, attrs=_NAMED, traits=Trait.LEAF),
    Op("parameter", "A weight, by name; its array lies beside the graph.", 0, _supplied, from_attr(), _shape,
       attrs=_NAMED, traits=Trait.LEAF),
    Op("constant", "An array in the graph; compared by its bytes.", 0, lambda step: step.attrs["value"].array,
       lambda _, attrs: types.dtype(attrs["value"].array.dtype), lambda _, attrs: attrs["value"].array.shape,
       attrs=(Attr("value", ARRAY),), traits=Trait.LEAF),
    Op("iota", "0, 1, … size - 1.", 0, lambda step: np.arange(step.attrs["size"]).astype(step.dtype), from_attr(),
       lambda _, attrs: (attrs["size"],), attrs=(Attr("size", DIM), _DTYPE), traits=Trait.LEAF, source="numpy.arange"),
    Op("size", "A dim as a value.", 0, lambda step: np.asarray(step.attrs["value"], step.dtype), from_attr(),
       lambda *_: (), attrs=(Attr("value", DIM), Attr("dtype", DTYPE, INT64)), traits=Trait.LEAF, source="ONNX Size"),
    Op("define_size", "A value as a dim: hands the operand on and defines a symbol that has this size.", 1,
       lambda step: step.operands[0], _sized, lambda *_: (), attrs=(Attr("symbol", SYMBOL),), defines="symbol",
       source="torch.export's unbacked symbols"),
    Op("random_bits", "Uniform 32-bit words, a function of the key and the place (Philox-4x32-10).", 1, _random_bits,
       _key, _shape, attrs=(_SHAPE,), source="Salmon et al., SC 2011; triton.language.randint"),
)  # fmt: skip
