"""The records of a plan: segments (a part of a graph on one engine) and the slots that values pass through."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from kernels_hub.compiler.engines.engine import CompiledPlan, Device, KnobValue, Signature
from kernels_hub.compiler.engines.guard import GuardedPlan
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.ir.dims import Expr
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.op import TensorType
from kernels_hub.compiler.ir.printer import print_graph


@dataclass(frozen=True)
class Segment:
    """A part of a plan: an engine's plan, and the slots that it reads and fills.

    ops: how many nodes of the graph it computes, views apart.
    """

    engine: str
    plan: CompiledPlan
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    knobs: Mapping[str, KnobValue] = field(default_factory=dict)
    ops: int = 0


class PrintedGraph:
    """A graph as text, and the digest of that: made when a plan is written, which most never are."""

    def __init__(self, given: Graph | str, digest: str | None = None) -> None:
        """digest: of a text, where it is known."""
        self._given, self._digest = given, digest

    @property
    def text(self) -> str:
        """The text."""
        return self._given if isinstance(self._given, str) else print_graph(self._given)

    @property
    def digest(self) -> str:
        """See `digest_of`."""
        if self._digest is None:
            self._digest = digest_of(self.text)
        return self._digest


def digest_of(text: str) -> str:
    """A digest of a printed graph: of all that it computes, but for the arrays of its parameters."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Program:
    """Slots 0, 1, … are the inputs; each later one is filled once, by a segment.

    slots: the type of each. outputs: the slot of each output. carriers: slots that carry a size in their shape, and
    nothing else. defined: symbols whose size is known when a slot is filled. facts: symbols by name. printed: the
    graph.
    """

    name: str
    signature: Signature
    segments: tuple[Segment, ...]
    slots: tuple[TensorType, ...]
    outputs: tuple[int, ...]
    carriers: frozenset[int] = frozenset()
    defined: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, Expr] = field(default_factory=dict)
    printed: PrintedGraph = field(default_factory=lambda: PrintedGraph("", ""))

    @property
    def digest(self) -> str:
        """Of the graph."""
        return self.printed.digest

    @property
    def text(self) -> str:
        """The graph, printed."""
        return self.printed.text

    @property
    def direct(self) -> bool:
        """Whether it is one segment that takes the inputs and gives the outputs as they are."""
        if len(self.segments) != 1 or len(set(self.outputs)) != len(self.outputs):
            return False
        (only,) = self.segments
        return only.inputs == tuple(range(len(self.signature.inputs))) and only.outputs == self.outputs


class SegmentError(EngineError):
    """An engine that failed while a plan ran; `engine` is its name, `memory` whether memory ran out."""

    def __init__(self, message: str, engine: str, *, memory: bool = False) -> None:
        super().__init__(message)
        self.engine, self.memory = engine, memory


def torch_device(device: Device) -> torch.device:
    """Where torch has the tensors of a device."""
    return torch.device("cpu") if device.type == "cpu" else torch.device("cuda", device.index)


def computes(plan: CompiledPlan) -> bool:
    """Whether a plan can allocate its outputs itself, which is then the way that it likes best."""
    flag = getattr(plan, "computes", None)
    return hasattr(plan, "compute") if flag is None else bool(flag)


def bare(plan: CompiledPlan) -> CompiledPlan:
    """A plan without its guard: what goes wrong in it is named by the call."""
    return plan.plan if isinstance(plan, GuardedPlan) else plan
