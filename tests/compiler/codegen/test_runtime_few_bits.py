"""The runtime's products with weights of few bits, on every instruction set, against sums in float64."""

from __future__ import annotations

import numpy as np
import pytest

from tests.combinations import all_but
from tests.compiler.codegen.runtime_harness import arguments, build, needs_compiler, targets

SOURCE = """
#include "linked_few_bits.cpp"

template <class S>
static void run(int64_t m, int64_t n, int64_t k, int64_t block, int64_t bits, int64_t kind, const float* a,
                const uint8_t* w, const S* scales, const uint8_t* zeros, const S* floats, float* c, kh::Kept as) {
  const int64_t blocks = kh::ceil_div(k, block), bytes = block * bits / 8;
  const int64_t w_strides[] = {blocks * bytes, bytes, 1}, strides[] = {blocks, 1};
  kh::Workspace words, scale, zero;
  kh::FewBits weight{k, n, block, bits, as, kh::Kept::kNone, nullptr, nullptr, nullptr};
  float* to = words.floats(kh::words_size(k, n, bits));
  kh::pack_words(k, n, block, bits, w, w_strides, to);
  weight.words = to;
  to = scale.floats(kh::scales_size<S>(blocks, n));
  kh::pack_scales(blocks, n, scales, strides, to);
  weight.scales = to;
  if (kind == 1) {
    weight.zeros_as = kh::kZerosKeptAs<uint8_t>;
    to = zero.floats(kh::zeros_size<uint8_t>(blocks, n));
    kh::pack_zeros(blocks, n, bits, zeros, strides, to);
  } else if (kind == 2) {
    weight.zeros_as = kh::kZerosKeptAs<S>;
    to = zero.floats(kh::zeros_size<S>(blocks, n));
    kh::pack_zeros(blocks, n, bits, floats, strides, to);
  }
  weight.zeros = to;
  const auto keep = [=](int64_t, int64_t i, int64_t j, int64_t count, const float* acc) {
    std::memcpy(c + i * n + j, acc, count * sizeof(float));
  };
  kh::multiply_few_bits(m, weight, a, k, 1, keep);
}
#define RUN(name, S)                                                                                                    \\
  extern "C" void name(int64_t m, int64_t n, int64_t k, int64_t block, int64_t bits, int64_t kind, const float* a,     \\
                       const uint8_t* w, const S* scales, const uint8_t* zeros, const S* floats, float* c) {            \\
    run(m, n, k, block, bits, kind, a, w, scales, zeros, floats, c, kh::kKeptAs<S>);                                    \\
  }
RUN(of_float32, float)
RUN(of_float16, kh::f16)
RUN(of_bfloat16, kh::bf16)
extern "C" void set_threads(int64_t count) { omp_set_num_threads(count); }
"""

pytestmark = needs_compiler


@pytest.fixture(scope="module", params=all_but(targets(), *targets()[1:-1]))
def library(request, tmp_path_factory):
    return build(tmp_path_factory.mktemp("few_bits"), "few_bits", SOURCE, request.param)


SHAPES = [(1, 1, 5, 32), (2, 65, 64, 16), (3, 17, 200, 32), (4, 130, 33, 32), (7, 64, 640, 128), (9, 100, 301, 32),
          (40, 150, 800, 64)]  # fmt: skip


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("kind", [0, 1, 2])
def test_products_with_few_bits(library, bits, kind):
    import ml_dtypes

    random = np.random.default_rng(bits + kind)
    dtype = (np.float32, np.float16, ml_dtypes.bfloat16)[(bits // 2 + kind) % 3]
    for threads, (m, n, k, block) in enumerate(SHAPES):
        blocks, bytes_ = -(-k // block), block * bits // 8
        a = random.standard_normal((m, k), np.float32)
        w = random.integers(0, 256, (n, blocks, bytes_), np.uint8)  # what lies behind k counts for nothing
        scales = (random.random((n, blocks)) + 0.1).astype(dtype)
        zeros = random.integers(0, 1 << bits, (n, blocks), np.uint8)
        floats = (random.random((n, blocks)) * (1 << bits)).astype(dtype)
        found = np.full((m, n), np.nan, np.float32)
        library.set_threads(*arguments(1 + threads % 3))
        function = getattr(library, f"of_{np.dtype(dtype).name}")
        function(*arguments(m, n, k, block, bits, kind, a, w, scales, zeros, floats, found))
        shifts = np.arange(0, 8, bits)
        numbers = ((w[..., None] >> shifts) & ((1 << bits) - 1)).reshape(n, blocks, block).astype(np.float64)
        offsets = (np.full((n, blocks), 1 << (bits - 1)), zeros, floats)[kind].astype(np.float64)
        wide = ((numbers - offsets[..., None]) * scales.astype(np.float64)[..., None]).reshape(n, -1)[:, :k]
        size = np.abs(a.astype(np.float64)) @ np.abs(wide).T
        assert (np.abs(found - a.astype(np.float64) @ wide.T) <= 4e-6 * size + 1e-30).all(), (m, n, k, block)
