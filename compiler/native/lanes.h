// Vectors of as many floats as a plan of loops says: wider ones than the target has are several of its own.
#pragma once

#include "simd.h"

KH_NAMESPACE {

template <int64_t Width>
struct Lanes {
  typedef float type __attribute__((vector_size(Width * 4)));
  typedef float unaligned __attribute__((vector_size(Width * 4), aligned(4), may_alias));

  static KH_INLINE type load(const float* from) { return *reinterpret_cast<const unaligned*>(from); }
  static KH_INLINE void store(float* to, type value) { *reinterpret_cast<unaligned*>(to) = value; }
};

}  // namespace kh
