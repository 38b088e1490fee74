"""The oracle as an engine: every op, on the CPU, in NumPy, one after the other. Slow, and right.

It takes what no other engine takes. Tensors are handed to NumPy as they lie; results are copied out once.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from kernels_hub.compiler.engines.engine import (
    CompiledPlan,
    Decline,
    Device,
    KnobValue,
    Note,
    Signature,
    StepProfile,
    Support,
)
from kernels_hub.compiler.engines.tensors import to_array, to_tensor
from kernels_hub.compiler.errors import EngineError, PlanError
from kernels_hub.compiler.ir.binding import bind_shapes
from kernels_hub.compiler.ir.cost import Costs
from kernels_hub.compiler.ir.evaluate import evaluate
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.types import Array


class ReferencePlan:
    """A graph that the oracle runs."""

    engine = "reference"

    def __init__(self, graph: Graph, device: Device) -> None:
        self._graph, self._device = graph, device
        self.signature = signature_of(graph)

    def workspace_size(self, sizes: Mapping[str, int]) -> int:  # noqa: ARG002  (the protocol's)
        """NumPy allocates for itself."""
        return 0

    def compute(
        self,
        inputs: Sequence[torch.Tensor],
        workspace: torch.Tensor | None = None,  # noqa: ARG002  (the protocol's)
        stream: int | None = None,  # noqa: ARG002
    ) -> list[torch.Tensor]:
        """The outputs, in memory of their own; also where only the data tell their sizes."""
        results = evaluate(self._graph, self._arrays(inputs))
        return [to_tensor(np.array(array, order="C")) for array in results.values()]

    def execute(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        workspace: torch.Tensor | None = None,  # noqa: ARG002  (the protocol's)
        stream: int | None = None,  # noqa: ARG002
    ) -> None:
        """See `CompiledPlan`. Raises EvaluateError for data that an op refuses."""
        results = evaluate(self._graph, self._arrays(inputs))
        copy_out([to_tensor(array) for array in results.values()], outputs, self.signature)

    def serialize(self) -> bytes:
        """See `payload`."""
        from kernels_hub.compiler.engines.payload import pack_graph

        return pack_graph(self._graph, self.engine, self._device, {})

    def profile(self, inputs: Sequence[torch.Tensor], repeats: int = 10) -> list[StepProfile]:
        """Median seconds of each op."""
        arrays = self._arrays(inputs)
        reports = [evaluate(self._graph, arrays, debug=True).report for _ in range(max(1, repeats))]
        runs = [report.rows for report in reports if report is not None]
        costs = Costs(sizes_of(self._graph, inputs))
        nodes = {f"%{value.id}": node for node in self._graph.live() for value in node.results}
        steps = []
        for rows in zip(*runs, strict=True):
            cost = costs.of(nodes[rows[0].value])
            seconds = statistics.median(row.seconds for row in rows)
            steps.append(
                StepProfile(
                    f"{rows[0].value} {rows[0].op}", self.engine, seconds, cost.bytes or 0, cost.flops or 0
                )
            )
        return steps

    def _arrays(self, inputs: Sequence[torch.Tensor]) -> dict[str, Array]:
        if len(inputs) != len(self.signature.inputs):
            raise PlanError(
                f"graph {self._graph.name} takes {len(self.signature.inputs)} inputs, got {len(inputs)}"
            )
        named = zip(self.signature.inputs.items(), inputs, strict=True)
        return {name: to_array(tensor, of.dtype) for (name, of), tensor in named}


class ReferenceEngine:
    """See the module."""

    name = "reference"

    def check(self, graph: Graph, device: Device) -> Support | Decline:
        """Anything on a CPU."""
        if device.type != "cpu":
            return Decline(f"the oracle runs on the CPU, not on {device}")
        if (lacking := without_weights(graph)) is not None:
            return lacking
        return Support(frozenset({Note.SLOW}), workspace=0)

    def compile(self, graph: Graph, device: Device, knobs: Mapping[str, KnobValue]) -> CompiledPlan:
        """Nothing is to be done ahead."""
        refuse_knobs(self.name, knobs)
        if isinstance(answer := self.check(graph, device), Decline):
            raise EngineError(f"engine {self.name} does not take graph {graph.name}: {answer.reason}")
        return ReferencePlan(graph, device)

    def load(self, payload: bytes, device: Device) -> CompiledPlan:
        """What `serialize` wrote."""
        from kernels_hub.compiler.engines.payload import unpack_graph

        return ReferencePlan(unpack_graph(payload, self.name, device).graph, device)


ENGINE = ReferenceEngine()


def signature_of(graph: Graph) -> Signature:
    """Names and types of what goes into a graph and out of it."""
    return Signature(
        {name: value.type for name, value in graph.inputs.items()},
        {name: value.type for name, value in graph.outputs.items()},
    )


def sizes_of(graph: Graph, inputs: Sequence[torch.Tensor]) -> dict[str, int]:
    """The sizes of the symbols that shapes of inputs tell. Raises ShapeError where they contradict."""
    declared = {name: value.type for name, value in graph.inputs.items()}
    return bind_shapes(declared, [tuple(tensor.shape) for tensor in inputs])


def copy_out(results: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], signature: Signature) -> None:
    """Copy results to where the caller wants them. Raises PlanError where the shapes are not the same."""
    if len(results) != len(outputs):
        raise PlanError(f"there are {len(results)} outputs, got {len(outputs)} tensors to write them to")
    for name, result, output in zip(signature.outputs, results, outputs, strict=True):
        if result.shape != output.shape or result.dtype is not output.dtype:
            raise PlanError(
                f"output {name!r} is {result.dtype}{list(result.shape)}, "
                f"got {output.dtype}{list(output.shape)} to write it to"
            )
        output.copy_(result)


def without_weights(graph: Graph) -> Decline | None:
    """A Decline where parameters have no arrays."""
    missing = [name for name in graph.parameters if name not in graph.weights]
    if not missing:
        return None
    return Decline(f"there are no arrays for the parameters {', '.join(map(repr, missing))}")


def refuse_knobs(engine: str, knobs: Mapping[str, KnobValue], known: Sequence[str] = ()) -> None:
    """Raise EngineError for a knob that an engine does not have."""
    if unknown := [name for name in knobs if name not in known]:
        there = ", ".join(known) or "none"
        raise EngineError(f"engine {engine} has no knob {', '.join(map(repr, unknown))}; it has {there}")
