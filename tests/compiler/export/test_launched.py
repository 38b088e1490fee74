"""Emitted Triton: under the interpreter, compiled for GPUs that are not here, and started through a driver that notes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.export import programs
from kernels_hub.compiler.export.emit_layer import Emitted, emit_layer
from kernels_hub.compiler.export.triton_program import triton_program
from tests.compiler.export.emitted_layers import gated_mlp
from tests.warm_process import run_script

ROOT = Path(__file__).resolve().parents[3]

pytest.importorskip("triton", reason="needs Triton")


@pytest.fixture(scope="module")
def interpreted_mlp(emitted_folder: Path) -> Emitted:
    """Two programs, which ran in the interpreter before they were written."""
    case = gated_mlp()
    return emit_layer(
        (case.module, case.args, case.kwargs),
        layer_name="GatedMLP",
        out=emitted_folder / "GatedMLPInterpreted",
        dynamic_shapes=case.dynamic_shapes,
        dtypes=("float32", "bfloat16"),
        interpret=True,
        benchmark=False,
        training=False,
    )


def test_under_the_interpreter(
    mlp: Emitted, interpreted_mlp: Emitted, normed_layer: Emitted, bert_layer: Emitted, onnx_layer: Emitted
):
    folders = {
        "mlp": mlp, "dtypes": interpreted_mlp, "everything": normed_layer, "attention": bert_layer, "onnx": onnx_layer,
    }  # fmt: skip
    environment = {
        **os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    given = [f"{name}={emitted.path}" for name, emitted in folders.items()]
    program = (
        "import runpy; runpy.run_module('tests.compiler.export.interpreted_layers', run_name='__main__')"
    )
    done = run_script(program, *given, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == list(folders)


def test_what_the_interpreter_says_is_in_the_card(interpreted_mlp: Emitted):
    assert [one.program for one in interpreted_mlp.interpreted] == [
        "kernels_float32.py",
        "kernels_bfloat16.py",
    ]
    card = (interpreted_mlp.path / "README.md").read_text()
    for one, limit in zip(interpreted_mlp.interpreted, (1e-5, 4e-2), strict=True):
        assert one.error is not None and one.error < limit
        assert (
            f"`{one.program}` is off from the oracle by {one.error:.1e}, for batch = 3, length = 17." in card
        )


def test_wrong_gpu_kernels_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def wrong(scheduled: Any, **more: Any) -> Any:
        program = triton_program(scheduled, **more)
        assert "tl.sigmoid(v0)" in program.source
        return replace(program, source=program.source.replace("tl.sigmoid(v0)", "1.01 * tl.sigmoid(v0)"))

    monkeypatch.setattr(programs, "triton_program", wrong)
    case = gated_mlp()
    message = "kernels.py, in Triton's interpreter, differs from the oracle by"
    with pytest.raises(EngineError, match=message):
        emit_layer(
            (case.module, case.args),
            layer_name="Wrong",
            out=tmp_path / "wrong",
            interpret=True,
            training=False,
            benchmark=False,
        )
    assert not (tmp_path / "wrong").exists()
