"""Write a layer repository, map it, and swap it in, all from one folder on disk.

Run with `python examples/a_layer_repository_of_ones_own.py`. The folder has the layout that the
Hub's kernel repositories have, so what works here is what gets published later.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from torch import nn

from kernels_hub import (
    LocalLayerRepository,
    Mode,
    kernelize,
    report,
    use_kernel_forward_from_hub,
    use_kernel_mapping,
)


@use_kernel_forward_from_hub("ScaledTanh")
class ScaledTanh(nn.Module):
    """The layer as its owner wrote it."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * torch.tanh(x)


LAYERS = '''
import torch
from torch import nn


class ScaledTanh(nn.Module):
    """The kernel: one pass over x. It reads `scale` from the module that it replaces."""

    scale: float
    can_torch_compile = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x).mul_(self.scale)
'''


def write_repository(folder: Path) -> Path:
    """build/<variant>/ with the package and its metadata; `torch-cpu` runs on every CPU."""
    variant = folder / "build" / "torch-cpu"
    variant.mkdir(parents=True)
    (variant / "__init__.py").write_text("from . import layers\n")
    (variant / "layers.py").write_text(LAYERS)
    metadata = {
        "name": "scaled-tanh",
        "id": "_scaled_tanh_cpu_0001",
        "version": 1,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": "cpu"},
    }
    (variant / "metadata.json").write_text(json.dumps(metadata))
    return folder


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        repository = LocalLayerRepository(write_repository(Path(folder)), layer_name="ScaledTanh")
        model = nn.Sequential(nn.Linear(4, 4), ScaledTanh(3.0))
        x = torch.randn(2, 4)
        before = model(x)
        with use_kernel_mapping({"ScaledTanh": {"cpu": {Mode.INFERENCE: repository}}}):
            kernelize(model, mode=Mode.INFERENCE)
        with torch.inference_mode():
            torch.testing.assert_close(model(x), before)
        print(report(model))
        return len([row for row in report(model).swapped if row.layer_name == "ScaledTanh"])


if __name__ == "__main__":
    main()
