"""Fourier transforms of pairs of real and imaginary parts, as importers write them: `transform`, `inverse_to_real`."""

from __future__ import annotations

from kernels_hub.compiler.errors import CompilerError
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.types import FLOAT64


def transform(
    real: Value,
    imaginary: Value | None,
    axis: int,
    *,
    inverse: bool = False,
    is_half: bool = False,
    scale: float = 1.0,
) -> tuple[Value, Value]:
    """Real and imaginary parts of the transform along an axis, times a scale.

    imaginary: None where the samples are real. is_half: the first n // 2 + 1 frequencies of such. Raises CompilerError
    for a length that is no number.
    """
    number_of_samples(real.shape[axis])
    parts = [real] if imaginary is None else [real, imaginary]
    found = _applied(
        parts, axis=real.axis(axis), form="half" if is_half else "full", inverse=inverse, scale=scale
    )
    return found.parts()


def inverse_to_real(real: Value, imaginary: Value, axis: int, length: int, *, scale: float = 1.0) -> Value:
    """`length` real samples, times a scale, of the first length // 2 + 1 frequencies; what is left is not read.

    The imaginary parts of the first frequency, and of the middle one, count as 0.
    """
    parts = [part.slice(axis, 0, length // 2 + 1) for part in (real, imaginary)]
    return _applied(parts, axis=real.axis(axis), form="real", length=length, scale=scale)


def number_of_samples(length: Dim) -> int:
    """A length that is a number. Raises CompilerError for another."""
    if not isinstance(length, int):
        raise CompilerError(f"the length of a Fourier transform is {length}, no number: bind it")
    return length


def _applied(parts: list[Value], *, axis: int, **attrs: object) -> Value:
    """The op, in float32 at least, rounded once."""
    first = parts[0].dtype
    wide = FLOAT64 if first is FLOAT64 else first.compute
    found = parts[0].apply("fourier", *(part.cast(wide) for part in parts), axis=axis, **attrs)
    return found.cast(first)
