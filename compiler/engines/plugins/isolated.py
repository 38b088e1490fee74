"""An engine of a plugin whose every call runs in a child process: nothing of the plugin is ever imported here.

Inputs and outputs are copied through pipes. A plugin that crashes or hangs costs the call, an EngineError; the next one
starts its process again and compiles the plan anew.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence

import torch

from kernels_hub.compiler.engines.engine import (
    CompiledPlan,
    Decline,
    Device,
    Knob,
    KnobValue,
    Note,
    Signature,
    StepProfile,
    Support,
)
from kernels_hub.compiler.engines.plugins.packing import device_row, packed, values_of
from kernels_hub.compiler.engines.plugins.processes import PluginProcess
from kernels_hub.compiler.engines.plugins.trials import KnobRow
from kernels_hub.compiler.engines.plugins.wire import Json
from kernels_hub.compiler.engines.plugins.zones import bytes_of, require_results, tensor_of, wrong_workspace
from kernels_hub.compiler.engines.reference import signature_of
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.escaping import json_text
from kernels_hub.parsing import Struct, Text, parse_json


class _Answer(Struct, frozen=True):
    """What a child says to `check`."""

    takes: bool
    reason: Text = ""
    values: tuple[int, ...] = ()
    notes: tuple[Text, ...] = ()
    knobs: tuple[KnobRow, ...] = ()
    workspace: int | None = None


class _Results(Struct, frozen=True):
    outputs: tuple[tuple[Text, tuple[int, ...]], ...]


class _Steps(Struct, frozen=True):
    steps: tuple[tuple[Text, float, int, int], ...]


class _Bytes(Struct, frozen=True):
    bytes: int


class IsolatedEngine:
    """See the module."""

    def __init__(self, name: str, worker: PluginProcess) -> None:
        self.name, self._worker = name, worker

    def check(self, graph: Graph, device: Device) -> Support | Decline:
        """The engine's answer; a Decline where its process ends."""
        try:
            found, _ = self._worker.ask(self._request("check", device), [packed(graph, device)])
            answer = parse_json(json_text(found).encode(), _Answer, where="its answer", error=EngineError)
        except EngineError as error:
            return Decline(f"engine {self.name}: {error}")
        if not answer.takes:
            values = values_of(graph)
            places = [value for value in answer.values if 0 <= value < len(values)]
            return Decline(
                answer.reason or f"engine {self.name} gave no reason",
                frozenset(values[one].id for one in places),
            )
        notes = frozenset(Note[note] for note in answer.notes if note in Note.__members__)
        knobs = tuple(Knob(knob.name, knob.values, knob.doc) for knob in answer.knobs)
        return Support(notes, knobs, answer.workspace)

    def compile(self, graph: Graph, device: Device, knobs: Mapping[str, KnobValue]) -> CompiledPlan:
        """A plan in the child."""
        request = {**self._request("compile", device), "knobs": dict(knobs)}
        return IsolatedPlan(self, self._worker, request, packed(graph, device), signature_of(graph))

    def load(self, payload: bytes, device: Device) -> CompiledPlan:
        """Raises EngineError: a payload of a plugin says nothing of its signature to this process."""
        raise EngineError(
            f"engine {self.name} is isolated, and plans of plugins are not loaded so ({len(payload)} bytes for "
            f"{device}): compile the graph again"
        )

    def _request(self, verb: str, device: Device) -> Json:
        return {"do": verb, "engine": self.name, "device": device_row(device)}


class IsolatedPlan:
    """A plan that lies in a child process."""

    def __init__(
        self,
        engine: IsolatedEngine,
        worker: PluginProcess,
        request: Json,
        payload: bytes,
        signature: Signature,
    ) -> None:
        self.engine, self.signature = engine.name, signature
        self._worker, self._request, self._payload = worker, request, payload
        self._number, self._generation = 0, -1
        self._compile()

    def workspace_size(self, sizes: Mapping[str, int]) -> int:
        """Of this process nothing; what the child wants is asked for its honesty alone."""
        found, _ = self._ask({"do": "workspace", "sizes": dict(sizes)})
        needed = parse_json(json_text(found).encode(), _Bytes, where="its answer", error=EngineError).bytes
        if wrong := wrong_workspace(needed):
            raise EngineError(wrong)
        return 0

    def compute(
        self,
        inputs: Sequence[torch.Tensor],
        workspace: torch.Tensor | None = None,  # noqa: ARG002  (the protocol's)
        stream: int | None = None,  # noqa: ARG002
    ) -> list[torch.Tensor]:
        """The outputs, copied back. Raises EngineError where they are not what the signature states."""
        rows = [[str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for tensor in inputs]
        found, blocks = self._ask({"do": "run", "inputs": rows}, [bytes_of(tensor) for tensor in inputs])
        answer = parse_json(json_text(found).encode(), _Results, where="its answer", error=EngineError)
        if len(answer.outputs) != len(blocks):
            raise EngineError(f"it sent {len(blocks)} outputs, and types of {len(answer.outputs)}")
        where = inputs[0].device if inputs else torch.device("cpu")
        try:
            outputs = [
                tensor_of(dtype, shape, block).to(where)
                for (dtype, shape), block in zip(answer.outputs, blocks, strict=True)
            ]
        except (KeyError, RuntimeError, ValueError) as error:
            raise EngineError(f"what it sent is no tensor: {' '.join(str(error).split())}") from error
        require_results(self.signature, inputs, outputs)
        return outputs

    def execute(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        workspace: torch.Tensor | None = None,
        stream: int | None = None,
    ) -> None:
        """See `CompiledPlan`."""
        for one, output in zip(self.compute(inputs, workspace, stream), outputs, strict=True):
            output.copy_(one)

    def serialize(self) -> bytes:
        """The plugin's bytes."""
        _, blocks = self._ask({"do": "serialize"})
        if len(blocks) != 1:
            raise EngineError(f"it serialized its plan to {len(blocks)} blocks, not to one")
        return bytes(blocks[0])

    def profile(self, inputs: Sequence[torch.Tensor], repeats: int = 10) -> list[StepProfile]:
        """The plugin's figures."""
        rows = [[str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for tensor in inputs]
        found, _ = self._ask(
            {"do": "profile", "inputs": rows, "repeats": repeats}, [bytes_of(tensor) for tensor in inputs]
        )
        answer = parse_json(json_text(found).encode(), _Steps, where="its answer", error=EngineError)
        return [
            StepProfile(name, self.engine, seconds, size, flops)
            for name, seconds, size, flops in answer.steps
        ]

    def _ask(self, request: Json, blocks: Sequence[bytes | memoryview] = ()) -> tuple[Json, list[bytearray]]:
        self._worker.load()
        if self._worker.generation != self._generation:  # it died since
            self._compile()
        return self._worker.ask({**request, "plan": self._number}, blocks)

    def _compile(self) -> None:
        self._worker.load()
        self._generation = self._worker.generation
        found, _ = self._worker.ask(self._request, [self._payload])
        names = {"inputs": list(self.signature.inputs), "outputs": list(self.signature.outputs)}
        if not isinstance(number := found.get("plan"), int):
            raise EngineError("it gave no plan")
        if {name: found.get(name) for name in names} != names:
            raise EngineError("its plan has inputs or outputs of other names than the graph")
        self._number = number
        weakref.finalize(self, self._worker.forget, self._generation, number)
