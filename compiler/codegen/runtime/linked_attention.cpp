// The attention of linked.h.
#include "linked.h"

#include "attention.h"

KH_NAMESPACE {

void attend_masked(const Attention& from, const float* q, const int64_t q_strides[4], const float* k,
                   const int64_t k_strides[4], const float* v, const int64_t v_strides[4], float scale, Mask mask,
                   const void* mask_state, float* out, const int64_t out_strides[4]) {
  const AttentionShape shape{from.batch, from.heads, from.kv_heads, from.lq, from.lk, from.d, from.dv,
                             from.causal, from.causal_offset, from.blank};
  const auto masked = [=](int64_t b, int64_t h, int64_t i, int64_t j, int64_t count, float* scores) {
    if (mask != nullptr) mask(mask_state, b, h, i, j, count, scores);
  };
  attention(shape, q, q_strides, k, k_strides, v, v_strides, scale, masked, out, out_strides);
}

}  // namespace kh
