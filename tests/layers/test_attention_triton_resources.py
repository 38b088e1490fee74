"""The attention kernels compile for every architecture with the tiles that their launcher uses, without spills."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel

pytest.importorskip("triton", reason="needs Triton (Linux)")

from tests.combinations import every_value
from tests.layers.triton_compile import ARCHITECTURES, compile_kernel

PACKAGE: ModuleType = import_kernel(source_variant(bundled_folder() / "attention", "cuda"))
KERNELS = sys.modules[f"{PACKAGE.__name__}.kernels"]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SIZES = ("heads", "group", "lq", "lk", "width", "values", "offset", "shared_heads")
LARGEST_SHARED = {"sm_80": 99, "sm_90": 99, "sm_100": 99, "gfx942": 64}  # KiB; of small GPUs of the family

# name of the kernel, its mask, causal
CASES = [
    ("attention_kernel", 2, True),
    ("attention_kernel", 1, False),
    ("query_gradient_kernel", 2, True),
    ("key_gradient_kernel", 2, True),
]
SHAPES = [("bf16", 64), ("bf16", 128), ("bf16", 256), ("fp32", 64), ("fp32", 128)]
"""dtype, width of heads"""


def signature(kernel: Any, dtype: str, mask: int) -> dict[str, str]:
    """Types of a launch's arguments; masks of bool come as bytes."""
    types = {}
    for name in kernel.arg_names:
        if name == "mask_ptr":
            types[name] = {0: "*fp32", 1: "*u8", 2: "*fp32"}[mask]
        elif name in ("statistics_ptr", "delta_ptr"):
            types[name] = "*fp32"
        elif name.endswith("_ptr"):
            types[name] = f"*{dtype}"
        elif name in ("scale", "softcap"):
            types[name] = "fp32"
        elif not name.isupper():
            types[name] = "i32"
    return types


@every_value(case=CASES, shape=SHAPES, arch=ARCHITECTURES)
def test_no_spills(case: tuple[str, int, bool], shape: tuple[str, int], arch: str) -> None:
    (name, mask, causal), (dtype, width) = case, shape
    kernel = getattr(KERNELS, name)
    kind = {"attention_kernel": "forward"}.get(name, name.removesuffix("_kernel").replace("_", " "))
    tile = KERNELS.tile_for(kind, width, DTYPES[dtype], hip=arch.startswith("gfx"))
    constants = {
        "CAUSAL": causal, "MASK": mask, "SOFTCAP": False, "SAVE": True, "PRECISION": "ieee", "UPCAST": False,
        "EVEN": True, "ROWS": tile.rows, "COLUMNS": tile.columns, "WIDTH": width, "VALUES": width,
    }  # fmt: skip
    types = signature(kernel, dtype, mask)
    resources = compile_kernel(
        kernel,
        types,
        {key: value for key, value in constants.items() if key in kernel.arg_names},
        arch,
        tile.warps,
        tile.stages,
        divisible_by_16=[
            key for key in types if types[key] == "i32" and key not in SIZES and "mask" not in key
        ],
    )
    assert resources.spills == 0, (tile, resources)
    assert resources.shared <= LARGEST_SHARED[arch] * 1024, (tile, resources)
