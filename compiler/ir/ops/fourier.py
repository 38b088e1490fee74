"""The discrete Fourier transform along an axis; a complex number is a pair of a real and an imaginary part."""

from __future__ import annotations

import numpy as np

from kernels_hub.compiler.errors import TypeRuleError
from kernels_hub.compiler.ir.flops import fourier_flops
from kernels_hub.compiler.ir.op import (
    BOOL,
    FLOAT,
    INT,
    Attr,
    Attrs,
    Op,
    Operands,
    ReferenceCall,
    Shape,
    axis_in,
    one_of,
    require_equal,
    same_shape,
)
from kernels_hub.compiler.ir.ops.conversion import of_parts
from kernels_hub.compiler.ir.types import FLOAT32, FLOAT64, Array, DType

OPERANDS = {"full": (1, 2), "half": (1,), "real": (2,)}
"""Form -> how many operands it may have."""


def samples_of(shape: Shape, attrs: Attrs) -> int:
    """How many samples are transformed. shape: of an operand. Raises TypeRuleError unless it is a number."""
    length = attrs["length"] if attrs["form"] == "real" else shape[axis_in(attrs["axis"], len(shape))]
    if not isinstance(length, int) or length < 1:
        raise TypeRuleError(
            f"a Fourier transform is of one sample or more, and of how many is known: {length}"
        )
    return length


def _dtype(operands: Operands, attrs: Attrs) -> DType:
    first = operands[0].dtype
    if first not in {FLOAT32, FLOAT64} or any(operand.dtype is not first for operand in operands):
        shown = ", ".join(str(operand.dtype) for operand in operands)
        raise TypeRuleError(f"transforms parts of float32, or of float64, not of {shown}")
    if len(operands) not in OPERANDS[attrs["form"]]:
        raise TypeRuleError(f"{len(operands)} operands of a transform of the form {attrs['form']!r}")
    if attrs["inverse"] and attrs["form"] != "full":
        raise TypeRuleError(f"the form {attrs['form']!r} has one direction, and no inverse")
    return first


def _shape(operands: Operands, attrs: Attrs) -> Shape:
    shape, axis = same_shape(operands, attrs), attrs["axis"]
    samples = samples_of(shape, attrs)
    half = samples // 2 + 1
    if attrs["form"] == "real":
        axis_in(axis, len(shape))
        require_equal(shape[axis], half, f"dim {axis}", f"the frequencies of {samples} real samples")
        return (*shape[:axis], samples, *shape[axis + 1 :])
    found = (*shape[:axis], half if attrs["form"] == "half" else samples, *shape[axis + 1 :])
    return (*found[:-1], 2 * found[-1])


def _run(step: ReferenceCall) -> Array:
    """In float64, rounded once."""
    axis, scale = step.attrs["axis"], step.attrs["scale"]
    real, *imaginary = (operand.astype(np.float64) for operand in step.operands)
    if not real.size:
        return np.zeros(step.shape, step.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        x = real if not imaginary else of_parts(real, imaginary[0])
        y: Array
        if step.attrs["form"] == "real":
            y = np.fft.irfft(x, step.attrs["length"], axis, "forward")
        else:
            spectrum = _spectrum(x, axis, is_half=step.attrs["form"] == "half", inverse=step.attrs["inverse"])
            y = np.stack([spectrum.real, spectrum.imag], -1).reshape(step.shape)
        scaled: Array = y * scale
        return scaled.astype(step.dtype)


def _spectrum(x: Array, axis: int, *, is_half: bool, inverse: bool) -> Array:
    if is_half:
        return np.asarray(np.fft.rfft(x, axis=axis))
    return np.asarray(np.fft.ifft(x, axis=axis, norm="forward") if inverse else np.fft.fft(x, axis=axis))


ROWS = (
    Op("fourier", "The discrete Fourier transform along an axis, times a scale: X[k] = sum over j of x[j] * "
       'exp(-2*pi*i * j * k / n), or with +i (inverse). Operands: real parts and, of "full", perhaps imaginary ones, '
       'of one shape. Result: "full": of that shape, but for twice the columns, each real part with its imaginary one '
       'behind it; "half": the same of the first n // 2 + 1 '
       'frequencies of real samples; "real": `length` real samples (…), by the inverse, of their first length // 2 + 1 '
       "frequencies, where the imaginary parts of the first and of the middle one count as 0.", (1, 2), _run, _dtype,
       _shape, attrs=(Attr("axis", INT), Attr("form", one_of(*OPERANDS), default="full"),
       Attr("inverse", BOOL, default=False), Attr("length", INT, default=0), Attr("scale", FLOAT, default=1.0)),
       flops=fourier_flops, source="numpy.fft; torch.fft"),
)  # fmt: skip
