// Products of bfloat16 on AMX: tiles of 16 x 32 times 32 x 16, added up in float32, sixteen times what the instruction on
// pairs multiplies in a cycle. Operands lie as those of gemm_pairs.h do: a line of a row is a row of a tile.
// Source: Intel, Architecture Instruction Set Extensions Programming Reference (2020), chapter 3.
#pragma once

#include "gemm_pairs.h"

#if defined(__AVX512F__) && defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

KH_NAMESPACE {

#if defined(__AVX512F__) && defined(__x86_64__) && defined(__linux__)

// Whether this processor has it, and the system lets this process use it.
inline bool has_amx() {
  static const bool found = [] {
    constexpr unsigned kBfloat16 = 1u << 22, kTileUnit = 1u << 24, kPermission = 0x1023, kTileData = 18;
    unsigned a, b, c, d;
    return has_pairs() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kBfloat16) && (d & kTileUnit) &&
           syscall(SYS_arch_prctl, kPermission, kTileData) == 0;
  }();
  return found;
}

// to[0..kLine) = from[0..kLine), rounded.
KH_INLINE void narrow_line(const float* from, bf16* to) {
  static_assert(kLine == kLanes);
  typedef uint16_t vbits __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));
  vbits narrow;
  asm("vcvtneps2bf16 %1, %0" : "=v"(narrow) : "v"(load(from)));
  *reinterpret_cast<vbits*>(to) = narrow;
}

struct Amx : Pairs {
  static constexpr int64_t kBlock = 32;
};

// Two rows of two tiles of sums, tmm0 to tmm3; tmm4 and tmm5 hold the left operand, tmm6 and tmm7 the right one. Which
// registers are used stands in the text alone: compilers use none of them by themselves.
template <>
class Multiplier<Amx> {
 public:
  Multiplier() = default;
  Multiplier(const Multiplier&) = delete;
  ~Multiplier() {
    if (rows_ > 0) asm volatile("tilerelease");
  }

  void multiply(int64_t rows, int64_t width, int64_t depth, const float* a, const float* b, float* tile, int64_t stride,
                bool accumulate) {
    const int64_t whole = depth / kLine * kLine;
    if (whole > 0) {
      configure(rows);
      const bool high = rows > kHigh, wide = width > kLanes;
      const Place at{a, b, tile, rows * kLineBytes, width * kBytes, stride * kBytes, whole / kLine};
      if (high) {
        wide ? run<true, true>(at, accumulate) : run<true, false>(at, accumulate);
      } else {
        wide ? run<false, true>(at, accumulate) : run<false, false>(at, accumulate);
      }
    }
    if (whole == depth) return;
    // What is left of k is less than a tile has.
    const int64_t vectors = width / kLanes;
    for (int64_t row = 0; row < rows; row += kRows) {
      const int64_t some = std::min(kRows, rows - row);
      rest(some, vectors, depth - whole, a + whole * rows + row * kLine, b + whole * width, tile + row * stride, stride,
           accumulate || whole > 0);
    }
  }

 private:
  static constexpr int64_t kHigh = 16, kBytes = sizeof(float), kLineBytes = kLine * kBytes;

  struct Place {
    const float *a, *b;
    float* tile;
    int64_t a_step, b_stride, tile_stride, lines;  // bytes
  };

  // A kernel of pairs reads lines of its own number of rows: its line here is shorter than one, so there is one.
  static void rest(int64_t rows, int64_t vectors, int64_t depth, const float* a, const float* b, float* tile,
                   int64_t stride, bool accumulate) {
    kKernelsOf<Pairs>[vectors - 1][rows - 1](depth, a, b, tile, stride, accumulate);
  }

  void configure(int64_t rows) {
    if (rows == rows_) return;
    struct alignas(64) {
      uint8_t palette = 1, start = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    const auto upper = static_cast<uint8_t>(std::min(rows, kHigh)), lower = static_cast<uint8_t>(rows - upper);
    const uint8_t high[] = {upper, upper, lower, lower, upper, lower, kHigh, kHigh};
    for (int tile = 0; tile < 8; ++tile) {
      config.rows[tile] = high[tile] > 0 ? high[tile] : 1;
      config.row_bytes[tile] = kLineBytes;
    }
    asm volatile("ldtilecfg %0" : : "m"(config));
    rows_ = rows;
  }

  template <bool High, bool Wide>
  static void run(const Place& at, bool accumulate) {
    const auto* a = reinterpret_cast<const char*>(at.a);
    const auto* b = reinterpret_cast<const char*>(at.b);
    auto* const tile = reinterpret_cast<char*>(at.tile);
    char* const below = tile + kHigh * at.tile_stride;
    if (accumulate) {
      asm volatile("tileloadd (%0,%1,1), %%tmm0" : : "r"(tile), "r"(at.tile_stride) : "memory");
      if (Wide) asm volatile("tileloadd (%0,%1,1), %%tmm1" : : "r"(tile + kLineBytes), "r"(at.tile_stride) : "memory");
      if (High) asm volatile("tileloadd (%0,%1,1), %%tmm2" : : "r"(below), "r"(at.tile_stride) : "memory");
      if (High && Wide)
        asm volatile("tileloadd (%0,%1,1), %%tmm3" : : "r"(below + kLineBytes), "r"(at.tile_stride) : "memory");
    } else {
      asm volatile("tilezero %tmm0\n\ttilezero %tmm1\n\ttilezero %tmm2\n\ttilezero %tmm3");
    }
    const int64_t b_step = kLine * at.b_stride;
    constexpr int kAhead = 2;  // lines of b that are on their way: a tile is read from L2 as slowly as it is multiplied
    for (int64_t line = 0; line < at.lines; ++line, a += at.a_step, b += b_step) {
      for (int64_t row = 0; row < kLine; ++row) {
        __builtin_prefetch(b + kAhead * b_step + row * at.b_stride);
        if (Wide) __builtin_prefetch(b + kAhead * b_step + row * at.b_stride + kLineBytes);
      }
      asm volatile("tileloadd (%0,%1,1), %%tmm6" : : "r"(b), "r"(at.b_stride) : "memory");
      asm volatile("tileloadd (%0,%1,1), %%tmm4" : : "r"(a), "r"(kLineBytes) : "memory");
      asm volatile("tdpbf16ps %tmm6, %tmm4, %tmm0");
      if (Wide) {
        asm volatile("tileloadd (%0,%1,1), %%tmm7" : : "r"(b + kLineBytes), "r"(at.b_stride) : "memory");
        asm volatile("tdpbf16ps %tmm7, %tmm4, %tmm1");
      }
      if (High) {
        asm volatile("tileloadd (%0,%1,1), %%tmm5" : : "r"(a + kHigh * kLineBytes), "r"(kLineBytes) : "memory");
        asm volatile("tdpbf16ps %tmm6, %tmm5, %tmm2");
        if (Wide) asm volatile("tdpbf16ps %tmm7, %tmm5, %tmm3");
      }
    }
    asm volatile("tilestored %%tmm0, (%0,%1,1)" : : "r"(tile), "r"(at.tile_stride) : "memory");
    if (Wide) asm volatile("tilestored %%tmm1, (%0,%1,1)" : : "r"(tile + kLineBytes), "r"(at.tile_stride) : "memory");
    if (High) asm volatile("tilestored %%tmm2, (%0,%1,1)" : : "r"(below), "r"(at.tile_stride) : "memory");
    if (High && Wide)
      asm volatile("tilestored %%tmm3, (%0,%1,1)" : : "r"(below + kLineBytes), "r"(at.tile_stride) : "memory");
  }

  int64_t rows_ = 0;
};

#else
inline bool has_amx() { return false; }
using Amx = Pairs;
KH_INLINE void narrow_line(const float* from, bf16* to) {
  for (int64_t x = 0; x < kLine; ++x) to[x] = from[x];
}
#endif

struct AmxMatrix : PairsMatrix {
  using Elements = Amx;
};

}  // namespace kh
