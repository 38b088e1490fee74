"""What test_arm_python.py runs in a Python for ARM: the native code of a wheel beside PyTorch's own, without a compiler.

Prints a line of JSON for each step, as it ends. Its argument is a folder for the ONNX file.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import kernels_hub
from kernels_hub import Mode, compiler, kernelize, load_kernel_mapping, use_kernel_mapping
from kernels_hub.layers.native import prebuilt

STARTED = time.monotonic()


class Block(nn.Module):
    """Attention and an MLP with their norms, in the order of BERT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x and result (batch, length, width)."""
        batch, length, width = x.shape
        split = self.into(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        joined = nn.functional.scaled_dot_product_attention(split[0], split[1], split[2]).transpose(1, 2)
        x = self.norm(x + self.out(joined.reshape(batch, length, width)))
        return self.last(x + self.mlp(x))  # type: ignore[no-any-return]


def say(step: str, **found: object) -> None:
    """Print a step and what was found."""
    print(json.dumps({"step": step, "seconds": round(time.monotonic() - STARTED), **found}), flush=True)


def machine() -> None:
    """Which object of the wheel serves this processor."""
    folder = prebuilt.folder_of_objects()
    assert folder is not None, "the wheel's native code is not here"
    found, reasons = prebuilt.examine(folder)
    assert found is not None, reasons
    say("machine", machine=platform.machine(), torch=torch.__version__, level=found[0], reasons=reasons)


def layers() -> None:
    """Layers of a small model, each by its kernel, and the whole of it as one graph."""
    torch.manual_seed(0)
    x = torch.randn(2, 7, 32)
    for mapping in ("default", "compiled"):
        model = nn.Sequential(Block(32, 2), Block(32, 2)).eval()
        with torch.inference_mode():
            expected = model(x)
            with use_kernel_mapping(load_kernel_mapping(mapping), inherit_mapping=False):
                kernelize(model, mode=Mode.INFERENCE, wait=True)
            errors = [float((model(x) - expected).abs().max()) for _ in range(2)]
        swapped = sorted({f"{row.class_name}: {row.kernel}" for row in kernels_hub.report(model).swapped})
        say(mapping, error=max(errors), swapped=swapped, rows=str(kernels_hub.report(model))[:3000])


def graphs(folder: Path) -> None:
    """A module and an ONNX file, compiled."""
    rows = torch.randn(5, 8)
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), nn.Softmax(-1)).eval()
    with torch.inference_mode():
        run = compiler.compile((module, (rows,)), "cpu")
        error = float((torch.as_tensor(run(rows)) - module(rows)).abs().max())
    say("module", error=error, engines=sorted(set(run.plan.engines)))
    weights = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 4])],
        [numpy_helper.from_array(weights, "w")],
    )
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    run = compiler.compile(str(path), "cpu", engines=("bytecode",))
    error = float(np.abs(np.asarray(run(rows)) - np.maximum(rows.numpy() @ weights, 0)).max())
    say("ONNX", error=error, engines=sorted(set(run.plan.engines)))


if __name__ == "__main__":
    machine()
    layers()
    graphs(Path(sys.argv[1]))
    say("done")
