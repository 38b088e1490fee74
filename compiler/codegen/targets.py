"""All targets of code generation, by name. A new one is a package beside the others, and a line here."""

from __future__ import annotations

from collections.abc import Mapping

from kernels_hub.compiler.codegen.cpp.target import TARGET as CPP
from kernels_hub.compiler.codegen.metal.target import TARGET as METAL
from kernels_hub.compiler.codegen.target import Target
from kernels_hub.compiler.codegen.triton.target import TARGET as TRITON

TARGETS: Mapping[str, Target] = {one.name: one for one in (CPP, TRITON, METAL)}
