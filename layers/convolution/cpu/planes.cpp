// float32 convolutions of images as they lie: no copy of the weights is kept, no other memory format made. In planes, (n,
// c, h, w), all of them; channels_last depthwise ones.
#include <cstdint>
#include <cstring>

#include "finish.h"
#include "plane_channels.h"
#include "plane_lines.h"
#include "plane_product.h"

namespace {

constexpr int64_t kMostOfLine = 128 * 1024;

// Whether copies of planes are fewer than patches, or nearer.
bool is_narrow(const kh::PlaneShape& s) {
  if (s.taps() == 1 || s.stride_h > 2 || s.stride_w > 2) return false;
  const bool is_long = s.channels() * s.width > kMostOfLine;  // a slab is a line at least
  if (is_long && !s.is_depthwise()) return false;
  if (s.groups > 1) return s.channels() <= 64;
  return s.channels() <= 16 || (s.stride_h == 1 && s.stride_w == 1 && s.channels() * s.filters() <= 32 * 32);
}

}  // namespace

extern "C" {

// x (n, c, height, width), weight (o, c / groups, rows, columns), y (n, o, out_height, out_width), without gaps; bias
// (o) and followers may be null. numbers: a PlaneShape.
__attribute__((visibility("default"))) void planes_run(const int64_t* numbers, const float* x, const float* weight,
                                                       const float* bias, const kh::Followers* followers, float* y) {
  kh::PlaneShape s;
  std::memcpy(&s, numbers, sizeof s);
  const kh::Finish finish(followers, s.o);
  if (kh::is_small(s)) {
    kh::by_channels(s, x, weight, bias, finish, y);
  } else if (is_narrow(s)) {
    kh::by_lines(s, x, weight, bias, finish, y);
  } else {
    kh::by_product(s, x, weight, bias, finish, y);
  }
}

// The same of channels_last x and y, where each channel has a group and a filter of its own.
__attribute__((visibility("default"))) void pixels_run(const int64_t* numbers, const float* x, const float* weight,
                                                       const float* bias, const kh::Followers* followers, float* y) {
  kh::PlaneShape s;
  std::memcpy(&s, numbers, sizeof s);
  kh::by_pixels(s, x, weight, bias, kh::Finish(followers, s.o), y);
}

}  // extern "C"
