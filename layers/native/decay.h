// e^-x for x sigmoid(x) and its kin, for loops that vectorise.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "gelu.h"

namespace {

inline float of_bits(int32_t i) { float x; std::memcpy(&x, &i, sizeof x); return x; }

// min(max(x, low), high), low < 0 < high. As integers, non-negative floats are in order; negative ones lie
// below them when signed, above them and in reverse order when unsigned. A NaN becomes one of the bounds:
// callers multiply by x again, which brings the NaN back.
inline float clamp(float x, float low, float high) {
  const uint32_t above =
      std::min(static_cast<uint32_t>(ordered_bits_of(x)), static_cast<uint32_t>(ordered_bits_of(low)));
  return of_bits(std::min(static_cast<int32_t>(above), ordered_bits_of(high)));
}

constexpr float LOG2E = 1.44269502f, LN2 = 0.693147182f;
// 1.5 * 2^23 + 127: adding it to a small t leaves round(t) + 127 in the low bits, the exponent field of 2^round(t).
constexpr float ROUNDER = 12583039.0f;

// e^-x = polynomial * scale, with |relative error| <= 2 ulp + |x| / 40 ulp (ln 2 is not split in two parts).
// scale is 2^-126 or so from x = 87.3 on, and inf from x = -88.4 down, so that x / (1 + e^-x) becomes -0.
// The degree-5 minimax polynomial on [-ln2/2, ln2/2] is 1 at 0 and errs by 9.2e-8.
struct Decay {
  float polynomial, scale;

  explicit Decay(float x) {
    x = clamp(x, -88.8f, 87.3f);
    const float shifted = fused(x, -LOG2E, ROUNDER);
    const float f = fused(shifted - ROUNDER, LN2, x);
    float p = fused(f, -8.29022937e-3f, 4.18983884e-2f);
    p = fused(p, f, -0.166676402f);
    p = fused(p, f, 0.499991447f);
    p = fused(p, f, -0.999999702f);
    polynomial = fused(p, f, 1.0f);
    scale = of_bits(static_cast<int32_t>(static_cast<uint32_t>(ordered_bits_of(shifted)) << 23));
  }
  float plus_one() const { return fused(polynomial, scale, 1.0f); }
  float value() const { return polynomial * scale; }
};

}  // namespace
