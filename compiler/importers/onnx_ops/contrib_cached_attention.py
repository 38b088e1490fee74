"""GroupQueryAttention of com.microsoft, which decoders of text have whose keys and values are kept between calls.

Source: onnxruntime, docs/ContribOperators.md, contrib_ops/cpu/bert/gqa_attention_base.h.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.importers.onnx_ops.contrib import DOMAIN
from kernels_hub.compiler.importers.onnx_ops.contrib_attention import heads_of, merged, number_of, rotated
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.extrema import dim_max
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.operators import same_shapes

_REFUSED = {"kv_cache_bit_width": 0, "qk_output": 0}
"""Attributes that are taken with these values alone."""


@dataclass(frozen=True)
class _Places:
    """Where tokens of a call are in their sequences.

    before: (B, 1), how many tokens of a row came in calls before. new, every: sizes of the call, and of what is kept.
    """

    before: Value
    new: Dim
    every: Dim

    def own(self) -> Value:
        """The place of each token of the call: (B, S)."""
        return self.before + self.before.graph.iota(self.new).reshape((1, self.new))

    def kept(self, past: Value | None, fresh: Value) -> Value:
        """Keys or values (B, N, T, H) of calls before and of this one; zeros where a row has none."""
        graph, (batch, heads, _, width) = fresh.graph, fresh.shape
        long: Dim = 0 if past is None else past.shape[2]
        both = fresh if past is None else graph.apply("concat", past, fresh, axis=2)
        place, before = graph.iota(self.every).reshape((1, self.every)), self.before
        own = place - before
        at = (own < 0).select(place, own + graph.size(long)).minimum(graph.size(long + self.new - 1))
        shape = (batch, heads, self.every, width)
        found = both.gather_elements(at.unsqueeze(1, 3).broadcast_to(shape), 2)
        return (own < graph.size(self.new)).unsqueeze(1, 3).select(found, found.like(0.0))

    def seen(self, window: int) -> Value:
        """Which keys a token looks at, (B, 1, S, T): those up to itself, `window` of them at most where that is > 0."""
        own = self.own().unsqueeze(1, 3)
        place = own.graph.iota(self.every).reshape((1, 1, 1, self.every))
        seen = place <= own
        return seen & (place > own - window) if window > 0 else seen

    def spread_over(self, bias: Value) -> Value:
        """A bias (…, tokens in all) for each place that is kept, of which no token looks at those behind."""
        length = bias.shape[3]
        if same_shapes((length,), (self.every,)):
            return bias
        return bias.gather(bias.graph.iota(self.every).minimum(bias.graph.size(length - 1)), 3)


@onnx_op("GroupQueryAttention", since=1, domain=DOMAIN)
def group_query_attention(node: OnnxNode) -> list[Value | None]:
    """(q, k?, v?, past k?, past v?, last places, tokens in all, cosines?, sines?, places?, bias?, sinks?).

    Gives the output and the keys and values that are kept. Of a row that is shorter than the others, what stands in the
    output behind its end is of no meaning, as in ONNX Runtime.
    """
    for name, taken in _REFUSED.items():
        if node.attr(name, taken) != taken:
            raise node.refuse(f"{name} {node.attr(name)} is not taken")
    if node.wants(3) or node.optional(12) is not None or node.optional(13) is not None:
        raise node.refuse(
            "products of queries and keys as an output, and quantized keys and values, are not taken"
        )
    count, kept = node.attr("num_heads"), node.attr("kv_num_heads")
    q, k, v = _parts(node, count, kept)
    batch, _, length, width = q.shape
    places = _places(node, batch, length)
    if node.attr("do_rotary", 0):
        given = node.optional(9)
        own = places.own() if given is None else given.reshape((batch, length))
        q, k = (_turned(node, one, own) for one in (q, k))
    present_k, present_v = places.kept(node.optional(3), k), places.kept(node.optional(4), v)
    scale = node.attr("scale", 0.0) or 1.0 / math.sqrt(number_of(node, width, "the width of a head"))
    scores = (q * scale).matmul(_spread(present_k, count // kept).transpose())
    softcap = node.attr("softcap", 0.0)
    if softcap > 0:
        scores = (scores / softcap).tanh() * softcap
    if (bias := node.optional(10)) is not None:
        scores = scores + places.spread_over(bias)
    scores = places.seen(node.attr("local_window_size", -1)).select(scores, scores.like(-math.inf))
    likely = _softmax(node, scores, count)
    result = merged(likely.matmul(_spread(present_v, count // kept)))
    return [result, present_k, present_v]


def _parts(node: OnnxNode, count: int, kept: int) -> list[Value]:
    """Queries, keys and values as heads, which may come side by side."""
    query, key, value = node.input(0), node.optional(1), node.optional(2)
    if key is None or value is None:
        width = number_of(node, query.shape[2], "the width of the queries") // (count + 2 * kept)
        query, key, value = query.split([count * width, kept * width, kept * width], 2)
    return [heads_of(query, count), heads_of(key, kept), heads_of(value, kept)]


def _places(node: OnnxNode, batch: Dim, length: Dim) -> _Places:
    """In a first call, whose tokens are all there are, rows begin at 0, else so that they end at their last place."""
    past = node.optional(3)
    every = node.size(node.input(6), "the number of tokens in all")
    held: Dim = 0 if past is None else past.shape[2]
    before = (node.input(5).cast(types.INT64) + 1).reshape((batch, 1)) - node.graph.size(length)
    first = node.graph.size(length).eq(node.graph.size(every))
    return _Places(first.select(before.like(0), before), length, dim_max(held, every))


def _turned(node: OnnxNode, x: Value, places: Value) -> Value:
    """x (B, N, S, H) turned by the angles of its places (B, S)."""
    cosine, sine = (node.input(index).gather(places, 0).unsqueeze(1) for index in (7, 8))
    width = 2 * number_of(node, cosine.shape[3], "the width of the cosines")
    turned = rotated(x.slice(3, 0, width), cosine, sine, paired=bool(node.attr("rotary_interleaved", 0)))
    return turned if width == x.shape[3] else node.graph.apply("concat", turned, x.slice(3, width), axis=3)


def _spread(x: Value, times: int) -> Value:
    """(B, K, T, H) -> (B, K * times, T, H), each head as often, one after the other."""
    if times == 1:
        return x
    batch, kept, every, width = x.shape
    return (
        x.unsqueeze(2)
        .broadcast_to((batch, kept, times, every, width))
        .reshape((batch, kept * times, every, width))
    )


def _softmax(node: OnnxNode, scores: Value, count: int) -> Value:
    """Softmax over keys, with a sink for each head where there is one: it takes its share, and gives nothing."""
    sinks = node.optional(11)
    if sinks is None and not node.attr("smooth_softmax", 0):
        return scores.softmax(-1)
    sink = scores.like(0.0) if sinks is None else sinks.cast(scores.dtype).reshape((1, count, 1, 1))
    column = sink.broadcast_to((*scores.shape[:3], 1))
    both = node.graph.apply("concat", scores, column, axis=3).softmax(-1)
    return both.slice(3, 0, scores.shape[3])
