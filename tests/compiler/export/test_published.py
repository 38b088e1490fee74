"""Compiled, published, and swapped in by version in a fresh process with an empty cache; by Hugging Face's client, too."""

from __future__ import annotations

import os
from pathlib import Path

from kernels_hub.compiler.export.emit_layer import Emitted
from kernels_hub.compiler.export.native_binaries import variant_name
from tests.running_hub import start_hub
from tests.warm_process import run_script

ROOT = Path(__file__).resolve().parents[3]

PUBLISH = """
import sys
from pathlib import Path
from kernels_hub.cli import main

for path in sys.argv[1:]:
    try:
        main(["publish", path, "--repo", f"compilers/{Path(path).name.lower()}", "--version", "1.0.0"])
    except SystemExit as ended:
        assert not ended.code, ended.code
"""
OURS = """
import sys
import torch
from kernels_hub import LayerRepository, Mode, kernelize, replace_kernel_forward_from_hub, report, use_kernel_mapping
from tests.compiler.export.emitted_layers import GatedMLP, gated_mlp

replace_kernel_forward_from_hub(GatedMLP, "GatedMLP")
model, x = torch.nn.Sequential(gated_mlp().module, gated_mlp().module), torch.randn(3, 9, 64)
with torch.no_grad():
    expected = model(x)
    layer = LayerRepository(sys.argv[1], layer_name="GatedMLP", version=">=1.0,<2")
    with use_kernel_mapping({"GatedMLP": {"cpu": layer}}, inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE, use_fallback=False)
    torch.testing.assert_close(model(x), expected)
rows = [row for row in report(model).rows if row.swapped]
print(len(rows), rows[0].repository, rows[0].variant)
"""
THEIRS = """
import sys
import torch
from kernels import get_kernel
from tests.compiler.export.emitted_layers import GatedMLP, gated_mlp

kernel = get_kernel(sys.argv[1], version=1, backend="cpu", trust_remote_code=True)
module, x = gated_mlp().module, torch.randn(3, 9, 64)
with torch.no_grad():
    expected = module(x)
    module.forward = kernel.layers.GatedMLP.forward.__get__(module)
    torch.testing.assert_close(module(x), expected)
    module.down_proj.weight.zero_()
    assert module(x).abs().max() == 0
assert not kernel.program.LAYER.fallbacks
print("theirs")
"""
STANDALONE = """
import torch
from kernels_hub import get_kernel

model = get_kernel("compilers/encoder", version="==1.0.0", trust_remote_code=True).load()
print(tuple(model(torch.arange(12).reshape(2, 6))["last"].shape))
"""


def test_publish_and_load(mlp: Emitted, mlp_dtypes: Emitted, onnx_layer: Emitted, tmp_path: Path):
    """Built where it runs; and with native code that comes along, where there is no compiler."""
    with start_hub(tmp_path / "hub") as hub:
        hub.organisation("compilers", "ada", trusted=True)
        environment = {
            **os.environ,
            "HF_ENDPOINT": hub.endpoint,
            "HF_TOKEN": hub.token("ada"),
            "HF_HUB_CACHE": str(tmp_path / "cache"),
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "PYTHONPATH": str(ROOT),
        }

        def run(*command: str | Path, **more: str) -> str:
            done = run_script(*map(str, command), env=environment | more, timeout=180)
            assert done.returncode == 0, done.stderr
            return done.stdout.strip()

        run(PUBLISH, *(emitted.path for emitted in (mlp, mlp_dtypes, onnx_layer)))
        assert run(OURS, "compilers/gatedmlp") == "2 compilers/gatedmlp torch-cpu"
        assert run(THEIRS, "compilers/gatedmlp") == "theirs"
        alone = {"KERNELS_HUB_CXX": "none", "KERNELS_HUB_CACHE": str(tmp_path / "compiled")}
        name = "compilers/gatedmlpdtypes"
        assert run(OURS, name, **alone) == f"2 {name} {variant_name()}"
        assert run(THEIRS, name, **alone) == "theirs"
        assert not (tmp_path / "compiled").exists()
        assert run(STANDALONE) == "(2, 6, 32)"
