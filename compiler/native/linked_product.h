// The products of linked.h for any element; a source file instantiates those that it is for.
#pragma once

#include "gemm_few_rows.h"
#include "gemm_halves.h"
#include "gemm_amx.h"
#include "linked_tile.h"

KH_NAMESPACE {

// Whether operands are multiplied in pairs.
template <class T>
KH_INLINE bool pairs() {
  return std::is_same_v<T, bf16> && has_pairs();
}

// Whether the right operand is packed as it is.
template <class T>
inline constexpr bool kHalves = std::is_same_v<T, f16> && kHasHalves;

template <class T>
int64_t right_size(int64_t k, int64_t n) {
  if constexpr (kHalves<T>) return halves_size(k, n);
  return packed_size(pairs<T>() ? pairs_of(k) : k, n);
}

template <class T>
void pack_right(const T* b, int64_t k, int64_t n, int64_t stride_k, int64_t stride_n, float* packed) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (pairs<T>()) return pack_pairs(b, k, n, stride_k, stride_n, packed);
  }
  if constexpr (kHalves<T>) return pack_halves(b, k, n, stride_k, stride_n, packed);
  pack(b, k, n, stride_k, stride_n, packed);
}

template <class T>
void multiply_tiles(int64_t m, int64_t n, int64_t k, const T* a, int64_t stride_m, int64_t stride_k,
                    const float* packed, const Tile& tile) {
  if constexpr (std::is_same_v<T, bf16>) {
    const PairsMatrix left{a, stride_m, stride_k, k};
    if (has_amx()) return product(m, n, pairs_of(k), AmxMatrix{left}, tile, packed);
    if (pairs<T>()) return product(m, n, pairs_of(k), left, tile, packed);
  }
  if constexpr (std::is_same_v<T, float>) {
    const int64_t width = n < 1 ? 0 : panel_width(n, 0);  // a panel or less, so that a column of it lies in steps of that
    const bool pays = n <= m + 1;  // to copy the columns
    if (pays && few_apart_columns(m, n, k, a, stride_m, stride_k, packed, width, 1, tile)) return;
  }
  if constexpr (kHalves<T>) return product(m, n, k, HalvesMatrix{{a, stride_m, stride_k}}, tile, packed);
  product(m, n, k, Matrix<T>{a, stride_m, stride_k, m}, tile, packed);
}

template <class T>
void multiply_tiles_batched(int64_t batch, int64_t m, int64_t n, int64_t k,
                            Operands<T> (*operands)(const void* state, int64_t batch), const void* operands_state,
                            int64_t stride_m, int64_t stride_k, int64_t b_stride_k, int64_t b_stride_n,
                            const Tile& tile) {
  const auto one = [&](int64_t at) {
    const Operands<T> from = operands(operands_state, at);
    if constexpr (std::is_same_v<T, float>) {
      const Tile here{tile.call, tile.state, at, 0};
      if (multiplied_in_place(m, n, k, from.a, stride_m, stride_k, from.b, b_stride_k, b_stride_n, here)) return;
    }
    float* const packed = workspace<Use::kRight>().floats(right_size<T>(k, n));
    pack_right(from.b, k, n, b_stride_k, b_stride_n, packed);
    multiply_tiles(m, n, k, from.a, stride_m, stride_k, packed, {tile.call, tile.state, at, 0});
  };
  if (batch < threads()) {  // then the threads share each product
    for (int64_t at = 0; at < batch; ++at) one(at);
    return;
  }
  const bool alone = batch * m * n < kAlone / (k + 1);
  parallel_tasks(batch, alone ? 1 : threads(), [&](Tickets& tickets) {
    for (int64_t at; (at = tickets.next()) >= 0;) one(at);
  });
}

#define KH_PRODUCTS(T)                                                                                          \
  template int64_t right_size<T>(int64_t, int64_t);                                                             \
  template void pack_right(const T*, int64_t, int64_t, int64_t, int64_t, float*);                               \
  template void multiply_tiles(int64_t, int64_t, int64_t, const T*, int64_t, int64_t, const float*, const Tile&); \
  template void multiply_tiles_batched(int64_t, int64_t, int64_t, int64_t, Operands<T> (*)(const void*, int64_t), \
                                       const void*, int64_t, int64_t, int64_t, int64_t, const Tile&);

}  // namespace kh
