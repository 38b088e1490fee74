// 3 x 3 convolution of stride 1 by minimal filtering (winograd.h), with bias, residual and ReLU in its epilogue.
#include "conv_shape.h"
#include "finish.h"
#include "gemm.h"
#include "winograd.h"

namespace {

kh::ConvShape shape_of(const int64_t s[8]) {  // n, c, o, height, width, pad above, pad to the left, then the output's
  const int64_t height = s[3] + 2 * s[5] - 2, width = s[4] + 2 * s[6] - 2;
  return {s[0], s[1], s[2], 1, {1, s[3], s[4]}, {1, 3, 3}, {1, 1, 1}, {0, s[5], s[6]}, {1, 1, 1}, {1, height, width}};
}

constexpr int64_t kMostKept = 4 << 20;  // floats of images that a thread keeps from call to call

// x (n, rows, columns) to y (n, columns, rows): an image of planes to one of pixels, or back. finish: of a column of x
// and some of its rows, what follows, while they are in a cache.
template <class Finish>
void transpose_images(int64_t n, int64_t rows, int64_t columns, const float* x, float* y, const Finish& finish) {
  constexpr int64_t kColumns = 64, kRows = 512;  // a quarter of a kilobyte of each row
  const int64_t blocks = kh::ceil_div(columns, kColumns);
  kh::parallel(n * blocks, kh::max<int64_t>(1, 8192 / (kColumns * rows)), [=, &finish](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t image = block / blocks * rows * columns, first = block % blocks * kColumns;
      const int64_t wide = kh::min(kColumns, columns - first);
      for (int64_t row = 0; row < rows; row += kRows) {
        const int64_t some = kh::min(kRows, rows - row);
        float* const to = y + image + first * rows + row;
        kh::transpose(x + image + row * columns + first, columns, to, rows, some, wide);
        for (int64_t column = 0; column < wide; ++column) finish(to + column * rows, some, first + column);
      }
    }
  });
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


// The same of x (n, channels, height, width) to y (n, o, height, width), without residual and ReLU; followers may be null.
// The images of pixels between are memory that is kept: new memory of that size costs as much as the copies.
__attribute__((visibility("default"))) void minimal_run_planes(const int64_t* shape, const float* x, const float* packed,
                                                               const float* bias, const kh::Followers* followers,
                                                               float* y) {
  const kh::ConvShape s = shape_of(shape);
  const int64_t in = s.in[1] * s.in[2], out = s.out[1] * s.out[2];
  const int64_t first = kh::round_up(s.n * in * s.c, 16), all = first + s.n * out * s.o;
  kh::Workspace own;
  float* const pixels = (all <= kMostKept ? kh::workspace<kh::Use::kInput>() : own).floats(all);
  const kh::Finish finish(followers, s.o);
  transpose_images(s.n, s.c, in, x, pixels, [](float*, int64_t, int64_t) {});
  minimal_run(shape, pixels, packed, bias, nullptr, 0, pixels + first);
  transpose_images(s.n, out, s.o, pixels + first, y, [&](float* of, int64_t count, int64_t channel) {
    finish.plane(of, count, channel);
  });
}

}  // extern "C"
