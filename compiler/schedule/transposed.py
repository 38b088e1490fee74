"""Transposed convolutions as convolutions: all phases of the stride at once.

With stride s, result j of the uncropped transposed convolution is made by those taps t of the kernel for which j - t is
a multiple of s. So results that are s apart form a convolution with every s-th tap (a phase), and one convolution with
channels for each phase makes all of them; a permutation puts them side by side, and what padding crops is cut off. A
kernel whose size is no multiple of s gets taps of 0.

Source: Shi et al., Is the deconvolution layer the same as a convolutional layer?, arXiv 1609.07009.
"""

from __future__ import annotations

from kernels_hub.compiler.ir.graph import Node, Value
from kernels_hub.compiler.ir.proofs import proves_equal


def has_phases(node: Node) -> bool:
    """Whether a transposed convolution can be written so: fixed kernel and padding, dilated only where the stride is 1.

    Not with a group for each input channel: such phases would be many products of one element.
    """
    x, w = node.operands
    attrs = node.attrs
    fixed = [*w.shape, *(one for pair in attrs["padding"] for one in pair), *attrs["output_padding"]]
    spread = any(
        stride > 1 and dilation > 1
        for stride, dilation in zip(attrs["strides"], attrs["dilations"], strict=True)
    )
    lonely = attrs["groups"] > 1 and w.shape[0] == attrs["groups"]
    return (
        all(isinstance(one, int) for one in fixed)
        and 0 not in w.shape
        and 3 <= x.rank <= 5
        and x.dtype.is_float
        and not spread
        and not lonely
    )


def by_phases(node: Node, x: Value, w: Value) -> Value:
    """The result of a transposed convolution of which `has_phases` holds."""
    attrs, graph = node.attrs, x.graph
    strides, dilations, groups = attrs["strides"], attrs["dilations"], attrs["groups"]
    rank, channels, outputs = x.rank - 2, w.shape[0], w.shape[1]
    kernel: list[int] = list(w.shape[2:])
    reaches = [-(-size // stride) for size, stride in zip(kernel, strides, strict=True)]
    whole = [reach * stride for reach, stride in zip(reaches, strides, strict=True)]
    more = [(0, total - size) for total, size in zip(whole, kernel, strict=True)]
    w = w.pad([(0, 0), (0, 0), *more])
    split = [one for reach, stride in zip(reaches, strides, strict=True) for one in (reach, stride)]
    w = w.reshape(groups, channels // groups, outputs, *split)
    taps, phases = range(3, 3 + 2 * rank, 2), range(4, 4 + 2 * rank, 2)
    w = w.flip(*taps).permute(0, *phases, 2, 1, *taps)
    w = w.reshape(groups * _count(strides) * outputs, channels // groups, *reaches)

    padding, starts, counts = [], [], []
    for axis in range(rank):
        (low, high), stride = attrs["padding"][axis], strides[axis]
        reach = dilations[axis] * (reaches[axis] - 1)
        last = dilations[axis] * (kernel[axis] - 1) + attrs["output_padding"][axis] - high
        first = min(low // stride, reach)  # of the phases' results, the first that is needed
        padding.append((reach - first, max(last // stride, 0)))
        starts.append(low - first * stride)
        counts.append(x.shape[2 + axis] + padding[-1][0] + padding[-1][1] - reach)
    y = graph.apply(
        "conv", x, w, strides=[1] * rank, dilations=dilations, padding=padding, groups=groups,
        dtype=attrs["dtype"], accumulate=attrs["accumulate"],
    )  # fmt: skip
    y = y.reshape(x.shape[0], groups, *strides, outputs, *counts)
    places = [one for axis in range(rank) for one in (3 + rank + axis, 2 + axis)]
    y = y.permute(0, 1, 2 + rank, *places)
    y = y.reshape(
        x.shape[0],
        groups * outputs,
        *(count * stride for count, stride in zip(counts, strides, strict=True)),
    )
    lows, sizes = [0, 0, *starts], node.results[0].shape
    if not any(lows) and all(map(proves_equal, sizes, y.shape)):
        return y
    highs = [low + size for low, size in zip(lows, sizes, strict=True)]
    return graph.apply("slice", y, starts=lows, stops=highs, steps=[1] * y.rank)


def _count(strides: tuple[int, ...]) -> int:
    total = 1
    for stride in strides:
        total *= stride
    return total
