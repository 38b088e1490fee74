"""A mapping file: which kernels, for which layers, on which devices, in which modes.

Run with `python examples/a_mapping_of_ones_own.py`. The file tags a class that it does not own,
for this mapping only, and maps it and others to bundled layers.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import nn

from kernels_hub import Mode, explain, kernelize, load_kernel_mapping, report, use_kernel_mapping

MAPPING = """
schema = 1
include = ["torch"]                 # tags for the classes of torch.nn, as shipped

[[map]]
layers = ["GELU", "SiLU"]
device = "cpu"
modes = ["inference", "training"]
repository = "bundled:activation"

[[map]]
layer = "LayerNorm"
device = { type = "cuda", min_capability = 80 }
repository = "bundled:normalization"
"""


def main() -> list[str]:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.SiLU())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mapping.toml"
        file.write_text(MAPPING)
        mapping = load_kernel_mapping(file)

    # Only what the file maps, without the default mapping of bundled layers:
    with use_kernel_mapping(mapping, inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE)
        print(report(model))
        print("on an H100:")
        from kernels_hub import CUDAProperties, Device

        print(explain(model, mode=Mode.INFERENCE, device=Device("cuda", CUDAProperties(90, 90))))
    with torch.inference_mode():
        model(torch.randn(2, 8))
    return [str(row.layer_name) for row in report(model).swapped]


if __name__ == "__main__":
    main()
