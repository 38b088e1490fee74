// Products of float16 with a right operand that stays what it is: a vector of it is widened where it is multiplied. So
// packed weights take as much memory as the weights, and a few rows half the time. Everything else is as in gemm.h.
#pragma once

#include "gemm.h"
#include "types.h"

KH_NAMESPACE {

#if defined(__x86_64__) && (defined(__AVX512F__) || (defined(__AVX2__) && defined(__F16C__)))
inline constexpr bool kHasHalves = true;
struct Halves : Floats {
  static constexpr bool kHalved = true;
  // Of so many float16 from an address on.
  KH_INLINE static vfloat right(const float* b, int64_t at) {
    return load(reinterpret_cast<const f16*>(b) + at);
  }
};
#else
inline constexpr bool kHasHalves = false;
using Halves = Floats;
#endif

struct HalvesMatrix : Matrix<f16> {
  using Elements = Halves;
};

// Floats that pack_halves() writes half of.
inline int64_t halves_size(int64_t k, int64_t n) { return ceil_div(packed_size(k, n), 2); }

// As pack(): panels of kPanel columns, each k-major, of float16.
inline void pack_halves(const f16* b, int64_t k, int64_t n, int64_t stride_k, int64_t stride_n, float* packed) {
  char* const memory = reinterpret_cast<char*>(packed);
  parallel(ceil_div(n, kPanel), std::max<int64_t>(1, 32768 / (k * kPanel + 1)), [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t j = panel * kPanel, columns = std::min(kPanel, n - j), width = panel_width(n, j);
      const f16* const from = b + j * stride_n;
      char* to = memory + 2 * j * k;
      for (int64_t i = 0; i < k; ++i, to += 2 * width) {
        uint16_t row[kPanel] = {};
        for (int64_t x = 0; x < columns; ++x) row[x] = from[i * stride_k + x * stride_n].bits;
        std::memcpy(to, row, 2 * width);
      }
    }
  });
}

}  // namespace kh
