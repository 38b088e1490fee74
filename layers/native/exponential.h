// exp for loops that vectorise.
#pragma once

#include <cmath>
#include <cstdint>

#include "element_types.h"

namespace {

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

}  // namespace
