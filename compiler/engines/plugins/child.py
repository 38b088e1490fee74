"""The process that plugins are tried and isolated in: `main()` forks a worker a plugin, each answers its requests.

The first process imports torch once, loads no plugin, and is told by lines on its standard input:

    fork REQUESTS ANSWERS     open these pipes, fork a worker that serves them; answers its process id
    wait PID                  answers how that worker ended, once it has

A worker has no standard streams of its own, leaves no core file, and ends with its parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence

import torch

from kernels_hub.compiler.engines.engine import CompiledPlan, Decline, Device, Engine, Support
from kernels_hub.compiler.engines.guard import GuardedPlan, checked, compiled, loaded, one_line
from kernels_hub.compiler.engines.payload import unpack_graph
from kernels_hub.compiler.engines.plugins.packing import (
    DEVICES,
    TRIAL,
    device_of,
    knob_row,
    probes,
    values_of,
)
from kernels_hub.compiler.engines.plugins.sources import load
from kernels_hub.compiler.engines.plugins.wire import Closed, Json, Pipes
from kernels_hub.compiler.engines.plugins.zones import bytes_of, empty_outputs, examine, tensor_of
from kernels_hub.compiler.errors import CompilerError

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG

Blocks = Sequence[bytes | memoryview]


def main() -> None:
    """Serve until standard input ends; then every worker is killed."""
    workers: set[int] = set()
    parent = os.getpid()
    for line in sys.stdin:
        verb, *rest = line.rstrip("\n").split("\t")
        if verb == "fork":
            pipes = Pipes(os.open(rest[0], os.O_RDONLY), os.open(rest[1], os.O_WRONLY))
            if (worker := os.fork()) == 0:
                _work(pipes, parent)
            pipes.close()
            workers.add(worker)
            _answer(worker)
        elif verb == "wait":
            worker = int(rest[0])
            _, status = os.waitpid(worker, 0)
            workers.discard(worker)
            _answer(os.waitstatus_to_exitcode(status))
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
    os._exit(0)  # there is nothing to tidy up


def _answer(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def _work(pipes: Pipes, parent: int) -> None:
    """Serve a worker's requests; never returns."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    import resource  # of Unix alone, as is all that runs here

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    code = 1
    try:
        if os.getppid() == parent:
            PluginServer().serve(pipes)
        code = 0
    except Closed:
        code = 0
    finally:
        os._exit(code)


class PluginServer:
    """One plugin in this process."""

    def __init__(self) -> None:
        self._engines: dict[str, Engine] = {}
        self._plans: dict[int, GuardedPlan] = {}
        self._answers: Mapping[str, Callable[[Json, list[bytearray]], tuple[Json, Blocks]]] = {
            "load": self._load,
            "probe": self._probe,
            "check": self._check,
            "try": self._try,
            "compile": self._compile,
            "workspace": self._workspace,
            "run": self._run,
            "serialize": self._serialize,
            "profile": self._profile,
            "drop": self._drop,
        }

    def serve(self, pipes: Pipes) -> None:
        """Answer until the host is gone."""
        while True:
            request, blocks = pipes.receive()
            try:
                answer, found = self._answers[str(request["do"])](request, blocks)
            except Exception as error:  # noqa: BLE001  (a plugin may raise anything)
                text = " ".join(str(error).split()) if isinstance(error, CompilerError) else one_line(error)
                answer, found = {"error": text, "kind": type(error).__name__}, ()
            except (SystemExit, KeyboardInterrupt) as error:
                answer, found = {"error": one_line(error), "kind": ""}, ()
            pipes.send(answer, found)

    def _load(self, request: Json, _: list[bytearray]) -> tuple[Json, Blocks]:
        sys.path[:] = request["path"]
        self._engines = {one.name: one for one in load(request["kind"], str(request["place"]))}
        return {"engines": list(self._engines)}, ()

    def _probe(self, request: Json, _: list[bytearray]) -> tuple[Json, Blocks]:
        """Devices on which an engine takes a simple graph, and what it then offers."""
        engine = self._engine(request)
        devices: list[str] = []
        answers: list[Support] = []
        reason = ""
        for type_ in DEVICES:
            for graph in probes():
                answer = checked(engine, graph, Device(type_))
                if isinstance(answer, Support):
                    devices.append(type_)
                    answers.append(answer)
                elif type_ == "cpu":
                    reason = reason or answer.reason
        notes = {note.name for support in answers for note in support.notes}
        knobs = {knob.name: knob_row(knob) for support in answers for knob in support.knobs}
        return {
            "devices": list(dict.fromkeys(devices)), "notes": sorted(notes), "knobs": list(knobs.values()),
            "reason": "" if devices else reason,
        }, ()  # fmt: skip

    def _check(self, request: Json, blocks: list[bytearray]) -> tuple[Json, Blocks]:
        device = device_of(request)
        graph = unpack_graph(bytes(blocks[0]), TRIAL, device).graph
        answer = checked(self._engine(request), graph, device)
        if isinstance(answer, Decline):
            places = {value.id: index for index, value in enumerate(values_of(graph))}
            values = [places[value] for value in answer.values if value in places]
            return {"takes": False, "reason": answer.reason, "values": values}, ()
        return {
            "takes": True, "notes": sorted(note.name for note in answer.notes), "workspace": answer.workspace,
            "knobs": [knob_row(knob) for knob in answer.knobs],
        }, ()  # fmt: skip

    def _try(self, request: Json, blocks: list[bytearray]) -> tuple[Json, Blocks]:
        """Compile or load, and run once on made-up data: what it lies about, or nothing."""
        plan, device = self._plan(request, blocks), device_of(request)
        return {"lie": examine(plan, device)}, ()

    def _compile(self, request: Json, blocks: list[bytearray]) -> tuple[Json, Blocks]:
        plan = self._plan(request, blocks)
        number = len(self._plans) + 1
        self._plans[number] = plan
        names = {"inputs": list(plan.signature.inputs), "outputs": list(plan.signature.outputs)}
        return {"plan": number, **names}, ()

    def _plan(self, request: Json, blocks: list[bytearray]) -> GuardedPlan:
        engine, device, knobs = self._engine(request), device_of(request), request.get("knobs") or {}
        if request.get("payload"):
            return loaded(engine, bytes(blocks[0]), device)
        graph = unpack_graph(bytes(blocks[0]), TRIAL, device).graph
        return compiled(engine, graph, device, knobs)

    def _workspace(self, request: Json, _: list[bytearray]) -> tuple[Json, Blocks]:
        return {"bytes": self._plans[_number(request)].workspace_size(request["sizes"])}, ()

    def _run(self, request: Json, blocks: list[bytearray]) -> tuple[Json, Blocks]:
        plan, inputs = self._plans[_number(request)], _tensors(request, blocks)
        outputs = results(plan, inputs)
        rows = [[str(output.dtype).removeprefix("torch."), list(output.shape)] for output in outputs]
        return {"outputs": rows}, [bytes_of(output) for output in outputs]

    def _serialize(self, request: Json, _: list[bytearray]) -> tuple[Json, Blocks]:
        return {}, [self._plans[_number(request)].serialize()]

    def _profile(self, request: Json, blocks: list[bytearray]) -> tuple[Json, Blocks]:
        repeats = request["repeats"]
        rows = self._plans[_number(request)].profile(_tensors(request, blocks), repeats)
        return {"steps": [[row.name, row.seconds, row.bytes, row.flops] for row in rows]}, ()

    def _drop(self, request: Json, _: list[bytearray]) -> tuple[Json, Blocks]:
        self._plans.pop(_number(request), None)
        return {}, ()

    def _engine(self, request: Json) -> Engine:
        return self._engines[str(request["engine"])]


def results(plan: CompiledPlan, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The outputs of a plan for inputs, allocated by it where it can."""
    if isinstance(plan, GuardedPlan) and plan.computes:
        return plan.compute(inputs)
    outputs = empty_outputs(plan, inputs)
    plan.execute(inputs, outputs)
    return outputs


def _tensors(request: Json, blocks: list[bytearray]) -> list[torch.Tensor]:
    rows = request["inputs"]
    return [tensor_of(dtype, shape, block) for (dtype, shape), block in zip(rows, blocks, strict=True)]


def _number(request: Json) -> int:
    return int(str(request["plan"]))
