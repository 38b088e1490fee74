"""PyTorch's own kernels as an engine: ATen, with oneDNN, cuBLAS and cuDNN below, on any device that PyTorch has.

It takes nearly every op, keeps the op table's meaning where PyTorch's differs, and runs a graph one op after the
other. What rewrites recognised (layer norm, attention, GELU …) runs as PyTorch's fused function where there is one
that computes the same. The other engines are measured against it, and it serves where they decline.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

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
from kernels_hub.compiler.engines.library_ops.composites import composite_kernel
from kernels_hub.compiler.engines.library_ops.site import regions
from kernels_hub.compiler.engines.library_program import LibraryProgram, kernel_of
from kernels_hub.compiler.engines.reference import copy_out, refuse_knobs, signature_of, without_weights
from kernels_hub.compiler.engines.tensors import snapshot, to_tensor
from kernels_hub.compiler.errors import EngineError, PlanError
from kernels_hub.compiler.ir.cost import Costs
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.extrema import substitute
from kernels_hub.compiler.ir.graph import Graph, Node

_MOST_REASONS = 8
_DEVICES = ("cpu", "cuda", "rocm")


class LibraryPlan:
    """A graph as calls of PyTorch's kernels."""

    engine = "library"

    def __init__(self, graph: Graph, device: Device, *, pack: bool = True) -> None:
        self._graph, self._device = graph, device
        self.signature: Signature = signature_of(graph)
        self._torch = torch.device("cpu") if device.type == "cpu" else torch.device("cuda", device.index)
        with torch.no_grad(), self._in_own_dtypes():
            self._program = LibraryProgram(graph, self._torch, self._weight, pack=pack)

    def _weight(self, name: str) -> Tensor:
        return to_tensor(snapshot(self._graph.weight(name))).to(self._torch)

    def workspace_size(self, sizes: Mapping[str, int]) -> int:  # noqa: ARG002  (the protocol's)
        """PyTorch's allocator gives what is needed."""
        return 0

    def compute(
        self,
        inputs: Sequence[Tensor],
        workspace: Tensor | None = None,  # noqa: ARG002  (the protocol's)
        stream: int | None = None,
    ) -> list[Tensor]:
        """The outputs, contiguous and in memory of their own; also where only the data tell their sizes."""
        with torch.no_grad(), self._in_own_dtypes(), self._on(stream):
            results = self._program(inputs, self._bound(inputs))
            taken = {tensor.untyped_storage().data_ptr() for tensor in inputs} | self._program.constants
            return [_own(result, taken) for result in results]

    def execute(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        workspace: Tensor | None = None,  # noqa: ARG002  (the protocol's)
        stream: int | None = None,
    ) -> None:
        """See `CompiledPlan`. Raises EngineError, which names the node, where PyTorch refuses the data."""
        with torch.no_grad(), self._in_own_dtypes(), self._on(stream):
            copy_out(self._program(inputs, self._bound(inputs)), outputs, self.signature)

    def serialize(self) -> bytes:
        """See `payload`."""
        from kernels_hub.compiler.engines.payload import pack_graph

        return pack_graph(self._graph, self.engine, self._device, {})

    def profile(self, inputs: Sequence[Tensor], repeats: int = 10) -> list[StepProfile]:
        """Median seconds of each op; a recognised part, or a region, is one."""
        with torch.no_grad(), self._in_own_dtypes():
            sizes = self._bound(inputs)
            runs = [self._program.timed(inputs, dict(sizes)) for _ in range(max(1, repeats) + 1)][1:]
        costs = Costs(sizes)
        steps = []
        for step, seconds in zip(self._program.steps, zip(*runs, strict=True), strict=True):
            found = [costs.of(node) for node in step.nodes]
            name = f"%{step.node.results[0].id} {' + '.join(map(_name, step.nodes))}"
            moved, flops = sum(one.bytes or 0 for one in found), sum(one.flops or 0 for one in found)
            results = step.nodes[-1].results
            shapes = " ".join("x".join(str(_size(dim, sizes)) for dim in result.shape) for result in results)
            steps.append(StepProfile(name, self.engine, statistics.median(seconds), moved, flops, shapes))
        return steps

    def _bound(self, inputs: Sequence[Tensor]) -> dict[str, int]:
        if len(inputs) != len(self.signature.inputs):
            raise PlanError(
                f"graph {self._graph.name} takes {len(self.signature.inputs)} inputs, got {len(inputs)}"
            )
        return self._program.bind(inputs)

    def _in_own_dtypes(self) -> contextlib.AbstractContextManager[object]:
        """Outside of the caller's torch.autocast: a graph says in which dtype each op computes."""
        device = self._torch.type
        if not torch.is_autocast_enabled(device):
            return contextlib.nullcontext()
        return torch.autocast(device, enabled=False)

    def _on(self, stream: int | None) -> Any:
        if stream is None or self._torch.type == "cpu":
            return contextlib.nullcontext()
        return torch.cuda.stream(torch.cuda.ExternalStream(stream, self._torch))


def _size(dim: Dim, sizes: Mapping[str, int]) -> Dim:
    """A dim with the sizes that are known; what the data tell stays a symbol."""
    if isinstance(dim, int):
        return dim
    return substitute(
        dim, {symbol.name: sizes[symbol.name] for symbol in dim.symbols if symbol.name in sizes}
    )


def _own(result: Tensor, taken: set[int]) -> Tensor:
    """A contiguous tensor whose memory nobody else has; `taken` grows by it."""
    place = result.untyped_storage().data_ptr()
    if place in taken or not result.is_contiguous():
        return result.clone(memory_format=torch.contiguous_format)
    taken.add(place)
    return result


def _name(node: Node) -> str:
    return str(node.attrs["callee"].name) if node.op.name == "call" else node.op.name


class LibraryEngine:
    """See the module."""

    name = "library"

    def check(self, graph: Graph, device: Device) -> Support | Decline:
        """Every op that PyTorch has on the device with the op table's meaning."""
        if device.type not in _DEVICES:
            return Decline(f"library runs on {', '.join(_DEVICES)}, not on {device.type}")
        if device.type != "cpu" and not torch.cuda.is_available():
            return Decline(f"this PyTorch ({torch.__version__}) has no {device.type}")
        if (lacking := without_weights(graph)) is not None:
            return lacking
        refused = list(_refused(graph, device.type))
        if refused:
            shown = [f"%{node.results[0].id}: {reason}" for node, reason in refused[:_MOST_REASONS]]
            if len(refused) > _MOST_REASONS:
                shown.append(f"and {len(refused) - _MOST_REASONS} more")
            return Decline(
                "; ".join(shown), frozenset(value.id for node, _ in refused for value in node.results)
            )
        return Support(_notes(graph, device))

    def compile(self, graph: Graph, device: Device, knobs: Mapping[str, KnobValue]) -> CompiledPlan:
        """Weights become tensors on the device, and each op a call.

        knobs: "pack", false of a plan that soon goes: weights are not laid out anew, which takes longer than a call.
        """
        refuse_knobs(self.name, knobs, ("pack",))
        if isinstance(answer := self.check(graph, device), Decline):
            raise EngineError(f"engine {self.name} does not take graph {graph.name}: {answer.reason}")
        return LibraryPlan(graph, device, pack=bool(knobs.get("pack", True)))

    def load(self, payload: bytes, device: Device) -> CompiledPlan:
        """What `serialize` wrote."""
        from kernels_hub.compiler.engines.payload import unpack_graph

        return self.compile(unpack_graph(payload, self.name, device).graph, device, {})


def _refused(graph: Graph, device: str) -> list[tuple[Node, str]]:
    return [(node, reason) for node in graph.live() if (reason := refusal(node, device))]


def refusal(node: Node, device: str) -> str | None:
    """Why PyTorch cannot compute a node on a type of device; None where it can."""
    if node.op.name in {"input", "parameter", "constant"}:
        return None
    if (parts := regions(node)) or node.op.name == "call":
        if node.op.name == "call" and composite_kernel(node, device) is not None:
            return None
        for part in parts:
            for inner, reason in _refused(part, device):
                return f"{node.op.name} of {part.name}, in which %{inner.results[0].id}: {reason}"
        return None
    kernel = kernel_of(node)
    return f"{node.op.name}: there is no such kernel" if kernel is None else kernel.refuses(node, device)


_OVERWRITES = frozenset({"scatter_elements", "scatter_nd"})


def _notes(graph: Graph, device: Device) -> frozenset[Note]:
    scatters = any(node.op.name in _OVERWRITES for node in graph.live())
    return frozenset({Note.NONDETERMINISTIC} if scatters and device.type != "cpu" else ())


ENGINE = LibraryEngine()
