"""Products and convolutions of bytes less their zero points, in parts that float32 holds exactly.

A byte less a byte is at most 255 and a product of two such at most 65,025, so that float32, which holds every integer
up to 2**24, sums 258 of them without rounding, in any order. (bfloat16 and TF32, which PyTorch may be told to multiply
float32 in, hold the factors, too, and add in float32.) Longer sums are made of such parts, which are added in int32 and
wrap as the op says. Weights are widened a part at a time: in int64, where the op by itself computes, a matrix takes
eight times its bytes, and as much again for what is subtracted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels_hub.compiler.engines.library_ops.contract import conv_of
from kernels_hub.compiler.engines.library_ops.site import Run, Site
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.op import Shape

MOST_TERMS = (1 << 24) // (255 * 255)
"""Products that float32 sums without rounding."""
_BYTES = frozenset({"int8", "uint8"})


@dataclass(frozen=True, eq=False)
class Centred:
    """numbers - zero, bytes as int32. axes: those of the result that zero has; zero is None where nothing comes off."""

    numbers: Value
    zero: Value | None
    axes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ByteProduct:
    """A matmul or conv of int32 of which both operands are bytes less their zero points."""

    root: Node
    first: Centred
    second: Centred

    @property
    def operands(self) -> tuple[Value, ...]:
        """The bytes and the zero points there are: of the first operand, then of the second."""
        values = (self.first.numbers, self.first.zero, self.second.numbers, self.second.zero)
        return tuple(value for value in values if value is not None)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The product alone: others may read what it is of."""
        return (self.root,)

    def make(self, site: Site) -> Run:
        """The kernel. Raises SizesNeeded where a convolution's are open."""
        compute = _matmul if self.root.op.name == "matmul" else _conv(site)
        firsts = 1 if self.first.zero is None else 2

        def run(*operands: Tensor) -> Tensor:
            first = _Bytes(*operands[:firsts], axes=self.first.axes)
            return compute(first, _Bytes(*operands[firsts:], axes=self.second.axes))

        return run


def find_byte_products(graph: Graph, device: torch.device) -> dict[Node, ByteProduct]:
    """The products of bytes of a graph, by node; none on devices other than a CPU."""
    if device.type != "cpu":
        return {}
    found = (_product(node) for node in graph.live() if node.op.name in {"matmul", "conv"})
    return {product.root: product for product in found if product is not None}


def _product(node: Node) -> ByteProduct | None:
    first, second = node.operands
    accumulate = node.attrs["accumulate"]
    if node.results[0].dtype.name != "int32" or (accumulate is not None and accumulate.name != "int32"):
        return None
    if node.op.name == "conv":
        if not _is_exact(second.shape[1:], node.attrs["groups"]):
            return None
    elif second.op_name == "broadcast" and second.attrs["axes"] == (first.rank - 2, first.rank - 1):
        (second,) = second.node.operands
    one, other = _centred(first), _centred(second)
    return None if one is None or other is None else ByteProduct(node, one, other)


def _is_exact(kernel: Shape, groups: Dim) -> bool:
    """Whether a kernel (channels, spatial dims…) has few enough places, by all channels where these stay together."""
    sizes = [dim for dim in kernel if isinstance(dim, int)]
    return len(sizes) == len(kernel) and math.prod(sizes[1:] if groups == 1 else sizes) <= MOST_TERMS


def _centred(value: Value) -> Centred | None:
    """What a value is of bytes; None where it may be more than 255."""
    if (numbers := _bytes_of(value)) is not None:
        return Centred(numbers, None, ())
    if value.op_name != "sub":
        return None
    minuend, subtrahend = value.node.operands
    axes = tuple(range(subtrahend.rank))
    if subtrahend.op_name == "broadcast":
        axes = subtrahend.attrs["axes"]
        (subtrahend,) = subtrahend.node.operands
    numbers, zero = _bytes_of(minuend), _bytes_of(subtrahend)
    if numbers is None or zero is None or numbers.dtype is not zero.dtype:
        return None
    return Centred(numbers, zero, axes)


def _bytes_of(value: Value) -> Value | None:
    """The bytes that a value is, in int32."""
    if value.op_name != "cast" or value.dtype.name != "int32":
        return None
    (numbers,) = value.node.operands
    return numbers if numbers.dtype.name in _BYTES else None


class _Bytes:
    """Bytes and their zero point in a call."""

    def __init__(self, numbers: Tensor, zero: Tensor | None = None, *, axes: Sequence[int]) -> None:
        self.numbers = numbers
        self._zero: Tensor | None = None
        if zero is not None:
            sizes = [1] * numbers.dim()
            for axis, size in zip(axes, zero.shape, strict=True):
                sizes[axis] = size
            self._zero = zero.to(torch.float32).reshape(sizes).expand(numbers.shape)

    def part(self, axis: int, start: int, stop: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Some of an axis, less the zero point."""
        wide = self.numbers.narrow(axis, start, stop - start).to(dtype)
        return wide if self._zero is None else wide.sub_(self._zero.narrow(axis, start, stop - start))


def _matmul(first: _Bytes, second: _Bytes) -> Tensor:
    depth = first.numbers.shape[-1]

    def part(start: int, stop: int) -> Tensor:
        return torch.matmul(first.part(-1, start, stop), second.part(-2, start, stop))

    return _sum(part, depth, MOST_TERMS)


def _conv(site: Site) -> Callable[[_Bytes, _Bytes], Tensor]:
    """A convolution in parts of channels. In float64 without oneDNN: others may take Winograd's way, which rounds."""
    exact = {dtype: conv_of(site, dtype) for dtype in (torch.float32, torch.float64)}
    channels, *kernel = site.operand_shape(1)[1:]
    groups = site["groups"]
    most = channels if groups != 1 else MOST_TERMS // max(1, math.prod(kernel))

    def run(x: _Bytes, w: _Bytes) -> Tensor:
        onednn = torch.backends.mkldnn
        dtype = torch.float32 if onednn.is_available() and bool(onednn.enabled) else torch.float64

        def part(start: int, stop: int) -> Tensor:
            result: Tensor = exact[dtype](
                x.part(1, start * groups, stop * groups, dtype), w.part(1, start, stop, dtype)
            )
            return result

        return _sum(part, channels, most)

    return run


def _sum(part: Callable[[int, int], Tensor], count: int, most: int) -> Tensor:
    """The int32 sum of parts of at most so many terms; part: what those from start to stop are."""
    total: Tensor | None = None
    for start in range(0, max(count, 1), max(most, 1)):
        exact = part(start, min(start + most, count)).to(torch.int32)
        total = exact if total is None else total.add_(exact)
    assert total is not None
    return total
