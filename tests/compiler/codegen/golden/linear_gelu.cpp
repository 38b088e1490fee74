// linear_gelu: generated from a schedule of 1 kernels.
#include "scalar.h"
#include "linked.h"

// model.copy
static void kernel_copy(const float* in_weight, float* p_w) {
  constexpr int64_t begin = 0, end = 660;
  #pragma omp simd
  for (int64_t c = begin; c < end; ++c) {
    const float v0 = in_weight[c];
    p_w[c] = v0;
  }
}

// model.linear
static void kernel_linear(const float* in_bias, const float* in_x, float* out_y, const float* packed0, const int64_t n_n) {
  kh::multiply(0, n_n * 5, 33, 20, in_x, 20, 1, packed0,
               [=](int64_t, int64_t row, int64_t j, int64_t count, const float* acc) {
    const int64_t b_i = row;
    #pragma omp simd
    for (int64_t l = 0; l < count; ++l) {
      const int64_t j_ = j + l;
      const float root = acc[l];  // layer.1 (Linear)
      const float v0 = in_bias[j_];
      const float v1 = root + v0;
      const float v2 = kh::sigmoid(v1);  // layer.2 (SiLU)
      const float v3 = v1 * v2;
      out_y[b_i * 33 + j_] = v3;
    }
  });
}

extern "C" int kh_pack(int64_t which, void* const* buffers, const int64_t* sizes) {
  const auto p_w = static_cast<const float*>(buffers[1]);  // float32[33, 20]
  int failure = 0;
  float* const packed = static_cast<float*>(buffers[5 + which]);
  switch (which) {
    case 0: {
      kh::pack_right(p_w, 20, 33, 1, 20, packed);
      break;
    }
  }
  return failure;
}

extern "C" int kh_prepare(void* const* buffers, const int64_t* sizes) {
  const auto p_w = static_cast<float*>(buffers[1]);  // float32[33, 20]
  const auto in_weight = static_cast<const float*>(buffers[2]);  // float32[33, 20]
  int failure = 0;
  kernel_copy(in_weight, p_w);  // model.copy
  for (int64_t which = 0; which < 1; ++which) {
    if (buffers[5 + which] != nullptr) kh_pack(which, buffers, sizes);
  }
  return failure;
}

extern "C" int64_t kh_packed_bytes(int64_t which) {
  switch (which) {
    case 0: return 4 * (kh::right_size<float>(20, 33));
  }
  return 0;
}

extern "C" void kh_configure(int use_pool, int flush_denormals) {
  kh::use_pool = use_pool != 0;
  kh::flush_denormals = flush_denormals != 0;
}

extern "C" int kh_run(void* const* buffers, const int64_t* sizes) {
  const kh::CallState state;
  const int64_t n_n = sizes[0];
  const auto in_x = static_cast<const float*>(buffers[0]);  // float32[n, 5, 20]
  const auto in_bias = static_cast<const float*>(buffers[3]);  // float32[33]
  const auto out_y = static_cast<float*>(buffers[4]);  // float32[n, 5, 33]
  const auto packed0 = static_cast<const float*>(buffers[5]);
  int failure = 0;
  kernel_linear(in_bias, in_x, out_y, packed0, n_n);  // model.linear
  return failure;
}

extern "C" int kh_step(int64_t step, void* const* buffers, const int64_t* sizes) {
  const kh::CallState state;
  const int64_t n_n = sizes[0];
  const auto in_x = static_cast<const float*>(buffers[0]);  // float32[n, 5, 20]
  const auto in_bias = static_cast<const float*>(buffers[3]);  // float32[33]
  const auto out_y = static_cast<float*>(buffers[4]);  // float32[n, 5, 33]
  const auto packed0 = static_cast<const float*>(buffers[5]);
  int failure = 0;
  switch (step) {
    case 0: kernel_linear(in_bias, in_x, out_y, packed0, n_n); break;
  }
  return failure;
}
