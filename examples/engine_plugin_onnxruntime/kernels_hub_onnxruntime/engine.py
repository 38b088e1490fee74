"""The engine and its plan: the whole protocol of `kernels_hub.compiler.engines.engine`."""

from __future__ import annotations

import statistics
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import onnxruntime  # type: ignore[import-untyped,import-not-found,unused-ignore]  # no hints; or not installed
import torch

from kernels_hub.compiler import bind
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
from kernels_hub.compiler.engines.reference import copy_out, refuse_knobs, signature_of, sizes_of
from kernels_hub.compiler.engines.tensors import to_array, to_tensor
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.ir.graph import Graph

from .export import LARGEST, refusal, to_onnx

_LEVELS = {
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "none": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
_MOST_SESSIONS = 4
_ERROR = 3


class OnnxRuntimePlan:
    """A graph as sessions of ONNX Runtime: one for each set of sizes of the symbols, the newest few kept."""

    engine = "onnxruntime"

    def __init__(self, graph: Graph, device: Device, level: str) -> None:
        self._graph, self._device, self._level = graph, device, level
        self.signature = signature_of(graph)
        self._sessions: OrderedDict[tuple[tuple[str, int], ...], Any] = OrderedDict()
        self._lock = threading.Lock()
        if not graph.symbols:
            self._session({})

    def workspace_size(self, sizes: Mapping[str, int]) -> int:  # noqa: ARG002  (the protocol's)
        """ONNX Runtime has an arena of its own."""
        return 0

    def compute(
        self,
        inputs: Sequence[torch.Tensor],
        workspace: torch.Tensor | None = None,  # noqa: ARG002  (the protocol's)
        stream: int | None = None,  # noqa: ARG002  (the protocol's)
    ) -> list[torch.Tensor]:
        """The outputs, in memory of their own."""
        session = self._session(sizes_of(self._graph, inputs))
        feed = {
            f"in{place}": to_array(tensor.contiguous(), value.dtype)
            for place, (tensor, value) in enumerate(zip(inputs, self._graph.inputs.values(), strict=True))
        }
        return [to_tensor(array) for array in session.run(None, feed)]

    def execute(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        workspace: torch.Tensor | None = None,
        stream: int | None = None,
    ) -> None:
        """See `CompiledPlan`."""
        copy_out(self.compute(inputs, workspace, stream), outputs, self.signature)

    def serialize(self) -> bytes:
        """The graph, not the model: sessions are made anew for the machine that loads it."""
        return pack_graph(self._graph, self.engine, self._device, {"optimization": self._level})

    def profile(self, inputs: Sequence[torch.Tensor], repeats: int = 10) -> list[StepProfile]:
        """One step: ONNX Runtime fuses as it likes."""
        seconds = []
        for _ in range(max(1, repeats) + 1):
            started = time.perf_counter()
            self.compute(inputs)
            seconds.append(time.perf_counter() - started)
        return [StepProfile(self._graph.name, self.engine, statistics.median(seconds[1:]))]

    def _session(self, sizes: dict[str, int]) -> Any:
        key = tuple(sorted(sizes.items()))
        with self._lock:
            if key not in self._sessions:
                graph = bind(self._graph, sizes) if sizes else self._graph
                options = onnxruntime.SessionOptions()
                options.graph_optimization_level = _LEVELS[self._level]
                options.intra_op_num_threads = torch.get_num_threads()
                options.log_severity_level = _ERROR
                model = to_onnx(graph).SerializeToString()
                self._sessions[key] = onnxruntime.InferenceSession(
                    model, options, providers=["CPUExecutionProvider"]
                )
            self._sessions.move_to_end(key)
            while len(self._sessions) > _MOST_SESSIONS:
                self._sessions.popitem(last=False)
            return self._sessions[key]


class OnnxRuntimeEngine:
    """ONNX Runtime on the CPU."""

    name = "onnxruntime"

    def check(self, graph: Graph, device: Device) -> Support | Decline:
        """Whether every op can be written as ONNX; names the values of those that cannot."""
        if device.type != "cpu":
            return Decline(f"onnxruntime runs on the CPU here, not on {device}")
        if missing := [name for name in graph.parameters if name not in graph.weights]:
            return Decline(f"there are no arrays for the parameters {', '.join(map(repr, missing))}")
        refused = [(node, reason) for node in graph.live() if (reason := refusal(node))]
        if refused:
            reasons = "; ".join(f"%{node.results[0].id}: {reason}" for node, reason in refused)
            return Decline(reasons, frozenset(value.id for node, _ in refused for value in node.results))
        if graph.definers:
            return Decline(f"only the data tell the sizes {', '.join(graph.definers)}")
        sizes = (value.type.size for value in graph.parameters.values())
        if sum(8 * size for size in sizes if isinstance(size, int)) >= LARGEST:
            return Decline("the weights are larger than one ONNX file may be")
        return Support(
            knobs=(Knob("optimization", tuple(_LEVELS), "how far ONNX Runtime rewrites the model"),)
        )

    def compile(self, graph: Graph, device: Device, knobs: Mapping[str, KnobValue]) -> CompiledPlan:
        """A session, where the sizes are known; else they are made when inputs come."""
        refuse_knobs(self.name, knobs, ("optimization",))
        level = str(knobs.get("optimization", "all"))
        if level not in _LEVELS:
            raise EngineError(f"optimization is {' or '.join(_LEVELS)}, not {level!r}")
        if isinstance(answer := self.check(graph, device), Decline):
            raise EngineError(f"engine {self.name} does not take graph {graph.name}: {answer.reason}")
        return OnnxRuntimePlan(graph, device, level)

    def load(self, payload: bytes, device: Device) -> CompiledPlan:
        """What `serialize` wrote."""
        found = unpack_graph(payload, self.name, device)
        return self.compile(found.graph, device, found.knobs)
