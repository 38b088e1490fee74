"""Engines that load, and then fail at check, compile, run or load, as their `mode` says."""

from kernels_hub.compiler.engines.engine import Decline, Signature, Support
from kernels_hub.compiler.errors import BuildError, EngineError, EvaluateError, PlanError


def fail(mode, message):
    if mode == "throws":
        raise RuntimeError(message)
    if mode == "exits":
        raise SystemExit(1)


class Plan:
    engine = "faulty-run"
    signature = Signature({}, {})

    def __init__(self, mode):
        self.mode = mode

    def workspace_size(self, sizes):
        return 0

    def execute(self, inputs, outputs, workspace=None, stream=None):
        fail(self.mode, "illegal memory access")
        if self.mode == "engine":
            raise EngineError("%1: overflow")
        if self.mode == "data":
            raise EvaluateError("index 7 is out of range")

    def serialize(self):
        return "text"

    def profile(self, inputs, repeats=10):
        return self.execute(inputs, [])


class HalfPlan:
    engine = "faulty-compile"
    signature = Signature({}, {})

    def workspace_size(self, sizes):
        return 0

    def execute(self, inputs, outputs, workspace=None, stream=None): ...


class AtCheck:
    name = "faulty-check"
    mode = "throws"

    def check(self, graph, device):
        fail(self.mode, "driver is gone")
        answers = {"true": True, "silent": Decline(""), "values": Decline("some of it", frozenset({1, "x"}))}
        return answers.get(self.mode)

    def compile(self, graph, device, knobs): ...
    def load(self, payload, device): ...


class AtCompile(AtCheck):
    name = "faulty-compile"

    def check(self, graph, device):
        return Support()

    def compile(self, graph, device, knobs):
        fail(self.mode, "out of registers")
        if self.mode == "build":
            raise BuildError("x.cpp:3: expected \x27;\x27")
        if self.mode == "memory":
            raise MemoryError
        return {"half": HalfPlan(), "lies": _lying()}.get(self.mode)


def _lying():
    plan = Plan("lies")
    plan.engine = "library"
    return plan


class AtRun(AtCheck):
    name = "faulty-run"

    def check(self, graph, device):
        return Support()

    def compile(self, graph, device, knobs):
        return Plan(self.mode)

    def load(self, payload, device):
        fail(self.mode, "no such kernel")
        raise PlanError("the plan is cut short")


engines = [AtCheck(), AtCompile(), AtRun()]
