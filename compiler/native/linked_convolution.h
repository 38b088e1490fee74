// The convolutions of linked.h for any element; a source file instantiates those that it is for.
#pragma once

#include "linked_tile.h"

#include "conv_pairs.h"

KH_NAMESPACE {

// In linked_grouped.cpp, which is compiled at the same time.
extern template void conv_depthwise(const ConvShape&, const Pixels&, const float*, const Tile&);
extern template void conv_narrow<2>(const ConvShape&, const Pixels&, const float*, const Tile&);
extern template void conv_narrow<4>(const ConvShape&, const Pixels&, const float*, const Tile&);
extern template void conv_narrow<8>(const ConvShape&, const Pixels&, const float*, const Tile&);
extern template void conv_direct<1>(const ConvShape&, const Pixels&, const float*, const Tile&);
extern template void conv_direct<2>(const ConvShape&, const Pixels&, const float*, const Tile&);
extern template void conv_direct<3>(const ConvShape&, const Pixels&, const float*, const Tile&);

namespace {

ConvShape shape_of(const Convolution& from) {
  ConvShape shape{from.n, from.c, from.o, from.groups, {}, {}, {}, {}, {}, {}};
  for (int i = 0; i < 3; ++i) {
    shape.in[i] = from.in[i], shape.kernel[i] = from.kernel[i], shape.stride[i] = from.stride[i];
    shape.pad[i] = from.pad[i], shape.dilation[i] = from.dilation[i], shape.out[i] = from.out[i];
  }
  return shape;
}

}  // namespace

template <class T>
int64_t filter_size(const Convolution& from) {
  const ConvShape shape = shape_of(from);
  return std::is_same_v<T, bf16> && is_paired(shape) ? conv_pairs_packed_size(shape) : conv_packed_size(shape);
}

template <class T>
void pack_filter(const Convolution& shape, const T* weight, const int64_t strides[5], float* packed) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (is_paired(shape_of(shape))) return conv_pack_pairs(shape_of(shape), weight, strides, packed);
  }
  if constexpr (std::is_same_v<T, float>) {
    conv_pack(shape_of(shape), weight, strides, packed);
  } else {
    const int64_t sizes[] = {shape.o, shape.c / shape.groups, shape.kernel[0], shape.kernel[1], shape.kernel[2]};
    int64_t dense[5], count = 1;
    for (int i = 4; i >= 0; --i) dense[i] = count, count *= sizes[i];
    std::vector<float> wide(count);
    for (int64_t at = 0; at < count; ++at) {
      int64_t place = 0;
      for (int i = 0; i < 5; ++i) place += at / dense[i] % sizes[i] * strides[i];
      wide[at] = static_cast<float>(weight[place]);
    }
    conv_pack(shape_of(shape), wide.data(), dense, packed);
  }
}

template <class T>
void convolve_tiles(const Convolution& shape, const T* x, const int64_t x_strides[5], const float* packed,
                    const Tile& tile) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (is_paired(shape_of(shape))) return conv_pairs(shape_of(shape), x, x_strides, packed, tile);
  }
  conv(shape_of(shape), x, x_strides, packed, tile);
}

#define KH_CONVOLUTIONS(T)                                                          \
  template int64_t filter_size<T>(const Convolution&);                               \
  template void pack_filter(const Convolution&, const T*, const int64_t[5], float*); \
  template void convolve_tiles(const Convolution&, const T*, const int64_t[5], const float*, const Tile&);

}  // namespace kh
