// float32 convolution of few channels a group, in or out, channels last, with a fused epilogue: no patch is copied.
//
// A kernel makes kDirectPixels neighbouring pixels for a few vectors of output channels of a group, in registers: for each tap and input
// channel, a few vectors of weights and an element of each pixel's input, which the multiply-add reads from memory.
// Groups next to one another go to the epilogue together.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "conv_shape.h"
#include "conv_taps.h"
#include "gemm.h"

KH_NAMESPACE {

#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr int64_t kDirectPixels = 8;  // of 3 vectors: 24 of 32 registers
#else
inline constexpr int64_t kDirectPixels = 4;  // 12 of 16
#endif
inline constexpr int64_t kDirectApart = kGroup + kMostDirect * kLanes;  // the last vector may reach beyond the channels

// The output channels of a group in parts of so many vectors.
struct DirectParts {
  int64_t wide, columns, parts, units;
  explicit DirectParts(const ConvShape& shape)
      : wide(shape.direct() * kLanes),
        columns(shape.o / shape.groups),
        parts(ceil_div(columns, wide)),
        units(shape.groups * parts) {}
  // Output channels of a part of a group, counted through.
  int64_t first(int64_t unit) const { return unit / parts * columns + unit % parts * wide; }
  int64_t end(int64_t unit) const { return unit / parts * columns + std::min(columns, (unit % parts + 1) * wide); }
};

inline int64_t direct_packed_size(const ConvShape& shape) {
  const DirectParts parts(shape);
  return parts.units * shape.depth() * parts.wide;
}

// packed (groups, parts, depth, vectors); at(i, o): of an output channel, what meets the patch's i-th.
template <class At>
void direct_pack(const ConvShape& shape, float* packed, At&& at) {
  const DirectParts parts(shape);
  for (int64_t unit = 0; unit < parts.units; ++unit) {
    const int64_t first = parts.first(unit), end = parts.end(unit);
    for (int64_t i = 0; i < shape.depth(); ++i) {
      for (int64_t j = 0; j < parts.wide; ++j) *packed++ = first + j < end ? at(i, first + j) : 0.0f;
    }
  }
}

// to[p * kDirectApart] = [to +] the pixels' sums over taps and channels of a group.
template <int64_t Vectors, class Address>
KH_INLINE void direct_kernel(int64_t taps, int64_t channels, const Address& address, int64_t channel,
                             const float* weight, float* to, bool accumulate) {
  vfloat c[kDirectPixels][Vectors] = {};
  for (int64_t tap = 0; tap < taps; ++tap) {
    const float* x[kDirectPixels];
    KH_UNROLL(8)
    for (int64_t p = 0; p < kDirectPixels; ++p) x[p] = address(p, tap) + channel;
    for (int64_t i = 0; i < channels; ++i, weight += Vectors * kLanes) {
      vfloat w[Vectors];
      KH_UNROLL(4)
      for (int64_t v = 0; v < Vectors; ++v) w[v] = load(weight + v * kLanes);
      KH_UNROLL(8)
      for (int64_t p = 0; p < kDirectPixels; ++p) {
        const vfloat seen = splat(x[p][i]);
        KH_UNROLL(4)
        for (int64_t v = 0; v < Vectors; ++v) c[p][v] += seen * w[v];
      }
    }
  }
  KH_UNROLL(8)
  for (int64_t p = 0; p < kDirectPixels; ++p) {
    KH_UNROLL(4)
    for (int64_t v = 0; v < Vectors; ++v) {
      float* const at = to + p * kDirectApart + v * kLanes;
      store(at, accumulate ? load(at) + c[p][v] : c[p][v]);
    }
  }
}

// The same, however deep: sums of about kChain products are added up, as in gemm.h.
template <int64_t Vectors, class Address>
KH_INLINE void direct_sums(int64_t taps, int64_t channels, const Address& address, int64_t channel, const float* weight,
                           float* to) {
  const bool once = taps * channels <= 2 * kChain;
  const int64_t taps_at_once = once ? taps : std::max<int64_t>(1, kChain / channels);
  const int64_t channels_at_once = once || taps_at_once > 1 ? channels : kChain;
  for (int64_t tap = 0; tap < taps; tap += taps_at_once) {
    const int64_t some = std::min(taps_at_once, taps - tap);
    for (int64_t i = 0; i < channels; i += channels_at_once) {
      const int64_t count = std::min(channels_at_once, channels - i);
      direct_kernel<Vectors>(
          some, count, [&](int64_t p, int64_t at) { return address(p, tap + at); }, channel + i, weight, to, tap + i > 0);
      weight += some * count * Vectors * kLanes;
    }
  }
}

template <int64_t Vectors, class Epilogue>
void conv_direct(const ConvShape& shape, const Pixels& x, const float* packed, Epilogue& epilogue) {
  const DirectParts parts(shape);
  const int64_t channels = shape.c / shape.groups, size = shape.depth() * parts.wide, in_line = shape.kernel[2];
  // Neighbouring taps of all channels lie side by side: one long tap.
  const bool adjacent = shape.groups == 1 && shape.dilation[2] == 1 && x.stride[3] == channels;
  over_pixels<kDirectPixels>(shape, x, 0.0f, [&](int64_t row, int64_t count, Place& place, Taps<kDirectPixels>& taps) {
    alignas(64) float acc[kDirectPixels * kDirectApart];
    taps.find(place, count, [&](const auto& address) {
      const auto one = [&](int64_t unit, float* to) {
        const float* const weight = packed + unit * size;
        if constexpr (std::is_same_v<std::remove_cvref_t<decltype(address)>, EvenTaps>) {
          const auto line = [&](int64_t p, int64_t at) { return address(p, at * in_line); };
          if (adjacent) return direct_sums<Vectors>(shape.taps() / in_line, in_line * channels, line, 0, weight, to);
        }
        direct_sums<Vectors>(shape.taps(), channels, address, unit / parts.parts * channels, weight, to);
      };
      for (int64_t unit = 0; unit < parts.units;) {
        const int64_t first = parts.first(unit);
        int64_t end = first;
        while (unit < parts.units && (end == first || parts.end(unit) - first <= kGroup)) {
          one(unit, acc + parts.first(unit) - first);
          end = parts.end(unit++);
        }
        finish(row, count, first, end - first, kDirectApart, epilogue, static_cast<const float*>(acc));
      }
    });
  }, parts.columns);
}

}  // namespace kh
