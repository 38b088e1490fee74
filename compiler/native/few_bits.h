// Products with a weight that stays packed, in numbers of 2, 4 or 8 bits: read as they lie, and made floats in registers.
//
//   words    panels of kBitsPanel columns; of each column, 32 bits of numbers after numbers along k; signed, less the
//            middle, so that a shift to the left and one to the right makes an integer of one
//   scales   (panel, block, column), as narrow as they are given; zero points likewise, less the middle
//
// Of few rows, each panel is read once for up to kFewRows of them: a block is summed in registers, and its sums times the
// scales are added up. Of more, a piece of a panel becomes floats in L1, for the kernels of gemm.h.
#pragma once

#include "linked_few_bits.h"
#include "linked_tile.h"
#include "types.h"

KH_NAMESPACE {

typedef int32_t vint __attribute__((vector_size(kLanes * 4)));
typedef int32_t vint_unaligned __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr int64_t kBitsVectors = 4;  // 16 of 32 registers sum a block
#else
inline constexpr int64_t kBitsVectors = 2;  // 8 of 16
#endif
inline constexpr int64_t kBitsPanel = kBitsVectors * kLanes;
inline constexpr int64_t kFewRows = 4;
inline constexpr int64_t kMostOfFew = 8;  // rows of which each panel is read as it lies, kFewRows at a time
inline constexpr int64_t kBitsDepth = 256;  // of a piece that becomes floats: half of L1

// Number i of each lane's word, as a float.
template <int Bits>
KH_INLINE vfloat number(vint words, int i) {
#if defined(__AVX512F__) && defined(__x86_64__)
  if constexpr (Bits <= 4) {  // the low four bits of a lane choose from a table, whatever is above them
    static constexpr float four[16] = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
    static constexpr float two[16] = {0, 1, -2, -1, 0, 1, -2, -1, 0, 1, -2, -1, 0, 1, -2, -1};
    typedef uint32_t vbits __attribute__((vector_size(kLanes * 4)));
    const vbits shifted = reinterpret_cast<vbits>(words) >> static_cast<uint32_t>(i * Bits);
    vfloat found;
    asm("vpermps %1, %2, %0" : "=v"(found) : "v"(load(Bits == 4 ? four : two)), "v"(shifted));
    return found;
  }
#endif
  return __builtin_convertvector((words << (32 - Bits - i * Bits)) >> (32 - Bits), vfloat);
}

KH_INLINE vfloat scales_at(const FewBits& weight, int64_t at) {
  if (weight.scales_as == Kept::kFloats) return load(weight.scales + at);
  if (weight.scales_as == Kept::kFloat16) return load(reinterpret_cast<const f16*>(weight.scales) + at);
  return load(reinterpret_cast<const bf16*>(weight.scales) + at);
}

KH_INLINE vfloat zeros_at(const FewBits& weight, int64_t at) {
  if (weight.zeros_as == Kept::kFloats) return load(weight.zeros + at);
  typedef int8_t vbytes __attribute__((vector_size(kLanes), aligned(1), may_alias));
  const auto* bytes = reinterpret_cast<const int8_t*>(weight.zeros) + at;
  return __builtin_convertvector(__builtin_convertvector(*reinterpret_cast<const vbytes*>(bytes), vint), vfloat);
}

KH_INLINE vint words_at(const FewBits& weight, int64_t at) {
  return *reinterpret_cast<const vint_unaligned*>(weight.words + at);
}

// Floats of a column's words in a panel.
template <int Bits>
KH_INLINE int64_t words_of(int64_t k) {
  return ceil_div(k, 32 / Bits);
}

// sums (Rows, kBitsPanel) = a (Rows, k) @ a panel. Behind each row of a, `stride` apart, are zeros up to a whole word.
template <int Bits, int Rows, bool Zeros>
[[gnu::noinline]] void few_rows(const FewBits& weight, int64_t panel, const float* a, int64_t stride, float* sums) {
  constexpr int per_word = 32 / Bits, chains = Rows == 1 ? 2 : 1;  // one row's sums would wait for themselves
  constexpr int vectors = static_cast<int>(kBitsVectors);
  const int64_t words = words_of<Bits>(weight.k), blocks = weight.blocks(), block_words = weight.block / per_word;
  int64_t at = panel * words * kBitsPanel;
  for (int64_t i = 0; i < Rows * kBitsPanel; ++i) sums[i] = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t of_block = (panel * blocks + block) * kBitsPanel;
    vfloat part[Rows * chains][vectors] = {}, zeros[vectors];
    if constexpr (Zeros) {
      KH_UNROLL(4)
      for (int v = 0; v < vectors; ++v) zeros[v] = zeros_at(weight, of_block + v * kLanes);
    }
    const int64_t first = block * block_words, last = std::min(words, first + block_words);
    const float* left = a + first * per_word;
    for (int64_t word = first; word < last; ++word, at += kBitsPanel, left += per_word) {
      vint now[vectors];
      KH_UNROLL(4)
      for (int v = 0; v < vectors; ++v) now[v] = words_at(weight, at + v * kLanes);
      KH_UNROLL(16)
      for (int i = 0; i < per_word; ++i) {
        KH_UNROLL(4)
        for (int v = 0; v < vectors; ++v) {
          vfloat right = number<Bits>(now[v], i);
          if constexpr (Zeros) right -= zeros[v];
          KH_UNROLL(4)
          for (int r = 0; r < Rows; ++r) part[r * chains + i % chains][v] += left[r * stride + i] * right;
        }
      }
    }
    KH_UNROLL(4)
    for (int v = 0; v < vectors; ++v) {
      const vfloat scales = scales_at(weight, of_block + v * kLanes);
      KH_UNROLL(4)
      for (int r = 0; r < Rows; ++r) {
        float* const sum = sums + r * kBitsPanel + v * kLanes;
        vfloat added = part[r * chains][v];
        if constexpr (chains == 2) added += part[r * chains + 1][v];
        store(sum, load(sum) + scales * added);
      }
    }
  }
}

// to (depth, kPanel) = the weight from row `from` and column j on, which begin a word and a panel of gemm.h.
template <int Bits, bool Zeros>
[[gnu::noinline]] void widen_piece(const FewBits& weight, int64_t from, int64_t depth, int64_t j, float* to) {
  constexpr int per_word = 32 / Bits;
  const int64_t words = words_of<Bits>(weight.k), blocks = weight.blocks(), block_words = weight.block / per_word;
  const int64_t panel = j / kBitsPanel, within = j % kBitsPanel;
  const int64_t end = (from + depth) / per_word;
  for (int64_t word = from / per_word; word < ceil_div(from + depth, per_word);) {
    const int64_t block = word / block_words, of_block = (panel * blocks + block) * kBitsPanel + within;
    vfloat scales[2], zeros[2];
    for (int v = 0; v < 2; ++v) {
      scales[v] = scales_at(weight, of_block + v * kLanes);
      if constexpr (Zeros) zeros[v] = zeros_at(weight, of_block + v * kLanes);
    }
    const auto put = [&](vint now, int v, int i) __attribute__((always_inline)) {
      vfloat right = number<Bits>(now, i);
      if constexpr (Zeros) right -= zeros[v];
      store(to + i * kPanel + v * kLanes, right * scales[v]);
    };
    const int64_t stop = (block + 1) * block_words;
    for (; word < std::min(stop, end); ++word, to += per_word * kPanel) {
      KH_UNROLL(2)
      for (int v = 0; v < 2; ++v) {
        const vint now = words_at(weight, (panel * words + word) * kBitsPanel + within + v * kLanes);
        KH_UNROLL(16)
        for (int i = 0; i < per_word; ++i) put(now, v, i);
      }
    }
    if (word == end && word < stop && word * per_word < from + depth) {  // a part of a word, at the end of k
      float whole[per_word * kPanel];
      float* const end_of_piece = to;
      to = whole;
      for (int v = 0; v < 2; ++v) {
        const vint now = words_at(weight, (panel * words + word) * kBitsPanel + within + v * kLanes);
        for (int i = 0; i < per_word; ++i) put(now, v, i);
      }
      std::memcpy(end_of_piece, whole, (from + depth - word * per_word) * kPanel * sizeof(float));
      return;
    }
  }
}

using FewRows = void (*)(const FewBits&, int64_t, const float*, int64_t, float*);
template <int Bits, bool Zeros>
inline constexpr std::array<FewRows, kFewRows> kFewRowsOf = {
    few_rows<Bits, 1, Zeros>, few_rows<Bits, 2, Zeros>, few_rows<Bits, 3, Zeros>, few_rows<Bits, 4, Zeros>};

using WidenPiece = void (*)(const FewBits&, int64_t, int64_t, int64_t, float*);

// The functions for a weight.
struct BitsKernels {
  const std::array<FewRows, kFewRows>* few;
  WidenPiece widen;

  template <int Bits>
  static BitsKernels of_bits(bool zeros) {
    if (zeros) return {&kFewRowsOf<Bits, true>, widen_piece<Bits, true>};
    return {&kFewRowsOf<Bits, false>, widen_piece<Bits, false>};
  }
  static BitsKernels of(const FewBits& weight) {
    const bool zeros = weight.zeros_as != Kept::kNone;
    return weight.bits == 2 ? of_bits<2>(zeros) : weight.bits == 4 ? of_bits<4>(zeros) : of_bits<8>(zeros);
  }
};

// All rows of a few: tasks are panels.
template <class Left>
void product_of_few(int64_t m, const FewBits& weight, const Left& left, const Tile& tile, const BitsKernels& kernels) {
  const int64_t stride = round_up(weight.k, kLine), panels = ceil_div(weight.n, kBitsPanel);
  float* const lines = workspace<Use::kLeft>().floats(m * stride);
  std::memset(lines, 0, m * stride * sizeof(float));
  for (int64_t row = 0; row < m; ++row) left.fill(row, 1, weight.k, lines + row * stride);
  const int64_t team = m * weight.n < kAlone / (weight.k + 1) ? 1 : threads();
  const Blocks split(m, kFewRows);
  parallel_tasks(panels, team, [&](Tickets& tickets) {
    alignas(64) float sums[kFewRows * kBitsPanel];
    for (int64_t panel; (panel = tickets.next()) >= 0;) {
      const int64_t j = panel * kBitsPanel, columns = std::min(kBitsPanel, weight.n - j);
      for (int64_t row = 0; row < m; row += split.height) {
        const int64_t high = std::min(split.height, m - row);
        (*kernels.few)[high - 1](weight, panel, lines + row * stride, stride, sums);
        finish(row, high, j, columns, kBitsPanel, tile, static_cast<const float*>(sums));
      }
    }
  });
}

// More rows: as product() of gemm.h, of pieces of the weight that become floats for all rows of a tile.
template <class Left>
void product_of_many(int64_t m, const FewBits& weight, const Left& left, const Tile& tile, const BitsKernels& kernels) {
  const int64_t n = weight.n, k = weight.k;
  const int64_t team = m * n < kAlone / (k + 1) ? 1 : threads();
  const Cut cut(m, n, k, team, kRows);
  const int64_t deep = round_up(std::max<int64_t>(k, 1), kLine);
  const int64_t depth = round_up(ceil_div(k, ceil_div(k, kBitsDepth)), kLine);
  parallel_tasks(cut.tiles * cut.chunks, team, [&](Tickets& tickets) {
    float* const lines = workspace<Use::kLeft>().floats(cut.height * (deep + kGroup));
    float* const sums = lines + cut.height * deep;
    alignas(64) float piece[kBitsDepth * kPanel];
    int64_t filled = -1;
    for (int64_t task; (task = tickets.next()) >= 0;) {
      const int64_t at = task / cut.chunks, chunk = task % cut.chunks;
      const int64_t first = cut.row(at), rows = cut.row(at + 1) - first;
      const Blocks split(rows, kRows);
      const auto each_block = [&](auto&& body) __attribute__((always_inline)) {
        for (int64_t row = 0; row < rows; row += split.height) body(row, std::min(split.height, rows - row));
      };
      if (filled != at) each_block([&](int64_t row, int64_t high) { left.fill(first + row, high, k, lines + row * deep); });
      filled = at;
      const int64_t end = cut.column(chunk + 1);
      for (int64_t j = cut.column(chunk); j < end; j += kGroup) {
        const int64_t columns = std::min(kGroup, end - j);
        for (int64_t x = 0; x < columns; x += kPanel) {
          for (int64_t from = 0; from < k; from += depth) {
            const int64_t count = std::min(depth, k - from);
            kernels.widen(weight, from, count, j + x, piece);
            each_block([&](int64_t row, int64_t high) {
              kKernels[1][high - 1](count, lines + row * deep + from * high, piece, sums + row * kGroup + x, kGroup,
                                    from > 0);
            });
          }
        }
        each_block([&](int64_t row, int64_t high) {
          finish(first + row, high, j, columns, kGroup, tile, static_cast<const float*>(sums + row * kGroup));
        });
      }
    }
  });
}

}  // namespace kh
