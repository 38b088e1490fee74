// Convolutions of bfloat16 on the instructions that multiply pairs, or tiles of them: those of conv.h, with pairs of
// neighbouring channels in the place of floats. Only their bits are copied, so that patches are made as those of floats.
#pragma once

#include "conv.h"
#include "gemm_amx.h"

KH_NAMESPACE {

// Whether a convolution of bfloat16 is one of pairs: not where it has a kernel of its own, such as Winograd's, which
// saves as many multiplications as pairs do, though fewer than tiles.
inline bool is_paired(const ConvShape& shape) {
  return has_pairs() && shape.c / shape.groups % 2 == 0 && shape.narrow() == 0 && (has_amx() || !is_winograd(shape));
}

inline ConvShape paired(ConvShape shape) {
  shape.c /= 2;
  return shape;
}

inline float pair_of(const bf16* first, int64_t step) {
  const uint16_t two[] = {first[0].bits, first[step].bits};
  float pair;
  std::memcpy(&pair, two, sizeof two);
  return pair;
}

// Floats that conv_pack_pairs() writes.
inline int64_t conv_pairs_packed_size(const ConvShape& shape) {
  return shape.groups * packed_size(paired(shape).depth(), shape.o / shape.groups);
}

// weight (o, c / groups, kd, kh, kw) with `strides` in that order.
inline void conv_pack_pairs(const ConvShape& shape, const bf16* weight, const int64_t strides[5], float* packed) {
  const ConvShape pairs = paired(shape);
  const int64_t channels = pairs.c / pairs.groups;
  pack_patches(pairs.groups, pairs.depth(), pairs.o / pairs.groups, packed, [&](int64_t i, int64_t o) {
    const int64_t tap = i / channels, w = tap % shape.kernel[2], h = tap / shape.kernel[2] % shape.kernel[1];
    const int64_t d = tap / (shape.kernel[2] * shape.kernel[1]);
    const bf16* const at = weight + o * strides[0] + d * strides[2] + h * strides[3] + w * strides[4];
    return pair_of(at + i % channels * 2 * strides[1], strides[1]);
  });
}

// x as pairs of adjacent channels: itself, or a copy that this thread keeps until its next one.
inline Pixels pairs_last(const ConvShape& shape, const bf16* x, const int64_t strides[5]) {
  const bool even = (strides[0] | strides[1] | strides[2] | strides[3]) % 2 == 0;
  if (strides[4] == 1 && even) {
    return {reinterpret_cast<const float*>(x), {strides[0] / 2, strides[1] / 2, strides[2] / 2, strides[3] / 2}};
  }
  const int64_t pairs = shape.c / 2, width = shape.in[2], lines = shape.n * shape.in[0] * shape.in[1];
  float* const copy = workspace<Use::kInput>().floats(lines * width * pairs);
  parallel(lines, std::max<int64_t>(1, 16384 / (width * pairs + 1)), [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) {
      const int64_t h = line % shape.in[1], d = line / shape.in[1] % shape.in[0];
      const bf16* const from =
          x + line / (shape.in[1] * shape.in[0]) * strides[0] + d * strides[1] + h * strides[2];
      float* const to = copy + line * width * pairs;
      for (int64_t w = 0; w < width; ++w) {
        for (int64_t i = 0; i < pairs; ++i)
          to[w * pairs + i] = pair_of(from + w * strides[3] + 2 * i * strides[4], strides[4]);
      }
    }
  });
  const int64_t h = width * pairs, d = h * shape.in[1];
  return {copy, {d * shape.in[0], d, h, pairs}};
}

// As conv(), of a convolution that is_paired().
template <class Epilogue>
void conv_pairs(const ConvShape& shape, const bf16* x, const int64_t x_strides[5], const float* packed, Epilogue&& e) {
  if (shape.rows() <= 0 || shape.o <= 0) return;
  const Pixels pixels = pairs_last(shape, x, x_strides);
  if (has_amx()) return conv_product<Amx>(paired(shape), pixels, packed, e);
  conv_product<Pairs>(paired(shape), pixels, packed, e);
}

}  // namespace kh
