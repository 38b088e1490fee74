// 3 x 3 convolution of stride 1 by minimal filtering (winograd.h), with bias, residual and ReLU in its epilogue.
#include "conv_shape.h"
#include "gemm.h"
#include "winograd.h"

namespace {

kh::ConvShape shape_of(const int64_t s[8]) {  // n, c, o, height, width, pad above, pad to the left, then the output's
  const int64_t height = s[3] + 2 * s[5] - 2, width = s[4] + 2 * s[6] - 2;
  return {s[0], s[1], s[2], 1, {1, s[3], s[4]}, {1, 3, 3}, {1, 1, 1}, {0, s[5], s[6]}, {1, 1, 1}, {1, height, width}};
}

}  // namespace

extern "C" {

// Floats that pack() writes.
__attribute__((visibility("default"))) int64_t minimal_size(const int64_t* shape) {
  return kh::winograd_packed_size(shape_of(shape));
}

// weight (o, c, 3, 3) with these strides, in floats.
__attribute__((visibility("default"))) void minimal_pack(const int64_t* shape, const float* weight,
                                                         const int64_t* strides, float* packed) {
  const int64_t of[] = {strides[0], strides[1], 0, strides[2], strides[3]};
  kh::winograd_pack(shape_of(shape), weight, of, packed);
}

// x, residual and y (n, height, width, channels) without gaps; bias (o) and residual may be null.
__attribute__((visibility("default"))) void minimal_run(const int64_t* shape, const float* x, const float* packed,
                                                        const float* bias, const float* residual, int64_t relu,
                                                        float* y) {
  const kh::ConvShape s = shape_of(shape);
  const int64_t line = s.in[2] * s.c, image = s.in[1] * line, o = s.o;
  const kh::Pixels pixels{x, {image, image, line, s.c}};
  auto finish = [=](int64_t row, int64_t j, int64_t count, const float* acc) {
    float* const to = y + row * o + j;
    const float* const more = residual == nullptr ? nullptr : residual + row * o + j;
    for (int64_t i = 0; i < count; ++i) {
      float value = acc[i];
      if (bias != nullptr) value += bias[j + i];
      if (more != nullptr) value += more[i];
      to[i] = relu && value < 0.0f ? 0.0f : value;  // NaN stays
    }
  };
  kh::conv_winograd(s, pixels, packed, finish);
}

}  // extern "C"
