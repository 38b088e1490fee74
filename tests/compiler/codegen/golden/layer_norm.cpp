// layer_norm: generated from a schedule of 1 kernels.
#include "scalar.h"

// model.norm
static void kernel_norm_rows(const float* in_x, const float* in_w, float* out_y, const int64_t n_rows, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    double v1_sum = 0;
    for (int64_t block = 0; block < 700; block += 512) {
      const int64_t stop = kh::min<int64_t>(block + 512, 700);
      float v1_part = 0;
      #pragma omp simd reduction(+ : v1_part)
      for (int64_t k = block; k < stop; ++k) {
        const float v0 = in_x[i * 700 + k];
        v1_part += v0;
      }
      v1_sum += v1_part;
    }
    const float v1 = static_cast<float>(v1_sum);
    const float v3 = v1 * 0.0014285714f;
    double v6_sum = 0;
    for (int64_t block = 0; block < 700; block += 512) {
      const int64_t stop = kh::min<int64_t>(block + 512, 700);
      float v6_part = 0;
      #pragma omp simd reduction(+ : v6_part)
      for (int64_t k = block; k < stop; ++k) {
        const float v0 = in_x[i * 700 + k];
        const float v4 = v0 - v3;
        const float v5 = v4 * v4;
        v6_part += v5;
      }
      v6_sum += v6_part;
    }
    const float v6 = static_cast<float>(v6_sum);
    const float v7 = v6 * 0.0014285714f;
    const float v8 = kh::rsqrt(v7);
    #pragma omp simd
    for (int64_t k = 0; k < 700; ++k) {
      const float v0 = in_x[i * 700 + k];
      const float v4 = v0 - v3;
      const float v9 = v4 * v8;  // norm (LayerNorm)
      const float v10 = in_w[k];
      const float v11 = v9 * v10;
      out_y[i * 700 + k] = v11;
    }
  }
}

static void kernel_norm(const float* in_x, const float* in_w, float* out_y, const int64_t n_rows) {
  kh::parallel(n_rows, 5, [=](int64_t begin, int64_t end) {
    kernel_norm_rows(in_x, in_w, out_y, n_rows, begin, end);
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
  const int64_t n_rows = sizes[0];
  const auto in_x = static_cast<const float*>(buffers[0]);  // float32[rows, 700]
  const auto in_w = static_cast<const float*>(buffers[1]);  // float32[700]
  const auto out_y = static_cast<float*>(buffers[2]);  // float32[rows, 700]
  int failure = 0;
  kernel_norm(in_x, in_w, out_y, n_rows);  // model.norm
  return failure;
}

extern "C" int kh_step(int64_t step, void* const* buffers, const int64_t* sizes) {
  const kh::CallState state;
  const int64_t n_rows = sizes[0];
  const auto in_x = static_cast<const float*>(buffers[0]);  // float32[rows, 700]
  const auto in_w = static_cast<const float*>(buffers[1]);  // float32[700]
  const auto out_y = static_cast<float*>(buffers[2]);  // float32[rows, 700]
  int failure = 0;
  switch (step) {
    case 0: kernel_norm(in_x, in_w, out_y, n_rows); break;
  }
  return failure;
}
