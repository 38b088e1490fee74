"""The Triton kernels of `layers/activation` compile for every architecture, and keep to its registers."""

from __future__ import annotations

from types import ModuleType

import pytest

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.combinations import every_value
from tests.layers.triton_compile import ARCHITECTURES, compile_kernel

KERNELS = ("forward_kernel", "backward_kernel", "gated_forward_kernel", "gated_backward_kernel")
# One row of many elements, rows of a model's width, narrow rows; 2048 elements and 1024.
SIZES = ((1, 1 << 22), (4096, 11008), (300, 24))


@pytest.fixture(scope="module")
def package() -> ModuleType:
    return import_kernel(source_variant(bundled_folder() / "activation", "cuda"))


@every_value(name=KERNELS, dtype=("bf16", "fp32"), arch=ARCHITECTURES)
def test_no_spills(package, name, dtype, arch):
    kernels = package.functional.kernels
    kernel = getattr(kernels, name)
    for kind in range(4):
        for rows, columns in SIZES if kind == 1 and name == "gated_backward_kernel" else SIZES[:1]:
            block_rows, block_columns = kernels.tile_of(rows, columns)
            constexprs = {"KIND": kind, "BLOCK_ROWS": block_rows, "BLOCK_COLUMNS": block_columns}
            if rows == 1:
                constexprs["rows"] = 1
            signature = {
                argument: "i32"
                if argument in ("rows", "columns") or argument.endswith("_stride")
                else f"*{dtype}"
                for argument in kernel.arg_names
                if argument not in constexprs
            }
            integers = [argument for argument, type in signature.items() if type == "i32"]
            resources = compile_kernel(
                kernel, signature, constexprs, arch, num_warps=kernels.NUM_WARPS, divisible_by_16=integers
            )
            assert resources.spills == 0
            assert (
                resources.registers <= 128
            )  # four blocks of 128 threads on a processor of NVIDIA's, at the least
