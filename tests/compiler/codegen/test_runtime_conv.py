"""The runtime's convolution against torch's in float64: kernels, strides, padding, dilation, groups, layouts."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.codegen.runtime_harness import arguments, build, extremes, needs_compiler

pytestmark = needs_compiler

SHAPE = """
static kh::ConvShape shape(const int64_t* from) {
  kh::ConvShape result;
  std::memcpy(&result, from, sizeof result);
  return result;
}
"""
SOURCE = (
    '#include "conv.h"'
    + SHAPE
    + """
extern "C" {
int64_t conv_packed_size(const int64_t* s) { return kh::conv_packed_size(shape(s)); }
void conv_pack(const int64_t* s, const float* w, const int64_t* strides, float* packed) {
  kh::conv_pack(shape(s), w, strides, packed); }
void conv(const int64_t* s, const float* x, const int64_t* strides, const float* packed, float* y) {
  const int64_t o = s[2];
  kh::conv(shape(s), x, strides, packed, [=](int64_t i, int64_t j, int64_t count, const float* acc) {
    for (int64_t c = 0; c < count; ++c) y[i * o + j + c] += acc[c];
  });
}
void set_threads(int64_t n) { omp_set_num_threads(static_cast<int>(n)); }
}
"""
)


@pytest.fixture(scope="module", params=extremes())
def library(request, tmp_path_factory):
    return build(tmp_path_factory.mktemp("conv"), "conv", SOURCE, request.param)


def convolve(library, x, weight, stride, pads, dilation, groups):
    """y (n, od, oh, ow, o) of x (n, c, d, h, w), in any memory order, and the same from torch in float64."""
    n, c, *size = x.shape
    o, _, *kernel = weight.shape
    before, after = pads
    out = [
        (s + b + a - d * (k - 1) - 1) // t + 1
        for s, b, a, d, k, t in zip(size, before, after, dilation, kernel, stride, strict=True)
    ]
    shape = np.array([n, c, o, groups, *size, *kernel, *stride, *before, *dilation, *out], np.int64)
    library.conv_packed_size.restype = ctypes.c_int64
    packed = np.empty(library.conv_packed_size(*arguments(shape)), np.float32)
    # Never read: what stands where a dimension has one element.
    w_strides = np.array([s // 4 for s in weight.strides], np.int64)
    library.conv_pack(*arguments(shape, weight, w_strides, packed))
    x_strides = np.array([x.strides[i] // 4 for i in (0, 2, 3, 4, 1)], np.int64)
    y = np.zeros((n, *out, o), np.float32)
    library.conv(*arguments(shape, x, x_strides, packed, y))
    padding = [side for b, a in reversed(list(zip(before, after, strict=True))) for side in (b, a)]
    wide = torch.nn.functional.pad(torch.from_numpy(x).double(), padding)
    expected = torch.nn.functional.conv3d(
        wide, torch.from_numpy(weight).double(), None, tuple(stride), 0, tuple(dilation), groups
    )
    return y, expected.permute(0, 2, 3, 4, 1).numpy()


def assert_close(actual, expected, taps):
    """Errors as rounding makes them: inputs are standard normal."""
    assert actual.shape == expected.shape
    error = np.abs(actual - expected).max(initial=0.0)
    assert error <= 3e-6 + 4e-7 * taps, f"error {error:.3g}"


def tensor(random, shape, channels_last):
    if channels_last:
        n, c, *size = shape
        return np.moveaxis(random.standard_normal((n, *size, c), np.float32), -1, 1)
    return random.standard_normal(shape, np.float32)


# c, o, groups, size, kernel, stride, (before, after), dilation
ONE = (1, 1, 1)
NO_PAD = ((0, 0, 0), (0, 0, 0))
PAD_1, PAD_3 = ((0, 1, 1), (0, 1, 1)), ((0, 3, 3), (0, 3, 3))
CASES = {
    "first layer": (3, 64, 1, (1, 23, 21), (1, 7, 7), (1, 2, 2), PAD_3, ONE),
    "3x3": (32, 48, 1, (1, 14, 15), (1, 3, 3), ONE, PAD_1, ONE),
    "3x3 of many tiles": (64, 96, 1, (1, 31, 42), (1, 3, 3), ONE, PAD_1, ONE),
    "3x3 of one pixel": (48, 33, 1, (1, 1, 1), (1, 3, 3), ONE, PAD_1, ONE),
    "3x3 of few tiles": (512, 40, 1, (1, 7, 7), (1, 3, 3), ONE, PAD_1, ONE),
    "3x3 over planes": (32, 40, 1, (3, 6, 7), (1, 3, 3), ONE, ((0, 0, 2), (0, 2, 0)), ONE),
    "3x3 of odd channels": (19, 33, 1, (1, 9, 9), (1, 3, 3), ONE, PAD_1, ONE),
    "1x1": (40, 70, 1, (1, 7, 9), ONE, ONE, NO_PAD, ONE),
    "1x1 strided": (32, 40, 1, (1, 8, 9), ONE, (1, 2, 2), NO_PAD, ONE),
    "1x1 padded": (16, 16, 1, (1, 5, 5), ONE, ONE, ((0, 1, 0), (0, 1, 2)), ONE),
    "groups": (32, 64, 4, (1, 10, 10), (1, 3, 3), ONE, PAD_1, ONE),
    "groups of three": (9, 6, 3, (1, 8, 8), (1, 3, 3), (1, 2, 1), ((0, 1, 1), (0, 0, 2)), ONE),
    "groups of two": (70, 70, 35, (1, 9, 9), (1, 3, 3), ONE, PAD_1, ONE),
    "groups of four": (36, 36, 9, (1, 9, 10), (1, 3, 3), (1, 2, 1), PAD_1, ONE),
    "groups of eight": (48, 48, 6, (1, 7, 7), (1, 3, 3), ONE, PAD_1, ONE),
    "groups of sixteen": (160, 160, 10, (1, 6, 21), (1, 3, 3), ONE, PAD_1, ONE),
    "groups of few channels to many": (12, 200, 2, (1, 6, 21), (1, 3, 3), ONE, PAD_1, ONE),
    "few channels to many": (3, 200, 1, (1, 9, 40), (1, 3, 3), (1, 2, 2), PAD_1, ONE),
    "few channels, taps apart": (3, 20, 1, (1, 5, 40), (1, 3, 3), ONE, ((0, 0, 4), (0, 0, 4)), (1, 1, 3)),
    "grouped 1x1": (24, 36, 3, (1, 6, 6), ONE, ONE, NO_PAD, ONE),
    "depthwise": (37, 37, 37, (1, 12, 13), (1, 3, 3), ONE, PAD_1, ONE),
    "depthwise, wide, strided": (96, 96, 96, (1, 11, 11), (1, 5, 5), (1, 2, 2), ((0, 2, 2), (0, 1, 2)), ONE),
    "depthwise, a vector and a part, many lines": (136, 136, 136, (1, 9, 20), (1, 7, 7), ONE, PAD_3, ONE),
    "depthwise, one channel more than a group": (129, 129, 129, (1, 4, 9), (1, 3, 3), ONE, PAD_1, ONE),
    "depthwise, few channels": (8, 8, 8, (1, 6, 21), (1, 3, 3), ONE, ((0, 1, 0), (0, 1, 0)), ONE),
    "depthwise, atrous": (24, 24, 24, (1, 13, 14), (1, 3, 3), ONE, ((0, 4, 4), (0, 4, 4)), (1, 4, 4)),
    "depthwise of lines": (40, 40, 40, (1, 1, 50), (1, 1, 31), (1, 1, 3), ((0, 0, 15), (0, 0, 15)), ONE),
    "depthwise of volumes": (20, 20, 20, (4, 5, 6), (3, 3, 3), (1, 2, 2), ((1, 1, 1), (1, 1, 1)), ONE),
    "depthwise, padded beyond the taps": (17, 17, 17, (1, 2, 3), (1, 3, 3), ONE, ((0, 4, 5), (0, 2, 3)), ONE),
    "depthwise with multiplier": (8, 24, 8, (1, 6, 6), (1, 3, 3), ONE, PAD_1, ONE),
    "dilated": (16, 20, 1, (1, 15, 15), (1, 3, 3), ONE, ((0, 2, 4), (0, 2, 4)), (1, 2, 4)),
    "dilated, few channels": (3, 8, 1, (1, 15, 15), (1, 3, 3), ONE, ((0, 2, 2), (0, 2, 2)), (1, 2, 2)),
    "atrous, outer taps in the padding": (
        32,
        20,
        1,
        (1, 14, 14),
        (1, 3, 3),
        ONE,
        ((0, 24, 24),) * 2,
        (1, 24, 24),
    ),
    "atrous, few lines see outer taps": (
        64,
        40,
        1,
        (1, 14, 14),
        (1, 3, 3),
        ONE,
        ((0, 12, 12),) * 2,
        (1, 12, 12),
    ),
    "atrous, in passes": (512, 40, 1, (1, 14, 14), (1, 3, 3), ONE, ((0, 12, 12),) * 2, (1, 12, 12)),
    "atrous, strided": (16, 24, 1, (1, 20, 33), (1, 3, 3), (1, 2, 3), ((0, 9, 17),) * 2, (1, 9, 16)),
    "rows of padding alone": (16, 24, 1, (1, 6, 6), (1, 3, 3), (1, 2, 2), ((0, 30, 6),) * 2, (1, 3, 6)),
    "more taps than a set of them has": (16, 8, 1, (1, 9, 9), (1, 9, 9), ONE, ((0, 4, 4),) * 2, ONE),
    "one output channel": (33, 1, 1, (1, 9, 14), (1, 3, 3), ONE, ((0, 1, 1), (0, 1, 1)), ONE),
    "one output channel, dilated": (
        8,
        1,
        1,
        (1, 9, 14),
        (1, 5, 3),
        (1, 2, 1),
        ((0, 4, 3), (0, 1, 5)),
        (1, 2, 3),
    ),
    "one channel to one": (1, 1, 1, (1, 1, 300), (1, 1, 64), (1, 1, 3), ((0, 0, 31), (0, 0, 40)), ONE),
    "1x1 to one channel": (70, 1, 1, (1, 5, 6), ONE, ONE, ((0, 0, 0), (0, 0, 0)), ONE),
    "volumes to one channel": (5, 1, 1, (4, 5, 6), (3, 2, 3), ONE, ((1, 0, 1), (1, 1, 1)), ONE),
    "3d": (16, 20, 1, (6, 7, 8), (3, 3, 3), (2, 1, 2), ((1, 1, 0), (0, 1, 2)), (1, 1, 1)),
    "lines in pieces": (20, 24, 1, (1, 2, 150), (1, 2, 3), ONE, ((0, 0, 1), (0, 0, 1)), ONE),
    "1d": (12, 20, 1, (1, 1, 40), (1, 1, 5), ONE, ((0, 0, 4), (0, 0, 0)), ONE),
    "kernel larger than input": (4, 4, 1, (1, 2, 2), (1, 5, 5), ONE, ((0, 2, 2), (0, 2, 2)), ONE),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("channels_last", [True, False])
def test_kinds(library, case, channels_last):
    c, o, groups, size, kernel, stride, pads, dilation = CASES[case]
    random = np.random.default_rng(0)
    library.set_threads(*arguments(2))
    x = tensor(random, (2, c, *size), channels_last)
    weight = tensor(random, (o, c // groups, *kernel), not channels_last)
    actual, expected = convolve(library, x, weight, stride, pads, dilation, groups)
    assert_close(actual, expected, c // groups * np.prod(kernel))


@settings(max_examples=30, deadline=None)
@given(
    c=st.integers(2, 6),
    o=st.integers(32, 140),
    size=st.tuples(st.integers(1, 2), st.integers(1, 23), st.integers(1, 23)),
    before=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    after=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    images=st.integers(1, 3),
    threads=st.integers(1, 3),
)
def test_any_3x3_of_whole_lines(library, c, o, size, before, after, images, threads):
    if min(size[i + 1] + before[i] + after[i] for i in range(2)) < 3:
        return
    random = np.random.default_rng(c * o)
    library.set_threads(*arguments(threads))
    x = tensor(random, (images, 16 * c, *size), channels_last=o % 2 == 0)
    weight = random.standard_normal((o, 16 * c, 1, 3, 3), np.float32)
    actual, expected = convolve(library, x, weight, ONE, ((0, *before), (0, *after)), ONE, 1)
    assert_close(actual, expected, 9 * 16 * c)


def test_minimal_filtering_is_as_exact_as_a_direct_sum(library):
    """Its error in the norm is that of torch's own float32 convolution, or less."""
    random = np.random.default_rng(0)
    x, weight = tensor(random, (1, 128, 1, 28, 28), True), tensor(random, (64, 128, 1, 3, 3), False)
    actual, exact = convolve(library, x, weight, ONE, PAD_1, ONE, 1)
    direct = torch.nn.functional.conv2d(
        torch.from_numpy(x[:, :, 0]), torch.from_numpy(weight[:, :, 0]), padding=1
    )
    errors = [np.linalg.norm(one - exact[:, 0]) for one in (actual[:, 0], direct.permute(0, 2, 3, 1).numpy())]
    assert errors[0] < 1.5 * errors[1]


def test_what_is_not_finite_stays_in_its_tiles(library):
    random = np.random.default_rng(0)
    x, weight = tensor(random, (1, 32, 1, 12, 12), True), tensor(random, (32, 32, 1, 3, 3), False)
    x[0, 3, 0, 5, 6] = np.inf
    actual, exact = convolve(library, x, weight, ONE, PAD_1, ONE, 1)
    seen = ~np.isfinite(exact[0, 0]).all(-1)
    assert (~np.isfinite(actual[0, 0]).all(-1))[seen].all(), "what sees an infinity has no finite sum"
    far = np.ones((12, 12), bool)
    far[4:8, 4:8] = False  # the tiles that hold what sees it
    assert np.isfinite(actual[0, 0][far]).all()


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_convolution(library, data):
    draw = data.draw
    groups = draw(st.sampled_from([1, 1, 2, 5]))
    c, o = (draw(st.integers(1, 20)) * groups for _ in range(2))
    if draw(st.booleans()) and groups > 1:
        c = o = groups
    kernel = [draw(st.integers(1, 4)) for _ in range(3)]
    dilation, stride = ([draw(st.integers(1, 3)) for _ in range(3)] for _ in range(2))
    before, after = ([draw(st.integers(0, 3)) for _ in range(3)] for _ in range(2))
    size = [
        draw(st.integers(max(1, d * (k - 1) + 1 - b - a), 9))
        for d, k, b, a in zip(dilation, kernel, before, after, strict=True)
    ]
    random = np.random.default_rng(draw(st.integers(0, 99)))
    library.set_threads(*arguments(draw(st.integers(1, 2))))
    x = tensor(random, (draw(st.integers(1, 3)), c, *size), draw(st.booleans()))
    weight = random.standard_normal((o, c // groups, *kernel), np.float32)
    actual, expected = convolve(library, x, weight, stride, (before, after), dilation, groups)
    assert_close(actual, expected, c // groups * np.prod(kernel))


def test_a_slice_of_channels_and_pixels(library):
    random = np.random.default_rng(1)
    base = random.standard_normal((2, 1, 12, 14, 64), np.float32)
    x = np.moveaxis(base[:, :, 1:-1, ::2, 8:40], -1, 1)
    weight = random.standard_normal((24, 32, 1, 1, 1), np.float32)
    zero = NO_PAD
    assert_close(*convolve(library, x, weight, ONE, zero, ONE, 1), 32)
    weight = random.standard_normal((24, 32, 1, 3, 3), np.float32)
    assert_close(*convolve(library, x, weight, ONE, PAD_1, ONE, 1), 288)
    few = np.moveaxis(random.standard_normal((2, 1, 9, 40, 8), np.float32)[..., 2:5], -1, 1)
    weight = random.standard_normal((24, 3, 1, 3, 3), np.float32)
    assert_close(*convolve(library, few, weight, ONE, PAD_1, ONE, 1), 27)


def test_infinities_of_one_group_or_pixel_do_not_spread(library):
    random = np.random.default_rng(2)
    for groups in (1, 4, 8, 16):
        x = tensor(random, (1, 16, 1, 9, 9), True)
        x[0, 5, 0, 4, 4], x[0, 5, 0, 0, 0] = np.inf, np.nan
        weight = random.standard_normal((16, 16 // groups, 1, 3, 3), np.float32)
        actual, expected = convolve(library, x, weight, ONE, PAD_1, ONE, groups)
        finite = np.isfinite(expected)
        assert np.array_equal(np.isfinite(actual), finite)
        assert_close(np.where(finite, actual, 0), np.where(finite, expected, 0), 144)


def test_the_comparison_sees_errors():
    with pytest.raises(AssertionError, match="error"):
        assert_close(np.float32([1.0]), np.array([1.0001]), 9)
