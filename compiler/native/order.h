// Where the elements of a row stand in order.
//
// An element and its place become one number, or two, that sort as plain integers do: comparing those takes no jump
// into the row, and equal elements stay as they stand.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "simd.h"
#include "types.h"

KH_NAMESPACE {

// An unsigned number that is greater where the element is; NaN is the greatest, and -0 equals 0.
template <class T>
KH_INLINE auto rank_of(T x) {
  if constexpr (!std::is_arithmetic_v<T>) {
    return rank_of(static_cast<float>(x));
  } else if constexpr (std::is_floating_point_v<T>) {
    using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
    constexpr Bits sign = Bits{1} << (8 * sizeof(T) - 1);
    if (x != x) return std::numeric_limits<Bits>::max();
    const Bits bits = std::bit_cast<Bits>(x == 0 ? T{0} : x);
    return bits & sign ? static_cast<Bits>(~bits) : static_cast<Bits>(bits | sign);
  } else if constexpr (sizeof(T) == 8) {
    return static_cast<uint64_t>(x) ^ (std::is_signed_v<T> ? uint64_t{1} << 63 : 0);
  } else {
    return static_cast<uint32_t>(static_cast<int64_t>(x) - (std::is_signed_v<T> ? int64_t{INT32_MIN} : 0));
  }
}

// Rows of `count` elements, one after the other in the same memory: after order(), [i] is where the i-th element stands.
template <class T>
class Places {
 public:
  explicit Places(int64_t count) : entries_(count) {}

  // The `first` of a row in order, least or greatest first; its elements are `stride` apart.
  template <bool kDescending>
  void order(const T* x, int64_t stride, int64_t first) {
    fill<kDescending>(x, stride);
    if (first < static_cast<int64_t>(entries_.size())) {
      std::partial_sort(entries_.begin(), entries_.begin() + first, entries_.end());
    } else {
      std::sort(entries_.begin(), entries_.end());
    }
  }

  // Where the element stands that would be the `place`-th of a row in order, the least first; 0 where there is none.
  int64_t kth(const T* x, int64_t stride, int64_t place) {
    if (place < 0 || place >= static_cast<int64_t>(entries_.size())) return 0;
    fill<false>(x, stride);
    std::nth_element(entries_.begin(), entries_.begin() + place, entries_.end());
    return (*this)[place];
  }

  KH_INLINE int64_t operator[](int64_t i) const {
    if constexpr (kPacked) return static_cast<int64_t>(entries_[i] & 0xffffffffu);
    else return entries_[i].second;
  }

 private:
  using Rank = decltype(rank_of(T{}));

  template <bool kDescending>
  void fill(const T* x, int64_t stride) {
    const int64_t count = static_cast<int64_t>(entries_.size());
    for (int64_t i = 0; i < count; ++i) {
      const Rank rank = kDescending ? static_cast<Rank>(~rank_of(x[i * stride])) : rank_of(x[i * stride]);
      if constexpr (kPacked) entries_[i] = uint64_t{rank} << 32 | static_cast<uint32_t>(i);
      else entries_[i] = {rank, i};
    }
  }

  static constexpr bool kPacked = sizeof(Rank) == 4;  // rows are shorter than 2^32
  std::vector<std::conditional_t<kPacked, uint64_t, std::pair<uint64_t, int64_t>>> entries_;
};

}  // namespace kh
