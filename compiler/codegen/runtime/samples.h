// Whether weights still hold what they held at a few places: windows of `width` bytes, one every `step` bytes.
#pragma once

#include <cstdint>
#include <cstring>

struct KhWindows {
  const char* start;
  int64_t step, places, width;
};

// kept: the bytes of all windows, one after the other. Hardly any of them is in a cache, so their lines are asked for
// together before the first is read.
extern "C" int kh_same(const KhWindows* all, int64_t count, const char* kept) {
  for (const KhWindows* one = all; one != all + count; ++one)
    for (int64_t place = 0; place < one->places; ++place) __builtin_prefetch(one->start + place * one->step);
  for (const KhWindows* one = all; one != all + count; ++one)
    for (int64_t place = 0; place < one->places; ++place, kept += one->width)
      if (std::memcmp(one->start + place * one->step, kept, one->width) != 0) return 0;
  return 1;
}
