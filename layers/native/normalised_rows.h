// Layer norms of rows, where a product copies the rows of its left operand or in place.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "gemm.h"

namespace {

inline float or_zero(const float* values, int64_t i) { return values == nullptr ? 0.0f : values[i]; }

// A layer norm of rows. weight, bias: (width), or null for ones and zeros.
struct Normalise {
  const float *weight, *bias;
  int64_t width;
  float eps;

  // to = the norm of a row. Pieces of kLine floats of the result lie `apart` floats from each other.
  void operator()(const float* from, float* to, int64_t apart) const {
    const float share = 1.0f / static_cast<float>(width);
    float sum = 0.0f, squares = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; ++i) sum += from[i];
    const float mean = sum * share;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < width; ++i) squares += (from[i] - mean) * (from[i] - mean);
    const float scale = 1.0f / std::sqrt(squares * share + eps);
    for (int64_t i = 0; i < width; i += kh::kLine, to += apart) {
      const int64_t count = std::min(kh::kLine, width - i);
#pragma omp simd
      for (int64_t l = 0; l < count; ++l)
        to[l] = (from[i + l] - mean) * scale * (weight == nullptr ? 1.0f : weight[i + l]) + or_zero(bias, i + l);
    }
  }
};

// Rows as a left operand, each normalised.
struct Normalised {
  using Elements = kh::Floats;
  const float* rows;
  Normalise normalise;

  void fill(int64_t first, int64_t count, int64_t, float* to) const {
    for (int64_t row = 0; row < count; ++row)
      normalise(rows + (first + row) * normalise.width, to + row * kh::kLine, count * kh::kLine);
  }
};

}  // namespace
