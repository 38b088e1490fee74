"""Generated C++ on the CPU: the graph is scheduled into fused loop nests, and a call of it is one native call.

The system's compiler builds a program once for a graph, for all sizes of its symbols (`runtime.toolchain` keeps what
was built); placing the scratch buffers for given sizes takes a moment and is kept. Each thread has an arena of its
own unless the caller brings one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from torch import nn

from kernels_hub.compiler.codegen.cpp.anchors import FILES
from kernels_hub.compiler.codegen.cpp.translation_unit import CppCode, generate
from kernels_hub.compiler.engines.devices import no_cpp
from kernels_hub.compiler.engines.engine import (
    CompiledPlan,
    Decline,
    Device,
    Knob,
    KnobValue,
    Note,
    Support,
)
from kernels_hub.compiler.engines.native_code import pack_native, unpack_native
from kernels_hub.compiler.engines.payload import unpack_graph
from kernels_hub.compiler.engines.reference import without_weights
from kernels_hub.compiler.engines.scheduled import declined, untold
from kernels_hub.compiler.engines.scheduled_plan import ScheduledPlan
from kernels_hub.compiler.errors import BuildError, EngineError
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.runtime import errors as runtime
from kernels_hub.compiler.runtime.native import Native
from kernels_hub.compiler.runtime.toolchain import Isa, begin, build, machine_isas, whole
from kernels_hub.compiler.schedule.choices import CHOICES, Choices
from kernels_hub.compiler.schedule.complex_pairs import in_pairs
from kernels_hub.compiler.schedule.inlining import refused
from kernels_hub.compiler.schedule.kernel import Anchor, Attention, Convolution, Product
from kernels_hub.compiler.schedule.partial import may_be_long
from kernels_hub.compiler.schedule.schedule import schedule
from kernels_hub.cxx_compiler import find_compiler


class CppPlan(ScheduledPlan):
    """A loaded program of generated C++."""

    program: CppCode

    def native_code(self) -> bytes | None:
        """The built library, for machines without a compiler; None where it is no longer in the cache."""
        library = whole(self.native.path)
        return None if library is None else pack_native(self.engine, self.program, machine_isas()[0], library)


def loaded(program: CppCode, name: str, level: Isa | None = None) -> Native:
    """A program, compiled now or before, and loaded. Raises BuildError."""
    try:
        return Native(build(program.source, name, level, runtime=program.runtime))
    except runtime.BuildError as error:
        raise BuildError(str(error)) from error


class CppEngine:
    """See the module."""

    name = "cpp"

    def check(self, graph: Graph, device: Device) -> Support | Decline:
        """Graphs of ops with a loop form, whose sizes the inputs tell."""
        if (reason := no_cpp(device)) is not None:
            return Decline(reason)
        if find_compiler() is None:
            return Decline("no C++ compiler found (set KERNELS_HUB_CXX or install g++)")
        if (lacking := without_weights(graph)) is not None:
            return lacking
        pairs = in_pairs(graph)
        if refused(pairs, regions=True) or untold(pairs):
            return declined(refused(graph, regions=True) | untold(graph))
        return Support(frozenset({Note.NEEDS_COMPILER}), _knobs(graph))

    def compile(self, graph: Graph, device: Device, knobs: Mapping[str, KnobValue]) -> CompiledPlan:
        """Schedule, generate, build, load, pack the weights. knobs: `schedule.choices`."""
        choices = Choices.of(knobs)
        answer = self.check(graph, device)
        if isinstance(answer, Decline):
            raise EngineError(f"engine {self.name} does not take graph {graph.name}: {answer.reason}")
        scheduled = schedule(in_pairs(graph), choices=choices)
        program = generate(scheduled)
        return CppPlan(graph, device, scheduled, program, loaded(program, graph.name))

    def load(self, payload: bytes, device: Device) -> CompiledPlan:
        """What `serialize` wrote."""
        found = unpack_graph(payload, self.name, device)
        return self.compile(found.graph, device, found.knobs)

    def needs_native_code(self) -> bool:
        """Whether nothing can be built here."""
        return find_compiler() is None

    def load_native(self, payload: bytes, code: bytes, device: Device) -> CompiledPlan:
        """What `serialize` wrote, with the library of `native_code`, which the caller trusts.

        Raises PlanError for a library of another graph, of other sources, or for an instruction set that is not here.
        """
        found = unpack_graph(payload, self.name, device)
        scheduled = schedule(in_pairs(found.graph), choices=Choices.of(found.knobs))
        program = generate(scheduled)
        library = unpack_native(code, self.name, program)
        return CppPlan(
            found.graph, device, scheduled, program, Native(Path(f"{found.graph.name}.so"), library)
        )


_RUNTIME: dict[type[Anchor], Callable[[nn.Module], bool]] = {
    Convolution: lambda one: isinstance(one, (nn.Conv1d, nn.Conv2d, nn.Conv3d)),
    Attention: lambda one: "Attention" in type(one).__name__,
    Product: lambda one: isinstance(one, nn.Linear),
}
"""What the runtime computes -> whether a part of a module wants it, as far as its class tells."""


def begin_for(module: nn.Module) -> None:
    """Have those parts of the runtime compiled, while a module is traced, that its graph is likely to call."""
    parts = tuple(module.modules())
    begin([file for anchor, wants in _RUNTIME.items() if any(map(wants, parts)) for file in FILES[anchor]])


ENGINE = CppEngine()


def _knobs(graph: Graph) -> tuple[Knob, ...]:
    """Choices that may make a difference to a graph; `compile` takes all of `schedule.choices`."""
    names = []
    if any(may_be_long(node) for node in graph.live()):
        names.append("split")
    if any(node.op.name == "conv" for node in graph.live()):
        names.append("layout")
    return tuple(Knob(name, CHOICES[name], "see schedule.choices") for name in names)
