"""Triton for GPUs as a target of code generation."""

from __future__ import annotations

from kernels_hub.compiler.codegen.target import Target
from kernels_hub.compiler.codegen.triton.source import generate
from kernels_hub.compiler.codegen.triton.spellings import SPELLINGS
from kernels_hub.compiler.codegen.triton.text import Expressions

TARGET = Target("triton", SPELLINGS, Expressions, generate)
