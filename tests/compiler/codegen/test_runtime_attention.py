"""The runtime's attention against softmax in float64: lengths, grouped heads, causality, masks, layouts."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.codegen.runtime_harness import arguments, build, extremes, needs_compiler

pytestmark = needs_compiler

SOURCE = """
#include "attention.h"
#include <vector>
extern "C" {
// bias (batch, heads, lq, lk), or null
void attention(const int64_t* s, const float* q, const int64_t* qs, const float* k, const int64_t* ks,
               const float* v, const int64_t* vs, float scale, const float* bias, float* out, const int64_t* os) {
  const kh::AttentionShape shape{s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7] != 0, s[8]};
  if (bias == nullptr) return kh::attention(shape, q, qs, k, ks, v, vs, scale, kh::NoMask{}, out, os);
  kh::attention(shape, q, qs, k, ks, v, vs, scale,
                [=](int64_t b, int64_t h, int64_t i, int64_t j, int64_t count, float* scores) {
    const float* const row = bias + ((b * shape.heads + h) * shape.lq + i) * shape.lk + j;
    for (int64_t x = 0; x < count; ++x) scores[x] += row[x];
  }, out, os);
}
// seen (batch, queries, lk): a mask that is looked at before; `more` is added to what it shows
void attention_seen(const int64_t* s, const float* q, const int64_t* qs, const float* k, const int64_t* ks,
                    const float* v, const int64_t* vs, float scale, const bool* seen, float more, float* out,
                    const int64_t* os, int32_t* found) {
  kh::AttentionShape shape{s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7] != 0, s[8], true};
  const auto row = [=](int64_t b, int64_t i) { return seen + (b * shape.lq + i) * shape.lk; };
  std::vector<kh::Reach> reaches(shape.batch * shape.lq);
  kh::find_reaches(shape.batch, 1, shape.lq, shape.lk, reaches.data(), [=](int64_t b, int64_t, int64_t i) {
    return kh::reach_of(shape.lk, [=](int64_t key) { return row(b, i)[key]; });
  });
  for (const kh::Reach& one : reaches) *found++ = one.first, *found++ = one.last, *found++ = one.all;
  shape.reaches = {reaches.data(), {shape.lq, 0, 1}, more == 0.0f};
  kh::attention(shape, q, qs, k, ks, v, vs, scale,
                [=](int64_t b, int64_t, int64_t i, int64_t j, int64_t count, float* scores) {
    for (int64_t x = 0; x < count; ++x)
      scores[x] = row(b, i)[j + x] ? scores[x] + more * float((j + x) % 7) : -kh::kInfinity;
  }, out, os);
}
// weights: see Weights; where scores are the weights, they are under a sigmoid
void attention_weighed(const int64_t* s, const float* q, const int64_t* qs, const float* k, const int64_t* ks,
                       const float* v, const int64_t* vs, float scale, const float* bias, int64_t weights, float* out,
                       const int64_t* os) {
  kh::AttentionShape shape{s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7] != 0, s[8]};
  shape.weights = static_cast<kh::Weights>(weights);
  kh::attention(shape, q, qs, k, ks, v, vs, scale,
                [=](int64_t b, int64_t h, int64_t i, int64_t j, int64_t count, float* scores) {
    const float* const row = bias + ((b * shape.heads + h) * shape.lq + i) * shape.lk + j;
    for (int64_t x = 0; x < count; ++x) {
      scores[x] += row[x];
      if (shape.weights == kh::Weights::kScores) scores[x] = kh::sigmoid(scores[x]);
    }
  }, out, os);
}
void set_threads(int64_t n) { omp_set_num_threads(static_cast<int>(n)); }
}
"""


@pytest.fixture(scope="module", params=extremes())
def library(request, tmp_path_factory):
    return build(tmp_path_factory.mktemp("attention"), "attention", SOURCE, request.param)


def tensor(random, b, h, length, width, order="bhld"):
    """Random numbers of that shape, with their dimensions in the given order in memory."""
    sizes = {"b": b, "h": h, "l": length, "d": width}
    memory = random.standard_normal([sizes[one] for one in order], np.float32)
    return memory.transpose([order.index(one) for one in "bhld"])


def strides(x):
    return np.array([stride // 4 for stride in x.strides], np.int64)


def attend(library, q, k, v, *, causal=None, bias=None, scale=None, order="bhld"):
    """(ours, in float64)."""
    b, heads, lq, d = q.shape
    kv_heads, lk, dv = k.shape[1], k.shape[2], v.shape[3]
    scale = d**-0.5 if scale is None else scale
    out = tensor(np.random.default_rng(0), b, heads, lq, dv, order)
    shape = np.array([b, heads, kv_heads, lq, lk, d, dv, causal is not None, causal or 0], np.int64)
    more = ctypes.c_void_p() if bias is None else arguments(bias)[0]
    library.attention(
        *arguments(shape, q, strides(q), k, strides(k), v, strides(v), float(scale)),
        more,
        *arguments(out, strides(out)),
    )
    wide = [np.repeat(x.astype(np.float64), heads // kv_heads, axis=1) for x in (k, v)]
    with np.errstate(invalid="ignore"):
        scores = q.astype(np.float64) @ wide[0].swapaxes(2, 3) * np.float32(scale)
        scores = scores if bias is None else scores + bias
        if causal is not None:
            visible = np.arange(lk)[None] <= np.arange(lq)[:, None] + causal
            scores = np.where(visible, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        expected = weights / weights.sum(-1, keepdims=True) @ wide[1]
    return out, expected


def in_float64(q, k, v, scale, shown, more=0.0):
    """shown: (batch, heads, lq, lk), what is not -inf. A row that sees nothing gives 0."""
    wide = [np.repeat(x.astype(np.float64), q.shape[1] // k.shape[1], axis=1) for x in (k, v)]
    scores = q.astype(np.float64) @ wide[0].swapaxes(2, 3) * np.float32(scale) + more
    scores = np.where(shown, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(top), 0, top))
    return weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300) @ wide[1]


def assert_close(actual, expected, tolerance=4e-6):
    """Values are standard normal, and an output is an average of them."""
    assert actual.shape == expected.shape
    assert np.array_equal(np.isnan(actual), np.isnan(expected)), "NaN at other places"
    error = np.abs(actual - expected)[~np.isnan(expected)].max(initial=0.0)
    assert error <= tolerance, f"error {error:.3g}"


# b, heads, kv_heads, lq, lk, d, dv, causal offset or None
CASES = [
    (2, 3, 3, 20, 20, 16, 16, None),
    (1, 2, 2, 128, 128, 64, 64, 0),
    (1, 2, 1, 100, 300, 40, 24, 200),
    (1, 4, 2, 30, 130, 33, 17, None),
    (1, 1, 1, 500, 129, 8, 70, None),
    (1, 1, 1, 470, 470, 32, 32, 0),
    (2, 6, 2, 7, 260, 20, 32, -3),
    (1, 4, 4, 1, 1, 5, 3, None),
    (2, 4, 4, 1, 200, 64, 64, None),
    (1, 4, 1, 1, 700, 48, 80, 699),
    (1, 1, 1, 2, 3000, 16, 100, 2998),
    (1, 1, 1, 4, 513, 30, 9, 509),
    (1, 2, 2, 3, 40, 8, 8, None),
    (1, 2, 2, 5, 16, 1, 1, 0),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("order", ["bhld", "blhd", "bhdl"])
def test_shapes(library, case, order):
    b, heads, kv_heads, lq, lk, d, dv, causal = case
    random = np.random.default_rng(0)
    q = tensor(random, b, heads, lq, d, order)
    k, v = tensor(random, b, kv_heads, lk, d, order), tensor(random, b, kv_heads, lk, dv, order)
    for threads in (1, 2):
        library.set_threads(*arguments(threads))
        assert_close(*attend(library, q, k, v, causal=causal, order=order))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_attention(library, data):
    draw = data.draw
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    b, lq, lk, d, dv = (draw(st.integers(1, most)) for most in (2, 40, 300, 40, 40))
    lq = draw(st.sampled_from([1, 2, lq]))
    causal = draw(st.sampled_from([None, 0, lk - lq, 3]))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    order = draw(st.sampled_from(["bhld", "blhd"]))
    heads = kv_heads * group
    library.set_threads(*arguments(draw(st.integers(1, 2))))
    q = tensor(random, b, heads, lq, d, order)
    k, v = tensor(random, b, kv_heads, lk, d, order), tensor(random, b, kv_heads, lk, dv, order)
    bias = None
    if draw(st.booleans()):
        bias = random.standard_normal((b, heads, lq, lk), np.float32)
        bias[random.random(bias.shape) < draw(st.sampled_from([0, 0.3, 0.98]))] = -np.inf
    scale = draw(st.sampled_from([1.0, 0.125, 3.0]))
    # Scores of some tens: the error of a weight is that of its score, relative.
    assert_close(*attend(library, q, k, v, causal=causal, bias=bias, scale=scale, order=order), 1e-4)


@st.composite
def masks(draw, b, lq, lk):
    """(b, lq, lk): causal, windows, padding before or behind, anything, and all of these together."""
    random = np.random.default_rng(draw(st.integers(0, 99)))
    i, j = np.arange(lq)[:, None], np.arange(lk)
    seen = np.ones((b, lq, lk), bool)
    kinds = draw(st.sets(st.sampled_from(["causal", "window", "left", "right", "any", "nothing"])))
    shift = draw(st.integers(-5, max(lk - lq, 0) + 5))
    if "causal" in kinds:
        seen &= j <= i + shift
    if "window" in kinds:
        seen &= j > i + shift - draw(st.integers(1, 200))
    for side in kinds & {"left", "right"}:
        kept = random.integers(0, lk + 1, (b, 1, 1))
        seen &= (j >= kept) if side == "left" else (j < kept)
    if "any" in kinds:
        seen &= random.random(seen.shape) < draw(st.sampled_from([0.02, 0.9]))
    if "nothing" in kinds:
        seen &= random.random((b, lq, 1)) < 0.7
    return seen


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_what_a_mask_hides_is_not_looked_at(library, data):
    draw = data.draw
    kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    b, lk, d = (draw(st.integers(1, most)) for most in (2, 500, 20))
    lq = draw(st.sampled_from([1, 2, 31, 150]))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    library.set_threads(*arguments(draw(st.integers(1, 2))))
    q = tensor(random, b, kv_heads * group, lq, d)
    k, v = (tensor(random, b, kv_heads, lk, d) for _ in range(2))
    seen, causal = draw(masks(b, lq, lk)), draw(st.sampled_from([None, 0, lk - lq]))
    shown = seen[:, None] & (causal is None or np.arange(lk) <= np.arange(lq)[:, None] + (causal or 0))
    hidden = ~shown.any((1, 2))
    k[np.repeat(hidden[:, None], kv_heads, 1)] = np.nan  # whatever it is
    more = draw(st.sampled_from([0.0, 0.5]))
    out, found = np.empty_like(q), np.empty((b, lq, 3), np.int32)
    shape = np.array([b, kv_heads * group, kv_heads, lq, lk, d, d, causal is not None, causal or 0], np.int64)
    library.attention_seen(
        *arguments(
            shape, q, strides(q), k, strides(k), v, strides(v), d**-0.5, seen, more, out, strides(out), found
        )
    )
    for keys, (first, last, all_seen) in zip(seen.reshape(-1, lk), found.reshape(-1, 3), strict=True):
        places = np.flatnonzero(keys)
        assert (first, last) == ((places[0], places[-1] + 1) if places.size else (0, 0))
        assert all_seen == (places.size == last - first)
    k[np.isnan(k)] = 0
    expected = in_float64(q, k, v, d**-0.5, shown, more * (np.arange(lk) % 7))
    assert_close(out, expected, 1e-5)


@pytest.mark.parametrize("lq", [1, 40])
def test_rows_that_see_nothing_give_nan_and_no_other(library, lq):
    random = np.random.default_rng(1)
    q, k, v = (tensor(random, 1, 2, length, 32) for length in (lq, 300, 300))
    bias = np.zeros((1, 2, lq, 300), np.float32)
    bias[0, 1, lq // 2] = -np.inf  # nothing
    bias[0, 0, 0, :299] = -np.inf  # the last key alone
    actual, expected = attend(library, q, k, v, bias=bias)
    assert np.isnan(actual[0, 1, lq // 2]).all() and not np.isnan(actual[0, 0]).any()
    assert_close(actual, expected)
    bias[0, 1, lq // 2] = np.finfo(np.float32).min  # finite: a plain average
    actual, _ = attend(library, q, k, v, bias=bias)
    assert np.allclose(actual[0, 1, lq // 2], v[0, 1].mean(0), atol=1e-6)


@pytest.mark.parametrize("lq", [1, 40])
def test_nan_stays_in_its_row(library, lq):
    random = np.random.default_rng(2)
    q, k, v = (tensor(random, 1, 1, length, 16) for length in (lq, 200, 200))
    for nan in (np.float32(np.nan), np.uint32(0x7FC12345).view(np.float32)):
        q[0, 0, lq // 2, 3] = nan
        actual, expected = attend(library, q, k, v)
        assert np.isnan(actual[0, 0, lq // 2]).all()
        assert_close(actual, expected)
    q[0, 0, lq // 2, 3] = np.inf
    actual, _ = attend(library, q, k, v)
    assert np.isnan(actual[0, 0, lq // 2]).all()


@pytest.mark.parametrize("lq", [1, 40])
def test_large_scores_do_not_overflow(library, lq):
    random = np.random.default_rng(3)
    q, k, v = (tensor(random, 1, 1, length, 16) for length in (lq, 200, 200))
    actual, expected = attend(library, q * 100, k * 100, v)
    # One key wins nearly every row; where two come close, the error of scores of 1e5 shows.
    assert np.isfinite(actual).all()
    assert np.median(np.abs(actual - expected)) <= 1e-6


def test_the_comparison_sees_errors():
    with pytest.raises(AssertionError, match="error"):
        assert_close(np.float32([1.0]), np.array([1.0001]))
    with pytest.raises(AssertionError, match="NaN"):
        assert_close(np.float32([np.nan]), np.array([1.0]))


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_scores_as_weights_and_totals_of_rows(library, data):
    """Any lengths, none too; masks of -inf, whole rows of them, infinities and NaN."""
    draw = data.draw
    kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    b, lk, d, dv = (
        draw(st.integers(1, 2)),
        draw(st.integers(0, 300)),
        draw(st.integers(1, 40)),
        draw(st.integers(1, 40)),
    )
    lq = draw(st.sampled_from([1, 2, 31, 150]))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    order, heads = draw(st.sampled_from(["bhld", "blhd"])), kv_heads * group
    library.set_threads(*arguments(draw(st.integers(1, 2))))
    q = tensor(random, b, heads, lq, d, order)
    k, v = tensor(random, b, kv_heads, lk, d, order), tensor(random, b, kv_heads, lk, dv, order)
    bias = random.standard_normal((b, heads, lq, lk), np.float32)
    for special in draw(st.sets(st.sampled_from([-np.inf, np.inf, np.nan, -200.0]))):
        bias[random.random(bias.shape) < draw(st.sampled_from([0.003, 0.3, 0.99]))] = special
        bias[random.random((b, heads, lq)) < 0.1] = special
    totals = draw(st.booleans())
    out = np.full((b, heads, lq, 1 if totals else dv), 7, np.float32)
    shape = np.array([b, heads, kv_heads, lq, lk, d, 0 if totals else dv, 0, 0], np.int64)
    library.attention_weighed(
        *arguments(shape, q, strides(q), k, strides(k), v, strides(v), -0.5, bias, 2 if totals else 1),
        *arguments(out, strides(out)),
    )
    wide = [np.repeat(x.astype(np.float64), group, axis=1) for x in (k, v)]
    with np.errstate(all="ignore"):
        scores = q.astype(np.float64) @ wide[0].swapaxes(2, 3) * -0.5 + bias
        if totals:
            expected = np.logaddexp.reduce(scores, -1, keepdims=True, initial=-np.inf)
        else:
            expected = 1 / (1 + np.exp(-scores)) @ wide[1]
    finite = np.isfinite(expected)
    assert np.array_equal(out[~finite], expected[~finite], equal_nan=True)
    error = np.abs(out[finite] - expected[finite]) / np.maximum(1, np.abs(expected[finite]))
    assert error.max(initial=0) <= 1e-4
