// float32 convolution over up to three spatial dimensions, channels last, with a fused epilogue.
//
//   x (n, d, h, w, c)       any strides; where channels are not adjacent, a copy in that order is made first
//   weight (o, c / groups, kd, kh, kw), any strides, packed once by conv_pack()
//   y                       goes to the epilogue: rows are output pixels (n, od, oh, ow), columns are channels
//
// An implicit product: the rows of the left operand (the patch of one output pixel: kd, kh, kw, c) are made a
// tile at a time in L2 by product(), never as a whole in memory; a 1x1 convolution is a plain product.
// Depthwise ones have a kernel of their own, over pointers to the taps of a few pixels.
// Source of the idea: Dukhan, The Indirect Convolution Algorithm, arXiv 1907.02129 (XNNPACK).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "gemm.h"

KH_NAMESPACE {

// Triples are (d, h, w); dimensions that a convolution lacks are 1 (kernel 1, stride 1, pad 0, dilation 1).
// `pad` is what stands before the input; `out` says how far the kernel goes, so what stands after it.
struct ConvShape {
  int64_t n, c, o, groups;
  int64_t in[3], kernel[3], stride[3], pad[3], dilation[3], out[3];

  int64_t taps() const { return kernel[0] * kernel[1] * kernel[2]; }
  int64_t depth() const { return taps() * (c / groups); }
  int64_t rows() const { return n * out[0] * out[1] * out[2]; }
  bool depthwise() const { return groups > 1 && groups == c && groups == o; }
};

// Where x lies: a first element and strides (n, d, h, w) in floats; channels are adjacent.
struct Pixels {
  const float* data;
  int64_t stride[4];
};

// An output pixel, counted through.
struct Place {
  int64_t n, at[3];
  Place(const ConvShape& shape, int64_t row) {
    for (int i = 2; i >= 0; row /= shape.out[i--]) at[i] = row % shape.out[i];
    n = row;
  }
  void next(const ConvShape& shape) {
    for (int i = 2; i >= 0; --i) {
      if (++at[i] < shape.out[i]) return;
      at[i] = 0;
    }
    ++n;
  }
};

// The input coordinate that tap `t` of dimension i sees from output coordinate `at`; may lie outside.
KH_INLINE int64_t seen(const ConvShape& shape, int i, int64_t at, int64_t t) {
  return at * shape.stride[i] - shape.pad[i] + t * shape.dilation[i];
}
KH_INLINE bool inside(const ConvShape& shape, int i, int64_t position) {
  return position >= 0 && position < shape.in[i];
}

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

// The left operand of product(): a row is an output pixel's patch, k is (kd, kh, kw, channel of the group).
struct Patches {
  const ConvShape& shape;
  Pixels x;

  void fill(int64_t first, int64_t rows, int64_t k, float* to) const {
    const int64_t channels = shape.c / shape.groups;
    Place place(shape, first);
    float* const flat = channels % kLine == 0 ? nullptr : workspace<Use::kRow>().floats(k);
    for (int64_t row = 0; row < rows; ++row, place.next(shape)) {
      float* const lines = to + row * kLine;
      if (flat == nullptr) {
        fill_lines(place, channels, rows, lines);
      } else {
        fill_flat(place, channels, flat);
        copy_lines(flat, k, rows, lines);
      }
    }
  }

 private:
  // A row of x under the taps (kd, kh) of a place, or null where that lies outside.
  const float* line_of(const Place& place, int64_t kd, int64_t kh) const {
    const int64_t d = seen(shape, 0, place.at[0], kd), h = seen(shape, 1, place.at[1], kh);
    if (!inside(shape, 0, d) || !inside(shape, 1, h)) return nullptr;
    return x.data + place.n * x.stride[0] + d * x.stride[1] + h * x.stride[2];
  }

  // Channels are whole lines: each tap goes straight to its place.
  void fill_lines(const Place& place, int64_t channels, int64_t rows, float* to) const {
    for (int64_t kd = 0; kd < shape.kernel[0]; ++kd) {
      for (int64_t kh = 0; kh < shape.kernel[1]; ++kh) {
        const float* const line = line_of(place, kd, kh);
        for (int64_t kw = 0; kw < shape.kernel[2]; ++kw, to += channels * rows) {
          const int64_t w = seen(shape, 2, place.at[2], kw);
          if (line != nullptr && inside(shape, 2, w)) {
            copy_lines(line + w * x.stride[3], channels, rows, to);
          } else {
            zero_lines(channels, rows, to);
          }
        }
      }
    }
  }

  // Few channels: taps that are neighbours in memory are copied at once.
  void fill_flat(const Place& place, int64_t channels, float* to) const {
    const int64_t taps = shape.kernel[2], span = taps * channels;
    const bool adjacent = shape.dilation[2] == 1 && x.stride[3] == channels;
    const int64_t left = seen(shape, 2, place.at[2], 0);
    const int64_t begin = std::clamp<int64_t>(-left, 0, taps);
    const int64_t end = std::clamp<int64_t>(shape.in[2] - left, begin, taps);
    for (int64_t kd = 0; kd < shape.kernel[0]; ++kd) {
      for (int64_t kh = 0; kh < shape.kernel[1]; ++kh, to += span) {
        const float* const line = line_of(place, kd, kh);
        if (line == nullptr) {
          std::fill_n(to, span, 0.0f);
        } else if (adjacent) {
          std::fill_n(to, begin * channels, 0.0f);
          copy_floats(line + (left + begin) * channels, (end - begin) * channels, to + begin * channels);
          std::fill_n(to + end * channels, (taps - end) * channels, 0.0f);
        } else {
          for (int64_t kw = 0; kw < taps; ++kw) {
            const int64_t w = seen(shape, 2, place.at[2], kw);
            if (inside(shape, 2, w)) {
              copy_floats(line + w * x.stride[3], channels, to + kw * channels);
            } else {
              std::fill_n(to + kw * channels, channels, 0.0f);
            }
          }
        }
      }
    }
  }
};

// -- depthwise --------------------------------------------------------------------------------------------

inline constexpr int64_t kPixels = 4;  // that share the weights' registers

// Where the taps of kPixels neighbouring output pixels lie.
class Taps {
 public:
  Taps(const ConvShape& shape, const Pixels& x, const float* zeros)
      : shape_(shape), x_(x), zeros_(zeros), offsets_(shape.taps()), pointers_(kPixels * shape.taps()) {
    visit([&](int64_t tap, int64_t kd, int64_t kh, int64_t kw) {
      offsets_[tap] = kd * shape.dilation[0] * x.stride[1] + kh * shape.dilation[1] * x.stride[2] +
                      kw * shape.dilation[2] * x.stride[3];
    });
  }

  // The taps of `count` pixels from `place` on, which moves behind them.
  void find(Place& place, int64_t count) {
    if (count == kPixels && place.at[2] + kPixels <= shape_.out[2] && whole(place)) {
      const float* const first = address(place, 0, 0, 0);
      for (int64_t p = 0; p < kPixels; ++p) {
        const float* const pixel = first + p * shape_.stride[2] * x_.stride[3];
        for (int64_t tap = 0; tap < shape_.taps(); ++tap) pointers_[p * shape_.taps() + tap] = pixel + offsets_[tap];
        place.next(shape_);
      }
      return;
    }
    std::fill(pointers_.begin(), pointers_.end(), zeros_);
    for (int64_t p = 0; p < count; ++p, place.next(shape_)) {
      visit([&](int64_t tap, int64_t kd, int64_t kh, int64_t kw) {
        if (inside(shape_, 0, seen(shape_, 0, place.at[0], kd)) && inside(shape_, 1, seen(shape_, 1, place.at[1], kh)) &&
            inside(shape_, 2, seen(shape_, 2, place.at[2], kw)))
          pointers_[p * shape_.taps() + tap] = address(place, kd, kh, kw);
      });
    }
  }

  // Of pixel p and tap t: [p * taps + t].
  const float* const* pointers() const { return pointers_.data(); }

 private:
  template <class F>
  void visit(F&& f) const {
    int64_t tap = 0;
    for (int64_t kd = 0; kd < shape_.kernel[0]; ++kd) {
      for (int64_t kh = 0; kh < shape_.kernel[1]; ++kh) {
        for (int64_t kw = 0; kw < shape_.kernel[2]; ++kw) f(tap++, kd, kh, kw);
      }
    }
  }
  const float* address(const Place& place, int64_t kd, int64_t kh, int64_t kw) const {
    return x_.data + place.n * x_.stride[0] + seen(shape_, 0, place.at[0], kd) * x_.stride[1] +
           seen(shape_, 1, place.at[1], kh) * x_.stride[2] + seen(shape_, 2, place.at[2], kw) * x_.stride[3];
  }
  // Whether no tap of kPixels pixels of one line lies outside.
  bool whole(const Place& place) const {
    for (int i = 0; i < 3; ++i) {
      const int64_t last = place.at[i] + (i == 2 ? kPixels - 1 : 0);
      if (seen(shape_, i, place.at[i], 0) < 0 || seen(shape_, i, last, shape_.kernel[i] - 1) >= shape_.in[i])
        return false;
    }
    return true;
  }

  const ConvShape& shape_;
  const Pixels& x_;
  const float* zeros_;
  std::vector<int64_t> offsets_;
  std::vector<const float*> pointers_;
};

// acc (kPixels, kPanel) = sum over taps of x[tap] * weight[tap], for Vectors * kLanes channels.
template <int Vectors>
KH_INLINE void depthwise_kernel(int64_t taps, const float* const* x, int64_t channel, const float* weight,
                                int64_t stride, float* acc) {
  vfloat c[kPixels][Vectors] = {};
  for (int64_t tap = 0; tap < taps; ++tap) {
    KH_UNROLL(2)
    for (int v = 0; v < Vectors; ++v) {
      const vfloat w = load(weight + tap * stride + v * kLanes);
      KH_UNROLL(4)
      for (int p = 0; p < kPixels; ++p) c[p][v] += w * load(x[p * taps + tap] + channel + v * kLanes);
    }
  }
  for (int p = 0; p < kPixels; ++p) {
    for (int v = 0; v < Vectors; ++v) store(acc + p * kPanel + v * kLanes, c[p][v]);
  }
}

// The same for fewer channels than a vector has, which would read beyond the pixel.
inline void depthwise_rest(int64_t taps, const float* const* x, int64_t channel, int64_t count,
                           const float* weight, int64_t stride, float* acc) {
  for (int64_t p = 0; p < kPixels; ++p) {
    for (int64_t i = 0; i < count; ++i) {
      float sum = 0;
      for (int64_t tap = 0; tap < taps; ++tap) sum += x[p * taps + tap][channel + i] * weight[tap * stride + i];
      acc[p * kPanel + i] = sum;
    }
  }
}

template <class Epilogue>
void conv_depthwise(const ConvShape& shape, const Pixels& x, const float* packed, Epilogue& epilogue) {
  const int64_t taps = shape.taps(), padded = round_up(shape.c, kLanes);
  const int64_t grain = std::max<int64_t>(kPixels, 16384 / (taps * padded + 1));
  parallel(shape.rows(), grain, [&](int64_t begin, int64_t end) {
    float* const zeros = workspace<Use::kRow>().floats(padded);
    std::fill_n(zeros, padded, 0.0f);
    Taps where(shape, x, zeros);
    alignas(64) float acc[kPixels * kPanel];
    Place place(shape, begin);
    for (int64_t row = begin, count; row < end; row += count) {
      // Up to the end of a line, so that the next pixels begin one.
      count = std::min({kPixels, end - row, shape.out[2] - place.at[2]});
      where.find(place, count);
      for (int64_t j = 0, wide; j < shape.c; j += wide) {
        wide = shape.c - j >= kPanel ? kPanel : std::min(kLanes, shape.c - j);
        if (wide == kPanel) {
          depthwise_kernel<2>(taps, where.pointers(), j, packed + j, padded, acc);
        } else if (wide == kLanes) {
          depthwise_kernel<1>(taps, where.pointers(), j, packed + j, padded, acc);
        } else {
          depthwise_rest(taps, where.pointers(), j, wide, packed + j, padded, acc);
        }
        finish(row, count, j, wide, epilogue, static_cast<const float*>(acc));
      }
    }
  });
}

// -- the public functions -----------------------------------------------------------------------------------

// Floats that conv_pack() writes.
inline int64_t conv_packed_size(const ConvShape& shape) {
  if (shape.depthwise()) return shape.taps() * round_up(shape.c, kLanes);
  return shape.groups * packed_size(shape.depth(), shape.o / shape.groups);
}

// weight (o, c / groups, kd, kh, kw) with `strides` in that order.
inline void conv_pack(const ConvShape& shape, const float* weight, const int64_t strides[5], float* packed) {
  const int64_t channels = shape.c / shape.groups, columns = shape.o / shape.groups, depth = shape.depth();
  const auto tap = [&](int64_t t) {
    const int64_t kw = t % shape.kernel[2], kh = t / shape.kernel[2] % shape.kernel[1];
    return t / (shape.kernel[2] * shape.kernel[1]) * strides[2] + kh * strides[3] + kw * strides[4];
  };
  if (shape.depthwise()) {
    const int64_t padded = round_up(shape.c, kLanes);
    for (int64_t t = 0; t < shape.taps(); ++t) {
      for (int64_t i = 0; i < padded; ++i)
        packed[t * padded + i] = i < shape.c ? weight[tap(t) + i * strides[0]] : 0.0f;
    }
    return;
  }
  std::vector<float> group(depth * columns);  // (taps, channels, columns)
  for (int64_t g = 0; g < shape.groups; ++g) {
    const float* const from = weight + g * columns * strides[0];
    parallel(depth, std::max<int64_t>(1, 16384 / (columns + 1)), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const float* const column = from + tap(i / channels) + i % channels * strides[1];
        for (int64_t j = 0; j < columns; ++j) group[i * columns + j] = column[j * strides[0]];
      }
    });
    pack(group.data(), depth, columns, columns, 1, packed + g * packed_size(depth, columns));
  }
}

// x with adjacent channels: itself, or a copy that this thread keeps until its next one.
inline Pixels channels_last(const ConvShape& shape, const float* x, const int64_t strides[5]) {
  if (strides[4] == 1 || shape.c == 1) return {x, {strides[0], strides[1], strides[2], strides[3]}};
  const int64_t width = shape.in[2], lines = shape.n * shape.in[0] * shape.in[1];
  float* const copy = workspace<Use::kInput>().floats(lines * width * shape.c);
  parallel(lines, std::max<int64_t>(1, 16384 / (width * shape.c + 1)), [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) {
      const int64_t h = line % shape.in[1], d = line / shape.in[1] % shape.in[0];
      const float* const from =
          x + line / (shape.in[1] * shape.in[0]) * strides[0] + d * strides[1] + h * strides[2];
      float* const to = copy + line * width * shape.c;
      for (int64_t w = 0; w < width; ++w) {
        for (int64_t i = 0; i < shape.c; ++i) to[w * shape.c + i] = from[w * strides[3] + i * strides[4]];
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

// e(row, j, count, acc): acc[0..count) are output channels j.. of output pixel `row`, complete; once for every
// piece, from any thread. x_strides: (n, d, h, w, c) in floats. packed: what conv_pack() made.
template <class Epilogue>
void conv(const ConvShape& shape, const float* x, const int64_t x_strides[5], const float* packed,
          Epilogue&& e) {
  const int64_t rows = shape.rows();
  if (rows <= 0 || shape.o <= 0) return;
  const Pixels pixels = channels_last(shape, x, x_strides);
  if (shape.depthwise()) return conv_depthwise(shape, pixels, packed, e);
  const int64_t channels = shape.c / shape.groups, columns = shape.o / shape.groups, depth = shape.depth();
  const bool plain = pointwise(shape, pixels);
  for (int64_t g = 0; g < shape.groups; ++g) {
    const auto shifted = [&, g](int64_t i, int64_t j, int64_t count, const float* acc) {
      e(i, g * columns + j, count, acc);
    };
    const float* const right = packed + g * packed_size(depth, columns);
    Pixels part = pixels;
    part.data += g * channels;
    if (plain) {
      product(rows, columns, depth, Matrix{part.data, part.stride[3], 1}, shifted, right);
    } else {
      product(rows, columns, depth, Patches{shape, part}, shifted, right);
    }
  }
}

}  // namespace kh
