// The convolutions of linked.h.
#include "linked_tile.h"

#include "conv.h"

KH_NAMESPACE {

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

int64_t filter_size(const Convolution& shape) { return conv_packed_size(shape_of(shape)); }

void pack_filter(const Convolution& shape, const float* weight, const int64_t strides[5], float* packed) {
  conv_pack(shape_of(shape), weight, strides, packed);
}

void convolve_tiles(const Convolution& shape, const float* x, const int64_t x_strides[5], const float* packed,
                    const Tile& tile) {
  conv(shape_of(shape), x, x_strides, packed, tile);
}

}  // namespace kh
