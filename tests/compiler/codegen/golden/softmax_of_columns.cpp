// softmax_of_columns: generated from a schedule of 1 kernels.
#include "scalar.h"

// model.softmax
static void kernel_softmax_rows(const float* in_x, float* out_y, std::int64_t* out_at, const int64_t n_columns, int64_t begin, int64_t end) {
  alignas(64) float v3_row[1920];
  for (int64_t tile_ = begin; tile_ < end; ++tile_) {
    const int64_t start = tile_ * 64, width = kh::min<int64_t>(64, n_columns - start);
    alignas(64) float v1_sum[64];
    kh::fill_n(v1_sum, 64, float((-std::numeric_limits<float>::infinity())));
    alignas(64) float v9_best[64];
    kh::fill_n(v9_best, 64, (-std::numeric_limits<float>::infinity()));
    alignas(64) std::int64_t v9_sum[64];
    kh::fill_n(v9_sum, 64, std::int64_t(0));
    for (int64_t k = 0; k < 30; ++k) {
      #pragma omp simd
      for (int64_t i = start; i < start + width; ++i) {
        const float v0 = in_x[i + k * n_columns];
        v1_sum[i - start] = kh::greater(v0, v1_sum[i - start]);
        const bool v9_take = kh::is_greater(v0, v9_best[i - start]);
        v9_best[i - start] = v9_take ? v0 : v9_best[i - start];
        v9_sum[i - start] = v9_take ? k : v9_sum[i - start];
      }
    }
    #pragma omp simd
    for (int64_t i = start; i < start + width; ++i) {
      const std::int64_t v9 = v9_sum[i - start];
      out_at[i] = v9;
    }
    alignas(64) float v4_sum[64];
    kh::fill_n(v4_sum, 64, float(0));
    for (int64_t k = 0; k < 30; ++k) {
      #pragma omp simd
      for (int64_t i = start; i < start + width; ++i) {
        const float v0 = in_x[i + k * n_columns];
        const float v1 = v1_sum[i - start];
        const float v2 = v0 - v1;
        const float v3 = kh::exp(v2);
        v3_row[k * 64 + i - start] = v3;
        v4_sum[i - start] += v3;
      }
    }
    for (int64_t k = 0; k < 30; ++k) {
      #pragma omp simd
      for (int64_t i = start; i < start + width; ++i) {
        const float v3 = v3_row[k * 64 + i - start];
        const float v4 = static_cast<float>(v4_sum[i - start]);
        const float v5 = v3 / v4;  // softmax (Softmax)
        out_y[i + k * n_columns] = v5;
      }
    }
  }
}

static void kernel_softmax(const float* in_x, float* out_y, std::int64_t* out_at, const int64_t n_columns) {
  kh::parallel(((n_columns + 63) / 64), 1, [=](int64_t begin, int64_t end) {
    kernel_softmax_rows(in_x, out_y, out_at, n_columns, begin, end);
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
  const int64_t n_columns = sizes[0];
  const auto in_x = static_cast<const float*>(buffers[0]);  // float32[30, columns]
  const auto out_y = static_cast<float*>(buffers[1]);  // float32[30, columns]
  const auto out_at = static_cast<std::int64_t*>(buffers[2]);  // int64[columns]
  int failure = 0;
  kernel_softmax(in_x, out_y, out_at, n_columns);  // model.softmax
  return failure;
}

extern "C" int kh_step(int64_t step, void* const* buffers, const int64_t* sizes) {
  const kh::CallState state;
  const int64_t n_columns = sizes[0];
  const auto in_x = static_cast<const float*>(buffers[0]);  // float32[30, columns]
  const auto out_y = static_cast<float*>(buffers[1]);  // float32[30, columns]
  const auto out_at = static_cast<std::int64_t*>(buffers[2]);  // int64[columns]
  int failure = 0;
  switch (step) {
    case 0: kernel_softmax(in_x, out_y, out_at, n_columns); break;
  }
  return failure;
}
