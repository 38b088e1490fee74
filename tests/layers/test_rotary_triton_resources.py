"""The rotary kernel compiles for every architecture without spilling registers."""

from __future__ import annotations

import sys

import pytest

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel

pytest.importorskip("triton", reason="needs Triton (Linux)")

from tests.combinations import every_value
from tests.layers.triton_compile import ARCHITECTURES, compile_kernel

POINTERS = ("q_ptr", "k_ptr", "q_out_ptr", "k_out_ptr", "cos_ptr", "sin_ptr")
NUMBERS = (
    "positions q_heads k_heads half q_batch q_head q_position k_batch k_head k_position "
    "q_out_batch q_out_head q_out_position k_out_batch k_out_head k_out_position "
    "cos_batch cos_position sin_batch sin_position"
).split()


@every_value(
    sizes=[(2, 64), (40, 128)], interleaved=[False, True], dtype=["fp32", "bf16"], arch=ARCHITECTURES
)
def test_no_spills(sizes: tuple[int, int], interleaved: bool, dtype: str, arch: str) -> None:
    heads, width = sizes
    package = import_kernel(source_variant(bundled_folder() / "rotary", "cuda"))
    kernels = sys.modules[f"{package.__name__}.rotation_kernels"]
    group, half = kernels.tile(heads, width)
    resources = compile_kernel(
        kernels.rotary_kernel,
        {**dict.fromkeys(POINTERS, f"*{dtype}"), **dict.fromkeys(NUMBERS, "i32")},
        {"INTERLEAVED": interleaved, "INVERSE": False, "HEADS": group, "HALF": half},
        arch,
    )
    assert resources.spills == 0, resources
