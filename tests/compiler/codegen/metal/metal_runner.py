"""A graph on Metal's engine, on the CPU: the text is that which a Mac would get (see `shader`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from kernels_hub.compiler import Graph, evaluate
from kernels_hub.compiler.engines.engine import Device
from kernels_hub.compiler.engines.metal import MetalPlan, scheduled_source
from kernels_hub.compiler.engines.tensors import to_array, to_tensor
from tests.compiler.codegen.metal.shader import ShaderLibrary
from tests.compiler.oracle import assert_same


def plan_of(graph: Graph) -> MetalPlan:
    """A plan whose kernels are compiled by the host's compiler."""
    scheduled, program = scheduled_source(graph)
    library = ShaderLibrary(program.source)
    return MetalPlan(graph, Device("mps"), scheduled, program, library, torch.device("cpu"))


def run_metal(
    graph: Graph, inputs: Sequence[np.ndarray], plan: MetalPlan | None = None
) -> dict[str, np.ndarray]:
    """The outputs by name."""
    plan = plan or plan_of(graph)
    results = plan.compute([to_tensor(np.array(one)) for one in inputs])
    return {
        name: np.array(to_array(tensor, of.dtype))
        for (name, of), tensor in zip(plan.signature.outputs.items(), results, strict=True)
    }


def assert_right(graph: Graph, inputs: Sequence[np.ndarray]) -> None:
    """Outputs are those of the reference evaluator, by the tolerance of their dtypes."""
    got, want = run_metal(graph, inputs), evaluate(graph, inputs)
    assert list(got) == list(want)
    compare(got, want)


def compare(got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray]) -> None:
    """Raises AssertionError, which says what is wrong, and by how much."""
    for name, expected in want.items():
        try:
            assert_same(got[name], expected)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}\n{got[name]}\n{expected}") from error
