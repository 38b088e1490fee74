"""The kernels of the losses compile for every architecture without spilling registers."""

from __future__ import annotations

import sys

import pytest

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel

pytest.importorskip("triton", reason="needs Triton (Linux)")

from tests.combinations import every_pair
from tests.layers.triton_compile import ARCHITECTURES, compile_kernel

NUMBERS = {
    "width": "i32",
    "stride": "i32",
    "ignore_index": "i32",
    "label_smoothing": "fp32",
    "z_loss": "fp32",
    "softcap": "fp32",
}


@every_pair(arch=ARCHITECTURES, dtype=["fp32", "bf16"], of=[(1000, True), (128256, False), (128256, True)])
def test_no_spills(arch: str, dtype: str, of: tuple[int, bool]) -> None:
    width, everything = of
    package = import_kernel(source_variant(bundled_folder() / "loss", "cuda"))
    kernels = sys.modules[f"{package.__name__}.kernels"]
    block, warps = kernels.block_for(width)
    rows = {"target_ptr": "*i64", "lse_ptr": "*fp32", **NUMBERS}
    forward = compile_kernel(
        kernels.cross_entropy_kernel,
        {"x_ptr": f"*{dtype}", "loss_ptr": "*fp32", **rows},
        {"CAPPED": everything, "SMOOTHED": everything, "REPLACE": True, "BLOCK": block},
        arch,
        warps,
        divisible_by_16=("width", "stride"),
    )
    backward = compile_kernel(
        kernels.cross_entropy_gradient_kernel,
        {"x_ptr": f"*{dtype}", "grad_ptr": "*fp32", "dx_ptr": f"*{dtype}", **rows},
        {"CAPPED": everything, "BLOCK": block},
        arch,
        warps,
        divisible_by_16=("width", "stride"),
    )
    assert (forward.spills, backward.spills) == (0, 0), (forward, backward)
