"""Metal for GPUs of Apple as a target of code generation."""

from __future__ import annotations

from kernels_hub.compiler.codegen.metal.scalar import MetalScalars
from kernels_hub.compiler.codegen.metal.source import generate
from kernels_hub.compiler.codegen.metal.spellings import SPELLINGS
from kernels_hub.compiler.codegen.target import Target

TARGET = Target("metal", SPELLINGS, MetalScalars, generate)
