"""The engine protocol: how the compiler talks to what runs graphs.

An engine is asked whether it takes a graph on a device (`check`: yes with details, or no with the reason), makes a
plan of it (`compile`) or reads one back (`load`). A plan computes outputs from inputs, in memory that its caller
brings. To accept is to run: what an engine said yes to and then cannot compile is a fault of the engine, and is
reported with its name.

Tensors are `torch.Tensor`s on the plan's device, in any strides; an engine copies what it cannot read as it is.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from kernels_hub.compiler.ir.op import TensorType

if TYPE_CHECKING:
    import torch

    from kernels_hub.compiler.ir.graph import Graph

KnobValue = int | float | str | bool


class Note(enum.Enum):
    """What a caller may want to exclude."""

    REDUCED_PRECISION = "computes in a narrower type than the graph says"
    NONDETERMINISTIC = "may give other bits for the same inputs"
    NEEDS_COMPILER = "runs a system compiler when it is built"
    SLOW = "correct, and not made for speed"


@dataclass(frozen=True)
class Device:
    """Where a plan runs. `type`: "cpu", "cuda", "rocm" or "mps"; `index`: which one.

    arch: what code is generated for: the SIMD level of a CPU ("avx512", "avx2", "baseline"), or that of a GPU ("sm_90",
    "gfx942").
    """

    type: str
    index: int = 0
    arch: str = ""

    def __str__(self) -> str:
        text = self.type if self.type == "cpu" else f"{self.type}:{self.index}"
        return f"{text} ({self.arch})" if self.arch else text


@dataclass(frozen=True)
class Knob:
    """A choice of an engine: the values it takes, best guess first."""

    name: str
    values: tuple[KnobValue, ...]
    doc: str = ""


@dataclass(frozen=True)
class Support:
    """An engine takes a graph. workspace: an estimate in bytes, None where sizes are not known yet."""

    notes: frozenset[Note] = frozenset()
    knobs: tuple[Knob, ...] = ()
    workspace: int | None = None

    def __bool__(self) -> Literal[True]:
        return True


@dataclass(frozen=True)
class Decline:
    """An engine does not take a graph; `values`: the ids of the values that it cannot make, where it is about those."""

    reason: str
    values: frozenset[int] = frozenset()

    def __bool__(self) -> Literal[False]:
        return False


@dataclass(frozen=True)
class Signature:
    """Names and types of what goes in and out, in order. Dims may be symbolic."""

    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]


@dataclass(frozen=True)
class StepProfile:
    """What one step of a plan took: seconds, and the bytes and FLOPs that its operands and results need.

    shapes: of what it works on, as text, "1x64x80x80 64x64x3x3"; "" where the engine does not say.
    """

    name: str
    engine: str
    seconds: float
    bytes: int = 0
    flops: int = 0
    shapes: str = ""


@runtime_checkable
class CompiledPlan(Protocol):
    """What an engine made of a graph. Safe to be executed by several threads, each with its own workspace.

    A plan may also have `compute(inputs, workspace=None, stream=None) -> list[Tensor]`, which allocates the outputs
    itself, in memory that nothing else shares. It is called where there is one and the caller brought no outputs;
    only such a plan can give outputs whose sizes the data tell.
    """

    engine: str
    signature: Signature

    def workspace_size(self, sizes: Mapping[str, int]) -> int:
        """Bytes of scratch memory that `execute` wants for these sizes of the symbols."""

    def execute(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        workspace: torch.Tensor | None = None,
        stream: int | None = None,
    ) -> None:
        """Compute the outputs, which are allocated and contiguous, in the signature's order.

        workspace: a uint8 tensor, 64-byte aligned, of at least `workspace_size` bytes; None: the plan takes its own.
        Shapes were checked by the caller.
        """

    def serialize(self) -> bytes:
        """All that `Engine.load` needs, without pickle. Weights are part of it."""

    def profile(self, inputs: Sequence[torch.Tensor], repeats: int = 10) -> list[StepProfile]:
        """Median seconds of each step."""


@runtime_checkable
class Engine(Protocol):
    """See the module. `name` is unique; the id is a hash of it (`engine_id`), the same everywhere."""

    name: str

    def check(self, graph: Graph, device: Device) -> Support | Decline:
        """Whether it takes the whole graph on the device, quickly, without compiling."""

    def compile(self, graph: Graph, device: Device, knobs: Mapping[str, KnobValue]) -> CompiledPlan:
        """A plan. Weights are those of the graph. Raises EngineError where that fails."""

    def load(self, payload: bytes, device: Device) -> CompiledPlan:
        """A plan that `serialize` wrote. Raises PlanError where it is damaged or for something else."""


def engine_id(name: str) -> int:
    """The id of an engine in plans and databases: 64 bits of a hash of its name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little", signed=True)


@dataclass(frozen=True)
class Outcome:
    """What became of one candidate: an engine with knobs; `reason` says why it was not taken, or how it did."""

    engine: str
    knobs: Mapping[str, KnobValue] = field(default_factory=dict)
    seconds: float | None = None
    reason: str = ""
    details: Any = None
