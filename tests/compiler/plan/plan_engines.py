"""Small engines for the tests of plans: parts of the oracle, and some that break their word."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch

from kernels_hub.compiler.engines import registry
from kernels_hub.compiler.engines.engine import Decline, Note, Support
from kernels_hub.compiler.engines.payload import pack_graph, unpack_graph
from kernels_hub.compiler.engines.reference import ReferencePlan


class PartPlan(ReferencePlan):
    """Runs like the oracle, in a workspace that it checks; allocates nothing that is given back."""

    compute = None  # type: ignore[assignment]
    computes = False

    def __init__(self, graph, device, engine, scratch=0):
        super().__init__(graph, device)
        self.engine, self.scratch = engine, scratch
        self.runs = 0

    def workspace_size(self, sizes):
        return self.scratch

    def execute(self, inputs, outputs, workspace=None, stream=None):
        self.runs += 1
        if workspace is not None and self.scratch:
            assert workspace.numel() >= self.scratch and workspace.data_ptr() % 64 == 0
            workspace.fill_(255)
        for output in outputs:
            assert output.is_contiguous()
            if output.numel():
                output.reshape(-1).view(torch.uint8).fill_(255)
        for result, output in zip(ReferencePlan.compute(self, inputs), outputs, strict=True):
            assert result.shape == output.shape and result.dtype is output.dtype
            output.copy_(result)

    def serialize(self):
        return pack_graph(self._graph, self.engine, self._device, {"scratch": self.scratch})


class PartEngine:
    """Takes the ops that `takes(op name)` says; symbolic sizes unless told not to."""

    def __init__(self, name, takes=lambda op: True, *, symbolic=True, scratch=0, notes=(), growing=False):
        self.name, self.takes, self.symbolic, self.scratch, self.growing = (
            name,
            takes,
            symbolic,
            scratch,
            growing,
        )
        self.notes = frozenset(notes)
        self.checked: list[str] = []
        self.compiled: list[str] = []

    def check(self, graph, device):
        self.checked.append(graph.name)
        if not self.symbolic and graph.symbols:
            return Decline("it wants numbers for sizes", frozenset(one.id for one in graph.values))
        bad = [
            value.id
            for node in graph.live()
            for value in node.results
            if (not self.takes(node.op.name) and node.op.name != "input")
            or (not self.growing and any(one.name in graph.definers for one in node.symbols()))
        ]
        if bad:
            return Decline(f"it does not take {graph.values[bad[0]].op_name}", frozenset(bad))
        return Support(self.notes, workspace=self.scratch)

    def compile(self, graph, device, knobs):
        self.compiled.append(graph.name)
        return PartPlan(graph, device, self.name, self.scratch)

    def load(self, payload, device):
        unpacked = unpack_graph(payload, self.name, device)
        return PartPlan(unpacked.graph, device, self.name, unpacked.knobs["scratch"])


class FailingEngine(PartEngine):
    """Raises at "compile", "execute" or "serialize"."""

    def __init__(self, name, at, error=RuntimeError("the engine broke"), **more):
        super().__init__(name, **more)
        self.at, self.error = at, error

    def compile(self, graph, device, knobs):
        if self.at == "compile":
            raise self.error
        plan = super().compile(graph, device, knobs)
        if self.at in {"execute", "serialize"}:

            def fail(*_, **__):
                raise self.error

            setattr(plan, self.at, fail)
        return plan


@contextmanager
def only_engines(*engines) -> Iterator[None]:
    """These are all engines that there are."""
    found = registry._Discovered(tuple(registry.Registered(one, "the test") for one in engines), ())
    with mock.patch.object(registry, "_found", found):
        yield


SLOW = (Note.SLOW,)
