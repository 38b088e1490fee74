"""Peer of a layer that stands alone, for numbers and times.

Of an ONNX file: ONNX Runtime, or PyTorch's kernels op by op. Of an exported program: the program, run by PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kernels_hub.compiler.errors import CompilerError

Bound = dict[str, Any]
"""dims, shapes and values, as `import_onnx` takes them."""


@dataclass(frozen=True)
class Peer:
    """Somebody else's run of the same model. call: the graph's inputs, in order, to its outputs, in order."""

    name: str
    call: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]


def find_peer(path: Path, inputs: Sequence[str], outputs: Sequence[str], bound: Bound) -> Peer | None:
    """ONNX Runtime, where it is installed and takes the file; else the engine of PyTorch's kernels; else None.

    inputs, outputs: names of the graph's, which are those of the model unless it has sequences. ONNX Runtime has as
    many threads as PyTorch, and they do not spin between calls: the calls are timed in turn with ours.
    """
    return _onnxruntime(path, inputs, outputs, bound) or _library(path, outputs, bound)


def _onnxruntime(path: Path, inputs: Sequence[str], outputs: Sequence[str], bound: Bound) -> Peer | None:
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001  (it has no one class for what it refuses)
        return None
    types = {one.name: one.type for one in session.get_inputs()}
    fixed = {name: np.asarray(value) for name, value in (bound.get("values") or {}).items()}
    if set(types) - fixed.keys() - {*inputs} or {*outputs} - {
        output.name for output in session.get_outputs()
    }:
        return None
    fixed = {
        name: value.astype(_NUMPY.get(types[name], value.dtype))
        for name, value in fixed.items()
        if name in types
    }

    def call(given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        arrays = {name: tensor.numpy() for name, tensor in zip(inputs, given, strict=True) if name in types}
        return [torch.from_numpy(one) for one in session.run([*outputs], {**fixed, **arrays})]

    return Peer("ONNX Runtime", call)


_NUMPY = {
    "tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16,
    "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_,
}  # fmt: skip


def _library(path: Path, outputs: Sequence[str], bound: Bound) -> Peer | None:
    from kernels_hub.compiler.pipeline import compile as compile_model

    try:
        run = compile_model(path, "cpu", engines=("library",), **bound)
    except CompilerError:
        return None

    def call(given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        found = run.execute(list(given))
        return [torch.as_tensor(found[name]) for name in outputs]

    return Peer("PyTorch's kernels", call)
