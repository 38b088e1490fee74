"""Matrix products and convolutions.

Floats narrower than float32 go to PyTorch as they are where both are of one dtype and so is the result; else wider.
Integers: up to 16 bits in float64 (exact: sums stay below 2**53), wider ones in int64, which wraps. Convolutions of
more than three spatial dims, of wide integers, and of no elements are sums over the kernel's places.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels_hub.compiler.engines.library_ops.site import (
    COMPLEX,
    FLOATS,
    INTS,
    NATIVE_FLOATS,
    LibraryKernel,
    Reason,
    Run,
    Site,
    narrowed,
)
from kernels_hub.compiler.engines.tensors import torch_dtype
from kernels_hub.compiler.ir.graph import Node
from kernels_hub.compiler.ir.types import DType

_EXACT_BITS = 53


def _terms(site: Site) -> int:
    """How many products a sum has."""
    if site.node.op.name in {"matmul", "grouped_matmul"}:
        return int(site.operand_shape(0)[-1])
    kernel = site.operand_shape(1)
    return math.prod(kernel[1:]) if site.node.op.name == "conv" else math.prod((kernel[0], *kernel[2:]))


def _compute_dtype(site: Site) -> torch.dtype:
    rows = [site.operand_row(0), site.operand_row(1)]
    if rows[0].is_complex:
        return (
            torch.complex128
            if any(row.name == "complex128" for row in (*rows, site.row))
            else torch.complex64
        )
    if rows[0].is_integer:
        bits = sum(row.bits for row in rows) + _terms(site).bit_length()
        return torch.float64 if bits <= _EXACT_BITS else torch.int64
    sums = site["accumulate"] or site.row
    if any(row.name == "float64" for row in (*rows, sums)):
        return torch.float64
    if rows[0] is rows[1] is site.row and rows[0].name in NATIVE_FLOATS:
        return torch_dtype(rows[0])
    return torch.float32


def _finisher(site: Site) -> Callable[[Tensor], Tensor]:
    """From sums to the result, through the dtype that they are said to be kept in."""
    result, sums = site.dtype, site["accumulate"]
    if sums is None or sums is site.row:
        if site.row.is_integer:
            return lambda total: total.to(torch.int64).to(result)
        return narrowed(site.row)
    if site.row.is_integer:
        middle = torch_dtype(sums)
        return lambda total: total.to(torch.int64).to(middle).to(result)
    narrow, first = sums.bits < 32, narrowed(sums)
    last = narrowed(site.row)
    return (lambda total: last(first(total))) if narrow else last


def _typed(site: Site, compute: Callable[[Tensor, Tensor], Tensor]) -> Run:
    """compute, on operands in the dtype that sums are made in."""
    dtype, finish = _compute_dtype(site), _finisher(site)
    direct = torch_dtype(site.operand_row(0)) is torch_dtype(site.operand_row(1)) is dtype is site.dtype
    if direct and site["accumulate"] in {None, site.row} | _wider(site.row):
        return compute
    return lambda a, b: finish(compute(a.to(dtype), b.to(dtype)))


def _wider(row: DType) -> set[DType]:
    from kernels_hub.compiler.ir import types

    return {types.FLOAT32, types.FLOAT64} if row.is_float else set()


def _make_matmul(site: Site) -> Run:
    if site.rank == 2:
        return _typed(site, torch.mm)
    return _typed(site, torch.matmul)


def _make_grouped(site: Site) -> Run:
    dtype, finish, row = _compute_dtype(site), _finisher(site), site.dtype

    def run(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
        x, w = x.to(dtype), w.to(dtype)
        total, start = x.new_zeros((x.shape[0], w.shape[2])), 0
        for matrix, end in zip(w.unbind(), ends.tolist(), strict=True):
            if end > start:
                torch.mm(x[start:end], matrix, out=total[start:end])
                start = end
        return total if dtype is row else finish(total)

    return run


def _make_conv(site: Site) -> Run:
    return _typed(site, conv_of(site))


def make_biased_conv(site: Site) -> Run:
    """The kernel of a convolution and the bias (O,) that is added to it."""
    compute = conv_of(site)
    plain = _typed(site, compute)
    if plain is compute:
        return compute
    along = (-1, *[1] * (site.rank - 2))
    return lambda a, b, bias: plain(a, b) + bias.reshape(along)


def conv_of(site: Site, computed: torch.dtype | None = None) -> Run:
    """A function of x, w and perhaps a bias, all of the dtype that is computed in; by default the site's."""
    x, w = site.operand_shape(0), site.operand_shape(1)
    rank, shape = len(x) - 2, site.shape
    padding = site["padding"]
    strides, dilations, groups = site["strides"], site["dilations"], site["groups"]
    dtype = _compute_dtype(site) if computed is None else computed
    if rank > 3 or 0 in shape or 0 in x or 0 in w or dtype is torch.int64:
        along = (-1, *[1] * rank)

        def taps(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
            result = _taps(a, b, shape, strides, dilations, padding, groups)
            return result if bias is None else result + bias.reshape(along)

        return taps
    function = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    if all(low == high for low, high in padding):
        both = tuple(low for low, _ in padding)
        return lambda a, b, bias=None: function(a, b, bias, strides, both, dilations, groups)
    around = _flat(padding)
    return lambda a, b, bias=None: function(F.pad(a, around), b, bias, strides, 0, dilations, groups)


def _flat(padding: Sequence[tuple[int, int]]) -> list[int]:
    """As F.pad takes it: the last dim first."""
    return [one for pair in reversed(padding) for one in pair]


def _taps(
    x: Tensor, w: Tensor, shape: Sequence[int], strides: Sequence[int], dilations: Sequence[int],
    padding: Sequence[tuple[int, int]], groups: int,
) -> Tensor:  # fmt: skip
    """A sum over the kernel's places, each a product of a strided slice of x with one matrix of w."""
    batch, outputs, *spatial = shape
    x = F.pad(x, _flat(padding))
    x = x.reshape(batch, groups, w.shape[1], *x.shape[2:])
    w = w.reshape(groups, outputs // groups, *w.shape[1:])
    total = x.new_zeros((groups, batch * math.prod(spatial), outputs // groups))
    if total.numel() == 0:
        return total.reshape(tuple(shape))
    for tap in _kernel_places(w):
        seen = x[(..., *_places(tap, strides, dilations, spatial))]
        rows = seen.movedim((1, 2), (0, -1)).reshape(groups, -1, w.shape[2])
        place: Any = (..., *tap)
        matrix = w[place]
        total = total + torch.matmul(rows, matrix.transpose(1, 2))
    return (
        total.reshape(groups, batch, *spatial, outputs // groups)
        .movedim((0, -1), (1, 2))
        .reshape(tuple(shape))
    )


def _kernel_places(w: Tensor) -> Iterator[tuple[int, ...]]:
    """Of a kernel (groups, outputs, inputs, spatial dims…)."""
    return itertools.product(*(range(size) for size in w.shape[3:]))


def _places(
    tap: Sequence[int], strides: Sequence[int], dilations: Sequence[int], counts: Sequence[int]
) -> list[Any]:
    return [
        slice(place * dilation, place * dilation + stride * (count - 1) + 1, stride)
        for place, stride, dilation, count in zip(tap, strides, dilations, counts, strict=True)
    ]


def _make_conv_transpose(site: Site) -> Run:
    x, w, shape = site.operand_shape(0), site.operand_shape(1), site.shape
    rank = len(x) - 2
    strides, dilations, groups = site["strides"], site["dilations"], site["groups"]
    padding, more = site["padding"], site["output_padding"]
    full = [
        stride * (size - 1) + dilation * (kernel - 1) + 1
        for size, kernel, stride, dilation in zip(x[2:], w[2:], strides, dilations, strict=True)
    ]
    if rank > 3 or 0 in shape or 0 in x or 0 in w or _compute_dtype(site) is torch.int64:
        spread: Any = lambda a, b: _spread(a, b, full, strides, dilations, groups)  # noqa: E731
    else:
        function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
        same = all(low == high for low, high in padding)
        legal = all(
            0 <= extra < max(stride, two) for extra, stride, two in zip(more, strides, dilations, strict=True)
        )
        if same and legal:
            both = tuple(low for low, _ in padding)
            return _typed(site, lambda a, b: function(a, b, None, strides, both, more, groups, dilations))
        spread = lambda a, b: function(a, b, None, strides, 0, 0, groups, dilations)  # noqa: E731
    behind = [
        max(0, low + count - size) for (low, _), count, size in zip(padding, shape[2:], full, strict=True)
    ]
    around = _flat([(0, one) for one in behind])

    def run(a: Tensor, b: Tensor) -> Tensor:
        result: Tensor = F.pad(spread(a, b), around)
        for axis, ((low, _), count) in enumerate(zip(padding, shape[2:], strict=True), 2):
            result = result.narrow(axis, low, count)
        return result.contiguous()

    return _typed(site, run)


def _spread(
    x: Tensor, w: Tensor, full: Sequence[int], strides: Sequence[int], dilations: Sequence[int], groups: int
) -> Tensor:
    """Each element of x adds its product with the kernel into the places that it reaches."""
    batch, channels, *sizes = x.shape
    each = w.shape[1]
    total = x.new_zeros((batch, groups, each, *full))
    if x.numel() and w.numel():
        x = x.reshape(batch, groups, channels // groups, *sizes).movedim(2, -1).movedim(1, 0)
        rows = x.reshape(groups, -1, channels // groups)
        w = w.reshape(groups, channels // groups, *w.shape[1:])
        for tap in _kernel_places(w):
            place: Any = (..., *tap)
            matrix = w[place]
            part = (
                torch.matmul(rows, matrix).reshape(groups, batch, *sizes, each).movedim(-1, 2).movedim(0, 1)
            )
            total[(..., *_places(tap, strides, dilations, sizes))] += part
    return total.reshape(batch, groups * each, *full)


def _declines(node: Node, device: str) -> Reason:
    rows = [operand.dtype for operand in node.operands]
    if device != "cpu" and rows[0].is_integer and any(row.bits > 16 for row in rows):
        return f"{node.op.name} of {rows[0]} on {device}"
    if node.results[0].dtype.name == "uint64":
        return f"{node.op.name} to uint64"
    return None


KERNELS = {
    "matmul": LibraryKernel(_make_matmul, FLOATS | INTS | COMPLEX, _declines),
    "grouped_matmul": LibraryKernel(_make_grouped, FLOATS | INTS | COMPLEX, _declines),
    "conv": LibraryKernel(_make_conv, FLOATS | INTS | COMPLEX, _declines),
    "conv_transpose": LibraryKernel(_make_conv_transpose, FLOATS | INTS | COMPLEX, _declines),
}
