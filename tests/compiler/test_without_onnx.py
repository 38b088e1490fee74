"""What is compiled from PyTorch needs no package `onnx`: that is an extra."""

from __future__ import annotations

from tests.warm_process import run_script

CODE = """
import sys

sys.modules["onnx"] = None
import torch
from torch import nn

from kernels_hub import Mode, compiler, kernelize, load_kernel_mapping, report, use_kernel_mapping

model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)).eval()
x = torch.randn(128, 64)
with torch.inference_mode():
    expected = model(x)
    torch.testing.assert_close(compiler.compile((model, (x,)), "cpu")(x), expected)
    backend = torch.compile(model, backend="kernels_hub", dynamic=False)
    torch.testing.assert_close(backend(x), expected)
    with use_kernel_mapping(load_kernel_mapping("compiled"), inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE, device="cpu", wait=True)
    torch.testing.assert_close(model(x), expected)
(row,) = (row for row in report(model) if row.layer_name == "CompiledModel")
print("cannot" in (row.reason or ""), row.reason)
try:
    compiler.compile("model.onnx", "cpu")
except compiler.CompilerError as error:
    print(error)
"""


def test_compiling_modules() -> None:
    done = run_script(CODE, timeout=300)
    assert done.returncode == 0, done.stderr
    compiled, asked = done.stdout.splitlines()
    assert compiled.startswith("False")
    assert asked == "the ONNX importer needs the package onnx: pip install 'kernels-hub[onnx]'"
