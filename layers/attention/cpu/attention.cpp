// Attention of float32 tensors on the CPU, and its gradients, on the memory of the tensors themselves.
//
// Strides are in elements, in the order (batch, heads, length, width); those of what is broadcast are 0.

#include "attention.h"

#include <cstdint>
#include <vector>

#include "attention_gradients.h"
#include "attention_mask.h"

namespace {

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
  Mask masks() const { return {mask_kind, mask.data, mask.stride}; }
};

// What becomes of the scaled scores of one query with keys j .. j + count.
struct Scores {
  const Arguments& a;

  void operator()(int64_t b, int64_t h, int64_t i, int64_t j, int64_t count, float* scores) const {
    if (a.softcap != 0.0) {
      const float cap = static_cast<float>(a.softcap), inverse = 1.0f / cap;
#pragma omp simd
      for (int64_t x = 0; x < count; ++x) scores[x] = cap * kh::tanh(scores[x] * inverse);
    }
    a.masks()(b, h, i, j, count, scores);
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
    a.masks()(b, h, i, j, count, scores);
  }
};

}  // namespace

// Writes out and, where it is given, statistics (2, batch, heads, lq). A query that sees no key gives 0.
extern "C" void attention_forward(const Arguments* a) {
  kh::AttentionShape shape = a->shape();
  const std::vector<kh::Reach> reaches = reaches_of(a->masks(), shape, /*plain=*/a->softcap == 0.0);
  kh::attention(shape, a->q.data, a->q.stride, a->k.data, a->k.stride, a->v.data, a->v.stride,
                static_cast<float>(a->scale), Scores{*a}, a->out.data, a->out.stride);
}

// Writes dq, dk and dv from what the forward pass read and wrote, and the gradient of its result.
extern "C" void attention_backward(const Arguments* a) {
  kh::attention_gradients(a->shape(), a->q.read(), a->k.read(), a->v.read(), a->out.read(), a->grad.read(),
                          static_cast<float>(a->scale), Scores{*a}, a->dq.written(), a->dk.written(),
                          a->dv.written());
}
