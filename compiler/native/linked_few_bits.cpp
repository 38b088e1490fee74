// The products of linked_few_bits.h.
#include "few_bits.h"

KH_NAMESPACE {

namespace {

// fill(panel, first column, columns there are) for each panel, shared by the threads.
template <class Fill>
void each_panel(int64_t n, int64_t floats, Fill&& fill) {
  parallel(ceil_div(n, kBitsPanel), std::max<int64_t>(1, 32768 / (floats * kBitsPanel + 1)), [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel)
      fill(panel, panel * kBitsPanel, std::min(kBitsPanel, n - panel * kBitsPanel));
  });
}

// to (panel, block, column) = made(from (column, block)); the last panel is padded with zeros.
template <class From, class To, class Make>
void pack_of_blocks(int64_t blocks, int64_t n, const From* from, const int64_t strides[2], To* to, Make&& made) {
  each_panel(n, blocks, [&](int64_t panel, int64_t j, int64_t columns) {
    To* const own = to + panel * blocks * kBitsPanel;
    if (columns < kBitsPanel) std::memset(static_cast<void*>(own), 0, blocks * kBitsPanel * sizeof(To));
    for (int64_t column = 0; column < columns; ++column) {
      const From* const one = from + (j + column) * strides[0];
      for (int64_t block = 0; block < blocks; ++block) own[block * kBitsPanel + column] = made(one[block * strides[1]]);
    }
  });
}

template <class T>
int64_t size_of_blocks(int64_t blocks, int64_t n) {
  return ceil_div(blocks * round_up(n, kBitsPanel) * static_cast<int64_t>(sizeof(T)), 4);
}

}  // namespace

int64_t words_size(int64_t k, int64_t n, int64_t bits) { return ceil_div(k, 32 / bits) * round_up(n, kBitsPanel); }

void pack_words(int64_t k, int64_t n, int64_t block, int64_t bits, const uint8_t* from, const int64_t strides[3],
                float* packed) {
  const int64_t words = ceil_div(k, 32 / bits), bytes = block * bits / 8;
  const int64_t last = k % (32 / bits) * bits;  // bits of the last word that are of numbers
  const uint32_t middles = bits == 2 ? 0xAAAAAAAAu : bits == 4 ? 0x88888888u : 0x80808080u;
  const uint32_t rest = last == 0 ? 0xFFFFFFFFu : (uint32_t{1} << last) - 1;
  each_panel(n, words, [&](int64_t panel, int64_t j, int64_t columns) {
    float* const own = packed + panel * words * kBitsPanel;
    if (columns < kBitsPanel) std::memset(own, 0, words * kBitsPanel * sizeof(float));
    for (int64_t column = 0; column < columns; ++column) {
      const uint8_t* const one = from + (j + column) * strides[0];
      for (int64_t word = 0; word < words; ++word) {
        const uint8_t* const at = one + 4 * word / bytes * strides[1] + 4 * word % bytes * strides[2];
        uint32_t value = 0;
        for (int64_t byte = 0; byte < 4; ++byte) value |= static_cast<uint32_t>(at[byte * strides[2]]) << (8 * byte);
        value ^= middles;
        if (word + 1 == words) value &= rest;
        std::memcpy(own + word * kBitsPanel + column, &value, sizeof value);
      }
    }
  });
}

template <class T>
int64_t scales_size(int64_t blocks, int64_t n) {
  return size_of_blocks<T>(blocks, n);
}
template <class T>
void pack_scales(int64_t blocks, int64_t n, const T* from, const int64_t strides[2], float* packed) {
  pack_of_blocks(blocks, n, from, strides, reinterpret_cast<T*>(packed), [](T scale) { return scale; });
}

template <class T>
int64_t zeros_size(int64_t blocks, int64_t n) {
  return std::is_same_v<T, uint8_t> ? size_of_blocks<uint8_t>(blocks, n) : size_of_blocks<float>(blocks, n);
}
template <class T>
void pack_zeros(int64_t blocks, int64_t n, int64_t bits, const T* from, const int64_t strides[2], float* packed) {
  const int middle = 1 << (bits - 1);
  if constexpr (std::is_same_v<T, uint8_t>) {
    pack_of_blocks(blocks, n, from, strides, reinterpret_cast<int8_t*>(packed),
                   [=](uint8_t zero) { return static_cast<int8_t>(zero - middle); });
  } else {
    pack_of_blocks(blocks, n, from, strides, packed, [=](T zero) { return static_cast<float>(zero) - middle; });
  }
}

template <class T>
void multiply_few_bits_tiles(int64_t m, const FewBits& weight, const T* a, int64_t stride_m, int64_t stride_k,
                             const Tile& tile) {
  if (m <= 0 || weight.n <= 0) return;
  const Matrix<T> left{a, stride_m, stride_k};
  const BitsKernels kernels = BitsKernels::of(weight);
  if (m <= kMostOfFew) return product_of_few(m, weight, left, tile, kernels);
  product_of_many(m, weight, left, tile, kernels);
}

#define KH_FEW_BITS(T)                                                                                                  \
  template int64_t scales_size<T>(int64_t, int64_t);                                                                    \
  template void pack_scales(int64_t, int64_t, const T*, const int64_t[2], float*);                                      \
  template int64_t zeros_size<T>(int64_t, int64_t);                                                                     \
  template void pack_zeros(int64_t, int64_t, int64_t, const T*, const int64_t[2], float*);                              \
  template void multiply_few_bits_tiles(int64_t, const FewBits&, const T*, int64_t, int64_t, const Tile&);

KH_FEW_BITS(float)
KH_FEW_BITS(bf16)
KH_FEW_BITS(f16)
template int64_t zeros_size<uint8_t>(int64_t, int64_t);
template void pack_zeros(int64_t, int64_t, int64_t, const uint8_t*, const int64_t[2], float*);

}  // namespace kh
