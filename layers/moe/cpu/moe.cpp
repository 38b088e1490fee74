// Gated experts, and the router's softmax and top-k, on the CPU.
//
// Weights lie as PyTorch has them, (experts, out, in): every element of a product is the dot product of two
// rows, so nothing is packed or transposed. A tile of 4 tokens and 6 rows of weights keeps 24 sums in
// registers and multiplies each loaded vector 4 or 6 times. Tokens are sorted by expert first; then
//
//     1. h = activation(x gate^T) * (x up^T)     tasks: an expert and a block of columns
//     2. y = h down^T * routing weight
//     3. out = sum of a token's rows of y        one rounding, in the order of its experts' ranks
//
// run in one parallel region. Sums are float32; h is rounded to the type of x, as PyTorch rounds it.
//
// Every function takes one record of 8-byte fields (packed by Python's struct module, in this order).

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <omp.h>
#include <type_traits>
#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "element_types.h"

namespace {

constexpr int64_t kParallelWork = 32768, kTokens = 4, kRows = 6, kColumns = 48;

// exp(x): Cephes' polynomial after range reduction by ln 2 in two parts; at most 2 units in the last
// place where the result is normal, inf above 88.72, 0 below -104, NaN for NaN.
inline float exponential(float x) {
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  const float n = std::rint(x * 1.44269504088896341f);
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * r) * r + r + 1.0f;
  // 2^n in two factors: n reaches 128 and -150, beyond one exponent field.
  const int32_t exponent = static_cast<int32_t>(n), half = exponent >> 1;
  const float scale = float_of(static_cast<uint32_t>(half + 127) << 23);
  return p * scale * float_of(static_cast<uint32_t>(exponent - half + 127) << 23);
}

inline float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

enum Activation : int64_t { kNone, kRelu, kSilu, kGelu, kGeluTanh, kQuickGelu };

void activate(float* x, int64_t n, int64_t kind) {
  if (kind == kRelu) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) x[i] = x[i] < 0.0f ? 0.0f : x[i];
  } else if (kind == kSilu) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) x[i] = x[i] * sigmoid(x[i]);
  } else if (kind == kGelu) {
    for (int64_t i = 0; i < n; ++i) x[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.70710678118654752f));
  } else if (kind == kGeluTanh) {  // (1 + tanh(u)) / 2 is sigmoid(2 u)
#pragma omp simd
    for (int64_t i = 0; i < n; ++i)
      x[i] = x[i] * sigmoid(1.5957691216057308f * (x[i] + 0.044715f * x[i] * x[i] * x[i]));
  } else if (kind == kQuickGelu) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) x[i] = x[i] * sigmoid(1.702f * x[i]);
  }
}

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

// out[t * stride + r] = x[t] · w[r] for M operands and N rows of weights of length n.
template <class W, int M, int N>
__attribute__((noinline)) void tile(const OperandOf<W>* const* x, const W* const* w, int64_t n, float* out, int64_t stride) {
  using L = Lane<W>;
  typename L::Vector sums[M][N];
  for (int t = 0; t < M; ++t)
    for (int r = 0; r < N; ++r) sums[t][r] = L::zero();
  const int64_t whole = n - n % L::step;
  for (int64_t k = 0; k < whole; k += L::step) {
    for (int r = 0; r < N; ++r) {
      const auto weight = L::weight(w[r] + k);
      for (int t = 0; t < M; ++t) sums[t][r] = L::add(sums[t][r], L::operand(x[t] + k), weight);
    }
  }
  for (int t = 0; t < M; ++t)
    for (int r = 0; r < N; ++r) {
      float value = total(sums[t][r]);
      for (int64_t k = whole; k < n; ++k) value += load(x[t][k]) * load(w[r][k]);
      out[t * stride + r] = value;
    }
}

// out (count, columns) = x w^T, for up to kTokens operands and a block of consecutive rows of weights.
template <class W>
inline void product(const OperandOf<W>* const* x, int64_t count, const W* w, int64_t columns, int64_t n, float* out,
                    int64_t stride) {
  const W* at[kRows];
  int64_t c = 0;
  for (; c + kRows <= columns; c += kRows) {
    for (int64_t r = 0; r < kRows; ++r) at[r] = w + (c + r) * n;
    switch (count) {
      case 1: tile<W, 1, kRows>(x, at, n, out + c, stride); break;
      case 2: tile<W, 2, kRows>(x, at, n, out + c, stride); break;
      case 3: tile<W, 3, kRows>(x, at, n, out + c, stride); break;
      default: tile<W, kTokens, kRows>(x, at, n, out + c, stride); break;
    }
  }
  for (; c < columns; ++c) {
    at[0] = w + c * n;
    for (int64_t t = 0; t < count; ++t) tile<W, 1, 1>(x + t, at, n, out + t * stride + c, stride);
  }
}

// ---------------------------------------------------------------------------- experts

struct Experts {
  const void *x, *gate_up, *down;
  const int64_t* index;  // (tokens, picked)
  const void* weight;    // (tokens, picked), of weight_type
  void* out;
  int64_t tokens, picked, experts, width, inner, type, weight_type, activation;
};

inline float weight_at(const Experts& p, int64_t at) {
  if (p.weight_type == kFloat32) return static_cast<const float*>(p.weight)[at];
  if (p.weight_type == kBFloat16) return load(static_cast<const bf16*>(p.weight)[at]);
  return load(static_cast<const f16*>(p.weight)[at]);
}

template <class To, class From> To as(From value) { return store<To>(load(value)); }

template <class T> int64_t run_experts(const Experts& p) {
  using X = OperandOf<T>;
  const int64_t pairs = p.tokens * p.picked, width = p.width, inner = p.inner;
  // Where each expert's pairs begin; pairs (token, rank) in the order of their experts, tokens ascending.
  std::unique_ptr<int64_t[]> begin(new int64_t[p.experts + 2]()), order(new int64_t[pairs]), place(new int64_t[pairs]);
  for (int64_t i = 0; i < pairs; ++i) {
    if (p.index[i] < 0 || p.index[i] > p.experts) return i;
    ++begin[p.index[i] + 1];
  }
  for (int64_t e = 0; e <= p.experts; ++e) begin[e + 1] += begin[e];
  {
    std::unique_ptr<int64_t[]> next(new int64_t[p.experts + 1]);
    std::memcpy(next.get(), begin.get(), sizeof(int64_t) * static_cast<size_t>(p.experts + 1));
    for (int64_t i = 0; i < pairs; ++i) order[place[i] = next[p.index[i]]++] = i;
  }
  std::unique_ptr<X[]> hidden(new X[pairs * inner]), copy;
  std::unique_ptr<float[]> y(new float[pairs * width]);
  const X* x = static_cast<const X*>(p.x);
  if (!std::is_same<X, T>::value) {
    copy.reset(new X[p.tokens * width]);
    const T* from = static_cast<const T*>(p.x);
    for (int64_t i = 0; i < p.tokens * width; ++i) copy[i] = as<X>(from[i]);
    x = copy.get();
  }
  const T *gate_up = static_cast<const T*>(p.gate_up), *down = static_cast<const T*>(p.down);
  const int64_t inner_blocks = (inner + kColumns - 1) / kColumns, blocks = (width + kColumns - 1) / kColumns;
#pragma omp parallel if (pairs * width * inner > kParallelWork)
  {
    float gate[kTokens * kColumns], up[kTokens * kColumns];
    const X* at[kTokens];
#pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < p.experts * inner_blocks; ++task) {
      const int64_t e = task / inner_blocks, column = task % inner_blocks * kColumns;
      const int64_t columns = inner - column < kColumns ? inner - column : kColumns;
      const T* rows = gate_up + (e * 2 * inner + column) * width;
      for (int64_t first = begin[e]; first < begin[e + 1]; first += kTokens) {
        const int64_t count = begin[e + 1] - first < kTokens ? begin[e + 1] - first : kTokens;
        for (int64_t t = 0; t < count; ++t) at[t] = x + order[first + t] / p.picked * width;
        product<T>(at, count, rows, columns, width, gate, kColumns);
        product<T>(at, count, rows + inner * width, columns, width, up, kColumns);
        for (int64_t t = 0; t < count; ++t) {
          float *g = gate + t * kColumns, *u = up + t * kColumns;
          X* h = hidden.get() + (first + t) * inner + column;
          activate(g, columns, p.activation);
#pragma omp simd
          for (int64_t c = 0; c < columns; ++c) h[c] = store<X>(load(store<T>(g[c] * u[c])));
        }
      }
    }
#pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < p.experts * blocks; ++task) {
      const int64_t e = task / blocks, column = task % blocks * kColumns;
      const int64_t columns = width - column < kColumns ? width - column : kColumns;
      for (int64_t first = begin[e]; first < begin[e + 1]; first += kTokens) {
        const int64_t count = begin[e + 1] - first < kTokens ? begin[e + 1] - first : kTokens;
        for (int64_t t = 0; t < count; ++t) at[t] = hidden.get() + (first + t) * inner;
        product<T>(at, count, down + (e * width + column) * inner, columns, inner, y.get() + first * width + column,
                   width);
      }
    }
#pragma omp for schedule(static)
    for (int64_t token = 0; token < p.tokens; ++token) {
      T* out = static_cast<T*>(p.out) + token * width;
      for (int64_t column = 0; column < width; column += kColumns) {
        const int64_t columns = width - column < kColumns ? width - column : kColumns;
        float sum[kColumns] = {};
        for (int64_t rank = 0; rank < p.picked; ++rank) {
          const int64_t pair = token * p.picked + rank;
          if (p.index[pair] == p.experts) continue;  // nobody's: another rank of an expert-parallel model has it
          const float weight = weight_at(p, pair);
          const float* from = y.get() + place[pair] * width + column;
#pragma omp simd
          for (int64_t c = 0; c < columns; ++c) sum[c] += weight * from[c];
        }
#pragma omp simd
        for (int64_t c = 0; c < columns; ++c) out[column + c] = store<T>(sum[c]);
      }
    }
  }
  return -1;
}

// ---------------------------------------------------------------------------- router

struct Router {
  const void* logits;
  void* score;
  int64_t* index;
  int64_t tokens, experts, picked, type, score_type, renormalise;
};

template <class T, class S> void route(const Router& p) {
#pragma omp parallel if (p.tokens * p.experts > kParallelWork)
  {
    std::unique_ptr<float[]> scratch(new float[p.experts]);
    float* e = scratch.get();
#pragma omp for schedule(static)
    for (int64_t token = 0; token < p.tokens; ++token) {
      const T* x = static_cast<const T*>(p.logits) + token * p.experts;
      float most = load(x[0]), sum = 0;
      for (int64_t i = 1; i < p.experts; ++i) most = load(x[i]) > most ? load(x[i]) : most;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < p.experts; ++i) sum += e[i] = exponential(load(x[i]) - most);
      S* score = static_cast<S*>(p.score) + token * p.picked;
      int64_t* index = p.index + token * p.picked;
      float picked[64], share = 0;
      for (int64_t rank = 0; rank < p.picked; ++rank) {  // the first of equals; NaN before all, as torch.topk
        int64_t best = -1;
        for (int64_t i = 0; i < p.experts; ++i)
          if (e[i] != -1.0f && (best < 0 || e[i] > e[best] || (e[i] != e[i] && e[best] == e[best]))) best = i;
        picked[rank] = e[best] / sum;
        share += picked[rank];
        index[rank] = best;
        e[best] = -1.0f;
      }
      for (int64_t rank = 0; rank < p.picked; ++rank)
        score[rank] = store<S>(p.renormalise ? picked[rank] / share : picked[rank]);
    }
  }
}

template <class T> void route_as(const Router& p) {
  if (p.score_type == kFloat32) route<T, float>(p);
  else route<T, T>(p);
}

}  // namespace

extern "C" {

// The pair whose expert does not exist, or -1.
int64_t moe_experts(const void* record) {
  const Experts& p = *static_cast<const Experts*>(record);
  if (p.type == kFloat32) return run_experts<float>(p);
  return p.type == kBFloat16 ? run_experts<bf16>(p) : run_experts<f16>(p);
}

void moe_route(const void* record) {
  const Router& p = *static_cast<const Router*>(record);
  if (p.type == kFloat32) route_as<float>(p);
  else if (p.type == kBFloat16) route_as<bf16>(p);
  else route_as<f16>(p);
}

}  // extern "C"
