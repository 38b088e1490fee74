// Products of rows of bytes (0 to 255) with a packed matrix of signed bytes, exact in int32: four multiplications a lane
// at once on AVX-512's VNNI, two with vpmaddwd on other x86, one elsewhere.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "linked.h"

KH_NAMESPACE {

typedef int32_t vint __attribute__((vector_size(kLanes * 4)));
typedef int32_t vint_unaligned __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

constexpr int64_t kBytePanel = 4 * kLanes;  // columns that lie together in a packed matrix
constexpr int64_t kByteGroup = 4;           // depths that a lane has together

KH_INLINE vint splat_of(int32_t value) { return vint{} + value; }
KH_INLINE vint load_ints(const int32_t* from) { return *reinterpret_cast<const vint_unaligned*>(from); }
KH_INLINE void store(int32_t* to, vint value) { *reinterpret_cast<vint_unaligned*>(to) = value; }

// add(sum, q, w): in each lane the products of four bytes of q, at 0 to 255, with four of w, at -128 to 127.
struct SeveralSteps {
  KH_INLINE static void add(vint& sum, int32_t q, vint w) {
#if defined(__AVX2__) && defined(__x86_64__)
    typedef int16_t vshort __attribute__((vector_size(kLanes * 4)));
    const vshort pairs = reinterpret_cast<vshort>(w);
    const vshort even = (pairs << 8) >> 8, odd = pairs >> 8;
    const vint low = splat_of(q & 0x00FF00FF), high = splat_of(static_cast<int32_t>((static_cast<uint32_t>(q) >> 8) & 0x00FF00FFu));
    vint first, second;
    asm("vpmaddwd %2, %1, %0" : "=v"(first) : "v"(low), "v"(even));
    asm("vpmaddwd %2, %1, %0" : "=v"(second) : "v"(high), "v"(odd));
    sum += first + second;
#else
    const auto bits = static_cast<uint32_t>(q);
    sum += ((w << 24) >> 24) * static_cast<int32_t>(bits & 255u);
    sum += ((w << 16) >> 24) * static_cast<int32_t>((bits >> 8) & 255u);
    sum += ((w << 8) >> 24) * static_cast<int32_t>((bits >> 16) & 255u);
    sum += (w >> 24) * static_cast<int32_t>(bits >> 24);
#endif
  }
};

#if defined(__AVX512F__) && defined(__x86_64__)
struct OneStep {
  KH_INLINE static void add(vint& sum, int32_t q, vint w) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(splat_of(q)), "v"(w));
  }
};
// Whether this processor has it: code for AVX-512 runs on some that do not.
inline bool has_one_step() {
  static const bool found = __builtin_cpu_supports("avx512vnni");
  return found;
}
#else
using OneStep = SeveralSteps;
inline bool has_one_step() { return false; }
#endif

// Int32s of a packed matrix of so many columns and depths; sums of its columns come last.
constexpr int64_t byte_panels_size(int64_t columns, int64_t depth) {
  return round_up(columns, kBytePanel) * (ceil_div(depth, kByteGroup) + 1);
}
inline const int32_t* column_sums(const int32_t* packed, int64_t columns, int64_t depth) {
  return packed + round_up(columns, kBytePanel) * ceil_div(depth, kByteGroup);
}

// Element (k, j) lies at from[j * stride_j + k * stride_k].
inline void pack_bytes(const int8_t* from, int64_t columns, int64_t depth, int64_t stride_j, int64_t stride_k,
                       int32_t* packed) {
  const int64_t groups = ceil_div(depth, kByteGroup), wide = round_up(columns, kBytePanel);
  int32_t* to = packed;
  int32_t* const sums = packed + wide * groups;
  std::fill_n(sums, wide, 0);
  for (int64_t panel = 0; panel < wide; panel += kBytePanel) {
    for (int64_t k = 0; k < depth; k += kByteGroup) {
      for (int64_t j = panel; j < panel + kBytePanel; ++j, ++to) {
        int8_t four[kByteGroup] = {};
        for (int64_t i = 0; j < columns && i < std::min(kByteGroup, depth - k); ++i) {
          four[i] = from[j * stride_j + (k + i) * stride_k];
          sums[j] += four[i];
        }
        std::memcpy(to, four, sizeof four);
      }
    }
  }
}

// Rows of so many panels: q (rows, groups * 4) bytes.
template <class Products, int64_t Rows, int64_t Panels>
KH_INLINE void byte_block(const uint8_t* q, const int32_t* packed, int64_t groups, int32_t* out, int64_t out_stride) {
  constexpr int64_t vectors = 4 * Panels;
  vint sum[Rows][vectors];
  KH_UNROLL(4)
  for (int64_t row = 0; row < Rows; ++row) {
    KH_UNROLL(8)
    for (int64_t v = 0; v < vectors; ++v) sum[row][v] = vint{};
  }
  for (int64_t group = 0; group < groups; ++group) {
    int32_t four[Rows];
    KH_UNROLL(4)
    for (int64_t row = 0; row < Rows; ++row)
      std::memcpy(&four[row], q + (row * groups + group) * kByteGroup, sizeof four[row]);
    KH_UNROLL(8)
    for (int64_t v = 0; v < vectors; ++v) {
      const vint w = load_ints(packed + (v / 4 * groups + group) * kBytePanel + v % 4 * kLanes);
      KH_UNROLL(4)
      for (int64_t row = 0; row < Rows; ++row) Products::add(sum[row][v], four[row], w);
    }
  }
  KH_UNROLL(4)
  for (int64_t row = 0; row < Rows; ++row) {
    KH_UNROLL(8)
    for (int64_t v = 0; v < vectors; ++v) store(out + row * out_stride + v * kLanes, sum[row][v]);
  }
}

template <class Products>
void byte_products(const uint8_t* q, int64_t rows, int64_t depth, const int32_t* packed, int64_t columns, int32_t* out,
                   int64_t out_stride) {
  const int64_t groups = ceil_div(depth, kByteGroup);
  for (int64_t j = 0; j < columns; j += kBytePanel, packed += groups * kBytePanel) {
    if (rows == 1 && j + kBytePanel < columns) {  // as many sums under way as hide the latency of one
      byte_block<Products, 1, 2>(q, packed, groups, out + j, out_stride);
      j += kBytePanel;
      packed += groups * kBytePanel;
      continue;
    }
    int64_t row = 0;
    for (; row + 4 <= rows; row += 4)
      byte_block<Products, 4, 1>(q + row * groups * kByteGroup, packed, groups, out + row * out_stride + j, out_stride);
    const uint8_t* const rest = q + row * groups * kByteGroup;
    int32_t* const to = out + row * out_stride + j;
    if (rows - row == 3) byte_block<Products, 3, 1>(rest, packed, groups, to, out_stride);
    if (rows - row == 2) byte_block<Products, 2, 1>(rest, packed, groups, to, out_stride);
    if (rows - row == 1) byte_block<Products, 1, 1>(rest, packed, groups, to, out_stride);
  }
}

// out[row][j] = sum over k of q[row][k] * packed[k][j]; q (rows, depth rounded up to 4), what is behind the depth 0;
// out_stride a multiple of kBytePanel, and no less than the columns.
inline void byte_product(const uint8_t* q, int64_t rows, int64_t depth, const int32_t* packed, int64_t columns,
                         int32_t* out, int64_t out_stride) {
  if (has_one_step())
    byte_products<OneStep>(q, rows, depth, packed, columns, out, out_stride);
  else
    byte_products<SeveralSteps>(q, rows, depth, packed, columns, out, out_stride);
}

}  // namespace kh
