// conv_relu: generated from a schedule of 1 kernels.
#include "scalar.h"
#include "linked.h"

// model.conv
static void kernel_conv(const float* in_residual, const float* in_x, const float* in_w, float* out_y) {
  const kh::Convolution shape{2, 6, 4, 2, {1, 9, 8}, {1, 3, 3}, {1, 2, 2}, {0, 1, 1}, {1, 1, 1}, {1, 5, 4}};
  const int64_t strides[] = {432, 0, 48, 6, 1};
  const kh::Row<float> space(kh::filter_size<float>(shape));
  float* const packed = &space[0];
  const int64_t w_strides[] = {27, 9, 0, 3, 1};
  kh::pack_filter(shape, in_w, w_strides, packed);
  kh::convolve(shape, in_x, strides, packed,
               [=](int64_t, int64_t row, int64_t j, int64_t count, const float* acc) {
    const int64_t n_h_w = row;
    #pragma omp simd
    for (int64_t l = 0; l < count; ++l) {
      const int64_t c = j + l;
      const float root = acc[l];  // conv (Conv2d)
      const float v0 = in_residual[c + n_h_w * 4];
      const float v1 = root + v0;
      const float v3 = (v1 < 0.0f ? 0.0f : v1);  // relu (ReLU)
      out_y[c + n_h_w * 4] = v3;
    }
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
  const auto in_x = static_cast<const float*>(buffers[0]);  // float32[2, 6, 9, 8]
  const auto in_w = static_cast<const float*>(buffers[1]);  // float32[4, 3, 3, 3]
  const auto out_y = static_cast<float*>(buffers[2]);  // float32[2, 4, 5, 4]
  const auto in_residual = static_cast<const float*>(buffers[3]);  // float32[2, 4, 5, 4]
  int failure = 0;
  kernel_conv(in_residual, in_x, in_w, out_y);  // model.conv
  return failure;
}

extern "C" int kh_step(int64_t step, void* const* buffers, const int64_t* sizes) {
  const kh::CallState state;
  const auto in_x = static_cast<const float*>(buffers[0]);  // float32[2, 6, 9, 8]
  const auto in_w = static_cast<const float*>(buffers[1]);  // float32[4, 3, 3, 3]
  const auto out_y = static_cast<float*>(buffers[2]);  // float32[2, 4, 5, 4]
  const auto in_residual = static_cast<const float*>(buffers[3]);  // float32[2, 4, 5, 4]
  int failure = 0;
  switch (step) {
    case 0: kernel_conv(in_residual, in_x, in_w, out_y); break;
  }
  return failure;
}
