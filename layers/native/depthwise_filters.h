// The filters of a depthwise convolution as conv_depthwise() takes them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "parallel.h"
#include "simd.h"

KH_NAMESPACE {

// filters (c, taps) -> (taps, c rounded up to vectors), in memory of this thread that the next call overwrites. They are
// few: turned round at every call, no copy of them is kept.
inline const float* turned_filters(const float* filters, int64_t c, int64_t taps) {
  const int64_t padded = round_up(c, kLanes);
  float* const turned = workspace<Use::kRight>().floats(taps * padded);
  parallel(ceil_div(c, kLanes), ceil_div(8192, kLanes * taps), [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kLanes, last = std::min(end * kLanes, c);
    transpose(filters + first * taps, taps, turned + first, padded, last - first, taps);
    for (int64_t tap = 0; last == c && tap < taps; ++tap)  // vectors are read whole
      std::fill(turned + tap * padded + c, turned + (tap + 1) * padded, 0.0f);
  });
  return turned;
}

}  // namespace kh
