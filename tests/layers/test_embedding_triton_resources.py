"""The gradient kernel of embeddings compiles for every architecture without spilling registers."""

from __future__ import annotations

import sys

import pytest

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel

pytest.importorskip("triton", reason="needs Triton (Linux)")

from tests.layers.triton_compile import ARCHITECTURES, compile_kernel


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_no_spills(arch: str, dtype: str) -> None:
    package = import_kernel(source_variant(bundled_folder() / "embedding", "cuda"))
    kernels = sys.modules[f"{package.__name__}.kernels"]
    types = dict.fromkeys(("grad_ptr", "table_ptr", "scale_ptr"), f"*{dtype}")
    types |= dict.fromkeys(("sorted_ptr", "places_ptr"), "*i64")
    types |= dict.fromkeys(("count", "width", "padding"), "i32")
    resources = compile_kernel(
        kernels.embedding_gradient_kernel, types, {"SCALED": True, "BLOCK": 1024}, arch
    )
    assert resources.spills == 0, resources
