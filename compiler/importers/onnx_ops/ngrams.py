"""TfIdfVectorizer of numbers: how often each n-gram of a pool occurs in a row."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.types import Array


@onnx_op("TfIdfVectorizer", since=9)
def tfidf_vectorizer(node: OnnxNode) -> Value:
    """Comparisons with shifted copies of the rows, counted; one set for each n and each number of skipped items.

    Weights are by place in the result, as ONNX Runtime and the reference have it.
    """
    x = node.input(0)
    if node.has("pool_strings") or not node.has("pool_int64s"):
        raise node.refuse("strings have no place in the IR; a pool of numbers (pool_int64s) can be imported")
    if x.rank not in {1, 2}:
        raise node.refuse(f"the input has rank 1 or 2, not {x.type}")
    rows = x.reshape((-1, x.shape[-1])) if x.rank == 1 else x
    places, size = node.attr("ngram_indexes"), max(node.attr("ngram_indexes")) + 1
    counts = node.constant(np.zeros((), np.int64)).broadcast_to((rows.shape[0], size))
    for first, grams in _pool(node):
        found = _counted(node, rows.cast("int64"), grams)
        at = node.constant(np.array(places[first : first + len(grams)], np.int64))
        at = at.unsqueeze(0).broadcast_to(found.shape)
        counts = node.graph.apply("scatter_elements", counts, at, found, axis=1, reduction="add")
    counts = counts if x.rank == 2 else counts.squeeze(0)
    return _weighted(node, counts, size)


def _pool(node: OnnxNode) -> Iterator[tuple[int, Array]]:
    """The n-grams (count, n) of each n that is asked for, and the number of the first among all."""
    pool, starts = np.array(node.attr("pool_int64s"), np.int64), node.attr("ngram_counts")
    lengths = range(node.attr("min_gram_length"), node.attr("max_gram_length") + 1)
    first = 0
    for length, (start, end) in enumerate(zip(starts, [*starts[1:], len(pool)], strict=True), 1):
        if end < start or (end - start) % length:
            raise node.refuse(f"the pool has {end - start} numbers for {length}-grams")
        if length in lengths and end > start:
            yield first, pool[start:end].reshape(-1, length)
        first += (end - start) // length


def _counted(node: OnnxNode, rows: Value, grams: Array) -> Value:
    """(rows, n-grams): how often each occurs, its items 1, 2, … places apart."""
    count, length = rows.shape[1], grams.shape[1]
    apart = range(1, 2 if length == 1 else node.attr("max_skip_count") + 2)
    reach = (length - 1) * apart[-1]
    padded = rows.pad([(0, 0), (0, reach)], rows.like(0)).unsqueeze(1)
    place = node.graph.iota(count)
    total: Value | None = None
    for step in apart:
        same = place + (length - 1) * step < node.graph.size(count)
        for item in range(length):
            here = padded.slice(2, item * step, item * step + count)
            same = same & here.eq(node.constant(grams[:, item : item + 1]))
        found = same.cast("int64").sum(2)
        total = found if total is None else total + found
    assert total is not None
    return total


def _weighted(node: OnnxNode, counts: Value, size: int) -> Value:
    mode, weights = node.attr("mode"), node.attr("weights")
    if mode not in {"TF", "IDF", "TFIDF"}:
        raise node.refuse(f"the mode is {mode!r}; it must be TF, IDF or TFIDF")
    result = (counts.minimum(1) if mode == "IDF" else counts).cast("float32")
    if mode == "TF" or not weights:
        return result
    if len(weights) < size:
        raise node.refuse(f"there are {len(weights)} weights for {size} places")
    return result * node.constant(np.array(weights[:size], np.float32))
