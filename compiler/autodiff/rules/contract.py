"""Derivatives of matrix products and convolutions.

A product with an operand that is the same for all of a batch (a linear layer of any rank) has one product as its
gradient, in which the batch is summed over with the rows: `summed`.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels_hub.compiler.autodiff.rule import Derivative, Gradients, NotDifferentiable, Site, apart
from kernels_hub.compiler.ir.dims import Dim, product
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.proofs import proves_equal, proves_le
from kernels_hub.compiler.ir.types import DType


def _matmul(site: Site) -> Gradients:
    a, b = site.operands
    g = site.gradient
    return [
        _product(g, b.transpose(), a.dtype, site) if site.wanted[0] else None,
        _product(a.transpose(), g, b.dtype, site) if site.wanted[1] else None,
    ]


def _product(a: Value, b: Value, dtype: DType, site: Site) -> Value:
    same = a.dtype is b.dtype is dtype
    return a.graph.apply("matmul", a, b, dtype=None if same else dtype, accumulate=site.attrs["accumulate"])


def summed(value: Value, axes: Sequence[int]) -> Value:
    """The sum over axes; of a product over axes of its batch, a product that sums over them, too."""
    batch = value.rank - 2
    if value.op_name != "matmul" or not axes or any(axis >= batch for axis in axes):
        return value.sum(axes) if axes else value
    a, b = value.operands
    kept = tuple(axis for axis in range(batch) if axis not in axes)
    rest = tuple(value.shape[axis] for axis in kept)
    count = product(value.shape[axis] for axis in axes) * a.shape[-1]
    left = a.permute(*kept, *axes, batch + 1, batch).reshape((*rest, count, a.shape[-2])).transpose()
    right = b.permute(*kept, *axes, batch, batch + 1).reshape((*rest, count, b.shape[-1]))
    return value.graph.apply("matmul", left, right, **value.attrs)


def _few_bits(site: Site) -> Gradients:
    x, *weights = site.operands
    if any(site.wanted[1:]):
        raise NotDifferentiable("the scales and zero points of a weight of few bits have no derivative")
    weight = site.graph.apply("dequantize", *weights, bits=site.attrs["bits"], depth=x.shape[1])
    g = site.gradient
    same = g.dtype is weight.dtype is x.dtype
    found = site.graph.apply("matmul", g, weight, dtype=None if same else x.dtype)
    return [found, *[None] * len(weights)]


def _conv(site: Site) -> Gradients:
    return [
        _conv_input(site) if site.wanted[0] else None,
        _conv_weight(site) if site.wanted[1] else None,
    ]


def _conv_input(site: Site) -> Value:
    """A convolution of the gradient, zeros between its elements, with the kernel turned round.

    w: (O, C / groups, …) -> (C, O / groups, …), a group after the other.
    """
    x, w = site.operands
    g, attrs = site.gradient, site.attrs
    groups, count = attrs["groups"], x.rank - 2
    outputs, inner, *kernel = w.shape
    split = w.reshape((groups, outputs // groups, inner, *kernel))
    turned = split.permute(0, 2, 1, *range(3, 3 + count)).reshape(
        (inner * groups, outputs // groups, *kernel)
    )
    turned = turned.flip(*range(2, 2 + count))
    padding: list[tuple[Dim, Dim]] = []
    for axis in range(2, x.rank):
        stride, dilation, (low, _) = (attrs[key][axis - 2] for key in ("strides", "dilations", "padding"))
        g = apart(g, axis, stride)
        reach = dilation * (kernel[axis - 2] - 1)
        before = reach - low
        padding.append((before, x.shape[axis] - g.shape[axis] - before + reach))
    g, padding = _cropped(g, padding)
    ones = [1] * count
    return site.graph.apply(
        "conv", g, turned, strides=ones, dilations=attrs["dilations"], padding=padding, groups=groups,
        dtype=None if g.dtype is w.dtype is x.dtype else x.dtype, accumulate=attrs["accumulate"],
    )  # fmt: skip


def _conv_weight(site: Site) -> Value:
    """A convolution of the input with the gradient, channels in the place of the batch, one of each group."""
    x, w = site.operands
    g, attrs = site.gradient, site.attrs
    groups, count = attrs["groups"], x.rank - 2
    batch = x.shape[0]
    outputs, inner = w.shape[:2]
    spatial = tuple(range(3, 3 + count))
    # (N, groups, C / groups, …) -> (C / groups, groups * N, …): the batch is what is summed over, in each group.
    seen = x.reshape((batch, groups, inner, *x.shape[2:])).permute(2, 1, 0, *spatial)
    seen = seen.reshape((inner, groups * batch, *x.shape[2:]))
    kernels = g.reshape((batch, groups, outputs // groups, *g.shape[2:])).permute(1, 2, 0, *spatial)
    kernels = kernels.reshape((outputs, batch, *g.shape[2:]))
    padding: list[tuple[Dim, Dim]] = []
    for axis in range(2, x.rank):
        stride, dilation, (low, _) = (attrs[key][axis - 2] for key in ("strides", "dilations", "padding"))
        used = stride * (g.shape[axis] - 1) + dilation * (w.shape[axis] - 1) + 1
        padding.append((low, used - x.shape[axis] - low))
    seen, padding = _cropped(seen, padding)
    found = site.graph.apply(
        "conv", seen, kernels, strides=attrs["dilations"], dilations=attrs["strides"], padding=padding,
        groups=groups, dtype=None if x.dtype is g.dtype is w.dtype else w.dtype, accumulate=attrs["accumulate"],
    )  # fmt: skip
    return found.permute(1, 0, *range(2, 2 + count))


def _conv_transpose(site: Site) -> Gradients:
    """Its input's gradient is the convolution that it is the gradient of; its kernel's that convolution's kernel's."""
    x, w = site.operands
    g, attrs = site.gradient, site.attrs
    padding = [(low, high - extra) for (low, high), extra in
               zip(attrs["padding"], attrs["output_padding"], strict=True)]  # fmt: skip
    wide, padding = _cropped(g, padding)
    conv = {
        "strides": attrs["strides"],
        "dilations": attrs["dilations"],
        "padding": padding,
        "groups": attrs["groups"],
    }
    numbers = {"dtype": None if g.dtype is w.dtype is x.dtype else x.dtype, "accumulate": attrs["accumulate"]}
    found: list[Value | None] = [None, None]
    if site.wanted[0]:
        found[0] = site.graph.apply("conv", wide, w, **conv, **numbers)
    if site.wanted[1]:
        of = site.graph.apply("conv", wide, w, **conv, **numbers)
        inner = Site((wide, w), of, x, {**conv, **numbers}, (False, True))
        found[1] = _conv_weight(inner)
    return found


def _cropped(g: Value, padding: Sequence[tuple[Dim, Dim]]) -> tuple[Value, list[tuple[Dim, Dim]]]:
    """Negative padding as slices, and what is left of the padding."""
    left = []
    for axis, pair in enumerate(padding, g.rank - len(padding)):
        for one in pair:
            if not isinstance(one, int) and not _never_negative(one):
                raise NotDifferentiable(f"whether the padding {one} is negative depends on sizes")
        low, high = (max(0, -one) if isinstance(one, int) else 0 for one in pair)
        if low or high:
            g = g.slice(axis, low, g.shape[axis] - high)
        left.append((pair[0] + low, pair[1] + high))
    return g, left


def _never_negative(dim: Dim) -> bool:
    return proves_le(0, dim) or proves_equal(dim, 0)


ROWS: Sequence[Derivative] = (
    Derivative("matmul", _matmul, "g @ b^T; a^T @ g"),
    Derivative("matmul_few_bits", _few_bits, "g @ dequantize(w), of the rows alone"),
    Derivative("conv", _conv, "g, spread, with the kernel turned round; x with g, summed over the batch"),
    Derivative(
        "conv_transpose", _conv_transpose, "g with the kernel, convolved; g with x, summed over the batch"
    ),
)
