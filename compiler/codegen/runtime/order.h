// Where the elements of a row stand in order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <type_traits>

#include "simd.h"
#include "types.h"

KH_NAMESPACE {

// places[0 .. first): where the first of `count` elements, `stride` apart, are in order: least first, or greatest first.
// Equal ones stay as they stand, and NaN is the greatest. There is room for `count` places.
template <bool kDescending, class T>
void order(const T* x, int64_t count, int64_t stride, int64_t first, int64_t* places) {
  const auto value = [=](int64_t at) {
    if constexpr (std::is_arithmetic_v<T>) return x[at * stride];
    else return static_cast<float>(x[at * stride]);
  };
  const auto before = [=](int64_t a, int64_t b) {
    const auto p = value(kDescending ? b : a), q = value(kDescending ? a : b);
    if (p < q || (q != q && p == p)) return true;
    return !(q < p || (p != p && q == q)) && a < b;
  };
  std::iota(places, places + count, int64_t{0});
  if (first < count) {
    std::partial_sort(places, places + first, places + count, before);
  } else {
    std::sort(places, places + count, before);
  }
}

}  // namespace kh
