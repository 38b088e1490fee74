"""The Triton kernels of `layers/normalization` compile for every architecture, and keep to its registers."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.combinations import every_value
from tests.layers.triton_compile import ARCHITECTURES, compile_kernel

DTYPES = ("bf16", "fp32")
INTEGERS = ("rows", "width", "x_stride", "residual_stride", "gate_stride")
FLOATS = ("eps", "offset")
STATISTICS = ("mean", "rstd", "dweight", "dbias")

# Arguments that a kind of normalization leaves out.
RMS_NORM = {"bias": None, "mean": None, "dbias": None}
WITHOUT_RESIDUAL = {"residual": None, "total": None, "residual_stride": 0, "grad_total": None}
KINDS = {
    "rms_norm": {**RMS_NORM, **WITHOUT_RESIDUAL, "CENTERED": False, "ROUND_FIRST": True},
    "add_rms_norm": {**RMS_NORM, "CENTERED": False, "ROUND_FIRST": True},
    "add_layer_norm": {"CENTERED": True, "ROUND_FIRST": False},
}


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    package = import_kernel(source_variant(bundled_folder() / "normalization", "cuda"))
    return sys.modules[f"{package.__name__}.kernels"]


def spills(kernel: object, dtype: str, constants: dict[str, object], arch: str, warps: int) -> int:
    """Compile with the constants that the kernel has arguments for."""
    names: list[str] = kernel.arg_names  # type: ignore[attr-defined]
    constexprs = {name: value for name, value in constants.items() if name in names}
    signature = {}
    for name in names:
        if name not in constexprs:
            plain = "i32" if name in INTEGERS else "fp32" if name in FLOATS else None
            signature[name] = plain or ("*fp32" if name in STATISTICS else f"*{dtype}")
    wide = [name for name in INTEGERS if name in signature]
    return compile_kernel(kernel, signature, constexprs, arch, num_warps=warps, divisible_by_16=wide).spills


@every_value(kind=KINDS, dtype=DTYPES, arch=ARCHITECTURES)
def test_norm(kernels, kind, dtype, arch):
    for width in (64, 2048, kernels.FORWARD_WIDTH):
        tile = kernels.forward_tile(width)
        constants = {**KINDS[kind], "ROWS": tile.rows, "WIDTH": tile.width}
        assert spills(kernels.norm_forward_tile, dtype, constants, arch, tile.warps) == 0, width
    for width in (64, 2048, kernels.BACKWARD_WIDTH):
        tile = kernels.backward_tile(width)
        constants = {**KINDS[kind], "ROWS": tile.rows, "WIDTH": tile.width}
        assert spills(kernels.norm_backward_tile, dtype, constants, arch, tile.warps) == 0, width


@every_value(dtype=DTYPES, arch=ARCHITECTURES)
def test_long_rows(kernels, dtype, arch):
    for kind in ("rms_norm", "add_layer_norm"):
        constants = {**KINDS[kind], "BLOCK": kernels.LOOP_BLOCK}
        assert spills(kernels.norm_forward_looped, dtype, constants, arch, kernels.LOOP_WARPS) == 0
        assert spills(kernels.norm_backward_looped, dtype, constants, arch, kernels.LOOP_WARPS) == 0
        constants = {**KINDS[kind], "ROWS": kernels.COLUMN_ROWS, "COLUMNS": kernels.COLUMNS}
        assert spills(kernels.norm_backward_columns, dtype, constants, arch, kernels.COLUMN_WARPS) == 0


@every_value(gate_first=(False, True), dtype=DTYPES, arch=ARCHITECTURES)
def test_gated(kernels, gate_first, dtype, arch):
    rounded = {"SIGMOID": False, "GATE_FIRST": gate_first, "ROUND_FIRST": True, "ROUND_PRODUCT": True}
    for width in (128, kernels.GATED_WIDTH):
        tile = kernels.gated_tile(width)
        constants = {**rounded, "ROWS": tile.rows, "WIDTH": tile.width}
        assert spills(kernels.gated_forward_tile, dtype, constants, arch, tile.warps) == 0, width
    for width in (128, kernels.GATED_BACKWARD_WIDTH):
        tile = kernels.backward_tile(width, gated=True)
        constants = {**rounded, "ROWS": tile.rows, "WIDTH": tile.width}
        assert spills(kernels.gated_backward_tile, dtype, constants, arch, tile.warps) == 0, width
