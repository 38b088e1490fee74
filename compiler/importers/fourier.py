"""Fourier transforms of values, as products with matrices of cosines and sines: `transform`, `inverse_to_real`.

X[k] = sum over j of x[j] * exp(∓2πi j k / n), on pairs of real and imaginary parts. Up to `DENSE` samples one product
is all there is; more are divided, n = p * q, by the decimation of Cooley and Tukey, so that n samples take n * (p + q)
multiplications. Lengths whose prime factors are all small end in products of at most `DENSE` samples; a prime factor
above `LARGEST` is refused.
Source: Cooley and Tukey, An algorithm for the machine calculation of complex Fourier series, 1965.
"""

from __future__ import annotations

import math

import numpy as np

from kernels_hub.compiler.errors import CompilerError
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.types import Array

DENSE = 512
"""Samples up to which a transform is one product."""
LARGEST = 2048
"""The largest prime factor of a length: its matrix has 4 * LARGEST^2 elements."""


def transform(
    real: Value, imaginary: Value | None, axis: int, *, inverse: bool, columns: int | None = None
) -> tuple[Value, Value]:
    """Real and imaginary parts of the transform along an axis, unscaled.

    imaginary: None where the samples are real. inverse: with the sign of the inverse. columns: the first frequencies,
    by default all. Raises CompilerError for a length that is no number, or has too large a prime factor.
    """
    length = _length(real, axis)
    parts = _along_last(
        real.transpose(axis, -1),
        None if imaginary is None else imaginary.transpose(axis, -1),
        length,
        length if columns is None else columns,
        1 if inverse else -1,
    )
    real, imaginary = (part.transpose(axis, -1) for part in parts)
    return real, imaginary


def inverse_to_real(real: Value, imaginary: Value, axis: int, length: int) -> Value:
    """`length` real samples, unscaled, of the first length // 2 + 1 frequencies; what is left of these is not read.

    The imaginary parts of the first frequency, and of the middle one, count as 0.
    """
    half = length // 2 + 1
    real, imaginary = (part.slice(axis, 0, half).transpose(axis, -1) for part in (real, imaginary))
    if length <= DENSE:
        angle = _angles(half, length, length)
        weight = np.full((half, 1), 2.0)
        weight[0] = 1.0
        if length % 2 == 0:
            weight[-1] = 1.0
        matrix = np.concatenate([np.cos(angle) * weight, -np.sin(angle) * weight])
        return _times(_joined(real, imaginary), matrix).transpose(axis, -1)
    mirrored = [part.slice(-1, 1, (length + 1) // 2).flip(-1) for part in (real, imaginary)]
    whole = _joined(real, mirrored[0]), _joined(imaginary, -mirrored[1])
    return _along_last(*whole, length, length, 1)[0].transpose(axis, -1)


def _length(value: Value, axis: int) -> int:
    length = value.shape[axis]
    if not isinstance(length, int):
        raise CompilerError(f"the length of a Fourier transform is {length}, no number: bind it")
    largest = max(_factors(length), default=1)
    if largest > LARGEST:
        raise CompilerError(
            f"a Fourier transform of {length} samples, whose prime factor {largest} is above {LARGEST}; pad or cut them"
        )
    return length


def _factors(number: int) -> list[int]:
    """Prime factors, smallest first."""
    factors, divisor = [], 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return [*factors, number] if number > 1 else factors


def _division(length: int) -> tuple[int, int]:
    """p * q, p as near to the root as factors allow; p = 1 for a prime."""
    p = next(p for p in range(math.isqrt(length), 0, -1) if length % p == 0)
    return p, length // p


def _along_last(
    real: Value, imaginary: Value | None, length: int, columns: int, sign: int
) -> tuple[Value, Value]:
    """Along the last dim. With n = q*a + b and k = c + p*d: over a, times the twiddles exp(∓2πi b c / n), over b."""
    p, q = (1, length) if length <= DENSE else _division(length)
    if p == 1:
        return _dense(real, imaginary, length, columns, sign)
    batch = real.shape[:-1]
    parts = [None if one is None else one.reshape((*batch, p, q)) for one in (real, imaginary)]
    first = [None if one is None else one.transpose(-1, -2) for one in parts]
    assert first[0] is not None
    real, imaginary = _along_last(first[0], first[1], p, p, sign)  # […, b, c]
    angle = sign * _angles(q, p, length)
    cosine, sine = (
        real.graph.constant(one.astype(real.dtype.numpy)) for one in (np.cos(angle), np.sin(angle))
    )
    turned = real * cosine - imaginary * sine, real * sine + imaginary * cosine
    real, imaginary = _along_last(
        turned[0].transpose(-1, -2), turned[1].transpose(-1, -2), q, q, sign
    )  # […, c, d]
    found = [
        one.transpose(-1, -2).reshape((*batch, length)).slice(-1, 0, columns) for one in (real, imaginary)
    ]
    return found[0], found[1]


def _dense(real: Value, imaginary: Value | None, length: int, columns: int, sign: int) -> tuple[Value, Value]:
    angle = sign * _angles(length, columns, length)
    matrix = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
    if imaginary is not None:
        matrix = np.concatenate([matrix, np.concatenate([-np.sin(angle), np.cos(angle)], axis=1)])
        real = _joined(real, imaginary)
    both = _times(real, matrix)
    return both.slice(-1, 0, columns), both.slice(-1, columns, 2 * columns)


def _angles(rows: int, columns: int, length: int) -> Array:
    """2π j k / length, in float64, of products that are reduced first."""
    place: Array = np.outer(np.arange(rows), np.arange(columns)) % max(length, 1)
    return 2 * np.pi * place / max(length, 1)


def _times(value: Value, matrix: Array) -> Value:
    return value.matmul(value.graph.constant(matrix.astype(value.dtype.numpy)))


def _joined(a: Value, b: Value) -> Value:
    return a.graph.apply("concat", a, b, axis=a.rank - 1)
