"""Run a graph on the Triton engine, in poisoned memory with room around it, and hold it against the oracle."""

from __future__ import annotations

import numpy as np
import torch

from kernels_hub.compiler import evaluate
from kernels_hub.compiler.engines import guard
from kernels_hub.compiler.engines.tensors import to_array, to_tensor, torch_dtype
from kernels_hub.compiler.engines.triton import ENGINE
from kernels_hub.compiler.ir.extrema import substitute
from tests.compiler.engines.executed import assert_close

MARGIN = 64
POISON = 0xA5
TOLERANCE = {"float64": 1e-11, "float32": 2e-5, "float16": 8e-3, "bfloat16": 4e-2}
"""Relative to the largest magnitude. The interpreter truncates to bfloat16, where a GPU rounds."""


def poisoned(shape, dtype: torch.dtype, place) -> tuple[torch.Tensor, torch.Tensor]:
    """(a contiguous tensor full of poison, all of its memory) with a margin on either side."""
    count = int(np.prod(shape)) * dtype.itemsize
    memory = torch.full((count + 2 * MARGIN,), POISON, dtype=torch.uint8, device=place)
    return memory[MARGIN : MARGIN + count].view(dtype).view(list(shape)), memory


def results(graph, arrays, device, sizes=None, knobs=None, plan=None) -> dict[str, np.ndarray]:
    """Outputs by name, computed in poisoned memory; nothing beside the outputs and the workspace is written."""
    sizes = sizes or {}
    plan = plan or guard.compiled(ENGINE, graph, device, knobs or {})
    place = "cpu" if device.type == "cpu" else f"cuda:{device.index}"
    inputs = [to_tensor(np.array(array)).to(place) for array in arrays]
    before = [one.clone() for one in inputs]
    made = [
        poisoned([substitute(dim, sizes) for dim in of.shape], torch_dtype(of.dtype), place)
        for of in plan.signature.outputs.values()
    ]
    workspace, around = poisoned([plan.workspace_size(sizes)], torch.uint8, place)
    plan.execute(inputs, [one for one, _ in made], workspace)
    for memory in (around, *(memory for _, memory in made)):
        assert bool((memory[:MARGIN] == POISON).all() and (memory[-MARGIN:] == POISON).all()), (
            "written beside"
        )
    for one, copy in zip(inputs, before, strict=True):
        assert torch.equal(one.flatten().view(torch.uint8), copy.flatten().view(torch.uint8)), "input written"
    return {
        name: to_array(tensor.cpu(), of.dtype)
        for (name, of), (tensor, _) in zip(plan.signature.outputs.items(), made, strict=True)
    }


def assert_agrees(graph, device, sizes=None, *, arrays=None, knobs=None, tolerance=None) -> None:
    """The engine takes the graph, and its results are the oracle's."""
    answer = guard.checked(ENGINE, graph, device)
    assert answer, answer.reason
    arrays = list(graph.dummy_inputs(0, sizes or {}).values()) if arrays is None else arrays
    expected = evaluate(graph, arrays, bindings=sizes or {})
    actual = results(graph, arrays, device, sizes, knobs)
    assert list(actual) == list(expected)
    for name, array in actual.items():
        limit = TOLERANCE.get(expected[name].dtype.name)
        assert_close(array, expected[name], tolerance=tolerance or limit)
