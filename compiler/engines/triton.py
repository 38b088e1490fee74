"""Generated Triton on a GPU: the graph is scheduled into fused loop nests, each of which is a kernel.

The kernels are generated once for a graph, for all sizes of its symbols; Triton compiles each when it is first
launched, and keeps what it compiled. With TRITON_INTERPRET=1 in the environment the same kernels run on the CPU, in
Triton's interpreter: slowly, to be tested where no GPU is.

Knobs: `block` (elements of a pointwise program), `tile` (rows x columns x depth of a product's tile), both 0 or "" to
choose by size; `tf32` (float32 products may round their operands: not tried unless asked for).
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Mapping, Sequence
from types import ModuleType

import numpy as np
import torch

from kernels_hub.compiler.codegen.triton.attention import MOST_WIDTH
from kernels_hub.compiler.codegen.triton.module_cache import load_module
from kernels_hub.compiler.codegen.triton.options import Options
from kernels_hub.compiler.codegen.triton.source import TritonCode, generate
from kernels_hub.compiler.codegen.triton.split import split_reductions
from kernels_hub.compiler.codegen.triton.text import check_spelled
from kernels_hub.compiler.engines.calls import Calls
from kernels_hub.compiler.engines.devices import no_triton
from kernels_hub.compiler.engines.engine import (
    CompiledPlan,
    Decline,
    Device,
    Knob,
    KnobValue,
    StepProfile,
    Support,
)
from kernels_hub.compiler.engines.payload import pack_graph, unpack_graph
from kernels_hub.compiler.engines.reference import refuse_knobs, signature_of, without_weights
from kernels_hub.compiler.engines.scheduled import call_layout, declined, untold, values_refused
from kernels_hub.compiler.engines.tensors import to_tensor, torch_dtype
from kernels_hub.compiler.errors import EngineError, EvaluateError
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.op import Trait
from kernels_hub.compiler.runtime.arena import Arenas
from kernels_hub.compiler.runtime.launcher import Launcher
from kernels_hub.compiler.runtime.triton_program import Step, TritonProgram, on_device
from kernels_hub.compiler.schedule.cost import kernel_cost
from kernels_hub.compiler.schedule.fourier import has_products
from kernels_hub.compiler.schedule.inlining import NATIVE_ONLY, refused
from kernels_hub.compiler.schedule.kernel import Role, Schedule
from kernels_hub.compiler.schedule.memory import number
from kernels_hub.compiler.schedule.schedule import schedule
from kernels_hub.compiler.schedule.scores import attention_parts
from kernels_hub.compiler.schedule.split import MOST_LAUNCHES

ANCHORS = frozenset({types.FLOAT32, types.FLOAT16, types.BFLOAT16})
"""Dtypes of the products that tensor cores do."""

KNOBS = (
    Knob("block", (0, 256, 512, 1024, 2048), "elements of a pointwise program; 0: by size"),
    Knob(
        "tile",
        ("", "128x128x64", "128x64x64", "64x64x64", "64x128x32", "32x64x64", "16x64x128"),
        'rows x columns x depth of a product\'s tile; "": by size',
    ),
)


class TritonPlan:
    """A loaded module with its weights."""

    engine = "triton"

    def __init__(
        self,
        graph: Graph,
        device: Device,
        scheduled: Schedule,
        program: TritonCode,
        knobs: Mapping[str, KnobValue],
    ) -> None:
        self.graph, self.device, self.schedule, self.program = graph, device, scheduled, program
        self.knobs = dict(knobs)
        self.signature = signature_of(graph)
        self.module: ModuleType = load_module(program.source, graph.name)
        self._place = _torch_device(device)
        self._calls = Calls(
            call_layout(scheduled, self.signature, program.buffers, program.sizes), self.signature
        )
        self._program = TritonProgram(
            self.module,
            Launcher(),
            self._place,
            self._weights(),
            (*self._calls.inputs, *self._calls.outputs),
            len(program.sizes),
            Arenas(),
            fails=bool(program.messages),
        )
        self._check(self._program.failure)

    def workspace_size(self, sizes: Mapping[str, int]) -> int:
        """Bytes of the arena."""
        return self._calls.workspace_size(sizes)

    def compute(
        self, inputs: Sequence[torch.Tensor], workspace: torch.Tensor | None = None, stream: int | None = None
    ) -> list[torch.Tensor]:
        """The outputs, in memory of their own."""
        return list(self._run(inputs, None, workspace, stream))

    def execute(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        workspace: torch.Tensor | None = None,
        stream: int | None = None,
    ) -> None:
        """See `CompiledPlan`. Raises EvaluateError for an index that is out of range.

        Where indices are data, that is known when the kernels are done: such a plan waits for them, unless it is
        being captured.
        """
        self._run(inputs, outputs, workspace, stream)

    def serialize(self) -> bytes:
        """The graph with its weights: the kernels are generated from it again, and come from Triton's cache."""
        return pack_graph(self.graph, self.engine, self.device, self.knobs)

    def profile(self, inputs: Sequence[torch.Tensor], repeats: int = 10) -> list[StepProfile]:
        """Median seconds of each kernel."""
        binding = self._calls.of(inputs)
        sizes = self._calls.sizes([tensor.shape for tensor in inputs])
        run = self._program
        with on_device(self._place):
            outputs = [
                torch.empty(shape, dtype=dtype, device=self._place) for shape, dtype in binding.outputs
            ]
            tensors = run.arguments(binding, inputs, outputs)
            run.launch(run.steps, tensors, binding.sizes)
            rounds = [
                [self._seconds(step, tensors, binding.sizes) for step in run.steps]
                for _ in range(max(1, repeats))
            ]
        rows = []
        for kernel, *seconds in zip(self.schedule.kernels, *rounds, strict=True):
            cost = kernel_cost(kernel, sizes)
            rows.append(
                StepProfile(kernel.name, self.engine, statistics.median(seconds), cost.bytes, cost.flops)
            )
        return rows

    def _seconds(self, step: Step, tensors: list[torch.Tensor], sizes: list[int]) -> float:
        if self._place.type == "cpu":
            started = time.perf_counter()
            self._program.launch((step,), tensors, sizes)
            return time.perf_counter() - started
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        self._program.launch((step,), tensors, sizes)
        after.record()
        after.synchronize()
        return float(before.elapsed_time(after)) / 1e3

    def _weights(self) -> list[torch.Tensor]:
        """A tensor for each buffer, those that a call brings left empty."""
        tensors: list[torch.Tensor] = []
        for buffer in self.program.buffers:
            dtype = torch_dtype(buffer.dtype)
            if buffer.role is Role.PARAMETER or buffer.role is Role.CONSTANT:
                assert buffer.value is not None
                value = buffer.value
                array = (
                    self.graph.weight(value.attrs["name"]) if buffer.role is Role.PARAMETER else value.array
                )
                assert array is not None
                tensors.append(to_tensor(np.ascontiguousarray(array)).to(self._place, copy=True))
            elif buffer.role is Role.PREPARED:
                tensors.append(torch.empty(number(buffer.size, {}), dtype=dtype, device=self._place))
            else:
                tensors.append(torch.empty(0, dtype=dtype, device=self._place))
        return tensors

    def _run(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor] | None,
        workspace: torch.Tensor | None,
        stream: int | None,
    ) -> Sequence[torch.Tensor]:
        made, code = self._program.run(self._calls.of(inputs), inputs, outputs, workspace, stream)
        self._check(code)
        return made

    def _check(self, code: int) -> None:
        if code:
            raise EvaluateError(f"graph {self.graph.name}: {self.program.messages[code - 1]}")


class TritonEngine:
    """See the module."""

    name = "triton"

    def check(self, graph: Graph, device: Device) -> Support | Decline:
        """Graphs of ops with a loop form and an expression in Triton, whose sizes the inputs tell."""
        if (reason := no_triton(device)) is not None:
            return Decline(reason)
        if (lacking := without_weights(graph)) is not None:
            return lacking
        if found := refused(graph, ANCHORS) | unspelled(graph) | untold(graph):
            return declined(found)
        return Support(knobs=KNOBS)

    def compile(self, graph: Graph, device: Device, knobs: Mapping[str, KnobValue]) -> CompiledPlan:
        """Schedule, generate, import, prepare the weights."""
        refuse_knobs(self.name, knobs, ("block", "tile", "tf32"))
        if isinstance(answer := self.check(graph, device), Decline):
            raise EngineError(f"engine {self.name} does not take graph {graph.name}: {answer.reason}")
        scheduled = split_reductions(schedule(graph, ANCHORS, most_parts=MOST_LAUNCHES, cpu=False))
        return TritonPlan(graph, device, scheduled, generate(scheduled, options_of(device, knobs)), knobs)

    def load(self, payload: bytes, device: Device) -> CompiledPlan:
        """What `serialize` wrote."""
        found = unpack_graph(payload, self.name, device)
        return self.compile(found.graph, device, found.knobs)


ENGINE = TritonEngine()


def options_of(device: Device, knobs: Mapping[str, KnobValue]) -> Options:
    """Knobs as options of code generation. Raises EngineError for a value that none can be."""
    block, tile, tf32 = knobs.get("block", 0), knobs.get("tile", ""), knobs.get("tf32", False)
    if not isinstance(block, int) or isinstance(block, bool) or block < 0 or block & (block - 1):
        raise EngineError(f"engine triton: knob block is a power of two, or 0, not {block!r}")
    found: tuple[int, int, int] | None = None
    if tile != "":
        sizes = [int(one) for one in tile.split("x")] if re.fullmatch(r"\d+x\d+x\d+", str(tile)) else []  # type: ignore[union-attr]
        if len(sizes) != 3 or any(size < 16 or size & (size - 1) for size in sizes):
            raise EngineError(
                f"engine triton: knob tile is like '64x64x32' (powers of two from 16), not {tile!r}"
            )
        found = sizes[0], sizes[1], sizes[2]
    return Options(device.arch, int(block), found, bool(tf32))


def _torch_device(device: Device) -> torch.device:
    return torch.device("cpu") if device.type == "cpu" else torch.device("cuda", device.index)


def unspelled(graph: Graph) -> dict[Value, str]:
    """Values that Triton has no expression for, those inside composites included."""
    return values_refused(graph, _why_not)


def _why_not(node: Node) -> str | None:
    if Trait.POINTWISE in node.op.traits and node.operands:
        return check_spelled(node, [operand.dtype for operand in node.operands])
    if node.op.name in NATIVE_ONLY and not has_products(node):
        return f"{node.op.name} has no form in Triton"
    if node.op.name != "call":
        return None
    parts = attention_parts(node.results[0], ANCHORS)
    if parts is not None:
        widths = [one.shape[3] for one in (parts.q, parts.v) if one is not None]
        if not all(isinstance(width, int) and width <= MOST_WIDTH for width in widths):
            return f"heads {' and '.join(map(str, widths))} wide: at most {MOST_WIDTH} fit the registers"
    return next(iter(unspelled(node.attrs["callee"]).values()), None)
