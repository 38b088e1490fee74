// Masks of attention: of bool (1: seen) or of floats that are added to the scores, broadcast by strides of 0.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "attention.h"

namespace {

enum class MaskKind : int64_t { kNone, kBool, kFloat };

// The score, or -inf where `seen` is 0 and not 1; by bits, as compilers vectorise no choice by a byte.
inline float shown(float score, uint8_t seen) {
  const uint32_t keep = 0u - static_cast<uint32_t>(seen);
  return std::bit_cast<float>((std::bit_cast<uint32_t>(score) & keep) | (0xff800000u & ~keep));
}

// (batch, heads, queries, keys); strides in elements.
struct Mask {
  MaskKind kind;
  const void* data;
  const int64_t* stride;

  // Changes the scaled scores of one query with keys j .. j + count.
  void operator()(int64_t b, int64_t h, int64_t i, int64_t j, int64_t count, float* scores) const {
    if (kind == MaskKind::kNone) return;
    const int64_t first = b * stride[0] + h * stride[1] + i * stride[2] + j * stride[3], step = stride[3];
    if (kind == MaskKind::kBool) {
      const uint8_t* const seen = static_cast<const uint8_t*>(data) + first;
      if (step == 1) {
#pragma omp simd
        for (int64_t x = 0; x < count; ++x) scores[x] = shown(scores[x], seen[x]);
      } else {
        for (int64_t x = 0; x < count; ++x) scores[x] = shown(scores[x], seen[x * step]);
      }
    } else {
      const float* const added = static_cast<const float*>(data) + first;
      if (step == 1) {
#pragma omp simd
        for (int64_t x = 0; x < count; ++x) scores[x] += added[x];
      } else {
        for (int64_t x = 0; x < count; ++x) scores[x] += added[x * step];
      }
    }
  }
};

// What each query sees of a mask of bool, looked at once for what it is broadcast along; of others nothing is known.
// The shape's reaches refer to the result. plain: whether scores that need no mask need nothing else either.
inline std::vector<kh::Reach> reaches_of(const Mask& mask, kh::AttentionShape& shape, bool plain) {
  if (mask.kind != MaskKind::kBool) return {};
  const int64_t* const stride = mask.stride;
  const int64_t keys = shape.lk;
  kh::Reaches& reaches = shape.reaches;
  int64_t sizes[] = {shape.batch, shape.heads, shape.lq}, count = 1;
  for (int dim = 2; dim >= 0; --dim) {
    if (stride[dim] == 0) sizes[dim] = 1;
    reaches.stride[dim] = stride[dim] == 0 ? 0 : count;
    count *= sizes[dim];
  }
  std::vector<kh::Reach> found(static_cast<size_t>(count));
  const uint8_t* const data = static_cast<const uint8_t*>(mask.data);
  kh::find_reaches(sizes[0], sizes[1], sizes[2], keys, found.data(), [=](int64_t b, int64_t h, int64_t i) {
    const uint8_t* const seen = data + b * stride[0] + h * stride[1] + i * stride[2];
    if (stride[3] == 1) return kh::reach_of(keys, [=](int64_t key) { return seen[key]; });
    return kh::reach_of(keys, [=](int64_t key) { return seen[key * stride[3]]; });
  });
  reaches.of = found.data();
  reaches.plain = plain;
  return found;
}

}  // namespace
