"""Bundled engines that are imported when a graph that they might take is first asked for.

Schedules and code generation are a third of what the compiler imports. An engine for another device than a graph's, or
one that is excluded for a note that it always has, answers without them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, cast

from kernels_hub.compiler.engines.devices import no_bytecode, no_cpp, no_metal, no_triton
from kernels_hub.compiler.engines.engine import (
    CompiledPlan,
    Decline,
    Device,
    Engine,
    KnobValue,
    Note,
    Support,
)
from kernels_hub.compiler.ir.graph import Graph


class BundledEngine:
    """An engine of a module. name: the engine's. always: notes of whatever it takes.

    refuses: why it runs nothing on a device, None where it may. What the engine has besides `Engine` is found on it.
    """

    def __init__(
        self,
        name: str,
        module: str,
        refuses: Callable[[Device], str | None],
        always: frozenset[Note] = frozenset(),
    ) -> None:
        self.name, self.always = name, always
        self._module, self.refuses = module, refuses

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.loaded(), name)

    def loaded(self) -> Engine:
        """The engine itself."""
        return cast("Engine", importlib.import_module(self._module).ENGINE)

    def check(self, graph: Graph, device: Device) -> Support | Decline:
        """The engine's answer, which of a device that it does not run on needs no import."""
        reason = self.refuses(device)
        return self.loaded().check(graph, device) if reason is None else Decline(reason)

    def compile(self, graph: Graph, device: Device, knobs: Mapping[str, KnobValue]) -> CompiledPlan:
        """The engine's plan. Raises EngineError."""
        return self.loaded().compile(graph, device, knobs)

    def load(self, payload: bytes, device: Device) -> CompiledPlan:
        """The engine's plan. Raises PlanError."""
        return self.loaded().load(payload, device)


TRITON = BundledEngine("triton", "kernels_hub.compiler.engines.triton", no_triton)
METAL = BundledEngine("metal", "kernels_hub.compiler.engines.metal", no_metal)
CPP = BundledEngine(
    "cpp", "kernels_hub.compiler.engines.cpp", no_cpp, always=frozenset({Note.NEEDS_COMPILER})
)
BYTECODE = BundledEngine("bytecode", "kernels_hub.compiler.engines.bytecode", no_bytecode)
