"""The deviceless compiler finds what it is there to find."""

from __future__ import annotations

import pytest
import triton
import triton.language as tl

from tests.combinations import all_but
from tests.layers.triton_compile import ARCHITECTURES, compile_kernel


@triton.jit
def copy_kernel(x, y, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(y + offsets, tl.load(x + offsets, mask=mask), mask=mask)


@triton.jit
def hoarding_kernel(x, y, BLOCK: tl.constexpr):
    """Needs every loaded value again after a reduction over all of them."""
    offsets = tl.arange(0, BLOCK)
    values = tl.load(x + offsets).to(tl.float32)
    tl.store(y + offsets, values / tl.sum(tl.exp(values), axis=0))


SIGNATURE = {"x": "*fp32", "y": "*fp32"}


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_small_kernel_does_not_spill(arch):
    resources = compile_kernel(copy_kernel, {**SIGNATURE, "n": "i32"}, {"BLOCK": 1024}, arch)
    assert resources.spills == 0
    assert resources.stack == 0
    assert 0 < resources.registers <= 64


@pytest.mark.parametrize("arch", all_but(ARCHITECTURES, "sm_90", "sm_100", "gfx942"))
def test_a_kernel_that_holds_too_much_is_found(arch):
    # 512 floats a thread, one wave each: NVIDIA gives a thread 255 registers, CDNA3 512 of both kinds.
    block = {"gfx942": 32768}.get(arch, 16384)
    resources = compile_kernel(hoarding_kernel, SIGNATURE, {"BLOCK": block}, arch, num_warps=1)
    assert resources.spills > 0
    assert resources.stack > 0


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_shared_memory_is_reported(arch):
    resources = compile_kernel(hoarding_kernel, SIGNATURE, {"BLOCK": 1024}, arch, num_warps=4)
    assert resources.spills == 0
    assert resources.shared > 0  # the reduction crosses warps


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="copy_kernel takes BLOCK, n, x, y; got BLOCK, x, y"):
        compile_kernel(copy_kernel, SIGNATURE, {"BLOCK": 1024}, "sm_90")
    with pytest.raises(ValueError, match="unknown architecture 'sm_12'"):
        compile_kernel(copy_kernel, {**SIGNATURE, "n": "i32"}, {"BLOCK": 1024}, "sm_12")
    with pytest.raises(TypeError, match="not a compilable Triton kernel"):
        compile_kernel(len, {}, {}, "sm_90")
