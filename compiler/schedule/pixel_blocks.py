"""Convolutions of few output channels as ones of more: several neighbouring pixels of a line at once.

The C++ runtime's kernels make a vector of output channels at a time, of which a convolution to one channel (an FIR
filter, the last of an image or audio decoder) fills one lane. With the filter at B places side by side, B neighbouring
results are B channels of a convolution with stride B: y[B*r + b] = sum over u of w[u - b] * x[B*r + u]. The channels
lie behind the pixels, so channels last the result is as it was. What is not finite reaches the whole block that sees
it, as it does in the tiles of Winograd's convolutions: the filter stands among zeros.
"""

from __future__ import annotations

from kernels_hub.compiler.ir.graph import Node, Value
from kernels_hub.compiler.ir.types import FLOAT32

_LANES = 16
"""Output channels to make of few, at most: a vector of AVX-512, two of AVX2."""
_RUN = 8
"""Pixels of a line that the kernel makes at once."""
_LEAST_GAIN = 1.3
"""Where less work is saved, the copies may cost more."""


def pixels_a_block(node: Node) -> int:
    """B for a convolution that gains; 1 for others."""
    x, w = node.operands
    attrs = node.attrs
    fixed = (*w.shape, *x.shape[1:], *node.results[0].shape[1:], *attrs["padding"][-1])
    if not all(isinstance(one, int) for one in fixed) or 0 in (*w.shape, x.shape[0], *node.results[0].shape):
        return 1
    plain = attrs["groups"] == 1 and attrs["strides"][-1] == 1 and attrs["dilations"][-1] == 1
    if not plain or {x.dtype, w.dtype, node.results[0].dtype} != {FLOAT32} or min(attrs["padding"][-1]) < 0:
        return 1
    outputs, taps, pixels = int(w.shape[0]), int(w.shape[-1]), int(node.results[0].shape[-1])
    if 2 * outputs > _LANES:
        return 1

    def work(block: int) -> int:
        """Vectors that a line takes for each input channel, with AVX-512 and with AVX2."""
        runs, columns = -(-pixels // (block * _RUN)), outputs * block
        return runs * (taps + block - 1) * (-(-columns // _LANES) + -(-2 * columns // _LANES))

    block = min((one for one in (1, 2, 4, 8, 16) if one * outputs <= _LANES), key=work)
    return block if work(1) >= _LEAST_GAIN * work(block) else 1


def by_blocks(node: Node, block: int, x: Value, w: Value) -> Value:
    """The result of a convolution for which `pixels_a_block` gives `block`."""
    attrs, graph, result = node.attrs, x.graph, node.results[0]
    outputs, channels, *others, taps = w.shape
    *lines, pixels = result.shape[2:]
    blocks, long = -(-pixels // block), taps + block - 1
    w = w.pad([(0, 0)] * (w.rank - 1) + [(0, block)])
    copies = (outputs, channels, *others, block, taps + block)
    kept = (*range(w.rank - 1), w.rank)
    w = graph.apply("broadcast", w, shape=copies, axes=kept)
    w = w.reshape(outputs, channels, *others, block * (taps + block)).slice(w.rank - 2, 0, block * long)
    w = w.reshape(outputs, channels, *others, block, long)
    w = w.permute(w.rank - 2, *range(w.rank - 2), w.rank - 1).reshape(
        block * outputs, channels, *others, long
    )
    *padding, (low, _) = attrs["padding"]
    high = blocks * block + taps - 1 - x.shape[-1] - low
    x = x.slice(x.rank - 1, 0, x.shape[-1] + min(high, 0))
    y = graph.apply(
        "conv",
        x,
        w,
        **{**attrs, "strides": [*attrs["strides"][:-1], block], "padding": [*padding, (low, max(high, 0))]},
    )
    y = y.reshape(x.shape[0], block, outputs, *lines, blocks)
    y = y.permute(0, 2, *range(3, y.rank), 1).reshape(x.shape[0], outputs, *lines, blocks * block)
    return y.slice(y.rank - 1, 0, pixels)
