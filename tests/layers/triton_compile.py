"""Compile Triton kernels for GPUs that are not here, and read what they take of one.

`triton.compile` needs a target, not a device: the NVIDIA path ends in the `ptxas` that Triton
ships, the AMD path in its LLVM. What is read back is what the hardware will be given, so a register
spill is found on any Linux machine.

    resources = compile_kernel(kernel, {"x": "*bf16", "n": "i32"}, {"BLOCK": 1024}, "sm_90")
    assert resources.spills == 0

Not under TRITON_INTERPRET=1: `triton.jit` then returns something that cannot be compiled.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
ARCHITECTURES = tuple(TARGETS)

_CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


@dataclass(frozen=True)
class Resources:
    """What one kernel takes. Registers and spills are per thread, `shared` is per block."""

    registers: int
    """NVIDIA: 32-bit registers. AMD: vector registers, accumulation registers included."""
    spills: int
    """0 means none. NVIDIA: bytes of local memory (Triton kernels declare no arrays, so nothing but
    spilled registers lies there). AMD: vector and scalar registers spilled."""
    stack: int
    """Bytes of private memory."""
    shared: int
    """Bytes of shared memory."""


def compile_kernel(
    kernel: Any,
    signature: Mapping[str, str],
    constexprs: Mapping[str, object],
    arch: str,
    num_warps: int = 4,
    num_stages: int = 3,
    *,
    divisible_by_16: Sequence[str] = (),
) -> Resources:
    """Compile `kernel` for `arch` as the JIT would at a launch, and return what it takes.

    signature: argument name -> Triton type ("*bf16", "i32", "i64", "fp32"), for every argument that
        is no constexpr. constexprs: the values of the rest, and of arguments that a launch
        specialises to a constant (an int 1, or None).
    divisible_by_16: integer arguments that a launch finds to be multiples of 16 (widths, strides),
        which is what lets the compiler use wide loads. Pointers always count as aligned, as those
        of PyTorch's allocators are.
    Raises ValueError for an unknown architecture or arguments that are missing or too many.
    """
    while not hasattr(kernel, "arg_names") or not hasattr(
        kernel, "cache_key"
    ):  # @triton.heuristics and the like
        if not hasattr(kernel, "fn") or not hasattr(kernel.fn, "arg_names"):
            raise TypeError(f"{kernel!r} is not a compilable Triton kernel (is TRITON_INTERPRET set?)")
        kernel = kernel.fn
    if arch not in TARGETS:
        raise ValueError(f"unknown architecture {arch!r}; known: {', '.join(ARCHITECTURES)}")
    if sorted([*signature, *constexprs]) != sorted(kernel.arg_names):
        raise ValueError(
            f"{kernel.__name__} takes {', '.join(sorted(kernel.arg_names))}; "
            f"got {', '.join(sorted([*signature, *constexprs]))}"
        )
    types = {name: signature.get(name, "constexpr") for name in kernel.arg_names}
    attributes = {
        (index,): [["tt.divisibility", 16]]
        for index, (name, kind) in enumerate(types.items())
        if kind.startswith("*") or name in divisible_by_16
    }
    source = ASTSource(kernel, types, constexprs=dict(constexprs), attrs=attributes)
    # FP fusion is the JIT's default so far; Triton 3.9 warns that 3.10 changes it unless one says which.
    options = {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": True}
    compiled = triton.compile(source, target=TARGETS[arch], options=options)
    if TARGETS[arch].backend == "cuda":
        return _read_cubin(compiled.asm["cubin"], compiled.metadata.shared)
    return _read_amdgcn(compiled.asm["amdgcn"], compiled.metadata.shared)


def _read_cubin(cubin: bytes, dynamic_shared: int) -> Resources:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [str(_CUOBJDUMP), "-res-usage", file.name], capture_output=True, text=True, check=True, timeout=60
        ).stdout
    stack, local = _number(r"\bSTACK:(\d+)", text), _number(r"\bLOCAL:(\d+)", text)
    return Resources(
        registers=_number(r"\bREG:(\d+)", text),
        spills=stack + local,
        stack=stack,
        shared=_number(r"\bSHARED:(\d+)", text) + dynamic_shared,
    )


def _read_amdgcn(text: str, dynamic_shared: int) -> Resources:
    return Resources(
        registers=_number(r"\.vgpr_count:\s*(\d+)", text),
        spills=_number(r"\.vgpr_spill_count:\s*(\d+)", text) + _number(r"\.sgpr_spill_count:\s*(\d+)", text),
        stack=_number(r"\.private_segment_fixed_size:\s*(\d+)", text),
        shared=_number(r"\.group_segment_fixed_size:\s*(\d+)", text) + dynamic_shared,
    )


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:  # never a silent 0: a changed format must not read as "no spills"
        raise ValueError(f"nothing matches {pattern!r} in the compiler's output:\n{text[-2000:]}")
    return int(found.group(1))
