// The element types that C++20 has no name for: bfloat16 and IEEE half precision, as storage: compute in float.
// bool is C++'s, one byte.
//
// Conversions round to nearest, ties to even, and keep NaN; written on bits, branch-free, so that loops over
// them vectorise (compilers convert _Float16 one by one). Source: F. Giesen, float/half conversions (2012).
#pragma once

#include <bit>
#include <cstdint>

#include "simd.h"

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
    const uint32_t from = std::bit_cast<uint32_t>(value), sign = from & 0x80000000u, size = from ^ sign;
    const uint32_t normal = (size - (112u << 23) + 0xfffu + ((size >> 13) & 1u)) >> 13;
    // Adding 1/2 leaves the ten bits of a subnormal, rounded, in the lowest places.
    const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(size) + 0.5f) - 0x3f000000u;
    const uint32_t huge = size > 0x7f800000u ? 0x7e00u | ((size >> 13) & 0x1ffu) : 0x7c00u;
    const uint32_t result = size >= 0x477ff000u ? huge : size < 0x38800000u ? subnormal : normal;
    return static_cast<uint16_t>(result | (sign >> 16));
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
KH_INLINE vfloat load(const f16* from) {
  vfloat wide;
#if defined(__x86_64__) && (defined(__AVX512F__) || (defined(__AVX2__) && defined(__F16C__)))
  typedef uint16_t vbits __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));
  asm("vcvtph2ps %1, %0" : "=v"(wide) : "m"(*reinterpret_cast<const vbits*>(from)));
#else
  for (int64_t i = 0; i < kLanes; ++i) wide[i] = static_cast<float>(from[i]);
#endif
  return wide;
}

}  // namespace kh
