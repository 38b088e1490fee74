// The runtime's products, convolutions and attention as generated units call them: compiled once, in linked_*.cpp, for
// all units. What a unit fuses comes as a function of a tile of results, so that a call of it costs nothing, and no unit
// compiles a microkernel.
#pragma once

#include <cstdint>

#include "reach.h"
#include "simd.h"
#include "types.h"

KH_NAMESPACE {

// T: float, bf16 or f16, in memory; all is computed in float.

// What becomes of a finished tile: rows i .. i + rows, columns j .. j + count, its rows `stride` floats apart.
struct Tile {
  void (*call)(const void* state, int64_t batch, int64_t i, int64_t rows, int64_t j, int64_t count,
               const float* tile, int64_t stride);
  const void* state;
  int64_t batch, shift;  // which product of a batch, and the column that j counts from
};

// A tile as rows: e(batch, i, j, count, acc). Most tiles have as many columns as a group of gemm.h, a constant.
template <class Epilogue>
void give_rows(const void* state, int64_t batch, int64_t i, int64_t rows, int64_t j, int64_t count,
               const float* tile, int64_t stride) {
  constexpr int64_t whole = 8 * kLanes;
  const Epilogue& e = *static_cast<const Epilogue*>(state);
  if (count == whole) {
    for (int64_t row = 0; row < rows; ++row) e(batch, i + row, j, whole, tile + row * stride);
  } else {
    for (int64_t row = 0; row < rows; ++row) e(batch, i + row, j, count, tile + row * stride);
  }
}

// -- products -----------------------------------------------------------------------------------------------

// Floats of b (k, n) of T, packed; and the packing, from any strides.
template <class T>
int64_t right_size(int64_t k, int64_t n);
template <class T>
void pack_right(const T* b, int64_t k, int64_t n, int64_t stride_k, int64_t stride_n, float* packed);

template <class T>
void multiply_tiles(int64_t m, int64_t n, int64_t k, const T* a, int64_t stride_m, int64_t stride_k,
                    const float* packed, const Tile& tile);

// Where the operands of a product of the batch lie.
template <class T>
struct Operands {
  using Element = T;
  const T *a, *b;
};
template <class T>
Operands(const T*, const T*) -> Operands<T>;

template <class T>
void multiply_tiles_batched(int64_t batch, int64_t m, int64_t n, int64_t k,
                            Operands<T> (*operands)(const void* state, int64_t batch), const void* operands_state,
                            int64_t stride_m, int64_t stride_k, int64_t b_stride_k, int64_t b_stride_n,
                            const Tile& tile);

// e(batch, i, j, count, acc): acc[0..count) are (a @ b)[i, j..j + count); once for every piece of a row, from any
// thread. a (m, k); packed: b. `batch` is handed on.
template <class T, class Epilogue>
KH_INLINE void multiply(int64_t batch, int64_t m, int64_t n, int64_t k, const T* a, int64_t stride_m,
                        int64_t stride_k, const float* packed, const Epilogue& e) {
  multiply_tiles(m, n, k, a, stride_m, stride_k, packed, {give_rows<Epilogue>, &e, batch, 0});
}

// The same where there is nothing to add up: acc[0..count) are 0 for m rows of n columns.
template <class Epilogue>
KH_INLINE void give_zeros(int64_t m, int64_t n, const Epilogue& e) {
  constexpr int64_t piece = 8 * kLanes;
  alignas(64) static constexpr float zeros[piece] = {};
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; j += piece) e(0, i, j, n - j < piece ? n - j : piece, zeros);
  }
}

// The same for `batch` pairs of operands(batch), of which the second are packed when their turn comes.
template <class Where, class Epilogue>
KH_INLINE void multiply_batched(int64_t batch, int64_t m, int64_t n, int64_t k, const Where& operands,
                                int64_t stride_m, int64_t stride_k, int64_t b_stride_k, int64_t b_stride_n,
                                const Epilogue& e) {
  using T = typename decltype(operands(int64_t{0}))::Element;
  const auto where = [](const void* state, int64_t b) { return (*static_cast<const Where*>(state))(b); };
  multiply_tiles_batched<T>(batch, m, n, k, where, &operands, stride_m, stride_k, b_stride_k, b_stride_n,
                         {give_rows<Epilogue>, &e, 0, 0});
}

// -- convolutions -------------------------------------------------------------------------------------------

// As ConvShape in conv.h: triples are (d, h, w).
struct Convolution {
  int64_t n, c, o, groups;
  int64_t in[3], kernel[3], stride[3], pad[3], dilation[3], out[3];
};

// Floats of a weight of T, packed; and the packing, from strides (o, c / groups, d, h, w).
template <class T>
int64_t filter_size(const Convolution& shape);
template <class T>
void pack_filter(const Convolution& shape, const T* weight, const int64_t strides[5], float* packed);

template <class T>
void convolve_tiles(const Convolution& shape, const T* x, const int64_t x_strides[5], const float* packed,
                    const Tile& tile);

// e(0, row, j, count, acc): output channels j .. of output pixel `row`. x_strides: (n, d, h, w, c).
template <class T, class Epilogue>
KH_INLINE void convolve(const Convolution& shape, const T* x, const int64_t x_strides[5],
                        const float* packed, const Epilogue& e) {
  convolve_tiles(shape, x, x_strides, packed, {give_rows<Epilogue>, &e, 0, 0});
}

// -- attention ----------------------------------------------------------------------------------------------

// As AttentionShape in attention.h.
struct Attention {
  int64_t batch, heads, kv_heads, lq, lk, d, dv;
  bool causal;
  int64_t causal_offset;
  bool blank;
  Reaches reaches{};
  Weights weights = Weights::kSoftmax;
};

using Mask = void (*)(const void* state, int64_t b, int64_t h, int64_t i, int64_t j, int64_t count, float* scores);

// mask: null for none.
template <class T>
void attend_masked(const Attention& shape, const T* q, const int64_t q_strides[4], const T* k,
                   const int64_t k_strides[4], const T* v, const int64_t v_strides[4], float scale, Mask mask,
                   const void* mask_state, float* out, const int64_t out_strides[4]);

// mask(b, h, i, j, count, scores) changes the scaled scores of query i with keys j .. j + count.
template <class T, class Scores>
KH_INLINE void attend(const Attention& shape, const T* q, const int64_t q_strides[4], const T* k,
                      const int64_t k_strides[4], const T* v, const int64_t v_strides[4], float scale,
                      const Scores& mask, float* out, const int64_t out_strides[4]) {
  const auto call = [](const void* state, int64_t b, int64_t h, int64_t i, int64_t j, int64_t count, float* scores) {
    (*static_cast<const Scores*>(state))(b, h, i, j, count, scores);
  };
  attend_masked(shape, q, q_strides, k, k_strides, v, v_strides, scale, call, &mask, out, out_strides);
}

}  // namespace kh
