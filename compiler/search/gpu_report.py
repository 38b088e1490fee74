"""Resource report for an absent GPU: compiles the kernels of a candidate and reads registers, memory and spills."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kernels_hub.compiler.codegen.triton.module_cache import load_module
from kernels_hub.compiler.codegen.triton.source import TritonCode, generate
from kernels_hub.compiler.codegen.triton.split import split_reductions
from kernels_hub.compiler.engines.engine import Device, KnobValue
from kernels_hub.compiler.engines.tensors import torch_dtype
from kernels_hub.compiler.engines.triton import ANCHORS, options_of
from kernels_hub.compiler.errors import BuildError
from kernels_hub.compiler.export.resources import SHARED_LIMIT, Resources, read_resources
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.runtime.binaries import parameter
from kernels_hub.compiler.runtime.launcher import Launcher
from kernels_hub.compiler.schedule.memory import number
from kernels_hub.compiler.schedule.schedule import schedule
from kernels_hub.compiler.schedule.split import MOST_LAUNCHES


def resources_of(
    graph: Graph, device: Device, knobs: Mapping[str, KnobValue], sizes: Mapping[str, int]
) -> dict[str, int]:
    """The most that any kernel takes: "registers", "spills", "shared" (bytes); and how many "kernels" a call runs.

    Raises EngineError for knobs that are none, BuildError where a kernel does not compile, or nothing can be compiled
    for the architecture here.
    """
    if device.arch not in SHARED_LIMIT:
        raise BuildError(
            f"kernels cannot be compiled here for {device.arch!r}; they can be for {', '.join(SHARED_LIMIT)}"
        )
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise BuildError("kernels cannot be compiled under TRITON_INTERPRET=1; unset it")
    scheduled = split_reductions(schedule(graph, ANCHORS, most_parts=MOST_LAUNCHES, cpu=False))
    program = generate(scheduled, options_of(device, knobs))
    found = [_compiled(launch, device.arch) for launch in _launches(program, graph.name, sizes)]
    return {
        "kernels": len(scheduled.kernels),
        "registers": max((one.registers for one in found), default=0),
        "spills": max((one.spills for one in found), default=0),
        "shared": max((one.shared for one in found), default=0),
    }


def fault(facts: Mapping[str, int], arch: str) -> str | None:
    """Why a candidate with these facts is not worth timing; None if nothing speaks against it."""
    if facts["spills"]:
        return f"a kernel spills registers ({facts['spills']})"
    if facts["shared"] > SHARED_LIMIT[arch]:
        return f"a kernel takes {facts['shared']} bytes of shared memory, {arch} has {SHARED_LIMIT[arch]}"
    return None


_Launch = tuple[Any, tuple[str, ...], tuple[tuple[str, Any], ...]]
"""A kernel, what its arguments are, its constants."""


class _Recorder(Launcher):
    """A launcher that starts nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: dict[_Launch, None] = {}

    def launch(
        self, kernel: Any, grid: Sequence[int], arguments: Sequence[object], **constants: object
    ) -> None:
        """See `Launcher`."""
        del grid
        self.launches[kernel, tuple(map(parameter, arguments)), tuple(sorted(constants.items()))] = None


def _launches(program: TritonCode, name: str, sizes: Mapping[str, int]) -> list[_Launch]:
    """What a call, and what prepares it, would launch."""
    module, recorder = load_module(program.source, name), _Recorder()
    tensors = [
        torch.empty(max(number(buffer.size, sizes), 1), dtype=torch_dtype(buffer.dtype), device="meta")
        for buffer in program.buffers
    ]
    tensors.append(torch.empty(1, dtype=torch.int32, device="meta"))
    for step in (*module.PREPARE, *module.RUN):
        step(tensors, [sizes[size] for size in program.sizes], recorder)
    return list(recorder.launches)


def _compiled(launch: _Launch, arch: str) -> Resources:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel, kinds, constants = launch
    amd = arch.startswith("gfx")
    target = GPUTarget("hip", arch, 64) if amd else GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
    given = dict(constants)
    options: dict[str, Any] = {"enable_fp_fusion": True}
    options |= {name: given.pop(name) for name in ("num_warps", "num_stages") if name in given}
    types, attributes = {}, {}
    for index, (name, kind) in enumerate(zip(kernel.arg_names, kinds, strict=False)):
        if kind == "=1":
            given[name] = 1
        else:
            types[name] = kind.partition("/")[0]
            if kind.startswith("*") or kind.endswith("/16"):
                attributes[index,] = [["tt.divisibility", 16]]
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    source = ASTSource(kernel, signature, constexprs=given, attrs=attributes)
    try:
        return read_resources(triton.compile(source, target=target, options=options))
    except BuildError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines()
        raise BuildError(
            f"kernel {kernel.fn.__name__} does not compile for {arch}: {lines[0] if lines else error!r}"
        ) from error
