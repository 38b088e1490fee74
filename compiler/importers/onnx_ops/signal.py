# ruff: noqa: D103 (what an importer does is what ONNX says of its op)
"""Fourier transforms as products with their matrices, and the mel matrix."""

from __future__ import annotations

import numpy as np

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.importers.onnx_types import dtype_of
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import Expr
from kernels_hub.compiler.ir.graph import Graph, Value


def _matrices(
    graph: Graph, rows: int, columns: int, row: types.DType, *, inverse: bool
) -> tuple[Value, Value]:
    """Cosines and sines of the transform of `rows` samples, the first `columns` frequencies."""
    place = np.outer(np.arange(rows), np.arange(columns)) % rows if rows else np.zeros((rows, columns))
    angle = 2 * np.pi * place / max(rows, 1)
    scale = 1 / rows if inverse else 1.0
    sine = np.sin(angle) if inverse else -np.sin(angle)
    return graph.constant((np.cos(angle) * scale).astype(row.numpy)), graph.constant(
        (sine * scale).astype(row.numpy)
    )


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
        return _real_inverse(node, x, axis, length)
    x = _fitted(x, axis, length)
    columns = length // 2 + 1 if onesided else length
    parts = _transformed(x, axis, length, columns, inverse=inverse)
    return node.graph.apply("concat", *(part.unsqueeze(-1) for part in parts), axis=x.rank - 1)


def _fitted(x: Value, axis: int, length: int) -> Value:
    """Cut, or filled with zeros, to a length."""
    x = x.slice(axis, 0, length)
    return x.pad([(0, length - x.shape[axis]) if index == axis else (0, 0) for index in range(x.rank)])


def _transformed(x: Value, axis: int, rows: int, columns: int, *, inverse: bool) -> tuple[Value, Value]:
    """Real and imaginary parts of the transform along an axis, without the last dim."""
    cosine, sine = _matrices(x.graph, rows, columns, x.dtype, inverse=inverse)

    def times(part: Value, matrix: Value) -> Value:
        return part.transpose(axis, -1).matmul(matrix).transpose(axis, -1)

    real = x.slice(-1, 0, 1).squeeze(-1)
    if x.shape[-1] == 1:
        return times(real, cosine), times(real, sine)
    imaginary = x.slice(-1, 1, 2).squeeze(-1)
    return times(real, cosine) - times(imaginary, sine), times(real, sine) + times(imaginary, cosine)


def _real_inverse(node: OnnxNode, x: Value, axis: int, length: int) -> Value:
    """A real signal from half of its spectrum: the other half is its mirror image, conjugated."""
    half = _fitted(x, axis, length // 2 + 1)
    mirrored = half.slice(axis, 1, (length + 1) // 2).flip(axis)
    if x.shape[-1] == 2:
        mirrored = mirrored * node.constant(np.array([1, -1]).astype(x.dtype.numpy))
    whole = node.graph.apply("concat", half, mirrored, axis=axis)
    return _transformed(whole, axis, length, length, inverse=True)[0].unsqueeze(-1)


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
    columns = length // 2 + 1 if node.attr("onesided", 1) else length
    parts = _transformed(frames, 2, length, columns, inverse=False)
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
