// A convolution of images in planes, and sums over its depth at neighbouring pixels: a vector is of pixels, an element
// of the weights is one number.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "gemm.h"
#include "simd.h"

KH_NAMESPACE {

struct PlaneShape {
  int64_t n, c, o, groups, height, width, rows, columns;            // of the input; of the kernel
  int64_t stride_h, stride_w, dilation_h, dilation_w, above, left;  // the last two: zeros before the input
  int64_t out_height, out_width;

  int64_t in_plane() const { return height * width; }
  int64_t out_plane() const { return out_height * out_width; }
  int64_t taps() const { return rows * columns; }
  int64_t channels() const { return c / groups; }
  int64_t filters() const { return o / groups; }
  int64_t depth() const { return channels() * taps(); }
  // 1 x 1, and a pixel for a pixel.
  bool is_pointwise() const { return taps() == 1 && stride_h == 1 && stride_w == 1 && above == 0 && left == 0; }
  bool is_depthwise() const { return channels() == 1 && filters() == 1; }
};

#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr int kMostRows = 7, kVectors = 4;  // 28 of 32 registers accumulate
#else
inline constexpr int kMostRows = 6, kVectors = 2;  // 12 of 16
#endif

// tile[r * apart + i] = [tile +] sum over k of a[r * stride + k] * x[offsets[k] + i]. Few sums are made in several
// chains, since a multiply-add waits for the one before it.
template <int Rows, int Vectors>
[[gnu::noinline]] void sums(int64_t depth, const float* a, int64_t stride, const int64_t* offsets, const float* x,
                            float* tile, int64_t apart, bool accumulate) {
  constexpr int kChains = Rows * Vectors >= 8 ? 1 : Rows * Vectors >= 4 ? 2 : 4;
  for (int64_t done = 0; done < depth;) {
    const int64_t end = std::min(depth, done + kChain);
    vfloat c[kChains][Rows][Vectors] = {};
    const auto add = [&](int64_t k, vfloat(&to)[Rows][Vectors]) __attribute__((always_inline)) {
      const float* const from = x + offsets[k];
      vfloat right[Vectors];
      KH_UNROLL(8)
      for (int v = 0; v < Vectors; ++v) right[v] = load(from + v * kLanes);
      KH_UNROLL(8)
      for (int r = 0; r < Rows; ++r) {
        const vfloat left = splat(a[r * stride + k]);
        KH_UNROLL(8)
        for (int v = 0; v < Vectors; ++v) to[r][v] += left * right[v];
      }
    };
    int64_t k = done;
    for (; k + kChains <= end; k += kChains) {
      KH_UNROLL(4)
      for (int chain = 0; chain < kChains; ++chain) add(k + chain, c[chain]);
    }
    for (; k < end; ++k) add(k, c[0]);
    KH_UNROLL(8)
    for (int r = 0; r < Rows; ++r) {
      KH_UNROLL(8)
      for (int v = 0; v < Vectors; ++v) {
        vfloat sum = c[0][r][v];
        KH_UNROLL(4)
        for (int chain = 1; chain < kChains; ++chain) sum += c[chain][r][v];
        float* const to = tile + r * apart + v * kLanes;
        store(to, accumulate ? load(to) + sum : sum);
      }
    }
    done = end, accumulate = true;
  }
}

using Sums = void (*)(int64_t, const float*, int64_t, const int64_t*, const float*, float*, int64_t, bool);
template <int Vectors, int... Rows>
constexpr std::array<Sums, sizeof...(Rows)> sums_of(std::integer_sequence<int, Rows...>) {
  return {&sums<Rows + 1, Vectors>...};
}
inline constexpr std::make_integer_sequence<int, kMostRows> kAllRows;
inline constexpr auto kWideSums = sums_of<kVectors>(kAllRows), kHalfSums = sums_of<kVectors / 2>(kAllRows),
               kNarrowSums = sums_of<1>(kAllRows);

// `rows` of sums at `count` places, rounded up to vectors.
inline void all_sums(int64_t rows, int64_t count, int64_t depth, const float* a, int64_t stride, const int64_t* offsets,
              const float* x, float* tile, int64_t apart, bool accumulate = false) {
  int64_t i = 0;
  if (rows == 1) {
    for (; count - i > kVectors * kLanes; i += 2 * kVectors * kLanes)
      sums<1, 2 * kVectors>(depth, a, stride, offsets, x + i, tile + i, apart, accumulate);
  }
  for (; count - i > kVectors / 2 * kLanes; i += kVectors * kLanes)
    kWideSums[rows - 1](depth, a, stride, offsets, x + i, tile + i, apart, accumulate);
  for (; kVectors > 2 && count - i > kLanes; i += kVectors / 2 * kLanes)
    kHalfSums[rows - 1](depth, a, stride, offsets, x + i, tile + i, apart, accumulate);
  for (; count - i > 0; i += kLanes)
    kNarrowSums[rows - 1](depth, a, stride, offsets, x + i, tile + i, apart, accumulate);
}

}  // namespace kh
