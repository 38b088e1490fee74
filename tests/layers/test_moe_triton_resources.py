"""The kernels of mixtures of experts compile for every architecture without spilling registers."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel

pytest.importorskip("triton", reason="needs Triton (Linux)")

from tests.combinations import every_value
from tests.layers.triton_compile import ARCHITECTURES, compile_kernel

TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16}


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    package = import_kernel(source_variant(bundled_folder() / "moe", "cuda"))
    return sys.modules[f"{package.__name__}.kernels"]


@every_value(of=[(16, False), (4096, True)], dtype=["fp32", "bf16"], arch=ARCHITECTURES)
def test_product(kernels: ModuleType, of: tuple[int, bool], dtype: str, arch: str) -> None:
    rows, transposed = of
    blocks = kernels.blocks_for(rows, 8, TORCH[dtype], arch.startswith("gfx"))
    strides = {"stride_a": "i32", "stride_we": "i32", "stride_wk" if transposed else "stride_wn": "i32"}
    resources = compile_kernel(
        kernels.grouped_product_kernel,
        {
            **dict.fromkeys(("a_ptr", "w_ptr", "y_ptr"), f"*{dtype}"),
            **dict.fromkeys(("expert_ptr", "start_ptr"), "*i32"),
            "end_ptr": "*i64",
            "N": "i32",
            "K": "i32",
            **strides,
        },
        {
            "stride_wn" if transposed else "stride_wk": 1,
            "EXPERTS": 8,
            "PRECISION": "ieee",
            "UPCAST": False,
            "BLOCK_M": blocks.m,
            "BLOCK_N": blocks.n,
            "BLOCK_K": blocks.k,
        },
        arch,
        blocks.warps,
        blocks.stages,
        divisible_by_16=("N", "K", *strides),
    )
    assert resources.spills == 0, resources


@every_value(dtype=["fp32", "bf16"], arch=ARCHITECTURES)
def test_outer_product(kernels: ModuleType, dtype: str, arch: str) -> None:
    narrow = dtype == "bf16"
    resources = compile_kernel(
        kernels.grouped_outer_kernel,
        {
            **dict.fromkeys(("a_ptr", "b_ptr", "out_ptr"), f"*{dtype}"),
            "end_ptr": "*i64",
            **dict.fromkeys(("N", "K", "stride_a", "stride_b"), "i32"),
        },
        {
            "PRECISION": "ieee",
            "UPCAST": False,
            "BLOCK_N": 64,
            "BLOCK_K": 64,
            "BLOCK_P": 32 if narrow else 16,
        },
        arch,
        4 if narrow else 8,
        2,
        divisible_by_16=("N", "K", "stride_a", "stride_b"),
    )
    assert resources.spills == 0, resources


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(("experts", "k"), [(8, 2), (256, 8)])
def test_router(kernels: ModuleType, arch: str, experts: int, k: int) -> None:
    resources = compile_kernel(
        kernels.top_k_softmax_kernel,
        {"logits_ptr": "*bf16", "score_ptr": "*bf16", "index_ptr": "*i64", "experts": "i32", "stride": "i32"},
        {"K": k, "RENORMALISE": True, "BLOCK": experts},
        arch,
        max(1, min(8, experts // 256)),
    )
    assert resources.spills == 0, resources
