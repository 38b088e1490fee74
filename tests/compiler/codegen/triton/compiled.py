"""What a generated module would launch, found without a GPU, and compiled for GPUs that are not here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch

from kernels_hub.compiler.codegen.triton.module_cache import load_module
from kernels_hub.compiler.codegen.triton.source import TritonCode
from kernels_hub.compiler.engines.tensors import torch_dtype
from kernels_hub.compiler.runtime.launcher import Launcher
from kernels_hub.compiler.schedule.memory import number
from tests.layers.triton_compile import Resources, compile_kernel

POINTERS = {
    torch.float64: "*fp64", torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16",
    torch.int64: "*i64", torch.int32: "*i32", torch.int16: "*i16", torch.int8: "*i8", torch.uint8: "*u8",
    torch.bool: "*i1",
}  # fmt: skip
SHARED = {"sm_80": 163, "sm_90": 227, "sm_100": 227, "gfx942": 64}
"""KiB of shared memory that a block may take."""


@dataclass(frozen=True)
class Launched:
    """One launch: the kernel, its grid, its arguments by position, and its constants."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    constants: dict[str, Any]

    def key(self) -> tuple[Any, ...]:
        """The same for kernels that differ in names alone."""
        text = re.sub(
            r"\b(i|r)\d+_|_(input|output|scratch|weight|prepared|constant)\d+|k\d+_", r"\1_", self.kernel.src
        )
        text = re.sub(r"\bdef \w+", "def kernel", text)
        kinds = [one.dtype if isinstance(one, torch.Tensor) else one for one in self.arguments]
        return (text, *map(str, kinds), str(self.constants))

    def compiled(self, arch: str) -> Resources:
        """For an architecture."""
        signature: dict[str, str] = {}
        constants: dict[str, Any] = {}
        multiples: list[str] = []
        for name, one in zip(self.kernel.arg_names, self.arguments, strict=False):
            if isinstance(one, torch.Tensor):
                signature[name] = POINTERS[one.dtype]
            elif one == 1:
                constants[name] = 1  # as a launch makes it
            else:
                signature[name] = "i32" if abs(one) < 1 << 31 else "i64"
                multiples += [name] if one % 16 == 0 else []
        constants |= self.constants
        warps, stages = constants.pop("num_warps"), constants.pop("num_stages", 3)
        return compile_kernel(
            self.kernel, signature, constants, arch, warps, stages, divisible_by_16=multiples
        )


class _Recorder(Launcher):
    def __init__(self) -> None:
        super().__init__()
        self.launches: list[Launched] = []

    def launch(self, kernel: Any, grid: Any, arguments: Any, **constants: Any) -> None:
        self.launches.append(Launched(kernel, grid, arguments, constants))


def launches(program: TritonCode, name: str, sizes: dict[str, int]) -> list[Launched]:
    """All launches of a call and of what prepares it; tensors are of the device "meta"."""
    module, recorder = load_module(program.source, name), _Recorder()
    tensors = [
        torch.empty(max(number(one.size, sizes), 1), dtype=torch_dtype(one.dtype), device="meta")
        for one in program.buffers
    ]
    tensors.append(torch.empty(1, dtype=torch.int32, device="meta"))
    for step in (*module.PREPARE, *module.RUN):
        step(tensors, [sizes[one] for one in program.sizes], recorder)
    return recorder.launches
