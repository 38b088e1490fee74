// float32 convolution over up to three spatial dimensions, channels last, with a fused epilogue.
//
//   x (n, d, h, w, c)       any strides; where channels are not adjacent, a copy in that order is made first
//   weight (o, c / groups, kd, kh, kw), any strides, packed once by conv_pack()
//   y                       goes to the epilogue: rows are output pixels (n, od, oh, ow), columns are channels
//
// An implicit product: the rows of the left operand (the patch of one output pixel: kd, kh, kw, c) are made a
// tile at a time in L2 by product(), never as a whole in memory; a 1x1 convolution is a plain product.
// Narrow groups have a kernel of their own, over pointers to the taps of a few pixels; depthwise.h has that of one
// channel, conv_direct.h that of few channels.
// Source of the idea: Dukhan, The Indirect Convolution Algorithm, arXiv 1907.02129 (XNNPACK).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "conv_direct.h"
#include "conv_shape.h"
#include "conv_taps.h"
#include "depthwise.h"
#include "gemm.h"
#include "winograd.h"

KH_NAMESPACE {

// -- patches ----------------------------------------------------------------------------------------------

KH_INLINE void copy_floats(const float* from, int64_t count, float* to) {
  if (count >= kLanes) {  // the last vector overlaps the one before
    for (int64_t i = 0; i + kLanes <= count; i += kLanes) store(to + i, load(from + i));
    store(to + count - kLanes, load(from + count - kLanes));
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = from[i];
  }
}
KH_INLINE void zero_lines(int64_t count, int64_t rows, float* to) {
  for (; count > 0; count -= kLine, to += rows * kLine) std::memset(to, 0, kLine * sizeof(float));
}

using TapSet = uint64_t;
inline constexpr int64_t kMostTaps = 64;

// The left operand of product(): a row is an output pixel's patch, k is (kd, kh, kw, channel of the group).
template <class ElementsOf>
struct Patches {
  using Elements = ElementsOf;
  const ConvShape& shape;
  Pixels x;

  // Stretches of k that are not zero for all of these rows: an atrous kernel sees little but padding on a small image.
  void spans(int64_t first, int64_t rows, std::vector<DepthSpan>& to) const {
    const int64_t channels = shape.c / shape.groups;
    const TapSet taps = channels % kLine == 0 ? seen_taps(first, rows) : ~TapSet{0};
    for (int64_t tap = 0, end; tap < shape.taps(); tap = end) {
      for (end = tap + 1; end < shape.taps() && has(taps, end) == has(taps, tap);) ++end;
      if (has(taps, tap)) to.push_back({tap * channels, end * channels});
    }
  }

  void fill(int64_t first, int64_t rows, int64_t k, float* to) const {
    const int64_t channels = shape.c / shape.groups;
    if (channels % kLine == 0) {
      const TapSet taps = seen_taps(first, rows);
      visit(first, rows, [&](const Run& run, int64_t row, int64_t tap) {
        copy_taps(run, channels, rows, taps, tap, to + tap * channels * rows + row * kLine);
      });
      return;
    }
    // Lines do not begin at taps. All rows first: a vector that was just written in parts is slow to load.
    float* const flat = workspace<Use::kRow>().floats(rows * k);
    visit(first, rows, [&](const Run& run, int64_t row, int64_t tap) {
      copy_lines_of_taps(run, channels, k, flat + row * k + tap * channels);
    });
    for (int64_t row = 0; row < rows; ++row) copy_lines(flat + row * k, k, rows, to + row * kLine);
  }

 private:
  // Neighbouring output pixels of one line, and what their taps (kd, kh) see.
  struct Run {
    int64_t count;      // pixels
    const float* line;  // null: outside
    int64_t left;       // position of the first pixel's first tap
  };

  // Whether one of `count` neighbouring pixels sees something by a tap of which the first pixel's lies at `at`.
  bool sees(int64_t at, int64_t count) const {
    const int64_t stride = shape.stride[2], skipped = at < 0 ? std::min(count - 1, ceil_div(-at, stride)) : 0;
    return inside(shape, 2, at + skipped * stride);
  }

  // Taps that some of these rows see something by; what others see is all padding. All, where they are many.
  TapSet seen_taps(int64_t first, int64_t rows) const {
    if (shape.taps() > kMostTaps) return ~TapSet{0};
    TapSet taps = 0;
    visit(first, rows, [&](const Run& run, int64_t, int64_t tap) {
      for (int64_t kw = 0; run.line != nullptr && kw < shape.kernel[2]; ++kw)
        if (sees(run.left + kw * shape.dilation[2], run.count)) taps |= TapSet{1} << (tap + kw);
    });
    return taps == 0 ? ~TapSet{0} : taps;
  }
  static bool has(TapSet taps, int64_t tap) { return tap >= kMostTaps || (taps >> tap & 1) != 0; }

  // f(run, row of its first pixel, first tap) for all taps of all rows.
  template <class F>
  void visit(int64_t first, int64_t rows, F&& f) const {
    for (int64_t row = 0, count; row < rows; row += count) {
      const Place place(shape, first + row);
      count = std::min(rows - row, shape.out[2] - place.at[2]);
      const int64_t left = seen(shape, 2, place.at[2], 0);
      for (int64_t kd = 0, tap = 0; kd < shape.kernel[0]; ++kd) {
        for (int64_t kh = 0; kh < shape.kernel[1]; ++kh, tap += shape.kernel[2]) {
          const int64_t d = seen(shape, 0, place.at[0], kd), h = seen(shape, 1, place.at[1], kh);
          const bool real = inside(shape, 0, d) && inside(shape, 1, h);
          const float* const image = x.data + place.n * x.stride[0];
          f(Run{count, real ? image + d * x.stride[1] + h * x.stride[2] : nullptr, left}, row, tap);
        }
      }
    }
  }

  // Channels are whole lines: every tap goes straight to its place.
  void copy_taps(const Run& run, int64_t channels, int64_t rows, TapSet taps, int64_t tap, float* to) const {
    for (int64_t kw = 0; kw < shape.kernel[2]; ++kw, ++tap, to += channels * rows) {
      if (!has(taps, tap)) continue;  // nor is it read
      int64_t w = run.left + kw * shape.dilation[2];
      for (int64_t p = 0; p < run.count; ++p, w += shape.stride[2]) {
        if (run.line != nullptr && inside(shape, 2, w)) {
          copy_lines(run.line + w * x.stride[3], channels, rows, to + p * kLine);
        } else {
          zero_lines(channels, rows, to + p * kLine);
        }
      }
    }
  }

  // Few channels: taps that are neighbours in memory are copied at once. Rows are k apart.
  void copy_lines_of_taps(const Run& run, int64_t channels, int64_t k, float* to) const {
    const int64_t taps = shape.kernel[2], span = taps * channels;
    const bool adjacent = shape.dilation[2] == 1 && x.stride[3] == channels;
    int64_t left = run.left;
    for (int64_t p = 0; p < run.count; ++p, left += shape.stride[2], to += k) {
      if (run.line == nullptr) {
        std::fill_n(to, span, 0.0f);
      } else if (adjacent && left >= 0 && left + taps <= shape.in[2]) {
        copy_floats(run.line + left * channels, span, to);
      } else {
        for (int64_t kw = 0; kw < taps; ++kw) {
          const int64_t w = left + kw * shape.dilation[2];
          if (inside(shape, 2, w)) {
            copy_floats(run.line + w * x.stride[3], channels, to + kw * channels);
          } else {
            std::fill_n(to + kw * channels, channels, 0.0f);
          }
        }
      }
    }
  }
};

// -- narrow groups --------------------------------------------------------------------------------------------

// f(channel, count, known, vectors) for pieces of the channels: panels, a vector, and the rest. The rest is a vector
// of which the first channels are known already; or no whole vector, where there is none before.
template <class F>
KH_INLINE void over_channels(int64_t channels, F&& f) {
  int64_t j = 0;
  for (; j + kPanel <= channels; j += kPanel) f(j, kPanel, 0, std::integral_constant<int, 2>{});
  for (; j + kLanes <= channels; j += kLanes) f(j, kLanes, 0, std::integral_constant<int, 1>{});
  if (j == channels) return;
  if (channels > kLanes) {
    f(channels - kLanes, kLanes, j - (channels - kLanes), std::integral_constant<int, 1>{});
  } else {
    f(j, channels - j, 0, std::integral_constant<int, 0>{});
  }
}

// Every lane gets the value of lane `Channel` of its group of Size lanes.
template <int Size, int Channel>
KH_INLINE vfloat of_group(vfloat x) {
  return [&]<int... I>(std::integer_sequence<int, I...>) {
    return shuffled<(I / Size * Size + Channel)...>(x);
  }(std::make_integer_sequence<int, static_cast<int>(kLanes)>{});
}

// acc (kPixels, kPanel) = sum over taps and channels of a group of x * weight, for `count` channels: Vectors *
// kLanes, or, where that is 0, fewer than a vector has, which would read beyond the pixel.
// weight (taps, Size, stride): for each output channel, of input channels of its group.
template <int Size, int Vectors, class Address>
KH_INLINE void narrow_kernel(int64_t taps, const Address& address, int64_t channel, int64_t count,
                             const float* weight, int64_t stride, float* acc) {
  if constexpr (Vectors > 0) {
    vfloat c[kPixels][Vectors] = {};
    for (int64_t tap = 0; tap < taps; ++tap) {
      KH_UNROLL(2)
      for (int v = 0; v < Vectors; ++v) {
        vfloat x[kPixels];
        KH_UNROLL(4)
        for (int p = 0; p < kPixels; ++p) x[p] = load(address(p, tap) + channel + v * kLanes);
        [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
          const auto add = [&]<int Channel>(std::integral_constant<int, Channel>) __attribute__((always_inline)) {
            const vfloat w = load(weight + (tap * Size + Channel) * stride + v * kLanes);
            KH_UNROLL(4)
            for (int p = 0; p < kPixels; ++p) c[p][v] += w * of_group<Size, Channel>(x[p]);
          };
          (add(std::integral_constant<int, I>{}), ...);
        }(std::make_integer_sequence<int, Size>{});
      }
    }
    for (int p = 0; p < kPixels; ++p) {
      for (int v = 0; v < Vectors; ++v) store(acc + p * kPanel + v * kLanes, c[p][v]);
    }
  } else {
    for (int64_t p = 0; p < kPixels; ++p) {
      std::fill_n(acc + p * kPanel, count, 0.0f);
      for (int64_t tap = 0; tap < taps * Size; ++tap) {
        const float* const x = address(p, tap / Size) + channel + tap % Size;
        for (int64_t i = 0; i < count; ++i) acc[p * kPanel + i] += x[i / Size * Size] * weight[tap * stride + i];
      }
    }
  }
}

template <int Size, class Epilogue>
void conv_narrow(const ConvShape& shape, const Pixels& x, const float* packed, Epilogue& epilogue) {
  const int64_t padded = round_up(shape.c, kLanes);
  over_pixels(shape, x, 0.0f, [&](int64_t row, int64_t count, Place& place, Taps<>& taps) {
    alignas(64) float acc[kPixels * kPanel];
    taps.find(place, count, [&](const auto& address) {
      over_channels(shape.c, [&](int64_t j, int64_t wide, int64_t known, auto vectors) {
        narrow_kernel<Size, vectors>(shape.taps(), address, j, wide, packed + j, padded, acc);
        finish(row, count, j + known, wide - known, kPanel, epilogue, static_cast<const float*>(acc + known));
      });
    });
  });
}

// -- the public functions -----------------------------------------------------------------------------------

// Floats that conv_pack() writes.
inline int64_t conv_packed_size(const ConvShape& shape) {
  if (is_winograd(shape)) return winograd_packed_size(shape);
  if (shape.narrow() > 0) return shape.depth() * round_up(shape.c, kLanes);
  if (shape.direct() > 0) return direct_packed_size(shape);
  return shape.groups * packed_size(shape.depth(), shape.o / shape.groups);
}

// The right operands of product(), a group after the other. at(i, o): of an output channel, what meets the patch's i-th.
template <class At>
void pack_patches(int64_t groups, int64_t depth, int64_t columns, float* packed, At&& at) {
  std::vector<float> group(depth * columns);
  for (int64_t g = 0; g < groups; ++g) {
    parallel(depth, std::max<int64_t>(1, 16384 / (columns + 1)), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        for (int64_t j = 0; j < columns; ++j) group[i * columns + j] = at(i, g * columns + j);
    });
    pack(group.data(), depth, columns, columns, 1, packed + g * packed_size(depth, columns));
  }
}

// weight (o, c / groups, kd, kh, kw) with `strides` in that order.
inline void conv_pack(const ConvShape& shape, const float* weight, const int64_t strides[5], float* packed) {
  if (is_winograd(shape)) return winograd_pack(shape, weight, strides, packed);
  const int64_t channels = shape.c / shape.groups, columns = shape.o / shape.groups, depth = shape.depth();
  const auto tap = [&](int64_t t) {
    const int64_t kw = t % shape.kernel[2], kh = t / shape.kernel[2] % shape.kernel[1];
    return t / (shape.kernel[2] * shape.kernel[1]) * strides[2] + kh * strides[3] + kw * strides[4];
  };
  if (shape.narrow() > 0) {
    const int64_t padded = round_up(shape.c, kLanes);
    for (int64_t i = 0; i < depth; ++i) {
      const float* const from = weight + tap(i / channels) + i % channels * strides[1];
      for (int64_t j = 0; j < padded; ++j) packed[i * padded + j] = j < shape.c ? from[j * strides[0]] : 0.0f;
    }
    return;
  }
  const auto at = [&](int64_t i, int64_t o) {
    return weight[tap(i / channels) + i % channels * strides[1] + o * strides[0]];
  };
  if (shape.direct() > 0) return direct_pack(shape, packed, at);
  pack_patches(shape.groups, depth, columns, packed, at);
}

// x with adjacent channels: itself, or a copy in float32 that this thread keeps until its next one.
template <class T>
Pixels channels_last(const ConvShape& shape, const T* x, const int64_t strides[5]) {
  if constexpr (std::is_same_v<T, float>) {
    if (strides[4] == 1 || shape.c == 1) return {x, {strides[0], strides[1], strides[2], strides[3]}};
  }
  constexpr int64_t kPiece = 64;  // pixels: what is read and written of a piece of a line stays in the cache
  const int64_t width = shape.in[2], lines = shape.n * shape.in[0] * shape.in[1], pieces = ceil_div(width, kPiece);
  float* const copy = workspace<Use::kInput>().floats(lines * width * shape.c);
  const int64_t grain = std::max<int64_t>(1, 16384 / (std::min(width, kPiece) * shape.c + 1));
  parallel(lines * pieces, grain, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t line = piece / pieces, first = piece % pieces * kPiece, count = std::min(width - first, kPiece);
      const int64_t h = line % shape.in[1], d = line / shape.in[1] % shape.in[0];
      const T* const from = x + line / (shape.in[1] * shape.in[0]) * strides[0] + d * strides[1] + h * strides[2] +
                            first * strides[3];
      float* const to = copy + (line * width + first) * shape.c;
      if constexpr (std::is_same_v<T, float>) {
        if (strides[3] == 1) {
          transpose(from, strides[4], to, shape.c, shape.c, count);
          continue;
        }
      }
      for (int64_t w = 0; w < count; ++w) {
        if (strides[4] == 1) {
          widen(from + w * strides[3], shape.c, to + w * shape.c);
          continue;
        }
        for (int64_t i = 0; i < shape.c; ++i)
          to[w * shape.c + i] = static_cast<float>(from[w * strides[3] + i * strides[4]]);
      }
    }
  });
  const int64_t h = width * shape.c, d = h * shape.in[1];
  return {copy, {d * shape.in[0], d, h, shape.c}};
}

// Whether the output pixels are the input's, evenly spaced in memory, each seen by one tap.
inline bool pointwise(const ConvShape& shape, const Pixels& x) {
  int64_t even = x.stride[3] * shape.in[2];
  for (int i = 2; i >= 0; --i) {
    if (shape.kernel[i] != 1 || shape.stride[i] != 1 || shape.pad[i] != 0 || shape.out[i] != shape.in[i])
      return false;
    if (i > 0) {
      if (shape.in[i - 1] != 1 && x.stride[i] != even) return false;
      even *= shape.in[i - 1];
    }
  }
  return shape.n == 1 || x.stride[0] == even;
}

// The epilogue of a group of channels.
template <class Epilogue>
KH_INLINE auto shift(Epilogue& e, int64_t by) {
  return [&e, by](int64_t i, int64_t j, int64_t count, const float* acc) { e(i, by + j, count, acc); };
}

// A left operand of floats in memory, as other elements of their size.
template <class ElementsOf>
struct Plain : Matrix<float> {
  using Elements = ElementsOf;
};

// The product, group by group, of convolutions that have no kernel of their own.
template <class Elements, class Epilogue>
void conv_product(const ConvShape& shape, const Pixels& pixels, const float* packed, Epilogue& e) {
  const int64_t rows = shape.rows();
  const int64_t channels = shape.c / shape.groups, columns = shape.o / shape.groups, depth = shape.depth();
  const bool plain = pointwise(shape, pixels);
  for (int64_t g = 0; g < shape.groups; ++g) {
    auto shifted = shift(e, g * columns);
    const float* const right = packed + g * packed_size(depth, columns);
    Pixels part = pixels;
    part.data += g * channels;
    if (plain) {
      product(rows, columns, depth, Plain<Elements>{{part.data, part.stride[3], 1}}, shifted, right);
    } else {
      product(rows, columns, depth, Patches<Elements>{shape, part}, shifted, right);
    }
  }
}

template <class Epilogue>
void conv_of_pixels(const ConvShape& shape, const Pixels& pixels, const float* packed, Epilogue& e) {
  if (is_winograd(shape)) return conv_winograd(shape, pixels, packed, e);
  switch (shape.narrow()) {
    case 1: return conv_depthwise(shape, pixels, packed, e);
    case 2: return conv_narrow<2>(shape, pixels, packed, e);
    case 4: return conv_narrow<4>(shape, pixels, packed, e);
    case 8: return conv_narrow<8>(shape, pixels, packed, e);
    default: break;
  }
  switch (shape.direct()) {
    case 1: return conv_direct<1>(shape, pixels, packed, e);
    case 2: return conv_direct<2>(shape, pixels, packed, e);
    case 3: return conv_direct<3>(shape, pixels, packed, e);
    default: return conv_product<Floats>(shape, pixels, packed, e);
  }
}

// e(row, j, count, acc): acc[0..count) are output channels j.. of output pixel `row`, complete; once for every
// piece, from any thread. x_strides: (n, d, h, w, c) in elements. packed: what conv_pack() made.
template <class T, class Epilogue>
void conv(const ConvShape& shape, const T* x, const int64_t x_strides[5], const float* packed, Epilogue&& e) {
  if (shape.rows() > 0 && shape.o > 0)
    conv_of_pixels(shape, channels_last(shape, x, x_strides), packed, e);
}

}  // namespace kh
