// scale_and_shift: generated from a schedule of 2 kernels.
#include "scalar.h"

// model.affine
static void kernel_affine_rows(const kh::bf16* in_x, const float* in_bias, kh::bf16* out_y, const int64_t n_n, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t i = row / 6, j_ = row % 6;
    const float v2 = in_bias[j_];
    #pragma omp simd
    for (int64_t k = 0; k < 40; ++k) {
      const float v0 = in_x[i * 240 + j_ * 40 + k];
      const float v1 = static_cast<float>(v0);
      const float v4 = v1 * 0.5f;  // layer.0.scale (Scale)
      const float v5 = v4 + v2;  // layer.0.shift (Shift)
      const float v6 = static_cast<float>(v5);
      out_y[i * 240 + j_ * 40 + k] = v6;
    }
  }
}

static void kernel_affine(const kh::bf16* in_x, const float* in_bias, kh::bf16* out_y, const int64_t n_n) {
  kh::parallel(n_n * 6, 234, [=](int64_t begin, int64_t end) {
    kernel_affine_rows(in_x, in_bias, out_y, n_n, begin, end);
  });
}

// model.widen
static void kernel_widen_rows(const kh::bf16* in_x, float* out_copy, const int64_t n_n, int64_t begin, int64_t end) {
  #pragma omp simd
  for (int64_t i_j_k = begin; i_j_k < end; ++i_j_k) {
    const float v0 = in_x[i_j_k];
    const float v1 = static_cast<float>(v0);
    out_copy[i_j_k] = v1;
  }
}

static void kernel_widen(const kh::bf16* in_x, float* out_copy, const int64_t n_n) {
  kh::parallel(n_n * 240, 21845, [=](int64_t begin, int64_t end) {
    kernel_widen_rows(in_x, out_copy, n_n, begin, end);
  });
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
  const int64_t n_n = sizes[0];
  const auto in_x = static_cast<const kh::bf16*>(buffers[0]);  // bfloat16[n, 6, 40]
  const auto in_bias = static_cast<const float*>(buffers[1]);  // float32[6]
  const auto out_y = static_cast<kh::bf16*>(buffers[2]);  // bfloat16[n, 6, 40]
  const auto out_copy = static_cast<float*>(buffers[3]);  // float32[n, 6, 40]
  int failure = 0;
  kernel_affine(in_x, in_bias, out_y, n_n);  // model.affine
  kernel_widen(in_x, out_copy, n_n);  // model.widen
  return failure;
}

extern "C" int kh_step(int64_t step, void* const* buffers, const int64_t* sizes) {
  const kh::CallState state;
  const int64_t n_n = sizes[0];
  const auto in_x = static_cast<const kh::bf16*>(buffers[0]);  // bfloat16[n, 6, 40]
  const auto in_bias = static_cast<const float*>(buffers[1]);  // float32[6]
  const auto out_y = static_cast<kh::bf16*>(buffers[2]);  // bfloat16[n, 6, 40]
  const auto out_copy = static_cast<float*>(buffers[3]);  // float32[n, 6, 40]
  int failure = 0;
  switch (step) {
    case 0: kernel_affine(in_x, in_bias, out_y, n_n); break;
    case 1: kernel_widen(in_x, out_copy, n_n); break;
  }
  return failure;
}
