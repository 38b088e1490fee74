// Products of a few rows with weights that lie transposed, (in, out): rows of the weight are added up, each times an
// element of an operand, for a block of columns whose sums stay in registers. Sums are float32, of kDepth rows each.
//
// A few rows of the weight are taken for all blocks of a task's columns before the next ones, so that a page of the
// weight is read at once; the rows that come next, a row of the whole weight apart, are fetched ahead.
#pragma once

#include <cstdint>

#include "element_types.h"

namespace {

#if defined(__aarch64__)
constexpr int64_t kLanes = 16;  // columns whose sums are kept in registers: of four operands half of NEON's 32
#else
constexpr int64_t kLanes = 32;
#endif
constexpr int64_t kDepth = 32;  // rows of the weight that are taken together

template <class W, int64_t count>
__attribute__((noinline)) void column_block(const float* const* x, const W* w, int64_t row, int64_t begin, int64_t end,
                                            int64_t depth, float* out, int64_t stride) {
  float sums[count][kLanes] = {};
  const int64_t ahead = begin + 2 * kDepth <= depth ? kDepth * row : 0;
  for (int64_t k = begin; k < end; ++k) {
    const W* from = w + k * row;
    for (int64_t line = 0; line < kLanes * static_cast<int64_t>(sizeof(W)); line += 64)
      __builtin_prefetch(reinterpret_cast<const char*>(from + ahead) + line);
    float weights[kLanes];
#pragma omp simd
    for (int64_t c = 0; c < kLanes; ++c) weights[c] = load(from[c]);
    for (int64_t t = 0; t < count; ++t) {
      const float factor = x[t][k];
#pragma omp simd
      for (int64_t c = 0; c < kLanes; ++c) sums[t][c] += factor * weights[c];
    }
  }
  for (int64_t t = 0; t < count; ++t)
    for (int64_t c = 0; c < kLanes; ++c) out[t * stride + c] = begin == 0 ? sums[t][c] : out[t * stride + c] + sums[t][c];
}

// out[t * stride + c] = sum over k of x[t][k] w[k * row + c], for `count` operands, 1 to 4, and `columns` columns.
template <class W>
inline void column_product(const float* const* x, int64_t count, const W* w, int64_t row, int64_t columns, int64_t depth,
                           float* out, int64_t stride) {
  const int64_t whole = columns / kLanes * kLanes;
  for (int64_t begin = 0; begin < depth; begin += kDepth) {
    const int64_t end = begin + kDepth < depth ? begin + kDepth : depth;
    for (int64_t c = 0; c < whole; c += kLanes) {
      switch (count) {
        case 1: column_block<W, 1>(x, w + c, row, begin, end, depth, out + c, stride); break;
        case 2: column_block<W, 2>(x, w + c, row, begin, end, depth, out + c, stride); break;
        case 3: column_block<W, 3>(x, w + c, row, begin, end, depth, out + c, stride); break;
        default: column_block<W, 4>(x, w + c, row, begin, end, depth, out + c, stride); break;
      }
    }
  }
  for (int64_t c = whole; c < columns; ++c)
    for (int64_t t = 0; t < count; ++t) {
      float total = 0.0f;
      for (int64_t begin = 0; begin < depth; begin += kDepth) {
        float sum = 0.0f;
        for (int64_t k = begin; k < depth && k < begin + kDepth; ++k) sum += x[t][k] * load(w[k * row + c]);
        total += sum;
      }
      out[t * stride + c] = total;
    }
}

}  // namespace
