// What vectors of floats have in common in chains and reductions: the greater and the lesser, and rows of few columns.
#pragma once

#include <limits>

#include "bytecode.h"

KH_NAMESPACE {

namespace bytecode {

// NaN where one is.
KH_INLINE vfloat greater_of(vfloat a, vfloat b) { return (a != a) | (a > b) ? a : b; }
KH_INLINE vfloat lesser_of(vfloat a, vfloat b) { return (a != a) | (a < b) ? a : b; }

// How a row is taken in. repeats: whether an element may be taken twice.
struct Adding {
  static constexpr float neutral = 0;
  static constexpr bool repeats = false;
  KH_INLINE static vfloat of(vfloat a, vfloat b) { return a + b; }
  template <class T>
  KH_INLINE static T of(T total, float part) { return total + static_cast<T>(part); }
};
struct Greatest {
  static constexpr float neutral = -std::numeric_limits<float>::infinity();
  static constexpr bool repeats = true;
  KH_INLINE static vfloat of(vfloat a, vfloat b) { return greater_of(a, b); }
  template <class T>
  KH_INLINE static T of(T total, float part) { return total != total || total > part ? total : static_cast<T>(part); }
};
struct Least {
  static constexpr float neutral = std::numeric_limits<float>::infinity();
  static constexpr bool repeats = true;
  KH_INLINE static vfloat of(vfloat a, vfloat b) { return lesser_of(a, b); }
  template <class T>
  KH_INLINE static T of(T total, float part) { return total != total || total < part ? total : static_cast<T>(part); }
};

inline constexpr int64_t kFewColumns = 8 * kLanes;
alignas(64) inline constexpr float kPlaces[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// A vector whose lanes come to what the row comes to.
template <class How>
KH_INLINE vfloat lanes_of_row(const float* from, int64_t count) {
  if (count < kLanes) {
    alignas(64) float all[kLanes];
    kh::store(all, splat(How::neutral));
    for (int64_t i = 0; i < count; ++i) all[i] = from[i];
    return kh::load(all);
  }
  vfloat found = kh::load(from);
  int64_t i = kLanes;
  for (; i + kLanes <= count; i += kLanes) found = How::of(found, kh::load(from + i));
  if (i < count) {
    vfloat last = kh::load(from + count - kLanes);  // some of which were taken before
    const vfloat taken = splat(static_cast<float>(i + kLanes - count));
    if constexpr (!How::repeats) last = kh::load(kPlaces) >= taken ? last : vfloat{};
    found = How::of(found, last);
  }
  return found;
}

// Rows of few columns, as many at once as a vector has lanes: the lanes of them all are halved together.
template <class How, class T>
void feed_short_rows(const Register& to, const Register& a, int64_t rows, int64_t columns) {
  alignas(64) float lanes[kLanes * kLanes] = {}, parts[kLanes];
  for (int64_t r = 0; r < rows; r += kLanes) {
    const int64_t here = std::min(kLanes, rows - r);
    for (int64_t k = 0; k < here; ++k) kh::store(lanes + k * kLanes, lanes_of_row<How>(a.row<float>(r + k), columns));
    kh::store(parts, reduced_rows(lanes, [](vfloat one, vfloat other) { return How::of(one, other); }));
    for (int64_t k = 0; k < here; ++k) *to.row<T>(r + k) = How::of(*to.row<T>(r + k), parts[k]);
  }
}

}  // namespace bytecode

}  // namespace kh
