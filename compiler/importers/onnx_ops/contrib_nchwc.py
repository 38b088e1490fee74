# ruff: noqa: D103 (what an importer does is what ONNX Runtime says of its op)
"""Ops of com.microsoft.nchwc, which ONNX Runtime's highest level of graph optimization writes for x86 and ARM.

Channels lie in blocks of 8 or 16, by the processor, there; here a tensor in blocks is one with channels second, filled
up to whole blocks with zeros, so that ONNX's own ops between these (Add, Concat of channels) mean the same. Weights are
laid out in the file, and the file does not say for which block: it is taken to be this machine's, as ONNX Runtime does.

Source: onnxruntime, core/optimizer/nchwc_transformer.cc, and MLAS.
"""

from __future__ import annotations

import platform

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.importers.onnx_ops.contrib import activated
from kernels_hub.compiler.importers.onnx_ops.contrib_attention import number_of
from kernels_hub.compiler.importers.onnx_ops.conv import conv
from kernels_hub.compiler.importers.onnx_ops.pool import (
    average_pool,
    global_average_pool,
    global_max_pool,
    max_pool,
)
from kernels_hub.compiler.importers.onnx_ops.resize import scaled_size
from kernels_hub.compiler.ir.dims import product
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.cxx_compiler import cpu_flags

DOMAIN = "com.microsoft.nchwc"

onnx_op("MaxPool", since=1, domain=DOMAIN)(max_pool)
onnx_op("AveragePool", since=1, domain=DOMAIN)(average_pool)
onnx_op("GlobalMaxPool", since=1, domain=DOMAIN)(global_max_pool)
onnx_op("GlobalAveragePool", since=1, domain=DOMAIN)(global_average_pool)


def block_of_this_machine() -> int:
    """How many channels ONNX Runtime has in a block on this machine."""
    if platform.machine().lower() in ("x86_64", "amd64") and "avx512f" not in cpu_flags().split():
        return 8
    return 16


@onnx_op("ReorderInput", since=1, domain=DOMAIN)
def reorder_input(node: OnnxNode) -> Value:
    x = node.input(0)
    if node.attr("channels_last", 0):
        x = x.permute(0, x.rank - 1, *range(1, x.rank - 1))
    missing = -number_of(node, x.shape[1], "the number of channels") % block_of_this_machine()
    return x.pad([(0, 0), (0, missing), *[(0, 0)] * (x.rank - 2)]) if missing else x


@onnx_op("ReorderOutput", since=1, domain=DOMAIN)
def reorder_output(node: OnnxNode) -> Value:
    x, channels = node.input(0), node.attr("channels")
    if x.shape[1] != channels:
        x = x.slice(1, 0, channels)
    return x.permute(0, *range(2, x.rank), 1) if node.attr("channels_last", 0) else x


@onnx_op("Conv", since=1, domain=DOMAIN)
def conv_of_blocks(node: OnnxNode) -> Value:
    """(x, weight in blocks, bias?, what is added?), and an activation."""
    weight, block = node.input(1, "the weight"), block_of_this_machine()
    if number_of(node, weight.shape[0], "the number of output channels") % block:
        raise node.refuse(
            f"its weight has {weight.shape[0]} output channels, which are no blocks of {block}: ONNX Runtime laid the "
            "model out for another processor when it saved it; save it with the graph optimization level "
            "ORT_ENABLE_EXTENDED or below, or take the model that was there before"
        )
    more = node.optional(3)
    node.operands = [node.input(0), unblocked(weight, block, node.attr("group", 1)), node.optional(2)]
    result = conv(node)
    return activated(node, result if more is None else result + more)


def unblocked(weight: Value, block: int, groups: int) -> Value:
    """A weight with its elements in the order of its shape (O, I, …).

    Blocks of output channels are the innermost axis; blocks of input channels the next one, but where each channel is
    a group of its own, or there are fewer of them than a block has, so that the input is in no blocks either.
    """
    outputs, inputs, *kernel = weight.shape
    size = product(kernel)
    if (groups > 1 and inputs == 1) or (groups == 1 and inputs < block):
        parts = weight.reshape((outputs // block, inputs, size, block)).permute(0, 3, 1, 2)
    else:
        parts = weight.reshape((outputs // block, inputs // block, size, block, block)).permute(0, 4, 1, 3, 2)
    return parts.reshape(weight.shape)


@onnx_op("Upsample", since=1, domain=DOMAIN)
def upsample_of_blocks(node: OnnxNode) -> Value:
    x = node.input(0)
    scales = [float(scale) for scale in node.attr("scales", [1] * x.rank)]
    shape = [scaled_size(dim, scale) for dim, scale in zip(x.shape, scales, strict=True)]
    return node.graph.apply(
        "resize", x, shape=shape, scales=scales, mode=node.attr("mode", "nearest"),
        coordinates=node.attr("coordinate_transformation_mode", "asymmetric"), nearest="floor",
    )  # fmt: skip
