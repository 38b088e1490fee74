"""Resources of a compiled GPU kernel, read from what the hardware will be given."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels_hub.compiler.errors import BuildError

SHARED_LIMIT = {"sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10, "gfx942": 64 << 10}
"""Bytes of shared memory that a block may take."""


@dataclass(frozen=True)
class Resources:
    """Registers and spills are per thread; shared memory, in bytes, per block.

    registers: NVIDIA's of 32 bits; AMD's vector registers, those for accumulation included. spills: NVIDIA: bytes of
    local memory; AMD: registers. 0 means none. parameters: how many values a launch passes.
    """

    registers: int
    spills: int
    shared: int
    parameters: int


def read_resources(compiled: Any) -> Resources:
    """Of a kernel that Triton compiled. Raises BuildError where the compiler's output is of another form."""
    asm = compiled.asm
    if "cubin" in asm:
        return _of_cubin(asm["cubin"], asm["ptx"], compiled.metadata.shared)
    return _of_amdgcn(asm["amdgcn"], compiled.metadata.shared)


def _of_cubin(cubin: bytes, ptx: str, dynamic_shared: int) -> Resources:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        try:
            text = subprocess.run(
                [str(_cuobjdump()), "-res-usage", file.name],
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            ).stdout
        except (OSError, subprocess.SubprocessError) as error:
            raise BuildError(f"Triton's cuobjdump cannot read a kernel: {error}") from error
    entry = re.search(r"\.entry\s+\S+?\(([^)]*)\)", ptx)
    if entry is None:
        raise BuildError("a kernel's PTX has no .entry")
    return Resources(
        registers=_number(r"\bREG:(\d+)", text),
        spills=_number(r"\bSTACK:(\d+)", text) + _number(r"\bLOCAL:(\d+)", text),
        shared=_number(r"\bSHARED:(\d+)", text) + dynamic_shared,
        parameters=entry[1].count(".param"),
    )


def _of_amdgcn(text: str, dynamic_shared: int) -> Resources:
    arguments = re.search(r"\.args:(.*?)\n\s*\.group_segment_fixed_size", text, re.DOTALL)
    return Resources(
        registers=_number(r"\.vgpr_count:\s*(\d+)", text),
        spills=_number(r"\.vgpr_spill_count:\s*(\d+)", text) + _number(r"\.sgpr_spill_count:\s*(\d+)", text),
        shared=_number(r"\.group_segment_fixed_size:\s*(\d+)", text) + dynamic_shared,
        parameters=arguments[1].count(".value_kind") if arguments else 0,
    )


def _cuobjdump() -> Path:
    import triton

    return Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    if match is None:  # never a silent 0: a changed format must not read as "no spills"
        raise BuildError(f"nothing matches {pattern!r} in the compiler's output:\n{text[-500:]}")
    return int(match[1])
