"""Fourier transforms as products with matrices of cosines and sines, for targets whose language has no other form.

X[k] = sum over j of x[j] * exp(∓2πi j k / n). Up to `DENSE` samples one product is all there is; more are divided,
n = p * q, by the decimation of Cooley and Tukey, so that n samples take n * (p + q) multiplications.
Source: Cooley and Tukey, An algorithm for the machine calculation of complex Fourier series, 1965.
"""

from __future__ import annotations

import math

import numpy as np

from kernels_hub.compiler.ir.graph import Node, Value
from kernels_hub.compiler.ir.ops.fourier import samples_of
from kernels_hub.compiler.ir.types import Array

DENSE = 512
"""Samples up to which a transform is one product."""
LARGEST = 2048
"""The largest prime factor of a length that is written as products: its matrix has 4 * LARGEST^2 elements."""


def has_products(node: Node) -> bool:
    """Whether an op is a transform that `in_products` writes out."""
    return node.op.name == "fourier" and _largest_factor(_length(node)) <= LARGEST


def in_products(node: Node, operands: tuple[Value, ...]) -> Value:
    """A transform as products. operands: the node's, in the new graph."""
    attrs, axis = node.attrs, node.attrs["axis"]
    length, scale = _length(node), attrs["scale"]
    real, *imaginary = (operand.transpose(axis, -1) for operand in operands)
    if attrs["form"] == "real":
        return _samples(real, imaginary[0], length, scale).transpose(axis, -1)
    columns = length // 2 + 1 if attrs["form"] == "half" else length
    given = imaginary[0] if imaginary else None
    parts = _along_last(real, given, length, columns, 1 if attrs["inverse"] else -1)
    turned = [_scaled(part, scale).transpose(axis, -1).unsqueeze(-1) for part in parts]
    pairs = real.graph.apply("concat", *turned, axis=real.rank)
    return pairs.reshape((*pairs.shape[:-2], 2 * pairs.shape[-2]))


def _length(node: Node) -> int:
    return samples_of(node.operands[0].shape, node.attrs)


def _largest_factor(number: int) -> int:
    """The largest prime factor; 1 of 1."""
    largest, divisor = 1, 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            largest, number = divisor, number // divisor
        divisor += 1
    return max(largest, number)


def _division(length: int) -> tuple[int, int]:
    """p * q, p as near to the root as factors allow; p = 1 for a prime."""
    p = next(p for p in range(math.isqrt(length), 0, -1) if length % p == 0)
    return p, length // p


def _samples(real: Value, imaginary: Value, length: int, scale: float) -> Value:
    """Real samples (…, length) of half of their spectrum."""
    half = length // 2 + 1
    if length <= DENSE:
        angle = _angles(half, length, length)
        weight = np.full((half, 1), 2.0 * scale)
        weight[0] = scale
        if length % 2 == 0:
            weight[-1] = scale
        matrix = np.concatenate([np.cos(angle) * weight, -np.sin(angle) * weight])
        return _times(_joined(real, imaginary), matrix)
    mirrored = [part.slice(-1, 1, (length + 1) // 2).flip(-1) for part in (real, imaginary)]
    whole = _joined(real, mirrored[0]), _joined(imaginary, -mirrored[1])
    return _scaled(_along_last(*whole, length, length, 1)[0], scale)


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


def _scaled(value: Value, scale: float) -> Value:
    return value if scale == 1 else value * scale
