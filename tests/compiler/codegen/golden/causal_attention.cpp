// causal_attention: generated from a schedule of 1 kernels.
#include "scalar.h"
#include "linked.h"

// model.causal
static void kernel_causal(const float* in_q, const float* in_k, const float* in_v, float* out_y) {
  const int64_t q_strides[] = {1280, 640, 16, 1};
  const int64_t k_strides[] = {1376, 688, 16, 1};
  const int64_t v_strides[] = {688, 344, 8, 1};
  const int64_t out_strides[] = {0, 320, 8, 1};
  const kh::Attention shape{1, 2, 2, 40, 43, 16, 8, true, 3, false};
  kh::attend_masked(shape, in_q, q_strides, in_k, k_strides, in_v, v_strides, 0.5f, nullptr, nullptr, out_y, out_strides);
}

extern "C" int kh_pack(int64_t which, void* const* buffers, const int64_t* sizes) {
  int failure = 0;
  return failure;
}

extern "C" int kh_prepare(void* const* buffers, const int64_t* sizes) {
  int failure = 0;
  return failure;
}

extern "C" int64_t kh_packed_bytes(int64_t which) {
  switch (which) {
  }
  return 0;
}

extern "C" void kh_configure(int use_pool, int flush_denormals) {
  kh::use_pool = use_pool != 0;
  kh::flush_denormals = flush_denormals != 0;
}

extern "C" int kh_run(void* const* buffers, const int64_t* sizes) {
  const kh::CallState state;
  const auto in_q = static_cast<const float*>(buffers[0]);  // float32[1, 2, 40, 16]
  const auto in_k = static_cast<const float*>(buffers[1]);  // float32[1, 2, 43, 16]
  const auto in_v = static_cast<const float*>(buffers[2]);  // float32[1, 2, 43, 8]
  const auto out_y = static_cast<float*>(buffers[3]);  // float32[1, 2, 40, 8]
  int failure = 0;
  kernel_causal(in_q, in_k, in_v, out_y);  // model.causal
  return failure;
}

extern "C" int kh_step(int64_t step, void* const* buffers, const int64_t* sizes) {
  const kh::CallState state;
  const auto in_q = static_cast<const float*>(buffers[0]);  // float32[1, 2, 40, 16]
  const auto in_k = static_cast<const float*>(buffers[1]);  // float32[1, 2, 43, 16]
  const auto in_v = static_cast<const float*>(buffers[2]);  // float32[1, 2, 43, 8]
  const auto out_y = static_cast<float*>(buffers[3]);  // float32[1, 2, 40, 8]
  int failure = 0;
  switch (step) {
    case 0: kernel_causal(in_q, in_k, in_v, out_y); break;
  }
  return failure;
}
