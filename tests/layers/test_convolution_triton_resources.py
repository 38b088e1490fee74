"""The Triton kernel of `layers/convolution` compiles for every architecture without spilling registers."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.combinations import every_value
from tests.layers.triton_compile import ARCHITECTURES, compile_kernel

# (dtype, precision, output pixels, filters a group, 64-bit offsets, channels a multiple of the block).
# Each with norm, sum and ReLU, which the plain convolution is less than.
LAUNCHES = (
    ("bf16", "ieee", 50176, 64, False, True),
    ("bf16", "ieee", 50176, 64, False, False),
    ("bf16", "ieee", 50176, 1, False, False),
    ("bf16", "ieee", 49, 512, False, False),
    ("bf16", "ieee", 1 << 26, 64, True, False),
    ("fp32", "ieee", 50176, 64, False, True),
    ("fp32", "ieee", 50176, 64, False, False),
    ("fp32", "ieee", 1 << 26, 64, True, False),
    ("fp32", "tf32", 50176, 64, False, False),
    ("fp32", "tf32", 49, 512, False, False),
)
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
POINTERS = ("x", "w", "bias", "gamma", "beta", "mean", "variance", "residual", "y")
WIDTHS = ("x_channels", "y_channels", "channels", "filters", "depth")


@pytest.fixture(scope="module")
def package() -> ModuleType:
    return import_kernel(source_variant(bundled_folder() / "convolution", "cuda"))


@every_value(launch=LAUNCHES, arch=ARCHITECTURES)
def test_no_spills(package, launch, arch):
    dtype, precision, pixels, filters, wide, even = launch
    if arch == "gfx942" and precision == "tf32":
        pytest.skip("TF32 is NVIDIA's")
    kernels = package.kernels
    kernel = kernels.convolution_kernel
    tile = kernels.tile(DTYPES[dtype], pixels, filters, wide)
    constexprs = {
        "NORM": True,
        "RELU": True,
        "EVEN_CHANNELS": even,
        "WIDE": wide,
        "PRECISION": precision,
        "UPCAST": False,
        "BLOCK_M": tile.pixels,
        "BLOCK_N": tile.filters,
        "BLOCK_K": tile.depth,
    }
    constexprs |= {"filters": 1} if filters == 1 else {}  # as the launch specialises it
    signature = {
        name: f"*{dtype}" if name in POINTERS else "fp32" if name == "eps" else "i32"
        for name in kernel.arg_names
        if name not in constexprs
    }
    aligned = [name for name in WIDTHS if name in signature] if even else []
    resources = compile_kernel(
        kernel, signature, constexprs, arch, num_warps=tile.warps, divisible_by_16=aligned
    )
    assert resources.spills == 0
    assert resources.shared <= 64 * 1024  # a block on every architecture
