"""Convolutions without the taps of their kernel that see nothing but padding, at whatever place.

Atrous convolutions have such where an image is no larger than their dilation: of 3 x 3 taps that are 24 apart, over
16 x 16 pixels, the middle one is left.
"""

from __future__ import annotations

from kernels_hub.compiler.ir.graph import Graph, Node, Value


def seeing_taps(node: Node) -> list[tuple[int, int]] | None:
    """Of each spatial dim, the first tap that sees an element and the end of those; None where all do, or none."""
    x, w = node.operands
    attrs, found, whole = node.attrs, [], True
    for axis, (stride, dilation, (low, high)) in enumerate(
        zip(attrs["strides"], attrs["dilations"], attrs["padding"], strict=True), 2
    ):
        size, taps, count = x.shape[axis], w.shape[axis], node.results[0].shape[axis]
        if not all(isinstance(one, int) for one in (size, taps, count, low, high)) or taps < 2:
            found.append((0, taps))
            continue
        seeing = [
            tap
            for tap in range(taps)
            if any(0 <= index * stride + tap * dilation - low < size for index in range(count))
        ]
        if not seeing:
            return None
        found.append((seeing[0], seeing[-1] + 1))
        whole = whole and found[-1] == (0, taps)
    return None if whole else found


def without_blind_taps(graph: Graph, node: Node, x: Value, w: Value) -> Value:
    """The result of a convolution of which `seeing_taps` holds, with those taps alone."""
    attrs, found = dict(node.attrs), seeing_taps(node)
    assert found is not None
    padding = []
    for axis, (first, end) in enumerate(found):
        (low, high), dilation, taps = attrs["padding"][axis], attrs["dilations"][axis], w.shape[2 + axis]
        w = w.slice(2 + axis, first, end)
        low, high = low - first * dilation, high - (taps - end) * dilation
        x = x.slice(2 + axis, max(-low, 0), x.shape[2 + axis] - max(-high, 0))
        padding.append((max(low, 0), max(high, 0)))
    return graph.apply("conv", x, w, **{**attrs, "padding": padding})
