"""ONNX Runtime as an engine of the kernels_hub compiler. `engines` is what the entry point names."""

from __future__ import annotations

from .engine import OnnxRuntimeEngine


def engines() -> list[OnnxRuntimeEngine]:
    """What the compiler's registry asks for."""
    return [OnnxRuntimeEngine()]
