// A block of ConvNeXt for inference, float32, channels_last: a depthwise convolution, a layer norm of each pixel, two
// linear layers with an activation between them, and the sum with what came in.
//
// The norm is computed where the first product copies its rows, the activation and the sum where a product's result is
// still in registers. What is between the products is made for some pixels at a time, so that it stays in a cache.
//
// The function takes one record of 8-byte fields, packed by Python's struct module.

#include <algorithm>
#include <cstdint>

#include "activations.h"
#include "depthwise.h"
#include "depthwise_filters.h"
#include "gemm.h"
#include "normalised_rows.h"

namespace {

constexpr int64_t kMostHidden = 1 << 19;  // floats between the products: 2 MiB
constexpr int64_t kLeastPixels = 128;     // that go through the products at once, if there are so many
constexpr int64_t kMostNormed = 1 << 21;  // floats that the convolution makes before the products use them: 8 MiB

struct Block {
  const float *x;                       // (images, height, width, channels)
  const float *filters, *filters_bias;  // (channels, rows, columns); (channels) or null, as all that follow
  const float *norm, *norm_bias;
  const float *first, *first_bias;      // packed (channels, wide); (wide)
  const float *second, *second_bias;    // packed (wide, channels); (channels)
  const float *scale;                   // of what is added to x
  float *normed, *hidden, *out;         // as much as scratch() says, twice; as x
  int64_t images, channels, height, width, rows, columns, wide, activation;
  double eps;

  int64_t pixels() const { return height * width; }
  int64_t images_at_once() const { return std::clamp<int64_t>(kMostNormed / (pixels() * channels), 1, images); }
  int64_t pixels_at_once() const {
    const int64_t all = images_at_once() * pixels();
    return std::min(all, std::max(kLeastPixels, kMostHidden / wide));
  }
};

// normed = the convolution of some images.
void convolve(const Block& b, int64_t first, int64_t images) {
  const kh::ConvShape shape{images, b.channels, b.channels, b.channels,
                            {1, b.height, b.width}, {1, b.rows, b.columns}, {1, 1, 1},
                            {0, b.rows / 2, b.columns / 2}, {1, 1, 1}, {1, b.height, b.width}};
  const int64_t line = b.width * b.channels, image = b.height * line;
  const float* const packed = kh::turned_filters(b.filters, b.channels, b.rows * b.columns);
  auto epilogue = [&b](int64_t row, int64_t j, int64_t count, const float* sums) {
    float* const to = b.normed + row * b.channels + j;
    for (int64_t i = 0; i < count; ++i) to[i] = sums[i] + or_zero(b.filters_bias, j + i);
  };
  kh::conv_depthwise(shape, kh::Pixels{b.x + first * image, {image, image, line, b.channels}}, packed, epilogue);
}

// out = x + scale (activation(norm(normed) first + bias) second + bias) of some pixels; at: the first of them in x.
void multiply(const Block& b, int64_t pixel, int64_t pixels, int64_t at) {
  auto activated = [&b](int64_t i, int64_t j, int64_t count, const float* sums) {
    float* const to = b.hidden + i * b.wide + j;
#pragma omp simd
    for (int64_t l = 0; l < count; ++l) to[l] = sums[l] + or_zero(b.first_bias, j + l);
    activate(to, count, b.activation);
  };
  const Normalised left{b.normed + pixel * b.channels, {b.norm, b.norm_bias, b.channels, static_cast<float>(b.eps)}};
  kh::product(pixels, b.wide, b.channels, left, activated, b.first);
  auto added = [&b, at](int64_t i, int64_t j, int64_t count, const float* sums) {
    const int64_t place = (at + i) * b.channels + j;
#pragma omp simd
    for (int64_t l = 0; l < count; ++l) {
      const float made = sums[l] + or_zero(b.second_bias, j + l);
      b.out[place + l] = b.x[place + l] + (b.scale == nullptr ? made : b.scale[j + l] * made);
    }
  };
  kh::gemm(pixels, b.channels, b.wide, b.hidden, b.wide, 1, b.second, added);
}

}  // namespace

extern "C" {

// Floats of a packed weight (columns, depth).
__attribute__((visibility("default"))) int64_t convnext_packed_size(int64_t depth, int64_t columns) {
  return kh::packed_size(depth, columns);
}

// packed = weight (columns, depth), as the block takes it.
__attribute__((visibility("default"))) void convnext_pack(const float* weight, int64_t depth, int64_t columns,
                                                          float* packed) {
  kh::pack(weight, depth, columns, 1, depth, packed);
}

// Floats that `normed` and `hidden` need, of a record without addresses.
__attribute__((visibility("default"))) void convnext_scratch(const void* record, int64_t* floats) {
  const Block& b = *static_cast<const Block*>(record);
  floats[0] = b.images_at_once() * b.pixels() * b.channels;
  floats[1] = b.pixels_at_once() * b.wide;
}

__attribute__((visibility("default"))) void convnext_block(const void* record) {
  const Block& b = *static_cast<const Block*>(record);
  const int64_t some = b.images_at_once(), most = b.pixels_at_once();
  for (int64_t image = 0; image < b.images; image += some) {
    const int64_t images = std::min(some, b.images - image), pixels = images * b.pixels();
    convolve(b, image, images);
    const int64_t parts = kh::ceil_div(pixels, most), share = kh::ceil_div(pixels, parts);
    for (int64_t pixel = 0; pixel < pixels; pixel += share)
      multiply(b, pixel, std::min(share, pixels - pixel), image * b.pixels() + pixel);
  }
}

}  // extern "C"
