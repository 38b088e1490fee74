"""provenance.json of exported layers: what is stated, and that equal inputs give equal bytes."""

from __future__ import annotations

import hashlib
import json
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from kernels_hub.compiler import emit_layer
from kernels_hub.compiler.export.emit_layer import Emitted
from kernels_hub.compiler.export.provenance import weights_sha256
from kernels_hub.compiler.runtime.toolchain import find_compiler
from kernels_hub.errors import IntegrityError, SignatureError
from kernels_hub.repository.build import build_repository
from kernels_hub.repository.metadata import read_metadata
from kernels_hub.repository.provenance import PROVENANCE_FILE, parse_provenance, read_compiled_from
from kernels_hub.trust.keys import load_signing_key, new_key
from kernels_hub.trust.signature import sign_variant
from kernels_hub.trust.signed_variant import verify_signed
from tests.compiler.export.emitted_layers import write_onnx

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")


class Scaled(nn.Module):
    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((4,), factor))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * self.scale


def _emit(out: Path, factor: float = 2.0, **options: object) -> Path:
    example = [torch.linspace(-1, 1, 8).reshape(2, 4)]
    emit_layer(Scaled(factor), args=example, layer_name="Scaled", out=out, benchmark=False, **options)
    return out


def test_of_a_module(tmp_path: Path):
    first = _emit(tmp_path / "first")
    compiled = read_compiled_from(first)
    assert compiled is not None
    assert set(compiled.builder) == {"kernels-hub", "torch", "triton", "compiler"}
    assert compiled.builder["torch"] == metadata.version("torch")
    source = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    assert {row.name: row.sha256 for row in compiled.inputs} == {
        __name__: source,
        "weights": weights_sha256({"scale": np.full(4, 2.0, np.float32)}),
    }
    against = [row.against for row in compiled.verified]
    assert against == ["Scaled", "the reference evaluator", "gradients of Scaled"]
    assert all(row.error <= row.tolerance == 1e-4 and row.result == "passed" for row in compiled.verified)

    assert (_emit(tmp_path / "again") / PROVENANCE_FILE).read_bytes() == (
        first / PROVENANCE_FILE
    ).read_bytes()
    other = read_compiled_from(_emit(tmp_path / "other", 3.0, training=False))
    assert other is not None
    assert other.inputs[0] == compiled.inputs[0]
    assert other.inputs[1] != compiled.inputs[1]
    assert [row.against for row in other.verified] == against[:2]


def test_of_an_onnx_file(tmp_path: Path):
    path = tmp_path / "encoder.onnx"
    write_onnx(path)
    emit_layer(path, layer_name="Encoder", out=tmp_path / "encoder", benchmark=False, training=False)
    compiled = read_compiled_from(tmp_path / "encoder")
    assert compiled is not None
    rows = {row.name: row.sha256 for row in compiled.inputs}
    assert rows["encoder.onnx"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert set(rows) == {"encoder.onnx", "weights"}
    assert {row.against for row in compiled.verified} == {"the reference evaluator"}


def test_each_case_is_stated(mlp: Emitted):
    compiled = read_compiled_from(mlp.path)
    assert compiled is not None
    for case in mlp.checked.cases:
        rows = [row for row in compiled.verified if row.sizes == dict(case.sizes)]
        assert [(row.seed, row.error) for row in rows] == [
            (case.seed, float(f"{case.original:.1e}")),
            (case.seed, float(f"{case.oracle:.1e}")),
        ]


def test_a_signature_covers_it(mlp: Emitted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KERNELS_HUB_KEYS", str(tmp_path / "keys"))
    key = load_signing_key(new_key("ada").name)
    folder = build_repository(mlp.path, tmp_path, ["cpu"])[0]
    sign_variant(folder, key)
    verify_signed(folder, [key.public])
    assert parse_provenance(read_metadata(folder).provenance, folder).compiled == read_compiled_from(mlp.path)
    file = folder / "metadata.json"
    document = json.loads(file.read_text())
    document["provenance"]["kernels-hub"]["compiled"]["verified"][0]["error"] = 0.0
    file.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
    with pytest.raises((SignatureError, IntegrityError), match="altered"):
        verify_signed(folder, [key.public])
