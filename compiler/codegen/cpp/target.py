"""C++ for the CPU as a target of code generation."""

from __future__ import annotations

from kernels_hub.compiler.codegen.cpp.scalar import Cpp
from kernels_hub.compiler.codegen.cpp.spellings import SPELLINGS
from kernels_hub.compiler.codegen.cpp.translation_unit import generate
from kernels_hub.compiler.codegen.target import Target

TARGET = Target("cpp", SPELLINGS, Cpp, generate)
