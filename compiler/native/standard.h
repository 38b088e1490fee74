// What generated code uses of the standard library, without what takes longest to read: <algorithm>, with the ranges of
// C++20, and of <cmath> the special functions of C++17, half of the time in which a small kernel was compiled.
#pragma once

#include <cstddef>  // brings the macros of the library
#include <cstdint>
#include <initializer_list>
#ifdef _GLIBCXX_USE_STD_SPEC_FUNCS
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
#endif
#include <cmath>

#include "simd.h"

KH_NAMESPACE {

// As those of <algorithm>, of numbers.
template <class T>
KH_INLINE constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
KH_INLINE constexpr T max(T a, T b) {
  return a < b ? b : a;
}
template <class T>
KH_INLINE constexpr T min(std::initializer_list<T> of) {
  T least = *of.begin();
  for (const T one : of) least = min(least, one);
  return least;
}
template <class T>
KH_INLINE constexpr T max(std::initializer_list<T> of) {
  T greatest = *of.begin();
  for (const T one : of) greatest = max(greatest, one);
  return greatest;
}
template <class T>
KH_INLINE constexpr T clamp(T x, T low, T high) {
  return x < low ? low : high < x ? high : x;
}
template <class T, class Value>
KH_INLINE void fill_n(T* to, int64_t count, Value value) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(value);
}

}  // namespace kh
