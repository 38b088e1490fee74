// Activations of rows of floats, in place.
#pragma once

#include <cstdint>

#include "decay.h"
#include "gelu.h"

namespace {

inline float sigmoid(float x) { return 1.0f / Decay(x).plus_one(); }

inline float clamp_to_six(float x) {  // NaN stays
  const float above = x < 0.0f ? 0.0f : x;
  return above > 6.0f ? 6.0f : above;
}

enum Activation : int64_t { kNone, kRelu, kSilu, kGelu, kGeluTanh, kQuickGelu, kRelu6, kHardswish };

void activate(float* x, int64_t n, int64_t kind) {
  if (kind == kRelu) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) x[i] = x[i] < 0.0f ? 0.0f : x[i];
  } else if (kind == kSilu) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) x[i] /= Decay(x[i]).plus_one();
  } else if (kind == kGelu) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) x[i] *= normal_cdf(x[i], x[i] * x[i]);
  } else if (kind == kGeluTanh) {  // (1 + tanh(u)) / 2 is sigmoid(2 u); 2 sqrt(2/pi), and that * 0.044715
#pragma omp simd
    for (int64_t i = 0; i < n; ++i)
      x[i] /= Decay(x[i] * fused(x[i] * x[i], 0.0713548163f, 1.59576912f)).plus_one();
  } else if (kind == kQuickGelu) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) x[i] /= Decay(1.702f * x[i]).plus_one();
  } else if (kind == kRelu6) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) x[i] = clamp_to_six(x[i]);
  } else if (kind == kHardswish) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) x[i] = x[i] * clamp_to_six(x[i] + 3.0f) / 6.0f;
  }
}

}  // namespace
