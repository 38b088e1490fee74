"""The gated kernels compile for every architecture with the tiles that their launcher uses, without spills."""

from __future__ import annotations

import importlib
from types import ModuleType

import torch

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.combinations import every_value
from tests.layers.triton_compile import ARCHITECTURES, compile_kernel

KERNELS: ModuleType = importlib.import_module(
    import_kernel(source_variant(bundled_folder() / "mlp", "cuda")).__name__ + ".kernels"
)

PRECISIONS = {
    "bf16": (torch.bfloat16, "bf16", "ieee"),
    "fp32": (torch.float32, "fp32", "ieee"),
    "tf32": (torch.float32, "fp32", "tf32"),
}
SIZES = ((1, 512), (48, 512), (512, 1024), (4096, 4096))
POINTERS = (
    "x_ptr",
    "gate_ptr",
    "up_ptr",
    "gate_bias_ptr",
    "up_bias_ptr",
    "y_ptr",
    "gate_pre_ptr",
    "up_pre_ptr",
)
INTEGERS = ("M", "N", "K", "stride_x", "stride_gate", "stride_up")

CASES = {
    "training": {"ACTIVATION": "gelu", "SAVE_PRE": True, "EVEN_K": True},
    "inference": {"ACTIVATION": "silu", "SAVE_PRE": False, "EVEN_K": True},
    "odd": {"ACTIVATION": "gelu", "SAVE_PRE": True, "EVEN_K": False},
}


@every_value(case=CASES, precision=PRECISIONS, arch=ARCHITECTURES)
def test_no_spills(case: str, precision: str, arch: str) -> None:
    dtype, name, mode = PRECISIONS[precision]
    hip = arch.startswith("gfx")
    if hip and precision == "tf32":
        return  # the launcher never asks for it there
    aligned, biases = case != "odd", case == "training"
    tiles = {
        KERNELS.gated_tile_for(*size, dtype, aligned=aligned, tf32=precision == "tf32", hip=hip)
        for size in SIZES
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
            KERNELS.gated_linear_kernel,
            dict.fromkeys(POINTERS, f"*{name}") | dict.fromkeys(INTEGERS, "i32"),
            {**CASES[case], **constants, "GROUP": tile.group, "HAS_GATE_BIAS": biases, "HAS_UP_BIAS": biases},
            arch,
            tile.warps,
            tile.stages,
            divisible_by_16=INTEGERS[1:] if aligned else (),
        )
        assert resources.spills == 0, (tile, resources)
        assert resources.shared <= (64 if hip else 99) * 1024, (tile, resources)


@every_value(activation=["silu", "gelu", "gelu_tanh"], name=["bf16", "fp32"], arch=ARCHITECTURES)
def test_no_spills_in_the_gradient(activation: str, name: str, arch: str) -> None:
    pointers = ("gradient_ptr", "gate_pre_ptr", "up_pre_ptr", "at_gate_ptr", "at_up_ptr")
    resources = compile_kernel(
        KERNELS.gated_linear_gradient_kernel,
        dict.fromkeys(pointers, f"*{name}") | {"size": "i64"},
        {"ACTIVATION": activation, "BLOCK": KERNELS.BLOCK},
        arch,
        4,
    )
    assert resources.spills == 0
