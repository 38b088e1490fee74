"""The runtime's pooling against torch's: windows, padding, layouts, NaN."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.codegen.runtime_harness import arguments, build, extremes, needs_compiler

pytestmark = needs_compiler

SOURCE = """
#include "pool.h"
template <kh::Pool kind>
static void run(const int64_t* s, const int64_t* after, const float* x, const int64_t* strides, float* y) {
  kh::ConvShape shape;
  std::memcpy(&shape, s, sizeof shape);
  kh::pool<kind>(shape, after, x, strides, [=](int64_t i, int64_t j, int64_t count, const float* acc) {
    for (int64_t c = 0; c < count; ++c) y[i * shape.c + j + c] += acc[c];
  });
}
#define KIND(name) extern "C" void pool_##name(const int64_t* s, const int64_t* after, const float* x, \\
  const int64_t* strides, float* y) { run<kh::Pool::name>(s, after, x, strides, y); }
KIND(kMax) KIND(kSum) KIND(kAverage) KIND(kAverageIncludingPad)
extern "C" void set_threads(int64_t n) { omp_set_num_threads(static_cast<int>(n)); }
"""


@pytest.fixture(scope="module", params=extremes())
def library(request, tmp_path_factory):
    return build(tmp_path_factory.mktemp("pool"), "pool", SOURCE, request.param)


def reference(kind, x, kernel, stride, before, after, dilation):
    """By unfolding a padded input: (n, c, od, oh, ow) in float64."""
    sides = [(0, 0), (0, 0), *zip(before, after, strict=True)]
    neutral = -np.inf if kind == "kMax" else 0.0
    wide = np.pad(x.astype(np.float64), sides, constant_values=neutral)
    real = np.pad(np.ones(x.shape), sides)
    counted = np.ones(wide.shape) if kind == "kAverageIncludingPad" else real
    for i, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True)):
        span = d * (k - 1) + 1
        unfold = [
            np.lib.stride_tricks.sliding_window_view(one, span, 2 + i).take(
                range(0, one.shape[2 + i] - span + 1, s), 2 + i
            )[..., ::d]
            for one in (wide, counted)
        ]
        wide = unfold[0].max(-1) if kind == "kMax" else unfold[0].sum(-1)
        counted = unfold[1].sum(-1)
    return wide / counted if kind.startswith("kAverage") else wide


def pool(library, kind, x, kernel, stride, before, after, dilation, threads=2):
    n, c, *size = x.shape
    out = [
        (s + b + a - d * (k - 1) - 1) // t + 1
        for s, b, a, d, k, t in zip(size, before, after, dilation, kernel, stride, strict=True)
    ]
    shape = np.array([n, c, c, c, *size, *kernel, *stride, *before, *dilation, *out], np.int64)
    strides = np.array([x.strides[i] // 4 for i in (0, 2, 3, 4, 1)], np.int64)
    y = np.zeros((n, *out, c), np.float32)
    library.set_threads(*arguments(threads))
    getattr(library, f"pool_{kind}")(*arguments(shape, np.array(after, np.int64), x, strides, y))
    return np.moveaxis(y, -1, 1)


KINDS = ["kMax", "kSum", "kAverage", "kAverageIncludingPad"]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_window(library, data):
    draw = data.draw
    kind = draw(st.sampled_from(KINDS))
    kernel = [draw(st.integers(1, 4)) for _ in range(3)]
    dilation, stride = ([draw(st.integers(1, 3)) for _ in range(3)] for _ in range(2))
    before, after = ([draw(st.integers(0, k - 1)) for k in kernel] for _ in range(2))
    size = [
        draw(st.integers(max(d * (k - 1) + 1 - b, b + 1 - b, (k - 1) * d - b + 1), 12))
        for d, k, b in zip(dilation, kernel, before, strict=True)
    ]
    random = np.random.default_rng(draw(st.integers(0, 99)))
    c = draw(st.sampled_from([1, 3, 16, 33, 70]))
    x = random.standard_normal((draw(st.integers(1, 2)), *size, c), np.float32)
    x = np.moveaxis(x, -1, 1) if draw(st.booleans()) else np.ascontiguousarray(np.moveaxis(x, -1, 1))
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = reference(kind, x, kernel, stride, before, after, dilation)
    actual = pool(library, kind, x, kernel, stride, before, after, dilation, draw(st.integers(1, 2)))
    if kind == "kMax":
        assert np.array_equal(actual, expected)
    else:
        assert np.allclose(actual, expected, rtol=0, atol=1e-5, equal_nan=True)


def test_is_what_torch_computes(library):
    x = np.random.default_rng(0).standard_normal((2, 40, 1, 13, 11), np.float32)
    x[1, 3, 0, 5, 5], x[0, 2, 0, 0, 0] = np.nan, -np.inf
    window = ((1, 3, 3), (1, 2, 2), (0, 1, 1), (0, 1, 1), (1, 1, 1))
    flat = torch.from_numpy(x[:, :, 0])
    expected = torch.nn.functional.max_pool2d(flat, 3, 2, 1).numpy()
    assert np.array_equal(pool(library, "kMax", x, *window)[:, :, 0], expected, equal_nan=True)
    for kind, include in (("kAverage", False), ("kAverageIncludingPad", True)):
        expected = torch.nn.functional.avg_pool2d(flat, 3, 2, 1, count_include_pad=include).numpy()
        actual = pool(library, kind, x, *window)[:, :, 0]
        assert np.allclose(actual, expected, atol=1e-6, equal_nan=True)


def test_a_window_that_sticks_out_counts_only_the_padded_input(library):
    x = np.ones((1, 16, 1, 1, 5), np.float32)
    flat = torch.from_numpy(x[:, :, 0, 0])
    expected = torch.nn.functional.avg_pool1d(flat, 3, 2, 1, ceil_mode=True).numpy()
    # ceil_mode: an output more than the padding has room for.
    shape = np.array(
        [1, 16, 16, 16, 1, 1, 5, 1, 1, 3, 1, 1, 2, 0, 0, 1, 1, 1, 1, 1, 1, expected.shape[-1]], np.int64
    )
    y = np.zeros((1, 1, 1, expected.shape[-1], 16), np.float32)
    strides = np.array([x.strides[i] // 4 for i in (0, 2, 3, 4, 1)], np.int64)
    library.pool_kAverageIncludingPad(*arguments(shape, np.array([0, 0, 1], np.int64), x, strides, y))
    assert np.allclose(np.moveaxis(y, -1, 1)[:, :, 0, 0], expected)
