// Pooling over up to three spatial dimensions, channels last, with a fused epilogue: maximum, sum, average.
//
// The window is that of the depthwise convolution with the same geometry (conv.h: ConvShape with o, groups = c),
// and so is the way: pointers to the taps of a few pixels, then vectors of channels; where a tap lies outside,
// the pointer is to a row of the neutral element.
#pragma once

#include <algorithm>
#include <cstdint>

#include "conv.h"
#include "vector_math.h"

KH_NAMESPACE {

enum class Pool {
  kMax,                    // NaN wins; -inf where the window has no element
  kSum,
  kAverage,                // over the elements that the window has
  kAverageIncludingPad,    // over what it has in the padded input
};

// The taps of dimension i, from output coordinate `at`, that lie in [-before, in + after).
inline int64_t taps_within(const ConvShape& shape, int i, int64_t at, int64_t before, int64_t after) {
  int64_t count = 0;
  for (int64_t t = 0; t < shape.kernel[i]; ++t) {
    const int64_t position = seen(shape, i, at, t);
    count += position >= -before && position < shape.in[i] + after;
  }
  return count;
}

template <Pool kind>
KH_INLINE vfloat pooled(vfloat acc, vfloat x) {
  if constexpr (kind == Pool::kMax) return (x > acc) | (x != x) ? x : acc;
  return acc + x;
}

// acc (kPixels, kPanel) = the taps of x together, for `count` channels (as in narrow_kernel).
template <Pool kind, int Vectors, class Address>
KH_INLINE void pool_kernel(int64_t taps, const Address& address, int64_t channel, int64_t count,
                           const float* divisor, float* acc) {
  constexpr float start = kind == Pool::kMax ? -kInfinity : 0.0f;
  if constexpr (Vectors > 0) {
    vfloat c[kPixels][Vectors];
    for (auto& row : c) std::fill_n(row, Vectors, splat(start));
    for (int64_t tap = 0; tap < taps; ++tap) {
      KH_UNROLL(4)
      for (int p = 0; p < kPixels; ++p) {
        KH_UNROLL(2)
        for (int v = 0; v < Vectors; ++v)
          c[p][v] = pooled<kind>(c[p][v], load(address(p, tap) + channel + v * kLanes));
      }
    }
    for (int p = 0; p < kPixels; ++p) {
      for (int v = 0; v < Vectors; ++v)
        store(acc + p * kPanel + v * kLanes, kind >= Pool::kAverage ? c[p][v] / divisor[p] : c[p][v]);
    }
  } else {
    for (int64_t p = 0; p < kPixels; ++p) {
      for (int64_t i = 0; i < count; ++i) {
        float sum = start;
        for (int64_t tap = 0; tap < taps; ++tap) {
          const float value = address(p, tap)[channel + i];
          sum = kind != Pool::kMax ? sum + value : value > sum || value != value ? value : sum;
        }
        acc[p * kPanel + i] = kind >= Pool::kAverage ? sum / divisor[p] : sum;
      }
    }
  }
}

// e(row, j, count, acc) as in conv(). `after`: the padding behind the input, which kAverageIncludingPad counts.
template <Pool kind, class Epilogue>
void pool(const ConvShape& shape, const int64_t after[3], const float* x, const int64_t x_strides[5],
          Epilogue&& e) {
  if (shape.rows() <= 0 || shape.c <= 0) return;
  const Pixels pixels = channels_last(shape, x, x_strides);
  const float neutral = kind == Pool::kMax ? -kInfinity : 0.0f;
  over_pixels(shape, pixels, neutral, [&](int64_t row, int64_t count, Place& place, Taps<>& taps) {
    alignas(64) float acc[kPixels * kPanel];
    float divisor[kPixels] = {1, 1, 1, 1};
    if constexpr (kind >= Pool::kAverage) {
      constexpr bool all = kind == Pool::kAverageIncludingPad;
      for (int64_t p = 0; p < count; ++p) {
        int64_t elements = 1;
        for (int i = 0; i < 3; ++i) {
          elements *= taps_within(shape, i, place.at[i] + (i == 2 ? p : 0), all ? shape.pad[i] : 0,
                                  all ? after[i] : 0);
        }
        divisor[p] = static_cast<float>(elements);
      }
    }
    taps.find(place, count, [&](const auto& address) {
      over_channels(shape.c, [&](int64_t j, int64_t wide, int64_t known, auto vectors) {
        pool_kernel<kind, vectors>(shape.taps(), address, j, wide, divisor, acc);
        finish(row, count, j + known, wide - known, kPanel, e, static_cast<const float*>(acc + known));
      });
    });
  });
}

}  // namespace kh
