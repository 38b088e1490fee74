"""Generated Triton on a GPU: the graph is scheduled into fused loop nests, each of which is a kernel.

The kernels are generated once for a graph, for all sizes of its symbols; Triton compiles each when it is first
launched, and keeps what it compiled. With TRITON_INTERPRET=1 in the environment the same kernels run on the CPU, in
Triton's interpreter: slowly, to be tested where no GPU is.

Knobs: `block` (elements of a pointwise program), `tile` (rows x columns x depth of a product's tile), both 0 or "" to
choose by size; `tf32` (float32 products may round their operands: not tried unless asked for).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch

from kernels_hub.compiler.codegen.triton import Program, generate
from kernels_hub.compiler.codegen.triton_attention import MOST_WIDTH
from kernels_hub.compiler.codegen.triton_module import load_module
from kernels_hub.compiler.codegen.triton_options import Options
from kernels_hub.compiler.codegen.triton_split import split_reductions
from kernels_hub.compiler.codegen.triton_text import check_spelled
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
from kernels_hub.compiler.engines.scheduled import (
    Calls,
    Outputs,
    declined,
    outputs_of,
    untold,
)
from kernels_hub.compiler.engines.tensors import to_tensor, torch_dtype
from kernels_hub.compiler.errors import EngineError, EvaluateError
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.op import Trait
from kernels_hub.compiler.schedule.cost import kernel_cost
from kernels_hub.compiler.schedule.kernel import Role, Schedule
from kernels_hub.compiler.schedule.memory import ALIGNMENT, Places, number
from kernels_hub.compiler.schedule.schedule import schedule
from kernels_hub.compiler.schedule.scores import attention_parts
from kernels_hub.compiler.schedule.units import refused

ROOTS = frozenset({types.FLOAT32, types.FLOAT16, types.BFLOAT16})
"""Dtypes of the products that tensor cores do."""

KNOBS = (
    Knob("block", (0, 256, 512, 1024, 2048), "elements of a pointwise program; 0: by size"),
    Knob(
        "tile",
        ("", "128x128x64", "128x64x64", "64x64x64", "64x128x32", "32x64x64", "16x64x128"),
        'rows x columns x depth of a product\'s tile; "": by size',
    ),
)

_INTERPRETER = threading.Lock()
"""The interpreter patches Triton's language while it runs: one thread at a time."""


@dataclass(frozen=True)
class _Binding:
    """What is fixed once the sizes are known."""

    sizes: list[int]
    scratch: list[tuple[int, int, int, torch.dtype]]
    """(place among the tensors, offset in the arena, bytes, dtype)."""
    arena: int
    outputs: Outputs


class _Local(threading.local):
    """The scratch tensors that a thread used last: for which binding, stream and workspace."""

    def __init__(self) -> None:
        self.binding: _Binding | None = None
        self.key: tuple[int | None, ...] = ()
        self.tensors: list[torch.Tensor] = []


class TritonPlan:
    """A loaded module with its weights."""

    engine = "triton"

    def __init__(
        self,
        graph: Graph,
        device: Device,
        scheduled: Schedule,
        program: Program,
        knobs: Mapping[str, KnobValue],
    ) -> None:
        self.graph, self.device, self.schedule, self.program = graph, device, scheduled, program
        self.knobs = dict(knobs)
        self.signature = signature_of(graph)
        self.module: ModuleType = load_module(program.source, graph.name)
        self._place = _torch_device(device)
        self._places = Places(scheduled)
        self._calls = Calls(scheduled, self.signature, program.buffers, self._bind)
        self._local = _Local()
        with self._on_device(None):
            self._fixed = self._weights()
            self._unused = self._no_failure()
            self._call(self.module.PREPARE, [*self._fixed, self._no_failure()], [1] * len(program.sizes))

    def workspace_size(self, sizes: Mapping[str, int]) -> int:
        """Bytes of the arena."""
        return self._places.of(sizes)[1]

    def compute(
        self, inputs: Sequence[torch.Tensor], workspace: torch.Tensor | None = None, stream: int | None = None
    ) -> list[torch.Tensor]:
        """The outputs, in memory of their own."""
        binding = self._calls.of(inputs)
        with self._on_device(stream):
            outputs = [
                torch.empty(shape, dtype=dtype, device=self._place) for shape, dtype in binding.outputs
            ]
            self._run(binding, inputs, outputs, workspace)
        return outputs

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
        with self._on_device(stream):
            self._run(self._calls.of(inputs), inputs, outputs, workspace)

    def serialize(self) -> bytes:
        """The graph with its weights: the kernels are generated from it again, and come from Triton's cache."""
        return pack_graph(self.graph, self.engine, self.device, self.knobs)

    def profile(self, inputs: Sequence[torch.Tensor], repeats: int = 10) -> list[StepProfile]:
        """Median seconds of each kernel."""
        binding = self._calls.of(inputs)
        sizes = self._calls.sizes(inputs)
        with self._on_device(None):
            outputs = [
                torch.empty(shape, dtype=dtype, device=self._place) for shape, dtype in binding.outputs
            ]
            tensors = self._tensors(binding, inputs, outputs, None)
            self._call(self.module.RUN, tensors, binding.sizes)
            rounds = [
                [self._seconds(step, tensors, binding.sizes) for step in self.module.RUN]
                for _ in range(max(1, repeats))
            ]
        rows = []
        for kernel, *seconds in zip(self.schedule.kernels, *rounds, strict=True):
            cost = kernel_cost(kernel, sizes)
            rows.append(
                StepProfile(kernel.name, self.engine, statistics.median(seconds), cost.bytes, cost.flops)
            )
        return rows

    def _seconds(self, step: Callable[..., None], tensors: list[torch.Tensor], sizes: list[int]) -> float:
        if self._place.type == "cpu":
            started = time.perf_counter()
            self._call((step,), tensors, sizes)
            return time.perf_counter() - started
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        step(tensors, sizes)
        after.record()
        after.synchronize()
        return float(before.elapsed_time(after)) / 1e3

    @contextlib.contextmanager
    def _on_device(self, stream: int | None) -> Iterator[None]:
        """Kernels go to the current stream of the current device."""
        if self._place.type == "cpu":
            yield
            return
        with torch.cuda.device(self._place):
            if stream is None or stream == torch.cuda.current_stream().cuda_stream:
                yield
                return
            with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=self._place)):
                yield

    def _call(
        self, steps: Sequence[Callable[..., None]], tensors: list[torch.Tensor], sizes: list[int]
    ) -> None:
        guard = _INTERPRETER if self._place.type == "cpu" else contextlib.nullcontext()
        with guard, np.errstate(all="ignore"):
            for step in steps:
                step(tensors, sizes)

    def _weights(self) -> list[torch.Tensor]:
        """A tensor for each buffer, those that a call brings left empty."""
        found: list[torch.Tensor] = []
        for buffer in self.program.buffers:
            dtype = torch_dtype(buffer.dtype)
            if buffer.role is Role.PARAMETER or buffer.role is Role.CONSTANT:
                assert buffer.value is not None
                value = buffer.value
                array = (
                    self.graph.weight(value.attrs["name"]) if buffer.role is Role.PARAMETER else value.array
                )
                assert array is not None
                found.append(to_tensor(np.ascontiguousarray(array)).to(self._place, copy=True))
            elif buffer.role is Role.PREPARED:
                found.append(torch.empty(number(buffer.size, {}), dtype=dtype, device=self._place))
            else:
                found.append(torch.empty(0, dtype=dtype, device=self._place))
        return found

    def _no_failure(self) -> torch.Tensor:
        return torch.zeros(1, dtype=torch.int32, device=self._place)

    def _bind(self, sizes: Mapping[str, int]) -> _Binding:
        placed, room = self._places.of(sizes)
        scratch = [
            (at, placed[buffer], number(buffer.bytes, sizes), torch_dtype(buffer.dtype))
            for at, buffer in enumerate(self.program.buffers)
            if buffer in placed
        ]
        return _Binding(
            [sizes[name] for name in self.program.sizes],
            scratch,
            room,
            outputs_of(self.signature, sizes),
        )

    def _run(
        self,
        binding: _Binding,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        workspace: torch.Tensor | None,
    ) -> None:
        tensors = self._tensors(binding, inputs, outputs, workspace)
        self._call(self.module.RUN, tensors, binding.sizes)
        if self.program.messages and not self._is_captured():
            code = int(tensors[-1].item())
            if code:
                raise EvaluateError(f"graph {self.graph.name}: {self.program.messages[code - 1]}")

    def _tensors(
        self,
        binding: _Binding,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        workspace: torch.Tensor | None,
    ) -> list[torch.Tensor]:
        """What the functions of the module are called with."""
        tensors = (
            [*self._fixed, self._no_failure()] if self.program.messages else [*self._fixed, self._fixed[0]]
        )
        for scratch, one in zip(binding.scratch, self._scratch(binding, workspace), strict=True):
            tensors[scratch[0]] = one
        for at, tensor in zip(self._calls.inputs, inputs, strict=True):
            tensors[at] = tensor.contiguous()
        for at, tensor in zip(self._calls.outputs, outputs, strict=True):
            tensors[at] = tensor
        return tensors

    def _scratch(self, binding: _Binding, workspace: torch.Tensor | None) -> list[torch.Tensor]:
        """Windows of the arena: those of the last call, if it was one of this kind; else of a new one."""
        local = self._local
        stream = 0 if self._place.type == "cpu" else torch.cuda.current_stream().cuda_stream
        key = (stream, workspace.data_ptr() if workspace is not None else None)
        if local.binding is binding and local.key == key and not self._is_captured():
            return local.tensors
        arena = workspace
        if arena is None:
            arena = torch.empty(max(binding.arena, ALIGNMENT), dtype=torch.uint8, device=self._place)
        tensors = [arena[offset : offset + size].view(dtype) for _, offset, size, dtype in binding.scratch]
        if not self._is_captured():  # memory that is taken during a capture is the captured graph's own
            local.binding, local.key, local.tensors = binding, key, tensors
        return tensors

    def _is_captured(self) -> bool:
        return self._place.type != "cpu" and torch.cuda.is_current_stream_capturing()


class TritonEngine:
    """See the module."""

    name = "triton"

    def check(self, graph: Graph, device: Device) -> Support | Decline:
        """Graphs of ops with a loop form and an expression in Triton, whose sizes the inputs tell."""
        if (reason := _cannot_run(device)) is not None:
            return Decline(reason)
        if (lacking := without_weights(graph)) is not None:
            return lacking
        if found := refused(graph, ROOTS) | _unspelled(graph) | untold(graph):
            return declined(found)
        return Support(knobs=KNOBS)

    def compile(self, graph: Graph, device: Device, knobs: Mapping[str, KnobValue]) -> CompiledPlan:
        """Schedule, generate, import, prepare the weights."""
        refuse_knobs(self.name, knobs, ("block", "tile", "tf32"))
        if isinstance(answer := self.check(graph, device), Decline):
            raise EngineError(f"engine {self.name} does not take graph {graph.name}: {answer.reason}")
        scheduled = split_reductions(schedule(graph, ROOTS))
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
        if len(sizes) != 3 or any(one < 16 or one & (one - 1) for one in sizes):
            raise EngineError(
                f"engine triton: knob tile is like '64x64x32' (powers of two from 16), not {tile!r}"
            )
        found = sizes[0], sizes[1], sizes[2]
    return Options(device.arch, int(block), found, bool(tf32))


def _cannot_run(device: Device) -> str | None:
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if device.type not in ({"cpu"} if interpreted else {"cuda", "rocm"}):
        return f"it runs on GPUs, not on {device}" if not interpreted else "TRITON_INTERPRET=1 is for the CPU"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if not interpreted and not torch.cuda.is_available():
        return f"this PyTorch ({torch.__version__}) sees no GPU"
    return None


def _torch_device(device: Device) -> torch.device:
    return torch.device("cpu") if device.type == "cpu" else torch.device("cuda", device.index)


def _unspelled(graph: Graph) -> dict[Value, str]:
    """Values that Triton has no expression for, those inside composites included."""
    found: dict[Value, str] = {}
    for node in graph.live():
        reason = _why_not(node)
        if reason is not None:
            found.update(dict.fromkeys(node.results, reason))
    return found


def _why_not(node: Node) -> str | None:
    if Trait.POINTWISE in node.op.traits and node.operands:
        return check_spelled(node, [one.dtype for one in node.operands])
    if node.op.name in {"argsort", "argtopk", "grouped_matmul"}:
        return f"{node.op.name} has no form in Triton"
    if node.op.name != "call":
        return None
    parts = attention_parts(node.results[0], ROOTS)
    if parts is not None:
        widths = (parts.q.shape[3], parts.v.shape[3])
        if not all(isinstance(one, int) and one <= MOST_WIDTH for one in widths):
            return f"heads {' and '.join(map(str, widths))} wide: at most {MOST_WIDTH} fit the registers"
    return next(iter(_unspelled(node.attrs["callee"]).values()), None)
