"""Seeded arrays of a type."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np

from kernels_hub.compiler.errors import DimError
from kernels_hub.compiler.ir.dims import dim_symbols
from kernels_hub.compiler.ir.extrema import substitute
from kernels_hub.compiler.ir.op import TensorType
from kernels_hub.compiler.ir.ops.conversion import convert
from kernels_hub.compiler.ir.types import Array


def random_array(
    of: TensorType, seed: int, name: str, bindings: Mapping[str, int] | None = None, limit: int | None = None
) -> Array:
    """A random array of a type; integers are below the limit."""
    shape = tuple(substitute(dim, bindings or {}) for dim in of.shape)
    if unbound := sorted(symbol.name for symbol in dim_symbols(shape)):
        raise DimError(f"{name!r} is {of}: bind {', '.join(unbound)}")
    random = np.random.default_rng([seed, zlib.crc32(name.encode())])
    if of.dtype.kind == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if of.dtype.is_integer:
        top = min(10 if limit is None else max(limit, 1), int(of.dtype.limits[1]) + 1)
        return convert(random.integers(0, top, shape), of.dtype)
    if of.dtype.is_complex:
        return (random.standard_normal(shape) + 1j * random.standard_normal(shape)).astype(of.dtype.numpy)
    return convert(random.standard_normal(shape), of.dtype, saturate=True)
