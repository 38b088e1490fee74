"""Nests with a root: what multiplies is one kernel with its epilogue."""

from __future__ import annotations

from kernels_hub.compiler.codegen.cpp_text import Names
from kernels_hub.compiler.codegen.triton_kernel import Launch
from kernels_hub.compiler.codegen.triton_options import Options
from kernels_hub.compiler.codegen.triton_text import Lines
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.schedule.kernel import Nest


def print_root(name: str, nest: Nest, lines: Lines, names: Names, options: Options) -> Launch | None:
    raise EngineError("no roots yet")
