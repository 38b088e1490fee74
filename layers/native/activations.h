// Activations of rows of floats, in place.
#pragma once

#include <cstdint>

#include "exponential.h"
#include "gelu.h"

namespace {

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
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) x[i] *= normal_cdf(x[i], x[i] * x[i]);
  } else if (kind == kGeluTanh) {  // (1 + tanh(u)) / 2 is sigmoid(2 u)
#pragma omp simd
    for (int64_t i = 0; i < n; ++i)
      x[i] = x[i] * sigmoid(1.5957691216057308f * (x[i] + 0.044715f * x[i] * x[i] * x[i]));
  } else if (kind == kQuickGelu) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) x[i] = x[i] * sigmoid(1.702f * x[i]);
  }
}

}  // namespace
