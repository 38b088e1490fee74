// Products of bfloat16 on the instruction that multiplies pairs: sum += a[0] * b[0] + a[1] * b[1], in float32, of
// AVX-512's BF16 extension. Everything is as in gemm.h, with pairs of k in the place of floats.
#pragma once

#include "gemm.h"
#include "types.h"

KH_NAMESPACE {

#if defined(__AVX512F__) && defined(__x86_64__)
// Whether this processor has it: code for AVX-512 runs on some that do not.
inline bool has_pairs() {
  static const bool found = __builtin_cpu_supports("avx512bf16");
  return found;
}
struct Pairs : Floats {
  KH_INLINE static void add(vfloat& sum, const float& a, vfloat b) {
    asm("vdpbf16ps %1%{1to16%}, %2, %0" : "+v"(sum) : "m"(a), "v"(b));
  }
};
#else
inline bool has_pairs() { return false; }
using Pairs = Floats;
#endif

constexpr int64_t pairs_of(int64_t k) { return ceil_div(k, 2); }

// The left operand: the last pair of an odd k has a zero.
struct PairsMatrix {
  using Elements = Pairs;
  const bf16* data;
  int64_t stride_m, stride_k, depth;  // of bfloat16

  void fill(int64_t first, int64_t rows, int64_t pairs, float* to) const {
    for (int64_t row = 0; row < rows; ++row) {
      const bf16* const from = data + (first + row) * stride_m;
      float* const line = to + row * kLine;
      const auto at = [=](int64_t pair) { return line + pair / kLine * rows * kLine + pair % kLine; };
      int64_t pair = 0;
      if (stride_k == 1) {
        for (; 2 * (pair + kLine) <= depth; pair += kLine) std::memcpy(at(pair), from + 2 * pair, kLine * sizeof(float));
      }
      for (; pair < pairs; ++pair) {
        const uint16_t two[] = {from[2 * pair * stride_k].bits,
                                2 * pair + 1 < depth ? from[(2 * pair + 1) * stride_k].bits : uint16_t{0}};
        std::memcpy(at(pair), two, sizeof two);
      }
    }
  }
};

// As pack(): panels of kPanel columns, each a row of pairs after the other.
inline void pack_pairs(const bf16* b, int64_t k, int64_t n, int64_t stride_k, int64_t stride_n, float* packed) {
  const int64_t pairs = pairs_of(k);
  parallel(ceil_div(n, kPanel), std::max<int64_t>(1, 32768 / (k * kPanel + 1)), [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t j = panel * kPanel, columns = std::min(kPanel, n - j), width = panel_width(n, j);
      const bf16* const from = b + j * stride_n;
      auto* const to = reinterpret_cast<uint16_t*>(packed + j * pairs);
      for (int64_t i = 0; i < 2 * pairs; ++i) {
        for (int64_t x = 0; x < width; ++x) {
          const bool real = i < k && x < columns;
          to[(i / 2 * width + x) * 2 + i % 2] = real ? from[i * stride_k + x * stride_n].bits : uint16_t{0};
        }
      }
    }
  });
}

}  // namespace kh
