// What a convolution is of: its sizes, and where its input lies.
#pragma once

#include <cstdint>

#include "simd.h"

KH_NAMESPACE {

inline constexpr int64_t kMostDirect = 3, kNearChannels = 16;

// Triples are (d, h, w); dimensions that a convolution lacks are 1 (kernel 1, stride 1, pad 0, dilation 1).
// `pad` is what stands before the input; `out` says how far the kernel goes, so what stands after it.
struct ConvShape {
  int64_t n, c, o, groups;
  int64_t in[3], kernel[3], stride[3], pad[3], dilation[3], out[3];

  int64_t taps() const { return kernel[0] * kernel[1] * kernel[2]; }
  int64_t depth() const { return taps() * (c / groups); }
  int64_t rows() const { return n * out[0] * out[1] * out[2]; }
  // Channels of a group, where groups are as wide in as out and so narrow that some fit into a vector; else 0.
  int64_t narrow() const {
    const int64_t size = c / groups;
    const bool even = size == 1 || size == 2 || size == 4 || size == 8;
    return groups > 1 && c == o && even && size <= kLanes / 2 ? size : 0;
  }
  // Vectors of output channels that conv_direct.h makes at once; 0 where its kernels are not used. They are where copying
  // patches costs more than computing: of few input channels a group, or of no more output channels than a vector has.
  int64_t direct() const {
    const int64_t vectors = ceil_div(o / groups, kLanes), parts = ceil_div(vectors, kMostDirect), in = c / groups;
    const bool few = vectors == 1 || in < kNearChannels || (parts == 1 && in <= 2 * kNearChannels);
    return taps() > 1 && narrow() == 0 && parts > 0 && few ? ceil_div(vectors, parts) : 0;
  }
};

// Where x lies: a first element and strides (n, d, h, w) in floats; channels are adjacent.
struct Pixels {
  const float* data;
  int64_t stride[4];
};

// The input coordinate that tap `t` of dimension i sees from output coordinate `at`; may lie outside.
KH_INLINE int64_t seen(const ConvShape& shape, int i, int64_t at, int64_t t) {
  return at * shape.stride[i] - shape.pad[i] + t * shape.dilation[i];
}
KH_INLINE bool inside(const ConvShape& shape, int i, int64_t position) {
  return position >= 0 && position < shape.in[i];
}

}  // namespace kh
