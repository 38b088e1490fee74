"""Slice 6: what a search finds for this architecture beside the tiles and graphs that the compiler takes by itself."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.gpu.graphs import GRAPHS, made
from benchmarks.gpu.target import Case, Result, Target
from kernels_hub import compiler
from kernels_hub.compiler.plan.tuning_database import TuningDatabase
from kernels_hub.compiler.search.search import search

SECONDS = 60.0
"""Of a search, at most."""


def cases(target: Target) -> Iterator[Case]:
    """The graphs of slice 4, in each dtype."""
    for name in target.some(GRAPHS):
        for dtype in target.dtypes:
            yield Case(f"{name}, {dtype}", partial(run, target, name, dtype))


def run(target: Target, name: str, dtype: torch.dtype) -> Result:
    """The knobs that won, by segment, and by how much in turn with the default."""
    module, inputs = made(target, name, dtype)
    with torch.inference_mode(), tempfile.TemporaryDirectory() as folder:
        graph = compiler.import_torch(module, inputs)
        budget = target.sized(int(SECONDS), 5)
        found = search(graph, target.device, budget=float(budget), database=TuningDatabase(folder))
        default, searched = compiler.compile(graph, target.device), found.plan()
        times = target.in_turn({"default": lambda: default(*inputs), "searched": lambda: searched(*inputs)})
    return {
        **times,
        "origin": found.winner.candidate.origin,
        "choices": {str(key): str(value) for key, value in found.choices.items()},
        "tried": len(found.rows),
    }
