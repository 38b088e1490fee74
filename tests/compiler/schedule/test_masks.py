"""Masks of positions: attention sees that they are causal, however the model spells them, and in how many places."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from kernels_hub.compiler import Graph, compile, evaluate
from kernels_hub.compiler.codegen.cpp.translation_unit import generate
from kernels_hub.compiler.rewrite.pipeline import rewrite
from kernels_hub.compiler.schedule.schedule import schedule
from tests.compiler.codegen.test_cpp import needs_compiler

CAUSAL = ", true, 0, "
"""What the record of an attention says of it."""


def attend(q, k, v, kept):
    scores = kept.broadcast_to((1, 2, q.shape[2], k.shape[2])).select((q @ k.transpose()) * 0.25, -math.inf)
    return scores.softmax(-1) @ v


def by_places(graph, size):
    """Two attentions that share a comparison of iotas, which takes more to write than to compute."""
    places = graph.iota(size)
    return places.reshape(1, size).binary("le", places.reshape(size, 1))


def by_packing(graph, size):
    """As transformers allows for packed sequences: places of the same group, of which there is one."""
    group = graph.apply("cumsum", graph.iota(size), axis=0) * 0
    same = group.reshape(1, size).binary("eq", group.reshape(size, 1))
    return by_places(graph, size).binary("bitand", same)


@pytest.mark.parametrize(
    ("mask", "size"), [(by_places, 5), (by_places, 96), (by_places, "n"), (by_packing, 96)]
)
@needs_compiler
def test_causal_masks_are_seen(mask, size):
    graph = Graph("twice")
    q, k, v = (graph.input(name, (1, 2, size, 16)) for name in "qkv")
    kept = mask(graph, q.shape[2])
    graph.output("y", attend(attend(q, k, v, kept), v, k, kept))
    program = generate(schedule(rewrite(graph).graph))
    assert CAUSAL in program.source
    assert "kh::attend(" not in program.source, "both run without a mask"
    random, count = np.random.default_rng(0), 96 if size == "n" else size
    given = {name: random.standard_normal((1, 2, count, 16), np.float32) for name in "qkv"}
    found = compile(graph, "cpu")(*map(torch.from_numpy, given.values()))
    np.testing.assert_allclose(found.numpy(), evaluate(graph, given)["y"], rtol=1e-5, atol=1e-6)


def test_masks_are_constants_up_to_some_size():
    graph = Graph("masks")
    for name, size in (("small", 100), ("large", 3000)):
        places = graph.constant(np.arange(size) + 7)
        wide = (size, size)
        rows, columns = (one.broadcast_to(wide) for one in (places.reshape(size, 1), places.reshape(1, size)))
        graph.output(name, columns.binary("le", rows))
    found = rewrite(graph).graph.outputs
    assert found["small"].op_name == "constant" and found["small"].array.sum() == 5050
    assert found["large"].op_name != "constant"
