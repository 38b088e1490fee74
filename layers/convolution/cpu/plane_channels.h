// Depthwise convolutions of pixels of channels: of channels_last images as they lie, and of small images in planes, of
// which vectors of channels are turned round, convolved, and turned back.
#pragma once

#include <algorithm>
#include <cstdint>

#include "conv_shape.h"
#include "depthwise.h"
#include "depthwise_filters.h"
#include "finish.h"
#include "parallel.h"
#include "plane_sums.h"

KH_NAMESPACE {

inline constexpr int64_t kSmall = 256;  // pixels

inline bool is_small(const PlaneShape& s) {
  const bool is_near = s.in_plane() <= 4 * kSmall && s.out_plane() <= kSmall;
  return s.is_depthwise() && is_near && s.c >= kLanes;
}

// Vectors of channels, of which each is turned round, convolved as channels_last and turned back.
inline void by_channels(const PlaneShape& s, const float* x, const float* weight, const float* bias,
                        const Finish& finish, float* y) {
  const ConvShape shape{1, kLanes, kLanes, kLanes,
                            {1, s.height, s.width}, {1, s.rows, s.columns}, {1, s.stride_h, s.stride_w},
                            {0, s.above, s.left}, {1, s.dilation_h, s.dilation_w}, {1, s.out_height, s.out_width}};
  const int64_t in = s.in_plane(), out = s.out_plane(), blocks = ceil_div(s.c, kLanes);
  const int64_t grain = std::max<int64_t>(1, 32768 / (kLanes * (out * s.taps() + 4 * in)));
  parallel(s.n * blocks, grain, [&](int64_t begin, int64_t end) {
    float* const seen = workspace<Use::kInput>().floats((in + out + s.taps()) * kLanes);
    float* const made = seen + in * kLanes;
    float* const packed = made + out * kLanes;
    for (int64_t block = begin; block < end; ++block) {
      // The last vector of channels overlaps the one before.
      const int64_t channel = std::min(block % blocks * kLanes, s.c - kLanes), image = block / blocks * s.c + channel;
      transpose(x + image * in, in, seen, kLanes, kLanes, in);
      transpose(weight + channel * s.taps(), s.taps(), packed, kLanes, kLanes, s.taps());
      const vfloat more = bias == nullptr ? vfloat{} : load(bias + channel);
      auto epilogue = [=](int64_t row, int64_t, int64_t, const float* sums) {
        store(made + row * kLanes, load(sums) + more);
      };
      conv_depthwise(shape, Pixels{seen, {in * kLanes, in * kLanes, s.width * kLanes, kLanes}}, packed, epilogue);
      finish.pixels(made, out, kLanes, channel);
      transpose(made, kLanes, y + image * out, out, out, kLanes);
    }
  });
}

// x (n, height, width, c), y (n, out_height, out_width, c).
inline void by_pixels(const PlaneShape& s, const float* x, const float* weight, const float* bias, const Finish& finish,
                      float* y) {
  const ConvShape shape{s.n, s.c, s.c, s.c,
                        {1, s.height, s.width}, {1, s.rows, s.columns}, {1, s.stride_h, s.stride_w},
                        {0, s.above, s.left}, {1, s.dilation_h, s.dilation_w}, {1, s.out_height, s.out_width}};
  const int64_t line = s.width * s.c, image = s.height * line;
  const float* const packed = turned_filters(weight, s.c, s.taps());
  auto epilogue = [=, &finish](int64_t row, int64_t j, int64_t count, const float* sums) {
    float* const to = y + row * s.c + j;
    for (int64_t i = 0; i < count; ++i) to[i] = bias == nullptr ? sums[i] : sums[i] + bias[j + i];
    finish.pixels(to, 1, count, j);
  };
  conv_depthwise(shape, Pixels{x, {image, image, line, s.c}}, packed, epilogue);
}

}  // namespace kh
