"""The runtime's convolution of bfloat16 in pairs of channels, and on AMX, against torch's in float64."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.compiler.codegen.runtime_harness import arguments, build, needs_compiler, targets
from tests.compiler.codegen.test_runtime_conv import CASES, ONE, SHAPE, assert_close

SOURCE = (
    '#include "conv_pairs.h"'
    + SHAPE
    + """
extern "C" {
int64_t is_paired(const int64_t* s) { return kh::is_paired(shape(s)); }
int64_t conv_packed_size(const int64_t* s) { return kh::conv_pairs_packed_size(shape(s)); }
void conv_pack(const int64_t* s, const kh::bf16* w, const int64_t* strides, float* packed) {
  kh::conv_pack_pairs(shape(s), w, strides, packed); }
void conv(bool amx, const int64_t* s, const kh::bf16* x, const int64_t* strides, const float* packed, float* y) {
  const int64_t o = s[2];
  auto add = [=](int64_t i, int64_t j, int64_t count, const float* acc) {
    for (int64_t c = 0; c < count; ++c) y[i * o + j + c] += acc[c];
  };
  if (amx == kh::has_amx()) return kh::conv_pairs(shape(s), x, strides, packed, add);
  kh::conv_product<kh::Pairs>(kh::paired(shape(s)), kh::pairs_last(shape(s), x, strides), packed, add);
}
int64_t has_amx() { return kh::has_amx(); }
void set_threads(int64_t n) { omp_set_num_threads(static_cast<int>(n)); }
}
"""
)
CPUINFO = Path("/proc/cpuinfo")
HAS_PAIRS = CPUINFO.exists() and "avx512_bf16" in CPUINFO.read_text(encoding="utf-8")
pytestmark = [
    needs_compiler,
    pytest.mark.skipif(not HAS_PAIRS, reason="the processor has no instruction for pairs of bfloat16"),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    found = build(tmp_path_factory.mktemp("pairs"), "pairs", SOURCE, targets()[0])
    found.is_paired.restype = found.conv_packed_size.restype = found.has_amx.restype = ctypes.c_int64
    return found


@pytest.fixture(params=["pairs", "amx"])
def amx(request: pytest.FixtureRequest, library: ctypes.CDLL) -> bool:
    """Whether products are on AMX."""
    if request.param == "amx" and not library.has_amx():
        pytest.skip("needs a processor with AMX for bfloat16")
    return request.param == "amx"


def numbers(library, x, weight, stride, pads, dilation, groups):
    """The record of the convolution's sizes, and those of its result (n, od, oh, ow, o)."""
    (n, c, *size), (o, _, *kernel), (before, after) = x.shape, weight.shape, pads
    out = [
        (s + b + a - d * (k - 1) - 1) // t + 1
        for s, b, a, d, k, t in zip(size, before, after, dilation, kernel, stride, strict=True)
    ]
    record = np.array([n, c, o, groups, *size, *kernel, *stride, *before, *dilation, *out], np.int64)
    return record, (n, *out, o)


def convolve(library, amx, x, weight, stride, pads, dilation, groups):
    """As in test_runtime_conv, of tensors of bfloat16 (n, c, d, h, w) in any memory order."""
    shape, result = numbers(library, x, weight, stride, pads, dilation, groups)
    assert library.is_paired(*arguments(shape))
    packed = np.empty(library.conv_packed_size(*arguments(shape)), np.float32)
    w_strides = np.array(weight.stride(), np.int64)
    library.conv_pack(*arguments(shape), ctypes.c_void_p(weight.data_ptr()), *arguments(w_strides, packed))
    x_strides = np.array([x.stride(i) for i in (0, 2, 3, 4, 1)], np.int64)
    y = np.zeros(result, np.float32)
    library.conv(
        ctypes.c_bool(amx),
        *arguments(shape),
        ctypes.c_void_p(x.data_ptr()),
        *arguments(x_strides, packed, y),
    )
    padding = [side for b, a in reversed(list(zip(*pads, strict=True))) for side in (b, a)]
    wide = torch.nn.functional.pad(x.double(), padding)
    expected = torch.nn.functional.conv3d(
        wide, weight.double(), None, tuple(stride), 0, tuple(dilation), groups
    )
    return y, expected.permute(0, 2, 3, 4, 1).numpy()


def tensor(shape, channels_last):
    if channels_last:
        n, c, *size = shape
        return torch.randn(n, *size, c).bfloat16().movedim(-1, 1)
    return torch.randn(shape).bfloat16()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("channels_last", [True, False])
def test_kinds(library, amx, case, channels_last):
    c, o, groups, size, kernel, stride, pads, dilation = CASES[case]
    torch.manual_seed(0)
    library.set_threads(*arguments(2))
    x, weight = tensor((2, c, *size), channels_last), tensor((o, c // groups, *kernel), not channels_last)
    shape, _ = numbers(library, x, weight, stride, pads, dilation, groups)
    if not library.is_paired(*arguments(shape)):
        assert (
            c // groups % 2
            or ("3x3" in case and not library.has_amx())
            or "groups of" in case
            or "depthwise" in case
        )
        return
    actual, expected = convolve(library, amx, x, weight, stride, pads, dilation, groups)
    assert_close(actual, expected, c // groups * np.prod(kernel))


@pytest.mark.parametrize("first", [8, 9])
def test_a_slice_of_channels_and_pixels(library, amx, first):
    """Also one that begins in the middle of a pair, and lines of an odd number of elements."""
    torch.manual_seed(1)
    base = torch.randn(2, 1, 12, 14, 63).bfloat16()
    x = base[:, :, 1:-1, ::2, first : first + 32].movedim(-1, 1)
    weight = torch.randn(24, 32, 1, 1, 1).bfloat16()
    zero = ((0, 0, 0), (0, 0, 0))
    assert_close(*convolve(library, amx, x, weight, ONE, zero, ONE, 1), 32)
    even = torch.randn(2, 1, 12, 14, 64).bfloat16()[..., first : first + 32].movedim(-1, 1)
    assert_close(*convolve(library, amx, even, weight, (1, 2, 2), zero, ONE, 1), 32)
