"""The C++ engine's plans without a C++ compiler: the schedule as bytecode, for an interpreter that came along.

The same kernels as generated C++ has, on the same buffers and arena, with the same products, convolutions and
attention; what is fused into loops there is interpreted here, a tile at a time. It takes what it can express, and runs
where no compiler is found.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping

from kernels_hub.compiler.codegen.bytecode.instruction import ELEMENTS
from kernels_hub.compiler.codegen.bytecode.operations import NOT_COMPUTED, codes
from kernels_hub.compiler.codegen.bytecode.program import Bytecode, generate
from kernels_hub.compiler.engines.bytecode_library import interpreter, no_interpreter
from kernels_hub.compiler.engines.devices import no_bytecode
from kernels_hub.compiler.engines.engine import (
    CompiledPlan,
    Decline,
    Device,
    KnobValue,
    Support,
)
from kernels_hub.compiler.engines.payload import unpack_graph
from kernels_hub.compiler.engines.reference import without_weights
from kernels_hub.compiler.engines.scheduled import declined, untold, values_refused
from kernels_hub.compiler.engines.scheduled_plan import ScheduledPlan
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.op import Trait
from kernels_hub.compiler.runtime.bytecode import BytecodeProgram
from kernels_hub.compiler.schedule.choices import Choices
from kernels_hub.compiler.schedule.complex_pairs import in_pairs
from kernels_hub.compiler.schedule.inlining import NATIVE_ONLY, refused
from kernels_hub.compiler.schedule.kernel import Schedule
from kernels_hub.compiler.schedule.ordered import is_ordered
from kernels_hub.compiler.schedule.schedule import schedule


class BytecodePlan(ScheduledPlan):
    """A loaded program of bytecode."""

    engine = "bytecode"


_Made = tuple[Schedule, Bytecode]


class BytecodeEngine:
    """See the module."""

    name = "bytecode"

    def __init__(self) -> None:
        self._made: weakref.WeakKeyDictionary[Graph, _Made] = weakref.WeakKeyDictionary()
        """What `check` has made of graphs that it took, until `compile` asks for it."""

    def check(self, graph: Graph, device: Device) -> Support | Decline:
        """Graphs of ops with a loop form that bytecode can express, whose sizes the inputs tell."""
        if (reason := no_bytecode(device) or no_interpreter()) is not None:
            return Decline(reason)
        if (lacking := without_weights(graph)) is not None:
            return lacking
        if _refused(in_pairs(graph)):
            return declined(_refused(graph))
        try:
            self._made[graph] = _made(graph, Choices())
        except EngineError as error:
            return Decline(str(error))
        return Support()

    def compile(self, graph: Graph, device: Device, knobs: Mapping[str, KnobValue]) -> CompiledPlan:
        """Schedule, generate, load, pack the weights. knobs: `schedule.choices`."""
        choices = Choices.of(knobs)
        if isinstance(answer := self.check(graph, device), Decline):
            raise EngineError(f"engine {self.name} does not take graph {graph.name}: {answer.reason}")
        made = self._made.pop(graph, None)
        scheduled, program = made if made is not None and not choices.given() else _made(graph, choices)
        return BytecodePlan(graph, device, scheduled, program, BytecodeProgram(interpreter(), program.words))

    def load(self, payload: bytes, device: Device) -> CompiledPlan:
        """What `serialize` wrote."""
        found = unpack_graph(payload, self.name, device)
        return self.compile(found.graph, device, found.knobs)


ENGINE = BytecodeEngine()


def _made(graph: Graph, choices: Choices) -> _Made:
    scheduled = schedule(in_pairs(graph), choices=choices)
    return scheduled, generate(scheduled)


def _refused(graph: Graph) -> dict[Value, str]:
    return refused(graph) | values_refused(graph, _why_not) | untold(graph)


def _why_not(node: Node) -> str | None:
    for value in (*node.operands, *node.results):
        if value.dtype.name not in ELEMENTS:
            return f"bytecode has no {value.dtype}"
    if node.op.name == "call":
        return next(iter(values_refused(node.attrs["callee"], _why_not).values()), None)
    if node.op.name in NATIVE_ONLY - {"fourier"} or is_ordered(node):
        return f"{node.op.name} has no form in bytecode"
    if Trait.POINTWISE not in node.op.traits or node.op.name in NOT_COMPUTED - {
        "bitcast",
        "complex",
        "real",
        "imag",
    }:
        return None
    first: Value = node.operands[0]
    kind = "bool" if first.dtype.name == "bool" else "int" if first.dtype.is_integer else "float"
    return None if (node.op.name, kind) in codes() else f"bytecode has no {node.op.name} of {first.dtype}"
