"""Stands for the compiler's toolchain, whose source takes this file's place in what is emitted."""

from __future__ import annotations

from kernels_hub.compiler.codegen.toolchain import Isa, build, load, machine_isas

__all__ = ["Isa", "build", "load", "machine_isas"]
