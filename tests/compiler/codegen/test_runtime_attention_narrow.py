"""The runtime's attention of bfloat16 and float16 as they lie in memory, against softmax in float64."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.codegen.runtime_harness import arguments, build, extremes, needs_compiler

pytestmark = needs_compiler

SOURCE = """
#include "attention.h"
template <class T>
static bool attend(const int64_t* s, const T* q, const int64_t* qs, const T* k, const int64_t* ks, const T* v,
                   const int64_t* vs, float scale, const float* bias, float* out, const int64_t* os) {
  const kh::AttentionShape shape{s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7] != 0, s[8], true};
  if (!kh::attends<T>(shape, qs, ks, vs)) return false;
  kh::attention(shape, q, qs, k, ks, v, vs, scale,
                [=](int64_t b, int64_t h, int64_t i, int64_t j, int64_t count, float* scores) {
    const float* const row = bias + ((b * shape.heads + h) * shape.lq + i) * shape.lk + j;
    for (int64_t x = 0; x < count; ++x) scores[x] += row[x];
  }, out, os);
  return true;
}
extern "C" {
bool attend_bfloat16(const int64_t* s, const kh::bf16* q, const int64_t* qs, const kh::bf16* k, const int64_t* ks,
                     const kh::bf16* v, const int64_t* vs, float scale, const float* bias, float* out,
                     const int64_t* os) {
  return attend(s, q, qs, k, ks, v, vs, scale, bias, out, os);
}
bool attend_float16(const int64_t* s, const kh::f16* q, const int64_t* qs, const kh::f16* k, const int64_t* ks,
                    const kh::f16* v, const int64_t* vs, float scale, const float* bias, float* out,
                    const int64_t* os) {
  return attend(s, q, qs, k, ks, v, vs, scale, bias, out, os);
}
bool has_amx() { return kh::has_amx(); }
void set_threads(int64_t n) { omp_set_num_threads(static_cast<int>(n)); }
}
"""
BFLOAT16, FLOAT16 = torch.bfloat16, torch.float16


@pytest.fixture(scope="module", params=extremes())
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    found = build(tmp_path_factory.mktemp("attention"), "narrow", SOURCE, request.param)
    found.attend_bfloat16.restype = found.attend_float16.restype = found.has_amx.restype = ctypes.c_bool
    return found


def heads(b, h, length, width, dtype, order="bhld"):
    """Random numbers of that shape, with their dimensions in the given order in memory."""
    sizes = {"b": b, "h": h, "l": length, "d": width}
    memory = torch.randn([sizes[one] for one in order]).to(dtype)
    return memory.permute([order.index(one) for one in "bhld"])


def attend(library, q, k, v, *, causal=None, bias=None, scale=None):
    """(ours, or None where the runtime does not take these; in float64)."""
    b, count, lq, d = q.shape
    kv_heads, lk, dv = k.shape[1], k.shape[2], v.shape[3]
    scale = d**-0.5 if scale is None else scale
    bias = torch.zeros(b, count, lq, lk) if bias is None else bias
    shape = np.array([b, count, kv_heads, lq, lk, d, dv, causal is not None, causal or 0], np.int64)
    out = np.zeros((b, count, lq, dv), np.float32)
    steps = [np.array(x.stride(), np.int64) for x in (q, k, v)]
    operands = [
        one for x, step in zip((q, k, v), steps, strict=True)
        for one in (ctypes.c_void_p(x.data_ptr()), *arguments(step))
    ]  # fmt: skip
    own = library.attend_bfloat16 if q.dtype is BFLOAT16 else library.attend_float16
    taken = own(
        *arguments(shape), *operands,
        *arguments(float(scale), bias.numpy(), out, np.array(out.strides, np.int64) // 4),
    )  # fmt: skip
    wide = [x.double().repeat_interleave(count // kv_heads, 1) for x in (k, v)]
    scores = q.double() @ wide[0].mT * scale + bias
    if causal is not None:
        visible = torch.arange(lk) <= torch.arange(lq)[:, None] + causal
        scores = scores.masked_fill(~visible, -torch.inf)
    expected = torch.softmax(scores, -1).nan_to_num() @ wide[1]
    return torch.from_numpy(out) if taken else None, expected


def assert_close(actual, expected, values, rounded):
    """rounded: weights are rounded to bfloat16 by half a step each, one way or the other, of values as large as these."""
    error = (actual - expected).abs().max().item()
    bound = values.abs().max().item() * (2**-9 if rounded else 2e-6)
    assert error <= bound, f"error {error:.3g}, at most {bound:.3g}"


# b, heads, kv_heads, lq, lk, d, dv, causal offset or None
CASES = [
    (2, 3, 3, 20, 20, 16, 16, None),
    (1, 2, 2, 128, 128, 64, 64, 0),
    (1, 2, 1, 100, 300, 40, 24, 200),
    (1, 4, 2, 30, 131, 34, 17, None),
    (1, 1, 1, 500, 129, 8, 70, None),
    (1, 1, 1, 470, 470, 32, 32, 0),
    (2, 6, 2, 7, 260, 80, 96, -3),
    (1, 2, 2, 5, 17, 2, 1, 0),
]
FEW = [
    (1, 4, 4, 1, 1, 5, 3, None),
    (2, 4, 4, 1, 200, 64, 64, None),
    (1, 4, 1, 1, 700, 48, 80, 699),
    (1, 1, 1, 2, 3000, 16, 100, 2998),
    (1, 1, 1, 4, 513, 30, 9, 509),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("order", ["bhld", "blhd"])
def test_shapes_on_amx(library, case, order):
    b, count, kv_heads, lq, lk, d, dv, causal = case
    torch.manual_seed(0)
    q, k = heads(b, count, lq, d, BFLOAT16, order), heads(b, kv_heads, lk, d, BFLOAT16, order)
    v = heads(b, kv_heads, lk, dv, BFLOAT16, order)
    for threads in (1, 2):
        library.set_threads(*arguments(threads))
        actual, expected = attend(library, q, k, v, causal=causal)
        assert (actual is not None) == library.has_amx()
        if actual is not None:
            assert_close(actual, expected, v, rounded=True)


@pytest.mark.parametrize("case", FEW, ids=str)
@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16], ids=str)
def test_few_queries(library, case, dtype):
    b, count, kv_heads, lq, lk, d, dv, causal = case
    torch.manual_seed(0)
    q, k = heads(b, count, lq, d, dtype), heads(b, kv_heads, lk, d, dtype, "blhd")
    v = heads(b, kv_heads, lk, dv, dtype, "blhd")
    library.set_threads(*arguments(2))
    actual, expected = attend(library, q, k, v, causal=causal)
    assert actual is not None
    assert_close(actual, expected, v, rounded=False)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_attention_of_bfloat16(library, data):
    draw = data.draw
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    b, lq, lk, half, dv = (draw(st.integers(1, most)) for most in (2, 80, 300, 40, 70))
    torch.manual_seed(draw(st.integers(0, 99)))
    library.set_threads(*arguments(draw(st.integers(1, 2))))
    q = heads(b, kv_heads * group, lq, 2 * half, BFLOAT16, draw(st.sampled_from(["bhld", "blhd"])))
    k, v = heads(b, kv_heads, lk, 2 * half, BFLOAT16), heads(b, kv_heads, lk, dv, BFLOAT16)
    bias = torch.randn(b, kv_heads * group, lq, lk)
    bias[torch.rand(bias.shape) < draw(st.sampled_from([0, 0.3, 0.98]))] = -torch.inf
    causal = draw(st.sampled_from([None, 0, lk - lq, 3]))
    actual, expected = attend(library, q, k, v, causal=causal, bias=bias)
    if actual is not None:
        assert_close(actual, expected, v, rounded=True)


def test_what_is_not_taken(library):
    """Keys and values whose elements are apart, and pairs that begin in the middle of a float."""
    plain = heads(1, 2, 40, 16, BFLOAT16)
    turned = heads(1, 2, 40, 16, BFLOAT16, "bhdl")
    odd, padded = heads(1, 2, 40, 15, BFLOAT16), heads(1, 2, 40, 17, BFLOAT16)[..., :16]
    for q, k, v in (
        (plain, turned, plain),
        (plain, plain, turned),
        (odd, odd, plain),
        (plain, padded, plain),
    ):
        assert attend(library, q, k, v)[0] is None
    few = heads(1, 2, 1, 16, FLOAT16)
    assert attend(library, few, heads(1, 2, 40, 16, FLOAT16, "bhdl"), heads(1, 2, 40, 16, FLOAT16))[0] is None
    assert attend(library, heads(1, 2, 40, 16, FLOAT16), *2 * (heads(1, 2, 40, 16, FLOAT16),))[0] is None


def test_the_comparison_sees_errors():
    with pytest.raises(AssertionError, match="error"):
        assert_close(torch.tensor([1.0]), torch.tensor([1.01]), torch.ones(1), rounded=True)
