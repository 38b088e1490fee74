"""What a candidate's kernels would take of a GPU that is not here: found by compiling them, launching nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from kernels_hub.compiler.codegen.triton import Program, generate
from kernels_hub.compiler.codegen.triton_module import load_module
from kernels_hub.compiler.codegen.triton_split import split_reductions
from kernels_hub.compiler.emitting.resources import SHARED_LIMIT, Resources, read_resources
from kernels_hub.compiler.emitting.runtime.binaries import parameter
from kernels_hub.compiler.engines.engine import Device, KnobValue
from kernels_hub.compiler.engines.tensors import torch_dtype
from kernels_hub.compiler.engines.triton import ROOTS, options_of
from kernels_hub.compiler.errors import BuildError
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.schedule.memory import number
from kernels_hub.compiler.schedule.schedule import schedule


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
    scheduled = split_reductions(schedule(graph, ROOTS))
    program = generate(scheduled, options_of(device, knobs))
    found = [_compiled(one, device.arch) for one in _launches(program, graph.name, sizes)]
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


class _Recorder:
    def __init__(self, kernel: Any, found: dict[_Launch, None]) -> None:
        self.kernel, self.found = kernel, found

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*args: Any, **constants: Any) -> None:
            self.found[self.kernel, tuple(map(parameter, args)), tuple(sorted(constants.items()))] = None

        return launch


def _launches(program: Program, name: str, sizes: Mapping[str, int]) -> list[_Launch]:
    """What a call, and what prepares it, would launch."""
    from triton.runtime.jit import JITFunction

    module = load_module(program.source, name)
    kernels = {name: one for name, one in vars(module).items() if isinstance(one, JITFunction)}
    found: dict[_Launch, None] = {}
    tensors = [
        torch.empty(max(number(one.size, sizes), 1), dtype=torch_dtype(one.dtype), device="meta")
        for one in program.buffers
    ]
    tensors.append(torch.empty(1, dtype=torch.int32, device="meta"))
    try:
        vars(module).update({name: _Recorder(one, found) for name, one in kernels.items()})
        for step in (*module.PREPARE, *module.RUN):
            step(tensors, [sizes[one] for one in program.sizes])
    finally:
        vars(module).update(kernels)
    return list(found)


def _compiled(one: _Launch, arch: str) -> Resources:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel, kinds, constants = one
    amd = arch.startswith("gfx")
    target = GPUTarget("hip", arch, 64) if amd else GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
    given = dict(constants)
    options: dict[str, Any] = {"enable_fp_fusion": True}
    options |= {name: given.pop(name) for name in ("num_warps", "num_stages") if name in given}
    types, attributes = {}, {}
    for place, (name, kind) in enumerate(zip(kernel.arg_names, kinds, strict=False)):
        if kind == "=1":
            given[name] = 1
        else:
            types[name] = kind.partition("/")[0]
            if kind.startswith("*") or kind.endswith("/16"):
                attributes[place,] = [["tt.divisibility", 16]]
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
