"""Attention in ONNX Runtime's domain com.microsoft, as its optimizer for transformers writes it: spelled out again.

Source: onnxruntime, docs/ContribOperators.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.importers.onnx_ops.contrib import DOMAIN
from kernels_hub.compiler.importers.onnx_ops.contrib_quantized import real
from kernels_hub.compiler.importers.onnx_sequences import Named
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.graph import Value

_LEAST = {"float32": -3.4028234663852886e38, "float16": -65504.0, "float64": -1.7976931348623157e308}


def heads_of(x: Value, count: int) -> Value:
    """(B, S, N * H) -> (B, N, S, H)."""
    batch, length, width = x.shape
    return x.reshape((batch, length, count, width // count)).transpose(1, 2)


def merged(x: Value) -> Value:
    """(B, N, S, H) -> (B, S, N * H)."""
    batch, heads, length, width = x.shape
    return x.transpose(1, 2).reshape((batch, length, heads * width))


@dataclass(frozen=True)
class _Heads:
    """Queries (B, N, S, H), keys (B, N, T, H) and values (B, N, T, V), those of the past included."""

    q: Value
    k: Value
    v: Value

    def attend(self, node: OnnxNode, mask: Value | None, bias: Value | None) -> Value:
        """(B, S, N * V). mask: true where a key is seen, in a shape that broadcasts to (B, N, S, T)."""
        q, k = self.q, self.k
        scale = node.attr("scale", 0.0) or 1.0 / math.sqrt(number_of(node, q.shape[3]))
        scores = (q * scale).matmul(k.transpose())
        if mask is not None:
            scores = scores + mask.select(
                scores.like(0.0), scores.like(node.attr("mask_filter_value", -10000.0))
            )
        if node.attr("unidirectional", 0):
            scores = self._causal(node, scores)
        if bias is not None:
            scores = scores + bias
        return merged(scores.softmax(-1).matmul(self.v))

    def _causal(self, node: OnnxNode, scores: Value) -> Value:
        own, every = self.q.shape[2], self.k.shape[2]
        rows = node.graph.iota(own).reshape((own, 1)) + node.graph.size(every - own)
        seen = rows >= node.graph.iota(every).reshape((1, every))
        return seen.select(scores, scores.like(_LEAST[scores.dtype.name]))


def number_of(node: OnnxNode, dim: Dim, what: str = "the width of a head") -> int:
    """A dim that has to be known. Raises TypeRuleError where it is not."""
    if not isinstance(dim, int):
        raise node.refuse(f"{what} is {dim}; it must be a number")
    return dim


def _key_mask(node: OnnxNode, mask: Value | None, heads: _Heads) -> Value | None:
    """Which keys are seen, of any form of mask that ONNX Runtime takes."""
    if mask is None:
        return None
    every = heads.k.shape[2]
    batch = heads.q.shape[0]
    if mask.rank == 1:
        places = node.graph.iota(every).reshape((1, 1, 1, every))
        ends = mask.cast(types.INT64)
        if mask.shape[0] == batch:
            return places < ends.reshape((batch, 1, 1, 1))
        if mask.shape[0] == 2 * batch:
            last, first = ends.split([batch, batch], 0)
            return (places < last.reshape((batch, 1, 1, 1))) & (places >= first.reshape((batch, 1, 1, 1)))
        raise node.refuse(f"a mask of shape {mask.type} is not taken")
    if mask.rank == 2:
        return mask.unsqueeze(1, 2) > 0
    if mask.rank == 3:
        return mask.unsqueeze(1) > 0
    raise node.refuse(f"a mask of {mask.rank} dims is not taken")


def _attention(node: OnnxNode, projected: Value, sizes: list[int], past: int) -> list[Value | None]:
    """Of queries, keys and values side by side: (output, present). past: where mask, past and bias are found.

    sizes: widths of queries, keys and values.
    """
    count = node.attr("num_heads")
    q, k, v = (heads_of(one, count) for one in projected.split(sizes, 2))
    before = node.optional(past + 1)
    if node.optional(past + 3) is not None or node.attr("past_present_share_buffer", 0):
        raise node.refuse("a past and present that share a buffer are not taken")
    if node.attr("do_rotary", 0):
        raise node.refuse("do_rotary is not taken")
    if before is not None:
        old_k, old_v = (one.squeeze(0) for one in before.split([1, 1], 0))
        k = node.graph.apply("concat", old_k, k, axis=2)
        v = node.graph.apply("concat", old_v, v, axis=2)
    heads = _Heads(q, k, v)
    result = heads.attend(node, _key_mask(node, node.optional(past), heads), node.optional(past + 2))
    present = node.graph.apply("concat", k.unsqueeze(0), v.unsqueeze(0), axis=0) if node.wants(1) else None
    return [result, present]


@onnx_op("Attention", since=1, domain=DOMAIN)
def attention(node: OnnxNode) -> list[Value | None]:
    """(x, weight, bias?, mask?, past?, bias of the scores?): the projection, and attention of heads."""
    projected = node.input(0).matmul(node.input(1))
    bias = node.optional(2)
    return _attention(node, projected if bias is None else projected + bias, _widths(node, projected), 3)


def _widths(node: OnnxNode, projected: Value) -> list[int]:
    sizes: list[int] = node.attr("qkv_hidden_sizes", [])
    return sizes or [number_of(node, projected.shape[2]) // 3] * 3


@onnx_op("QAttention", since=1, domain=DOMAIN)
def qattention(node: OnnxNode) -> list[Value | None]:
    """(x, weight, bias, scale of x, scale of the weight, mask?, zero of x?, zero of the weight?, past?)."""
    given = list(node.operands) + [None] * 9
    x, weight, bias, x_scale, w_scale, mask, x_zero, w_zero, past = given[:9]
    node.operands = [x, x_scale, x_zero, weight, w_scale, w_zero, mask, past]
    if bias is None:
        raise node.refuse("its bias is missing")
    projected = real(node, 0).matmul(real(node, 3)) + node.tensor(bias, "the bias")
    return _attention(node, projected, _widths(node, projected), 6)


@onnx_op("MultiHeadAttention", since=1, domain=DOMAIN)
def multi_head_attention(node: OnnxNode) -> list[Value | None]:
    """(q, k?, v?, bias?, mask of keys?, bias of scores?, past k?, past v?) -> output, present k, present v.

    q is (B, S, D), or (B, S, N, 3, H) with keys and values beside; k and v are (B, T, D) or, of another sequence,
    (B, N, T, H); k may be (B, T, N, 2, H) with values beside.
    """
    count, query = node.attr("num_heads"), node.input(0)
    key, value, bias = node.optional(1), node.optional(2), node.optional(3)
    if node.wants(3):
        raise node.refuse("the products of queries and keys are no output")
    if query.rank == 5:
        parts = [one.squeeze(3).transpose(1, 2) for one in query.split([1, 1, 1], 3)]
    else:
        parts = [heads_of(query, count), *_keys_and_values(node, key, value, count)]
    if bias is not None:
        widths = [number_of(node, part.shape[3]) * count for part in parts]
        rows = bias.split(widths, 0)
        parts = [
            one + row.reshape((count, 1, width // count)) if index == 0 or not _crossed(key) else one
            for index, (one, row, width) in enumerate(zip(parts, rows, widths, strict=True))
        ]
    q, k, v = parts
    if (old := node.optional(6)) is not None:
        k = node.graph.apply("concat", old, k, axis=2)
    if (old := node.optional(7)) is not None:
        v = node.graph.apply("concat", old, v, axis=2)
    heads = _Heads(q, k, v)
    result = heads.attend(node, _key_mask(node, node.optional(4), heads), node.optional(5))
    return [result, k, v]


def _crossed(key: Value | None) -> bool:
    """Whether keys come as heads, with the bias in them already."""
    return key is not None and key.rank == 4


def _keys_and_values(node: OnnxNode, key: Value | None, value: Value | None, count: int) -> list[Value]:
    if key is None:
        raise node.refuse("its keys are missing")
    if key.rank == 5:
        return [one.squeeze(3).transpose(1, 2) for one in key.split([1, 1], 3)]
    if value is None:
        raise node.refuse("its values are missing")
    return [one if one.rank == 4 else heads_of(one, count) for one in (key, value)]


@onnx_op("RotaryEmbedding", since=1, domain=DOMAIN)
def rotary_embedding(node: OnnxNode) -> Value:
    """(x (B, S, D) or (B, N, S, H), positions (B, S) or the first one, cosines, sines)."""
    x, positions, cosines, sines = (node.input(index) for index in range(4))
    if node.attr("is_packed_batching", 0):
        raise node.refuse("packed batches are not taken")
    half = number_of(node, cosines.shape[1])
    flat, count = x.rank == 3, node.attr("num_heads", 0)
    width = node.attr("rotary_embedding_dim", 0) or 2 * half
    if flat:
        count = count or number_of(node, x.shape[2]) // (2 * half)
        x = heads_of(x, count)
    length = x.shape[2]
    if positions.rank == 1:
        positions = (positions.reshape((1, 1)) + node.graph.iota(length).reshape((1, length))).broadcast_to(
            (x.shape[0], length)
        )
    cosine, sine = (table.gather(positions, 0).unsqueeze(1) for table in (cosines, sines))
    turned = rotated(x.slice(3, 0, width), cosine, sine, paired=bool(node.attr("interleaved", 0)))
    if width != x.shape[3]:
        turned = node.graph.apply("concat", turned, x.slice(3, width), axis=3)
    return merged(turned) if flat else turned


def rotated(x: Value, cosine: Value, sine: Value, *, paired: bool) -> Value:
    """x (B, N, S, W) turned by angles (B, 1, S, W / 2): halves, or pairs of neighbours."""
    half = x.shape[3] // 2
    if paired:
        a, b = (one.squeeze(4) for one in x.reshape((*x.shape[:3], half, 2)).split([1, 1], 4))
    else:
        a, b = x.split([half, half], 3)
    first, second = a * cosine - b * sine, a * sine + b * cosine
    if paired:
        both = x.graph.apply("concat", first.unsqueeze(4), second.unsqueeze(4), axis=4)
        return both.reshape(x.shape)
    return x.graph.apply("concat", first, second, axis=3)


@onnx_op("EmbedLayerNormalization", since=1, domain=DOMAIN)
def embed_layer_normalization(node: OnnxNode) -> list[Value | None]:
    """(ids, segments?, words, positions, segment rows?, gamma, beta, mask?, position ids?) -> normal, lengths, sum."""
    ids, segments, mask, places = (node.optional(place) for place in (0, 1, 7, 8))
    if ids is None:
        raise node.refuse("its ids are missing")
    batch, length = ids.shape
    if places is None:
        places = node.graph.iota(length).reshape((1, length)).broadcast_to((batch, length))
    total = node.input(2).gather(ids, 0) + node.input(3).gather(places, 0)
    table = node.optional(4)
    if segments is not None and table is not None:
        total = total + table.gather(segments, 0)
    mean = total.mean(-1, keepdims=True)
    centred = total - mean
    inverse = ((centred * centred).mean(-1, keepdims=True) + node.attr("epsilon", 1e-12)).rsqrt()
    result = centred * inverse * node.input(5) + node.input(6)
    lengths = (
        node.constant(0, "int32").broadcast_to((batch,)) if mask is None else mask.sum(1).cast(types.INT32)
    )
    return [result, lengths, total]


@onnx_op("QEmbedLayerNormalization", since=1, domain=DOMAIN)
def q_embed_layer_normalization(node: OnnxNode) -> list[Value | None]:
    """(ids, segments?, five tables, mask?, their scales, their zero points): EmbedLayerNormalization, without sums."""
    given = [*node.operands, *[None] * 18]
    tables: list[Named | None] = []
    for place in range(5):
        node.operands = [given[2 + place], given[8 + place], given[13 + place]]
        tables.append(None if given[2 + place] is None else real(node, 0))
    node.operands = [*given[:2], *tables, given[7]]
    return embed_layer_normalization(node)[:2]
