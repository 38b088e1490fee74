"""Generated Metal on GPUs of Apple: the graph is scheduled into fused loop nests, each a kernel.

`torch.mps.compile_shader` compiles the text when the plan is made. It has not run on a Mac yet: the tests compile the
very text with the system's C++ compiler and run its threads one after the other.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from kernels_hub.compiler.codegen.metal.scalar import TYPES
from kernels_hub.compiler.codegen.metal.source import Launch, MetalCode, generate
from kernels_hub.compiler.codegen.metal.spellings import SPELLINGS
from kernels_hub.compiler.engines.calls import Calls
from kernels_hub.compiler.engines.devices import no_metal
from kernels_hub.compiler.engines.engine import (
    CompiledPlan,
    Decline,
    Device,
    KnobValue,
    StepProfile,
    Support,
)
from kernels_hub.compiler.engines.payload import pack_graph, unpack_graph
from kernels_hub.compiler.engines.reference import refuse_knobs, signature_of, without_weights
from kernels_hub.compiler.engines.scheduled import call_layout, declined, untold, values_refused
from kernels_hub.compiler.engines.tensors import to_tensor, torch_dtype
from kernels_hub.compiler.errors import EngineError, EvaluateError
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.op import Trait
from kernels_hub.compiler.schedule.choices import Choices
from kernels_hub.compiler.schedule.cost import kernel_cost
from kernels_hub.compiler.schedule.expand import expanded
from kernels_hub.compiler.schedule.fourier import has_products
from kernels_hub.compiler.schedule.inlining import NATIVE_ONLY, refused
from kernels_hub.compiler.schedule.kernel import Buffer, Role, Schedule
from kernels_hub.compiler.schedule.memory import number
from kernels_hub.compiler.schedule.schedule import schedule
from kernels_hub.compiler.schedule.split import MOST_LAUNCHES

MOST_THREADS = 1 << 32
"""A thread's place in the grid is a number of 32 bits."""


class MetalPlan:
    """A compiled program with its weights.

    library: what `torch.mps.compile_shader` gave for the program's source; place: where its tensors lie.
    """

    engine = "metal"

    def __init__(
        self,
        graph: Graph,
        device: Device,
        scheduled: Schedule,
        program: MetalCode,
        library: object,
        place: torch.device,
    ) -> None:
        self.graph, self.device, self.schedule, self.program = graph, device, scheduled, program
        self.signature = signature_of(graph)
        self._library, self._place = library, place
        self._calls = Calls(
            call_layout(scheduled, self.signature, program.buffers, program.sizes), self.signature
        )
        self._fixed = self._weights()
        self._run(program.prepare, self._fixed, {})

    def workspace_size(self, sizes: Mapping[str, int]) -> int:  # noqa: ARG002  (the protocol's)
        """PyTorch's allocator has the scratch memory."""
        return 0

    def compute(
        self,
        inputs: Sequence[torch.Tensor],
        workspace: torch.Tensor | None = None,
        stream: int | None = None,
    ) -> list[torch.Tensor]:
        """The outputs, in memory of their own."""
        outputs = self._new_outputs(inputs)
        self.execute(inputs, outputs, workspace, stream)
        return outputs

    def execute(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        workspace: torch.Tensor | None = None,  # noqa: ARG002  (the protocol's)
        stream: int | None = None,  # noqa: ARG002
    ) -> None:
        """See `CompiledPlan`. Raises EvaluateError for an index that is out of range, which waits for the kernels."""
        sizes = self._calls.sizes([tensor.shape for tensor in inputs])
        launches = [launch for kernel in self.program.run for launch in kernel]
        self._run(launches, self._tensors(inputs, outputs, sizes), sizes)

    def serialize(self) -> bytes:
        """The graph with its weights: the source is generated from it again."""
        return pack_graph(self.graph, self.engine, self.device, {})

    def profile(self, inputs: Sequence[torch.Tensor], repeats: int = 10) -> list[StepProfile]:
        """Median seconds of each kernel, waiting for it included."""
        sizes, outputs = self._calls.sizes([tensor.shape for tensor in inputs]), self._new_outputs(inputs)
        tensors = self._tensors(inputs, outputs, sizes)
        rows = []
        for kernel, launches in zip(self.schedule.kernels, self.program.run, strict=True):
            times = []
            for _ in range(max(1, repeats)):
                started = time.perf_counter()
                self._run(launches, tensors, sizes)
                torch.zeros(1, device=self._place).cpu()  # waits for the kernels
                times.append(time.perf_counter() - started)
            cost = kernel_cost(kernel, sizes)
            seconds = statistics.median(times)
            rows.append(StepProfile(kernel.name, self.engine, seconds, cost.bytes, cost.flops))
        return rows

    def _new_outputs(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        shapes = self._calls.of(inputs).outputs
        return [torch.empty(shape, dtype=dtype, device=self._place) for shape, dtype in shapes]

    def _run(
        self, launches: Sequence[Launch], tensors: Mapping[Buffer, torch.Tensor], sizes: Mapping[str, int]
    ) -> None:
        """Launch kernels in order. Raises EvaluateError for an index out of range, which waits for the kernels."""
        failure = torch.zeros(1, dtype=torch.int32, device=self._place) if self.program.messages else None
        for launch in launches:
            self._launch(launch, tensors, sizes, failure)
        if failure is not None and (code := int(failure.item())):
            raise EvaluateError(f"graph {self.graph.name}: {self.program.messages[code - 1]}")

    def _launch(
        self,
        launch: Launch,
        tensors: Mapping[Buffer, torch.Tensor],
        sizes: Mapping[str, int],
        failure: torch.Tensor | None,
    ) -> None:
        threads = number(launch.threads, sizes)
        if not threads:
            return
        if threads >= MOST_THREADS:
            raise EngineError(f"graph {self.graph.name}: {launch.kernel} wants {threads} threads")
        given = launch.parameters
        arguments: list[Any] = [tensors[buffer] for buffer in given.buffers]
        arguments += [sizes[size] for size in given.sizes]
        if given.fails:
            arguments.append(failure)
        getattr(self._library, launch.kernel)(*arguments, threads=threads)

    def _tensors(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], sizes: Mapping[str, int]
    ) -> dict[Buffer, torch.Tensor]:
        """Memory of each buffer."""
        tensors = dict(self._fixed)
        for place, tensor in zip(self._calls.inputs, inputs, strict=True):
            tensors[self.program.buffers[place]] = tensor.contiguous()
        for output, tensor in zip(self._calls.outputs, outputs, strict=True):
            tensors[self.program.buffers[output]] = tensor
        for buffer in self.program.buffers:
            if buffer.role is Role.SCRATCH:
                count, dtype = number(buffer.size, sizes), torch_dtype(buffer.dtype)
                tensors[buffer] = torch.empty(count, dtype=dtype, device=self._place)
        return tensors

    def _weights(self) -> dict[Buffer, torch.Tensor]:
        tensors: dict[Buffer, torch.Tensor] = {}
        for buffer in self.program.buffers:
            if buffer.role in {Role.PARAMETER, Role.CONSTANT}:
                assert buffer.value is not None
                is_weight = buffer.role is Role.PARAMETER
                array = self.graph.weight(buffer.value.attrs["name"]) if is_weight else buffer.value.array
                assert array is not None
                tensors[buffer] = to_tensor(np.ascontiguousarray(array)).to(self._place, copy=True)
            elif buffer.role is Role.PREPARED:
                dtype = torch_dtype(buffer.dtype)
                tensors[buffer] = torch.empty(number(buffer.size, {}), dtype=dtype, device=self._place)
        return tensors


class MetalEngine:
    """See the module."""

    name = "metal"

    def check(self, graph: Graph, device: Device) -> Support | Decline:
        """Graphs of ops with a loop form, of dtypes that Metal has, whose sizes the inputs tell."""
        if (reason := no_metal(device)) is not None:
            return Decline(reason)
        found = declines(graph)
        return Support() if found is None else found

    def compile(self, graph: Graph, device: Device, knobs: Mapping[str, KnobValue]) -> CompiledPlan:
        """Schedule, generate, compile, prepare the weights."""
        refuse_knobs(self.name, knobs)
        if isinstance(answer := self.check(graph, device), Decline):
            raise EngineError(f"engine {self.name} does not take graph {graph.name}: {answer.reason}")
        scheduled, program = scheduled_source(graph)
        library = torch.mps.compile_shader(program.source)
        return MetalPlan(graph, device, scheduled, program, library, torch.device("mps"))

    def load(self, payload: bytes, device: Device) -> CompiledPlan:
        """What `serialize` wrote."""
        found = unpack_graph(payload, self.name, device)
        return self.compile(found.graph, device, found.knobs)


ENGINE = MetalEngine()


def scheduled_source(graph: Graph) -> tuple[Schedule, MetalCode]:
    """The schedule of a graph with attention written out, and its source. Raises EngineError."""
    scheduled = schedule(
        expanded(graph, frozenset()),
        choices=Choices(layout="rows"),
        most_parts=MOST_LAUNCHES,
        cpu=False,
    )
    return scheduled, generate(scheduled)


def declines(graph: Graph) -> Decline | None:
    """Why no Metal can be made of a graph; None where it can."""
    if (lacking := without_weights(graph)) is not None:
        return lacking
    if found := refused(graph, frozenset()) | unspelled(graph) | untold(graph):
        return declined(found)
    try:
        scheduled_source(graph)
    except EngineError as error:
        return Decline(str(error))
    return None


def unspelled(graph: Graph) -> dict[Value, str]:
    """Values that Metal has no dtype or no expression for, those inside composites included."""
    return values_refused(graph, _why_not)


def _why_not(node: Node) -> str | None:
    for value in (*node.operands, *node.results):
        if value.dtype.name not in TYPES:
            return f"Metal has no {value.dtype}"
    if node.op.name == "call":
        return next(iter(unspelled(node.attrs["callee"]).values()), None)
    if node.op.name in NATIVE_ONLY and not has_products(node):
        return f"{node.op.name} has no form in Metal"
    if node.op.name == "resize" and node.symbols():
        return "Metal has no float64, in which places of a resize to an open size are computed"
    if Trait.POINTWISE not in node.op.traits or node.op.name in {"cast", "bitcast"}:
        return None
    first = node.operands[0].dtype
    return (
        None
        if SPELLINGS.of(node.op, first.kind)
        else f"Metal has no expression for {node.op.name} of {first}"
    )
