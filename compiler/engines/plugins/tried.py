"""An engine of a plugin that runs in this process, after a trial: what it was not asked before, a child is asked first.

Nothing of the plugin is imported here before `check`, `compile` or `load` is called, and the child answered. A child
that crashes, hangs or lies gives a Decline or an EngineError in one line. What a plan gives is compared with its
signature at every call.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence

import torch

from kernels_hub.compiler.engines.engine import (
    CompiledPlan,
    Decline,
    Device,
    Engine,
    KnobValue,
    StepProfile,
    Support,
)
from kernels_hub.compiler.engines.plugins.packing import device_row, packed
from kernels_hub.compiler.engines.plugins.trials import Trials
from kernels_hub.compiler.engines.plugins.wire import Json
from kernels_hub.compiler.engines.plugins.zones import require_results, wrong_workspace
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.escaping import json_text
from kernels_hub.fork_safe import renewed_lock


class Loaded:
    """The engines of a plugin in this process, imported at the first use."""

    def __init__(self, trials: Trials) -> None:
        self.trials = trials
        self._lock = renewed_lock(self, "_lock", threading.Lock)
        self._engines: dict[str, Engine] | None = None

    def engine(self, name: str) -> Engine:
        """An engine. Raises EngineError where the plugin does not load here, or no longer has it."""
        with self._lock:
            if self._engines is None:
                self._engines = self._load()
        found = self._engines.get(name)
        if found is None:
            raise EngineError(f"the plugin {self.trials.source.label} gives no engine {name!r} any more")
        return found

    def _load(self) -> dict[str, Engine]:
        try:
            return {one.name: one for one in self.trials.source.load()}
        except (Exception, SystemExit) as error:
            text = " ".join(str(error).split())
            raise EngineError(
                f"the plugin {self.trials.source.label} loads in a child process, and not here: "
                f"{type(error).__name__}: {text}"
            ) from error


class TriedEngine:
    """See the module."""

    def __init__(self, name: str, plugin: Loaded) -> None:
        self.name, self._plugin = name, plugin

    def loaded(self) -> Engine:
        """The plugin's own engine, imported into this process."""
        return self._plugin.engine(self.name)

    def check(self, graph: Graph, device: Device) -> Support | Decline:
        """The engine's answer, or why a child did not survive the question."""
        payload = packed(graph, device)
        if reason := self._passes("check", payload, device):
            return Decline(f"engine {self.name}: {reason}")
        return self.loaded().check(graph, device)

    def compile(self, graph: Graph, device: Device, knobs: Mapping[str, KnobValue]) -> CompiledPlan:
        """The engine's plan. Raises EngineError where a child did not survive compiling it, or running it once."""
        if reason := self._passes("try", packed(graph, device), device, {"knobs": dict(knobs)}):
            raise EngineError(reason)
        return WatchedPlan(self.loaded().compile(graph, device, knobs), self.name)

    def load(self, payload: bytes, device: Device) -> CompiledPlan:
        """The engine's plan. Raises as `compile` does."""
        if reason := self._passes("try", payload, device, {"payload": True}):
            raise EngineError(reason)
        return WatchedPlan(self.loaded().load(payload, device), self.name)

    def _passes(self, what: str, payload: bytes, device: Device, more: Json | None = None) -> str:
        request: Json = {"engine": self.name, "device": device_row(device), **(more or {})}
        key = f"{json_text(request)} {hashlib.sha256(payload).hexdigest()}"
        return self._plugin.trials.passes(what, request, payload, key)


class WatchedPlan:
    """A plan of a plugin whose results are compared with its signature at every call."""

    def __init__(self, plan: CompiledPlan, name: str) -> None:
        methods = ("workspace_size", "execute", "serialize", "profile")
        if lacking := [method for method in (*methods, "signature") if not hasattr(plan, method)]:
            raise EngineError(f"it gave a {type(plan).__name__}, which lacks {', '.join(lacking)}")
        if getattr(plan, "engine", None) != name:
            raise EngineError(f"its plan says that it is of engine {getattr(plan, 'engine', None)!r}")
        self.plan, self.engine, self.signature = plan, name, plan.signature

    @property
    def computes(self) -> bool:
        """Whether it allocates its outputs itself."""
        return hasattr(self.plan, "compute")

    def workspace_size(self, sizes: Mapping[str, int]) -> int:
        """See `CompiledPlan`. Raises EngineError for what is no number of bytes."""
        found = self.plan.workspace_size(sizes)
        if wrong := wrong_workspace(found):
            raise EngineError(wrong)
        return found

    def execute(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        workspace: torch.Tensor | None = None,
        stream: int | None = None,
    ) -> None:
        """See `CompiledPlan`. Raises EngineError where an output has another shape, or lies elsewhere, afterwards."""
        before = [(output.shape, output.data_ptr()) for output in outputs]
        self.plan.execute(inputs, outputs, workspace, stream)
        for name, one, (shape, place) in zip(self.signature.outputs, outputs, before, strict=True):
            if one.shape != shape or one.data_ptr() != place:
                raise EngineError(f"it made {list(one.shape)} of the output {name!r}, which is {list(shape)}")

    def compute(
        self, inputs: Sequence[torch.Tensor], workspace: torch.Tensor | None = None, stream: int | None = None
    ) -> list[torch.Tensor]:
        """See `CompiledPlan`. Raises EngineError where a result is not what the signature states."""
        found = list(self.plan.compute(inputs, workspace, stream))  # type: ignore[attr-defined]
        require_results(self.signature, inputs, found)
        return found

    def serialize(self) -> bytes:
        """See `CompiledPlan`."""
        return self.plan.serialize()

    def profile(self, inputs: Sequence[torch.Tensor], repeats: int = 10) -> list[StepProfile]:
        """See `CompiledPlan`."""
        return self.plan.profile(inputs, repeats)
