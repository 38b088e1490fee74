// Attention of float32 tensors on the CPU, and its gradients, on the memory of the tensors themselves.
//
// Strides are in elements, in the order (batch, heads, length, width); those of what is broadcast are 0.

#include "attention.h"

#include <bit>
#include <cstdint>
#include <vector>

#include "attention_gradients.h"

namespace {

enum class MaskKind : int64_t { kNone, kBool, kFloat };

struct Tensor {
  float* data;
  int64_t stride[4];

  kh::Heads<const float> read() const { return {data, stride}; }
  kh::Heads<float> written() const { return {data, stride}; }
};

// The same record for both passes; statistics, grad, dq, dk and dv may be null for a forward pass.
struct Arguments {
  Tensor q, k, v, out, mask, grad, dq, dk, dv;
  float* statistics;
  int64_t batch, heads, kv_heads, lq, lk, d, dv_width, causal, offset;
  MaskKind mask_kind;
  double scale, softcap;  // a softcap of 0: none

  kh::AttentionShape shape() const {
    return {batch, heads, kv_heads, lq, lk, d, dv_width, causal != 0, offset, /*blank=*/true, statistics};
  }
};

// The score, or -inf where `seen` is 0 and not 1; by bits, as compilers vectorise no choice by a byte.
inline float shown(float score, uint8_t seen) {
  const uint32_t keep = 0u - static_cast<uint32_t>(seen);
  return std::bit_cast<float>((std::bit_cast<uint32_t>(score) & keep) | (0xff800000u & ~keep));
}

// What becomes of the scaled scores of one query with keys j .. j + count.
struct Scores {
  const Arguments& a;

  void operator()(int64_t b, int64_t h, int64_t i, int64_t j, int64_t count, float* scores) const {
    if (a.softcap != 0.0) {
      const float cap = static_cast<float>(a.softcap), inverse = 1.0f / cap;
#pragma omp simd
      for (int64_t x = 0; x < count; ++x) scores[x] = cap * kh::tanh(scores[x] * inverse);
    }
    mask(b, h, i, j, count, scores);
  }

  // Also the derivatives.
  void operator()(int64_t b, int64_t h, int64_t i, int64_t j, int64_t count, float* scores, float* slopes) const {
    if (a.softcap != 0.0) {
      const float cap = static_cast<float>(a.softcap), inverse = 1.0f / cap;
#pragma omp simd
      for (int64_t x = 0; x < count; ++x) {
        const float t = kh::tanh(scores[x] * inverse);
        scores[x] = cap * t;
        slopes[x] *= 1.0f - t * t;
      }
    }
    mask(b, h, i, j, count, scores);
  }

 private:
  void mask(int64_t b, int64_t h, int64_t i, int64_t j, int64_t count, float* scores) const {
    if (a.mask_kind == MaskKind::kNone) return;
    const int64_t* const stride = a.mask.stride;
    const int64_t first = b * stride[0] + h * stride[1] + i * stride[2] + j * stride[3], step = stride[3];
    if (a.mask_kind == MaskKind::kBool) {
      const uint8_t* const seen = reinterpret_cast<const uint8_t*>(a.mask.data) + first;
      if (step == 1) {
#pragma omp simd
        for (int64_t x = 0; x < count; ++x) scores[x] = shown(scores[x], seen[x]);
      } else {
        for (int64_t x = 0; x < count; ++x) scores[x] = shown(scores[x], seen[x * step]);
      }
    } else {
      const float* const added = a.mask.data + first;
      if (step == 1) {
#pragma omp simd
        for (int64_t x = 0; x < count; ++x) scores[x] += added[x];
      } else {
        for (int64_t x = 0; x < count; ++x) scores[x] += added[x * step];
      }
    }
  }
};

// What each query sees of a mask of bool, looked at once for what it is broadcast along.
std::vector<kh::Reach> reaches_of(const Arguments& a, kh::Reaches& reaches) {
  if (a.mask_kind != MaskKind::kBool) return {};
  const int64_t* const stride = a.mask.stride;
  int64_t sizes[] = {a.batch, a.heads, a.lq}, count = 1;
  for (int dim = 2; dim >= 0; --dim) {
    if (stride[dim] == 0) sizes[dim] = 1;
    reaches.stride[dim] = stride[dim] == 0 ? 0 : count;
    count *= sizes[dim];
  }
  std::vector<kh::Reach> found(static_cast<size_t>(count));
  const uint8_t* const mask = reinterpret_cast<const uint8_t*>(a.mask.data);
  kh::find_reaches(sizes[0], sizes[1], sizes[2], a.lk, found.data(), [=](int64_t b, int64_t h, int64_t i) {
    const uint8_t* const seen = mask + b * stride[0] + h * stride[1] + i * stride[2];
    if (stride[3] == 1) return kh::reach_of(a.lk, [=](int64_t key) { return seen[key]; });
    return kh::reach_of(a.lk, [=](int64_t key) { return seen[key * stride[3]]; });
  });
  reaches.of = found.data();
  reaches.plain = a.softcap == 0.0;
  return found;
}

}  // namespace

// Writes out and, where it is given, statistics (2, batch, heads, lq). A query that sees no key gives 0.
extern "C" void attention_forward(const Arguments* a) {
  kh::AttentionShape shape = a->shape();
  const std::vector<kh::Reach> reaches = reaches_of(*a, shape.reaches);
  kh::attention(shape, a->q.data, a->q.stride, a->k.data, a->k.stride, a->v.data, a->v.stride,
                static_cast<float>(a->scale), Scores{*a}, a->out.data, a->out.stride);
}

// Writes dq, dk and dv from what the forward pass read and wrote, and the gradient of its result.
extern "C" void attention_backward(const Arguments* a) {
  kh::attention_gradients(a->shape(), a->q.read(), a->k.read(), a->v.read(), a->out.read(), a->grad.read(),
                          static_cast<float>(a->scale), Scores{*a}, a->dq.written(), a->dk.written(),
                          a->dv.written());
}
