"""A loaded program of a schedule, with its graph: what plans of generated C++ and of bytecode have in common."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence

import torch

from kernels_hub.compiler.engines.cpp_weights import ScheduledProgram, place_weights
from kernels_hub.compiler.engines.engine import Device, StepProfile
from kernels_hub.compiler.engines.native_plan import NativePlan
from kernels_hub.compiler.engines.payload import pack_graph
from kernels_hub.compiler.engines.reference import signature_of
from kernels_hub.compiler.engines.scheduled import call_layout
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.runtime.native import Loaded
from kernels_hub.compiler.schedule.cost import kernel_cost
from kernels_hub.compiler.schedule.kernel import Kernel, Schedule
from kernels_hub.compiler.schedule.memory import number


class ScheduledPlan(NativePlan):
    """A loaded program with its weights, and the graph that it was made from."""

    def __init__(
        self, graph: Graph, device: Device, scheduled: Schedule, program: ScheduledProgram, native: Loaded
    ) -> None:
        self.graph, self.device, self.schedule, self.program = graph, device, scheduled, program
        signature = signature_of(graph)
        layout = call_layout(scheduled, signature, program.buffers, program.sizes)
        weights = place_weights(graph, scheduled, program, native)
        super().__init__(signature, layout, program.messages, native, weights)

    def serialize(self) -> bytes:
        """The graph with its weights: the program is made from it again (C++ comes from the cache)."""
        return pack_graph(self.graph, self.engine, self.device, self.schedule.choices.given())

    def profile(self, inputs: Sequence[torch.Tensor], repeats: int = 10) -> list[StepProfile]:
        """Median seconds of each kernel."""
        binding = self._calls.of(inputs)
        outputs = binding.new_outputs()
        held = [tensor.contiguous() for tensor in inputs]
        native, frame = self.native, self._program.frame(binding, held, outputs)
        rows: list[StepProfile] = []
        known = self._calls.sizes([tensor.shape for tensor in inputs])
        times: list[list[float]] = [[] for _ in self.schedule.kernels]
        for _ in range(max(1, repeats)):
            for step in range(len(self.schedule.kernels)):
                started = time.perf_counter()
                self._check(native.step(step, frame.place, binding.sizes_at))
                times[step].append(time.perf_counter() - started)
        for kernel, seconds in zip(self.schedule.kernels, times, strict=True):
            cost = kernel_cost(kernel, known)
            shapes = _shapes(kernel, known)
            rows.append(
                StepProfile(
                    kernel.name, self.engine, statistics.median(seconds), cost.bytes, cost.flops, shapes
                )
            )
        return rows


def _shapes(kernel: Kernel, sizes: Mapping[str, int]) -> str:
    """Of the operands of a kernel's contraction; of what it writes, where it has none."""
    views = [view.shape for nest in kernel.nests if nest.anchor is not None for view in nest.anchor.views]
    shapes = views or [buffer.shape for buffer in kernel.writes()]
    return " ".join("x".join(str(number(dim, sizes)) for dim in shape) for shape in dict.fromkeys(shapes))
