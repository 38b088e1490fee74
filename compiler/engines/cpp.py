"""Generated C++ on the CPU: the graph is scheduled into fused loop nests, and a call of it is one native call.

The system's compiler builds a program once for a graph, for all sizes of its symbols (`codegen.toolchain` keeps what
was built); placing the scratch buffers for given sizes takes a moment and is kept. Each thread has an arena of its
own unless the caller brings one.
"""

from __future__ import annotations

import ctypes
import itertools
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from kernels_hub.compiler.codegen.cpp import Program, generate
from kernels_hub.compiler.codegen.cpp_library import Library, numbers, pointers
from kernels_hub.compiler.codegen.cpp_roots import FILES
from kernels_hub.compiler.codegen.toolchain import begin, find_compiler
from kernels_hub.compiler.engines.cpp_weights import place_weights
from kernels_hub.compiler.engines.engine import (
    CompiledPlan,
    Decline,
    Device,
    Knob,
    KnobValue,
    Note,
    StepProfile,
    Support,
)
from kernels_hub.compiler.engines.payload import pack_graph, unpack_graph
from kernels_hub.compiler.engines.reference import signature_of, without_weights
from kernels_hub.compiler.engines.scheduled import (
    MOST_BINDINGS,
    Calls,
    Outputs,
    declined,
    outputs_of,
    untold,
)
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.schedule.choices import CHOICES, Choices
from kernels_hub.compiler.schedule.cost import kernel_cost
from kernels_hub.compiler.schedule.kernel import Attention, Convolution, Product, Root, Schedule
from kernels_hub.compiler.schedule.memory import ALIGNMENT, Places
from kernels_hub.compiler.schedule.partial import may_be_long
from kernels_hub.compiler.schedule.schedule import schedule
from kernels_hub.compiler.schedule.units import refused

SMALL = 1 << 16
"""Bytes of outputs up to which some are kept to allocate others like them."""


@dataclass
class _Binding:
    """What is fixed once the sizes are known. `template`: all addresses but those of inputs, outputs and scratch."""

    number: int
    sizes: ctypes.Array[ctypes.c_int64]
    template: list[int]
    offsets: list[tuple[int, int]]
    """(place among the addresses, offset in the arena) of scratch buffers."""
    arena: int
    outputs: Outputs
    like: list[torch.Tensor] | None
    """Small outputs of an earlier moment: `empty_like` takes half as long as `empty`."""

    def __post_init__(self) -> None:
        self.sizes_at = ctypes.addressof(self.sizes)

    def allocate(self) -> list[torch.Tensor]:
        """New outputs."""
        if self.like is not None:
            return [torch.empty_like(one) for one in self.like]
        return [torch.empty(shape, dtype=dtype) for shape, dtype in self.outputs]


class _Addresses(NamedTuple):
    """What a program is called with, and where that lies."""

    array: ctypes.Array[ctypes.c_void_p]
    place: int


class _Local(threading.local):
    """A thread's arena, and the addresses that it last called with, by binding."""

    def __init__(self) -> None:
        self.arena: torch.Tensor | None = None
        self.addresses: dict[int, _Addresses] = {}


class CppPlan:
    """A loaded program with its weights."""

    engine = "cpp"

    def __init__(
        self, graph: Graph, device: Device, scheduled: Schedule, program: Program, library: Library
    ) -> None:
        self.graph, self.device, self.schedule, self.program, self.library = (
            graph,
            device,
            scheduled,
            program,
            library,
        )
        self.signature = signature_of(graph)
        self._places = Places(scheduled)
        self._calls = Calls(scheduled, self.signature, program.buffers, self._bind)
        self._numbers = itertools.count()
        self._local = _Local()
        self._empty = torch.zeros(ALIGNMENT, dtype=torch.uint8)
        self._nothing = self._empty.data_ptr()
        """Where tensors without elements point to, which have no address."""
        self._weights = place_weights(graph, scheduled, program, library)

    def workspace_size(self, sizes: Mapping[str, int]) -> int:
        """Bytes of the arena."""
        return self._places.of(sizes)[1]

    def compute(
        self,
        inputs: Sequence[torch.Tensor],
        workspace: torch.Tensor | None = None,
        stream: int | None = None,  # noqa: ARG002  (the protocol's)
    ) -> list[torch.Tensor]:
        """The outputs, in memory of their own."""
        binding = self._calls.of(inputs)
        outputs = binding.allocate()
        self._run(binding, inputs, outputs, workspace)
        return outputs

    def execute(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        workspace: torch.Tensor | None = None,
        stream: int | None = None,  # noqa: ARG002  (the protocol's)
    ) -> None:
        """See `CompiledPlan`. Raises EvaluateError for an index that is out of range."""
        self._run(self._calls.of(inputs), inputs, outputs, workspace)

    def serialize(self) -> bytes:
        """The graph with its weights: the program is generated from it again, and comes from the cache."""
        return pack_graph(self.graph, self.engine, self.device, self.schedule.choices.given())

    def profile(self, inputs: Sequence[torch.Tensor], repeats: int = 10) -> list[StepProfile]:
        """Median seconds of each kernel."""
        binding = self._calls.of(inputs)
        outputs = binding.allocate()
        held = [one.contiguous() for one in inputs]
        addresses = self._addresses(binding, None)
        self._fill(addresses, held, outputs)
        rows: list[StepProfile] = []
        known = self._calls.sizes(inputs)
        times: list[list[float]] = [[] for _ in self.schedule.kernels]
        for _ in range(max(1, repeats)):
            for step in range(len(self.schedule.kernels)):
                started = time.perf_counter()
                self.library.step(step, addresses.place, binding.sizes_at)
                times[step].append(time.perf_counter() - started)
        for kernel, seconds in zip(self.schedule.kernels, times, strict=True):
            cost = kernel_cost(kernel, known)
            rows.append(
                StepProfile(kernel.name, self.engine, statistics.median(seconds), cost.bytes, cost.flops)
            )
        return rows

    def _bind(self, sizes: Mapping[str, int]) -> _Binding:
        placed, room = self._places.of(sizes)
        offsets = [
            (where, placed[buffer]) for where, buffer in enumerate(self.program.buffers) if buffer in placed
        ]
        outputs = outputs_of(self.signature, sizes)
        lines = numbers([sizes[name] for name in self.program.sizes])
        made = [torch.empty(shape, dtype=dtype) for shape, dtype in outputs]
        like = made if sum(one.nbytes for one in made) <= SMALL else None
        return _Binding(
            next(self._numbers), lines, list(self._weights.addresses), offsets, room, outputs, like
        )

    def _run(
        self,
        binding: _Binding,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        workspace: torch.Tensor | None,
    ) -> None:
        addresses = self._addresses(binding, workspace)
        kept = self._fill(addresses, inputs, outputs)
        self.library.call(addresses.place, binding.sizes_at)
        del kept

    def _fill(
        self, addresses: _Addresses, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Put in where the tensors of a call lie; returns copies of those with gaps, which have to live through it."""
        copies = []
        array, nothing = addresses.array, self._nothing
        for where, tensor in zip(self._calls.inputs, inputs, strict=True):
            if not tensor.is_contiguous():
                tensor = tensor.contiguous()  # noqa: PLW2901  (instead of it)
                copies.append(tensor)
            array[where] = tensor.data_ptr() or nothing
        for where, tensor in zip(self._calls.outputs, outputs, strict=True):
            array[where] = tensor.data_ptr() or nothing
        return copies

    def _addresses(self, binding: _Binding, workspace: torch.Tensor | None) -> _Addresses:
        """The addresses of a call but for inputs and outputs: those that a thread used last for the same sizes."""
        local = self._local
        if workspace is None and (known := local.addresses.get(binding.number)) is not None:
            return known
        array = pointers(binding.template)
        arena = workspace if workspace is not None else self._arena(binding.arena)
        base = arena.data_ptr() if arena is not None else 0
        for where, offset in binding.offsets:
            array[where] = base + offset
        made = _Addresses(array, ctypes.addressof(array))
        if workspace is None:
            if len(local.addresses) >= MOST_BINDINGS:
                local.addresses.clear()
            local.addresses[binding.number] = made
        return made

    def _arena(self, size: int) -> torch.Tensor:
        """This thread's arena, grown where it is too small; what pointed into the old one is forgotten."""
        local = self._local
        if local.arena is None or local.arena.numel() < size:
            local.arena = torch.empty(max(size, ALIGNMENT), dtype=torch.uint8)
            local.addresses.clear()
        return local.arena


class CppEngine:
    """See the module."""

    name = "cpp"

    def check(self, graph: Graph, device: Device) -> Support | Decline:
        """Graphs of ops with a loop form, whose sizes the inputs tell."""
        if device.type != "cpu":
            return Decline(f"it runs on the CPU, not on {device}")
        if find_compiler() is None:
            return Decline("no C++ compiler found (set KERNELS_HUB_CXX or install g++)")
        if (lacking := without_weights(graph)) is not None:
            return lacking
        if found := refused(graph) | untold(graph):
            return declined(found)
        return Support(frozenset({Note.NEEDS_COMPILER}), _knobs(graph))

    def compile(self, graph: Graph, device: Device, knobs: Mapping[str, KnobValue]) -> CompiledPlan:
        """Schedule, generate, build, load, pack the weights. knobs: `schedule.choices`."""
        choices = Choices.of(knobs)
        answer = self.check(graph, device)
        if isinstance(answer, Decline):
            raise EngineError(f"engine {self.name} does not take graph {graph.name}: {answer.reason}")
        scheduled = schedule(graph, choices=choices)
        program = generate(scheduled)
        return CppPlan(graph, device, scheduled, program, Library.built(program, graph.name))

    def load(self, payload: bytes, device: Device) -> CompiledPlan:
        """What `serialize` wrote."""
        found = unpack_graph(payload, self.name, device)
        return self.compile(found.graph, device, found.knobs)


_RUNTIME: dict[type[Root], Callable[[nn.Module], bool]] = {
    Convolution: lambda one: isinstance(one, (nn.Conv1d, nn.Conv2d, nn.Conv3d)),
    Attention: lambda one: "Attention" in type(one).__name__,
    Product: lambda one: isinstance(one, nn.Linear),
}
"""What the runtime computes -> whether a part of a module wants it, as far as its class tells."""


def begin_for(module: nn.Module) -> None:
    """Have those parts of the runtime compiled, while a module is traced, that its graph is likely to call."""
    parts = tuple(module.modules())
    begin([file for root, wants in _RUNTIME.items() if any(map(wants, parts)) for file in FILES[root]])


ENGINE = CppEngine()


def _knobs(graph: Graph) -> tuple[Knob, ...]:
    """Choices that may make a difference to a graph; `compile` takes all of `schedule.choices`."""
    names = []
    if any(may_be_long(node) for node in graph.live()):
        names.append("split")
    if any(node.op.name == "conv" for node in graph.live()):
        names.append("layout")
    return tuple(Knob(name, CHOICES[name], "see schedule.choices") for name in names)
