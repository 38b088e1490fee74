"""Stands for the weight guard, whose source takes this file's place in what is emitted."""

from __future__ import annotations

from kernels_hub.compiler.codegen.runtime.weight_guard import (
    Content,
    Native,
    NativeContent,
    WeightGuard,
    content_of,
    tell,
)

__all__ = ["Content", "Native", "NativeContent", "WeightGuard", "content_of", "tell"]
