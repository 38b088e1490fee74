"""The product's kernel compiles for every architecture with the tiles that its launcher uses, without spills."""

from __future__ import annotations

import importlib
from types import ModuleType

import torch

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.combinations import every_value
from tests.layers.triton_compile import ARCHITECTURES, compile_kernel

MATMUL: ModuleType = importlib.import_module(
    import_kernel(source_variant(bundled_folder() / "linear", "cuda")).__name__ + ".matmul"
)

# name -> (dtype, Triton's name, input precision)
PRECISIONS = {
    "bf16": (torch.bfloat16, "bf16", "ieee"),
    "fp32": (torch.float32, "fp32", "ieee"),
    "tf32": (torch.float32, "fp32", "tf32"),
}
# rows and columns: one of every tile
SIZES = ((1, 512), (48, 512), (512, 1024), (4096, 4096))
POINTERS, INTEGERS = ("x_ptr", "w_ptr", "b_ptr", "y_ptr", "pre_ptr"), ("M", "N", "K", "stride_x", "stride_w")

# The launcher's cases: training with bias, inference without, and rows at odd distances.
CASES = {
    "training": {"ACTIVATION": "gelu", "HAS_BIAS": True, "SAVE_PRE": True, "EVEN_K": True},
    "inference": {"ACTIVATION": "silu", "HAS_BIAS": False, "SAVE_PRE": False, "EVEN_K": True},
    "odd": {"ACTIVATION": "gelu", "HAS_BIAS": True, "SAVE_PRE": True, "EVEN_K": False},
}


@every_value(case=CASES, precision=PRECISIONS, arch=ARCHITECTURES)
def test_no_spills(case: str, precision: str, arch: str) -> None:
    dtype, name, mode = PRECISIONS[precision]
    hip = arch.startswith("gfx")
    if hip and precision == "tf32":
        return  # the launcher never asks for it there
    aligned = case != "odd"
    tiles = {
        MATMUL.tile_for(*size, dtype, aligned=aligned, tf32=precision == "tf32", hip=hip) for size in SIZES
    }
    for tile in tiles:
        constants = {
            "PRECISION": mode,
            "UPCAST": False,
            "BLOCK_M": tile.m,
            "BLOCK_N": tile.n,
            "BLOCK_K": tile.k,
        }
        resources = compile_kernel(
            MATMUL.linear_kernel,
            dict.fromkeys(POINTERS, f"*{name}") | dict.fromkeys(INTEGERS, "i32"),
            {**CASES[case], **constants, "GROUP": tile.group},
            arch,
            tile.warps,
            tile.stages,
            divisible_by_16=INTEGERS[1:] if aligned else (),
        )
        assert resources.spills == 0, (tile, resources)
        assert resources.shared <= (64 if hip else 99) * 1024, (tile, resources)
