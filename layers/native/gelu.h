// The normal distribution's Phi, which GELU multiplies by, for loops that vectorise.
//
// Clamps compare integers: compilers turn a float clamp into compare-and-blend, because of NaN and -0.0.
#pragma once

#include <cstdint>
#include <cstring>

namespace {

inline float fused(float a, float b, float c) {  // a * b + c
#if defined(__FP_FAST_FMAF) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

inline int32_t ordered_bits_of(float x) { int32_t i; std::memcpy(&i, &x, sizeof i); return i; }

inline float clamp_above(float x, float high) {  // x >= 0
  return ordered_bits_of(x) < ordered_bits_of(high) ? x : high;
}
inline float clamp_unit(float x) {
  const float above = ordered_bits_of(x) > 0 ? x : 0.0f;
  return ordered_bits_of(above) < ordered_bits_of(1.0f) ? above : 1.0f;
}

// Phi(x) = (1 + erf(x / sqrt 2)) / 2 = 1/2 + x P(x^2) / Q(x^2), of x and x^2; 0 from x = -5.3 down. The minimax P and Q
// (degrees 4 and 5, positive, so nothing cancels) err by 5.7e-8 on |x| <= 5.2. A division costs less here than the
// polynomial of degree 13 for erf. NaN becomes one of the bounds: callers multiply by x again, which brings it back.
inline float normal_cdf(float x, float square) {
  const float h = clamp_above(square, 27.04f);
  float p = fused(h, 5.84071495e-6f, 3.14268109e-4f);
  float q = fused(h, 5.01906754e-7f, 1.12742622e-4f);
  p = fused(p, h, 5.51876193e-3f);
  q = fused(q, h, 2.70377379e-3f);
  p = fused(p, h, 4.95938808e-2f);
  q = fused(q, h, 3.73400822e-2f);
  p = fused(p, h, 0.398941904f);
  q = fused(q, h, 0.2909742f);
  q = fused(q, h, 1.0f);
  return clamp_unit(0.5f + x * p / q);
}

}  // namespace
