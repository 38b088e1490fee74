// Products with a weight of few bits as generated units call them; compiled once, in linked_few_bits.cpp.
#pragma once

#include <cstdint>

#include "linked.h"

KH_NAMESPACE {

// What scales and zero points are kept as. kNone: there are no zero points; each is the middle, 2^(bits - 1).
enum class Kept { kNone, kBytes, kFloats, kBfloat16, kFloat16 };
template <class T>
inline constexpr Kept kKeptAs = Kept::kFloats;
template <>
inline constexpr Kept kKeptAs<bf16> = Kept::kBfloat16;
template <>
inline constexpr Kept kKeptAs<f16> = Kept::kFloat16;
template <class T>
inline constexpr Kept kZerosKeptAs = Kept::kFloats;
template <>
inline constexpr Kept kZerosKeptAs<uint8_t> = Kept::kBytes;

// A weight (k, n) of numbers of 2, 4 or 8 bits. Of each column, blocks of so many numbers have a scale and a zero point:
// (number - zero) * scale. words, scales, zeros: what the functions below have packed.
struct FewBits {
  int64_t k, n, block, bits;
  Kept scales_as, zeros_as;
  const float *words, *scales, *zeros;

  int64_t blocks() const { return ceil_div(k, block); }
};

// Floats of the numbers, packed; and the packing, of bytes (n, blocks, bytes of a block), the low bits first.
int64_t words_size(int64_t k, int64_t n, int64_t bits);
void pack_words(int64_t k, int64_t n, int64_t block, int64_t bits, const uint8_t* from, const int64_t strides[3],
                float* packed);

// Floats of scales (n, blocks), packed; and the packing.
template <class T>
int64_t scales_size(int64_t blocks, int64_t n);
template <class T>
void pack_scales(int64_t blocks, int64_t n, const T* from, const int64_t strides[2], float* packed);

// Floats of zero points (n, blocks), packed: bytes stay bytes, all others are floats; and the packing.
template <class T>
int64_t zeros_size(int64_t blocks, int64_t n);
template <class T>
void pack_zeros(int64_t blocks, int64_t n, int64_t bits, const T* from, const int64_t strides[2], float* packed);

template <class T>
void multiply_few_bits_tiles(int64_t m, const FewBits& weight, const T* a, int64_t stride_m, int64_t stride_k,
                             const Tile& tile);

// e(0, i, j, count, acc): acc[0..count) are (a @ weight)[i, j..j + count). a (m, k).
template <class T, class Epilogue>
KH_INLINE void multiply_few_bits(int64_t m, const FewBits& weight, const T* a, int64_t stride_m, int64_t stride_k,
                                 const Epilogue& e) {
  multiply_few_bits_tiles(m, weight, a, stride_m, stride_k, {give_rows<Epilogue>, &e, 0, 0});
}

}  // namespace kh
