// Products of a few rows with weights as PyTorch has them, (out, in): every element is the dot product of two rows, so
// nothing is packed or transposed. A tile of 4 operands and 6 rows of weights keeps 24 sums in registers and multiplies
// each loaded vector 4 or 6 times. Sums are float32.
//
// The rows of a tile lie far apart, so that each of six places is read on and on, from one tile to the next: of rows
// that follow one another, short as they are, the processor fetches little ahead (half of the speed from memory at 512
// bfloat16 a row).
#pragma once

#include <cstdint>
#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "activations.h"
#include "element_types.h"

namespace {

constexpr int64_t kParallelWork = 32768;  // multiplications that repay waking the threads
constexpr int64_t kOperands = 4, kRows = 6;  // of a tile
constexpr int64_t kColumns = 96;             // of a task, at most

// ---------------------------------------------------------------------------- dot products

// A Lane<W> multiplies vectors of weights W with vectors of operands X, `step` elements at a time.
#if defined(__AVX512F__) && defined(__AVX512BW__)
inline float total(__m512 v) { return _mm512_reduce_add_ps(v); }
struct Wide {
  using Vector = __m512;
  using Operand = float;
  static constexpr int64_t step = 16;
  static Vector zero() { return _mm512_setzero_ps(); }
  static __m512 operand(const float* p) { return _mm512_loadu_ps(p); }
  static Vector add(Vector sum, __m512 a, __m512 b) { return _mm512_fmadd_ps(a, b, sum); }
};
template <class W> struct Lane;
template <> struct Lane<float> : Wide {
  static __m512 weight(const float* p) { return _mm512_loadu_ps(p); }
  static void keep(__m512& loaded) { __asm__("" : "+v"(loaded)); }
};
template <> struct Lane<f16> : Wide {
  static __m512 weight(const f16* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
};
#if defined(__AVX512BF16__)
template <> struct Lane<bf16> {
  using Vector = __m512;
  using Operand = bf16;
  static constexpr int64_t step = 32;
  static Vector zero() { return _mm512_setzero_ps(); }
  static __m512bh operand(const bf16* p) { return (__m512bh)_mm512_loadu_si512(p); }
  static __m512bh weight(const bf16* p) { return (__m512bh)_mm512_loadu_si512(p); }
  static Vector add(Vector sum, __m512bh a, __m512bh b) { return _mm512_dpbf16_ps(sum, a, b); }
};
#else
template <> struct Lane<bf16> : Wide {
  static __m512 weight(const bf16* p) {
    const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
  }
};
#endif
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
inline float total(__m256 v) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}
struct Wide {
  using Vector = __m256;
  using Operand = float;
  static constexpr int64_t step = 8;
  static Vector zero() { return _mm256_setzero_ps(); }
  static __m256 operand(const float* p) { return _mm256_loadu_ps(p); }
  static Vector add(Vector sum, __m256 a, __m256 b) { return _mm256_fmadd_ps(a, b, sum); }
};
template <class W> struct Lane;
template <> struct Lane<float> : Wide {
  static __m256 weight(const float* p) { return _mm256_loadu_ps(p); }
};
template <> struct Lane<f16> : Wide {
  static __m256 weight(const f16* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
};
template <> struct Lane<bf16> : Wide {
  static __m256 weight(const bf16* p) {
    const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
  }
};
#elif defined(__aarch64__)
inline float total(float32x4_t v) { return vaddvq_f32(v); }
struct Wide {
  using Vector = float32x4_t;
  using Operand = float;
  static constexpr int64_t step = 4;
  static Vector zero() { return vdupq_n_f32(0.0f); }
  static float32x4_t operand(const float* p) { return vld1q_f32(p); }
  static Vector add(Vector sum, float32x4_t a, float32x4_t b) { return vfmaq_f32(sum, a, b); }
};
template <class W> struct Lane;
template <> struct Lane<float> : Wide {
  static float32x4_t weight(const float* p) { return vld1q_f32(p); }
};
template <> struct Lane<f16> : Wide {
  static float32x4_t weight(const f16* p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p))));
  }
};
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
template <> struct Lane<bf16> {
  using Vector = float32x4_t;
  using Operand = bf16;
  static constexpr int64_t step = 8;
  static Vector zero() { return vdupq_n_f32(0.0f); }
  static bfloat16x8_t operand(const bf16* p) {
    return vreinterpretq_bf16_u16(vld1q_u16(reinterpret_cast<const uint16_t*>(p)));
  }
  static bfloat16x8_t weight(const bf16* p) { return operand(p); }
  static Vector add(Vector sum, bfloat16x8_t a, bfloat16x8_t b) { return vbfdotq_f32(sum, a, b); }
};
#else
template <> struct Lane<bf16> : Wide {
  static float32x4_t weight(const bf16* p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p)), 16));
  }
};
#endif
#else
inline float total(float v) { return v; }
template <class W> struct Lane {
  using Vector = float;
  using Operand = float;
  static constexpr int64_t step = 1;
  static Vector zero() { return 0; }
  static float operand(const float* p) { return *p; }
  static float weight(const W* p) { return load(*p); }
  static Vector add(Vector sum, float a, float b) { return sum + a * b; }
};
#endif

template <class W> using OperandOf = typename Lane<W>::Operand;

// out[t * stride + r * gap] = x[t] · w[r] for M operands and N rows of weights of length n.
template <class W, int M, int N>
__attribute__((noinline)) void tile(const OperandOf<W>* const* x, const W* const* w, int64_t n, float* out, int64_t stride,
                                    int64_t gap) {
  using L = Lane<W>;
  typename L::Vector sums[M][N];
  for (int t = 0; t < M; ++t)
    for (int r = 0; r < N; ++r) sums[t][r] = L::zero();
  const int64_t whole = n - n % L::step;
  for (int64_t k = 0; k < whole; k += L::step) {
    for (int r = 0; r < N; ++r) {
      auto weight = L::weight(w[r] + k);
      // Else compilers load it anew for each operand; of a single one it stays an operand of the instruction in memory.
      if constexpr (M > 1 && requires { L::keep(weight); }) L::keep(weight);
      for (int t = 0; t < M; ++t) sums[t][r] = L::add(sums[t][r], L::operand(x[t] + k), weight);
    }
  }
  for (int t = 0; t < M; ++t)
    for (int r = 0; r < N; ++r) {
      float value = total(sums[t][r]);
      for (int64_t k = whole; k < n; ++k) value += load(x[t][k]) * load(w[r][k]);
      out[t * stride + r * gap] = value;
    }
}

// out (count, columns) = x w^T, for up to kOperands operands and a block of consecutive rows of weights.
template <class W>
inline void product(const OperandOf<W>* const* x, int64_t count, const W* w, int64_t columns, int64_t n, float* out,
                    int64_t stride) {
  const W* at[kRows];
  const int64_t gap = columns / kRows;
  for (int64_t c = 0; c < gap; ++c) {
    for (int64_t r = 0; r < kRows; ++r) at[r] = w + (c + r * gap) * n;
    switch (count) {
      case 1: tile<W, 1, kRows>(x, at, n, out + c, stride, gap); break;
      case 2: tile<W, 2, kRows>(x, at, n, out + c, stride, gap); break;
      case 3: tile<W, 3, kRows>(x, at, n, out + c, stride, gap); break;
      default: tile<W, kOperands, kRows>(x, at, n, out + c, stride, gap); break;
    }
  }
  for (int64_t c = gap * kRows; c < columns; ++c) {
    at[0] = w + c * n;
    for (int64_t t = 0; t < count; ++t) tile<W, 1, 1>(x + t, at, n, out + t * stride + c, stride, 0);
  }
}

}  // namespace
