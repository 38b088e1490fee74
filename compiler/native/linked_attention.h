// The attention of linked.h for any element; a source file instantiates those that it is for.
#pragma once

#include "linked.h"

#include "attention.h"

KH_NAMESPACE {

namespace {

// A tensor (batch, heads, length, width), from any strides, in float32 and row-major order; its strides.
template <class T>
void widen_heads(const T* from, const int64_t strides[4], const int64_t shape[4], float* to, int64_t to_strides[4]) {
  const int64_t rows = shape[0] * shape[1] * shape[2], width = shape[3];
  parallel(rows, std::max<int64_t>(1, 16384 / (width + 1)), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* const line = from + row / (shape[1] * shape[2]) * strides[0] +
                            row / shape[2] % shape[1] * strides[1] + row % shape[2] * strides[2];
      if (strides[3] == 1) {
        widen(line, width, to + row * width);
      } else {
        for (int64_t i = 0; i < width; ++i) to[row * width + i] = static_cast<float>(line[i * strides[3]]);
      }
    }
  });
  to_strides[3] = 1, to_strides[2] = width, to_strides[1] = shape[2] * width;
  to_strides[0] = shape[1] * to_strides[1];
}

template <class T>
void attend(const AttentionShape& shape, const T* q, const int64_t q_strides[4], const T* k,
            const int64_t k_strides[4], const T* v, const int64_t v_strides[4], float scale, Mask mask,
            const void* mask_state, float* out, const int64_t out_strides[4]) {
  const auto masked = [=](int64_t b, int64_t h, int64_t i, int64_t j, int64_t count, float* scores) {
    if (mask != nullptr) mask(mask_state, b, h, i, j, count, scores);
  };
  attention(shape, q, q_strides, k, k_strides, v, v_strides, scale, masked, out, out_strides);
}

}  // namespace

template <class T>
void attend_masked(const Attention& from, const T* q, const int64_t q_strides[4], const T* k,
                   const int64_t k_strides[4], const T* v, const int64_t v_strides[4], float scale, Mask mask,
                   const void* mask_state, float* out, const int64_t out_strides[4]) {
  const AttentionShape shape{from.batch, from.heads, from.kv_heads, from.lq, from.lk, from.d, from.dv,
                             from.causal, from.causal_offset, from.blank, nullptr, from.reaches, from.weights};
  if (attends<T>(shape, q_strides, k_strides, v_strides))
    return attend(shape, q, q_strides, k, k_strides, v, v_strides, scale, mask, mask_state, out, out_strides);
  if constexpr (!std::is_same_v<T, float>) {
    const int64_t shapes[3][4] = {{shape.batch, shape.heads, shape.lq, shape.d},
                                  {shape.batch, shape.kv_heads, shape.lk, shape.d},
                                  {shape.batch, shape.kv_heads, shape.lk, shape.dv}};
    int64_t starts[4] = {}, strides[3][4];
    for (int i = 0; i < 3; ++i)
      starts[i + 1] = starts[i] + round_up(shapes[i][0] * shapes[i][1] * shapes[i][2] * shapes[i][3], kLanes);
    float* const wide = workspace<Use::kInput>().floats(starts[3]);
    widen_heads(q, q_strides, shapes[0], wide, strides[0]);
    widen_heads(k, k_strides, shapes[1], wide + starts[1], strides[1]);
    widen_heads(v, v_strides, shapes[2], wide + starts[2], strides[2]);
    attend<float>(shape, wide, strides[0], wide + starts[1], strides[1], wide + starts[2], strides[2], scale, mask,
                  mask_state, out, out_strides);
  }
}

#define KH_ATTENTION(T)                                                                                          \
  template void attend_masked(const Attention&, const T*, const int64_t[4], const T*, const int64_t[4], const T*, \
                              const int64_t[4], float, Mask, const void*, float*, const int64_t[4]);

}  // namespace kh
