"""Emitted Triton: under the interpreter, compiled for GPUs that are not here, and started through a driver that notes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels_hub.compiler.emit import Emitted

ROOT = Path(__file__).resolve().parents[3]

pytest.importorskip("triton", reason="needs Triton")


def test_under_the_interpreter(
    mlp: Emitted, mlp_dtypes: Emitted, normed_layer: Emitted, bert_layer: Emitted, onnx_layer: Emitted
):
    folders = {
        "mlp": mlp, "dtypes": mlp_dtypes, "everything": normed_layer, "attention": bert_layer, "onnx": onnx_layer,
    }  # fmt: skip
    environment = {
        **os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    given = [f"{name}={emitted.path}" for name, emitted in folders.items()]
    done = subprocess.run(
        [sys.executable, "-m", "tests.compiler.emit.interpreted_layers", *given],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == list(folders)
