# ruff: noqa: D103 (what an importer does is what ONNX says of its op)
"""Fourier transforms, and the mel matrix."""

from __future__ import annotations

import numpy as np

from kernels_hub.compiler.importers.fourier import inverse_to_real, transform
from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.importers.onnx_types import dtype_of
from kernels_hub.compiler.ir.dims import Expr
from kernels_hub.compiler.ir.graph import Value


@onnx_op("DFT", since=17)
def dft_axis_attribute(node: OnnxNode) -> Value:
    return _dft(node, node.attr("axis", 1))


@onnx_op("DFT", since=20)
def dft(node: OnnxNode) -> Value:
    return _dft(node, -2 if node.optional(2) is None else int(node.number(node.input(2), "the axis")))


def _dft(node: OnnxNode, axis: int) -> Value:
    """x (…, time, …, 1 or 2): real, or real and imaginary parts; the result has both, unless it is real."""
    x = node.input(0)
    axis = x.axis(axis)
    inverse, onesided = bool(node.attr("inverse", 0)), bool(node.attr("onesided", 0))
    length = x.shape[axis] if node.optional(1) is None else node.ints(1, "the length")[0]
    if inverse and onesided and node.optional(1) is None:
        length = 2 * (x.shape[axis] - 1)
    if isinstance(length, Expr):
        raise node.refuse(f"the length of the transform is {length}, no number: bind it")
    if inverse and onesided:
        return _real_inverse(x, axis, length)
    parts = _transformed(_fitted(x, axis, length), axis, inverse=inverse, onesided=onesided)
    return node.graph.apply("concat", *(part.unsqueeze(-1) for part in parts), axis=x.rank - 1)


def _fitted(x: Value, axis: int, length: int) -> Value:
    """Cut, or filled with zeros, to a length."""
    x = x.slice(axis, 0, length)
    return x.pad([(0, length - x.shape[axis]) if index == axis else (0, 0) for index in range(x.rank)])


def _transformed(x: Value, axis: int, *, inverse: bool, onesided: bool) -> tuple[Value, Value]:
    """Real and imaginary parts of the transform along an axis, without the last dim."""
    length = x.shape[axis]
    scale = 1 / length if inverse and isinstance(length, int) and length else 1.0
    real = x.part(0)
    if x.shape[-1] == 1:
        return transform(real, None, axis, inverse=inverse, is_half=onesided, scale=scale)
    imaginary = x.part(1)
    parts = transform(real, imaginary, axis, inverse=inverse, scale=scale)
    if not onesided:
        return parts
    half = x.shape[axis] // 2 + 1
    return parts[0].slice(axis, 0, half), parts[1].slice(axis, 0, half)


def _real_inverse(x: Value, axis: int, length: int) -> Value:
    """A real signal from half of its spectrum."""
    half = _fitted(x, axis, length // 2 + 1)
    real = half.part(0)
    imaginary = half.part(1) if x.shape[-1] == 2 else x.graph.full(real.shape, 0, x.dtype)
    return inverse_to_real(real, imaginary, axis, length, scale=1 / max(length, 1)).unsqueeze(-1)


@onnx_op("STFT", since=17)
def stft(node: OnnxNode) -> Value:
    """x (batch, time, 1 or 2) in frames, each by the window, transformed: (batch, frames, frequencies, 2)."""
    x, window = node.input(0), node.optional(2)
    if x.rank == 2:  # what exporters write, and ONNX Runtime takes: a real signal without its last dim
        x = x.unsqueeze(-1)
    (step,) = node.ints(1, "the step")
    length = window.shape[0] if window is not None else None
    if node.optional(3) is not None:
        (length,) = node.ints(3, "the length of a frame")
    if length is None or isinstance(length, Expr):
        raise node.refuse("neither a window nor the length of a frame says how long one is")
    frames = x.windows(1, length, step).permute(0, 1, 3, 2)
    if window is not None:
        frames = frames * window.reshape((length, 1))
    parts = _transformed(frames, 2, inverse=False, onesided=bool(node.attr("onesided", 1)))
    return node.graph.apply("concat", *(part.unsqueeze(-1) for part in parts), axis=3)


@onnx_op("MelWeightMatrix", since=17)
def mel_weight_matrix(node: OnnxNode) -> Value:
    """Triangles on the mel scale, as the operator's text computes them."""
    names = ("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz")
    bins, length, rate, low, high = (node.number(node.input(index), name) for index, name in enumerate(names))
    count = length // 2 + 1
    edges = np.arange(bins + 2, dtype=np.float64)
    low_mel, high_mel = (2595 * np.log10(1 + edge / 700) for edge in (low, high))
    mels = edges * ((high_mel - low_mel) / edges.size) + low_mel
    places = ((length + 1) * (700 * (10 ** (mels / 2595) - 1)) // rate).astype(np.int64)
    result = np.zeros((count, bins))
    for one in range(bins):
        left, top, right = places[one : one + 3]
        if top == left:
            result[top, one] = 1
        else:
            for position in range(left, top + 1):
                result[position, one] = (position - left) / (top - left)
        for place in range(top, right) if right > top else ():
            result[place, one] = (right - place) / (right - top)
    return node.constant(result.astype(dtype_of(node.attr("output_datatype", 1)).numpy))
