// The element types that C++20 has no name for: bfloat16 and IEEE half precision, as storage: compute in float.
// bool is C++'s, one byte.
//
// Conversions round to nearest, ties to even, and keep NaN; written on bits, branch-free, so that loops over
// them vectorise (compilers convert _Float16 one by one). Source: F. Giesen, float/half conversions (2012).
#pragma once

#include <bit>
#include <cstdint>

#include "simd.h"
#include "standard.h"

static_assert(sizeof(bool) == 1, "tensors of bool have one byte an element");

KH_NAMESPACE {

// The upper half of a float.
struct [[gnu::visibility("default")]] bf16 {
  uint16_t bits;

  bf16() = default;
  KH_INLINE explicit bf16(float value) : bits(of(value)) {}
  // Without a bf16 in between, which GCC does not vectorise.
  KH_INLINE bf16& operator=(float value) {
    bits = of(value);
    return *this;
  }
  KH_INLINE operator float() const { return wide(bits); }

  KH_INLINE static uint16_t of(float value) {
    const uint32_t from = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = from + 0x7fffu + ((from >> 16) & 1u), quiet = from | 0x400000u;
    return static_cast<uint16_t>((value == value ? rounded : quiet) >> 16);
  }
  KH_INLINE static float wide(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

// IEEE 754 binary16: 5 bits of exponent, 10 of fraction.
struct [[gnu::visibility("default")]] f16 {
  uint16_t bits;

  f16() = default;
  KH_INLINE explicit f16(float value) : bits(of(value)) {}
  KH_INLINE f16& operator=(float value) {
    bits = of(value);
    return *this;
  }
  KH_INLINE operator float() const { return wide(bits); }

  KH_INLINE static uint16_t of(float value) {
    const uint32_t from = std::bit_cast<uint32_t>(value), size = from & 0x7fffffffu;
    // What rounds to infinity is 2^16 at most: as infinity is, a 1 behind the greatest exponent.
    const uint32_t seen = min(size, 0x47800000u);
    // Added to the power of two below, or to 2^-14 below that, what is 2^13 times less has its ten bits, rounded, in the
    // lowest places: of a normal number the 1 before them as well, which counts its exponent up.
    const uint32_t power = max(seen & 0x7f800000u, 0x38800000u);
    const float sum = std::bit_cast<float>(seen) * 0x1p-13f + std::bit_cast<float>(power);
    const uint32_t number = std::bit_cast<uint32_t>(sum) - power + (power >> 13) - 0x1c400u;
    const uint32_t result = size > 0x7f800000u ? 0x7e00u | (size >> 13) : number;
    return static_cast<uint16_t>((result & 0x7fffu) | (from >> 16 & 0x8000u));
  }
  KH_INLINE static float wide(uint16_t bits) {
    const uint32_t sign = (bits & 0x8000u) << 16, size = bits & 0x7fffu;
    // Not by a product with 2^112: what is subnormal here would be so as a float, and may count as 0 during a call.
    const uint32_t subnormal = std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(size)) * 0x1p-24f);
    const uint32_t normal = (size << 13) + (size >= 0x7c00u ? 0x70000000u : 0x38000000u);
    return std::bit_cast<float>(sign | (size < 0x400u ? subnormal : normal));
  }
};

// As many of them as a vector has floats.
KH_INLINE vfloat load(const bf16* from) {
  typedef uint16_t vbits __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));
  typedef uint32_t vwide __attribute__((vector_size(kLanes * 4)));
  return reinterpret_cast<vfloat>(__builtin_convertvector(*reinterpret_cast<const vbits*>(from), vwide) << 16);
}
#if defined(__x86_64__) && (defined(__AVX512F__) || (defined(__AVX2__) && defined(__F16C__)))
typedef uint16_t vhalf __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));
KH_INLINE vfloat load(const f16* from) {
  vfloat wide;
  asm("vcvtph2ps %1, %0" : "=v"(wide) : "m"(*reinterpret_cast<const vhalf*>(from)));
  return wide;
}
KH_INLINE void store(f16* to, vfloat value) {
  asm("vcvtps2ph $0, %1, %0" : "=m"(*reinterpret_cast<vhalf*>(to)) : "v"(value));
}
#else
KH_INLINE vfloat load(const f16* from) {
  vfloat wide;
  for (int64_t i = 0; i < kLanes; ++i) wide[i] = static_cast<float>(from[i]);
  return wide;
}
KH_INLINE void store(f16* to, vfloat value) {
  for (int64_t i = 0; i < kLanes; ++i) to[i] = value[i];
}
#endif

// A row of them to floats or back, a vector at a time: the last one overlaps the one before.
template <class From, class To>
KH_INLINE void convert_row(const From* from, int64_t count, To* to) {
  if (count < kLanes) {
    for (int64_t i = 0; i < count; ++i) to[i] = from[i];
    return;
  }
  for (int64_t i = 0; i < count - kLanes; i += kLanes) store(to + i, load(from + i));
  store(to + count - kLanes, load(from + count - kLanes));
}
inline void widen(const f16* from, int64_t count, float* to) { convert_row(from, count, to); }
inline void narrow(const float* from, int64_t count, f16* to) { convert_row(from, count, to); }
inline void widen(const bf16* from, int64_t count, float* to) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = from[i];
}
inline void narrow(const float* from, int64_t count, bf16* to) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = from[i];
}

}  // namespace kh
