// A convolution of few channels a group, or of one (depthwise), of images in planes: what a slab of lines sees is
// copied once, with zeros around it, odd lines and columns of strided convolutions beside even ones. A vector of
// output pixels then sees each tap at one offset, past the ends of lines, where what comes out is dropped.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "finish.h"
#include "parallel.h"
#include "plane_sums.h"

KH_NAMESPACE {

inline constexpr int64_t kNear = 24 * 1024;  // floats of a slab that a thread copies

// The lines of the input that a slab of output lines sees, in phases: all of them, or the even and the odd ones apart.
// Position (line, column) of what is padded lies at phase (line % stride_h, column % stride_w), line / stride_h times
// `pitch` plus column / stride_w.
struct Padded {
  int64_t lines, pitch, phase, plane;  // lines of a phase; floats between lines, phases and channels

  Padded(const PlaneShape& s, int64_t out_lines) {
    const int64_t seen_lines = (out_lines - 1) * s.stride_h + (s.rows - 1) * s.dilation_h + 1;
    const int64_t seen_columns = (s.out_width - 1) * s.stride_w + (s.columns - 1) * s.dilation_w + 1;
    lines = ceil_div(seen_lines, s.stride_h);
    const int64_t right = std::max<int64_t>(0, seen_columns - s.left - s.width);
    // Without strides, zeros behind a line are also those before the next one.
    pitch = s.stride_w == 1 ? std::max(s.width + std::max(s.left, right), s.out_width)
                            : ceil_div(std::max(seen_columns, s.left + s.width), s.stride_w);
    phase = lines * pitch + std::max(s.left, right) + kVectors * kLanes * 2;
    plane = phase * s.stride_h * s.stride_w;
  }
};

// The first `count` lanes of x, and zeros.
KH_INLINE vfloat first_of(vfloat x, int64_t count) {
  typedef int32_t vint __attribute__((vector_size(kLanes * 4)));
  vint lane;
  KH_UNROLL(16)
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  return reinterpret_cast<vfloat>(reinterpret_cast<vint>(x) & (lane < static_cast<int32_t>(std::min(count, kLanes))));
}

// Every second lane of the two vectors at `from`, from the first on or from the second.
template <int Odd, int... I>
KH_INLINE vfloat half_of(const float* from, std::integer_sequence<int, I...>) {
  const vfloat a = load(from), b = load(from + kLanes);
#if defined(__clang__)
  return __builtin_shufflevector(a, b, (2 * I + Odd)...);
#else
  typedef int32_t vint __attribute__((vector_size(kLanes * 4)));
  return __builtin_shuffle(a, b, vint{(2 * I + Odd)...});
#endif
}

// to[0..pitch) = a line of `count` floats, every `Step`-th from the first on, and zeros; whole vectors, of both.
template <int Step>
KH_INLINE void copy_line(const float* from, int64_t count, int64_t pitch, float* to) {
  constexpr std::make_integer_sequence<int, static_cast<int>(kLanes)> order;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, Step == 1 ? load(from + i) : half_of<0>(from + 2 * i, order));
  if (i < count) {
    store(to + i, first_of(Step == 1 ? load(from + i) : half_of<0>(from + 2 * i, order), count - i));
    i += kLanes;
  }
  for (; i < pitch; i += kLanes) store(to + i, vfloat{});
}

// Copies what output lines first.. of a channel see. A line is written from its first column to that of the next one,
// with the zeros between them, and may reach beyond, into what is written after it. end: of all images.
inline void copy_plane(const PlaneShape& s, const Padded& p, const float* x, const float* end, int64_t first,
                       float* spare, float* to) {
  const int64_t top = first * s.stride_h - s.above, step = s.stride_w;
  for (int64_t row = 0; row < s.stride_h; ++row) {
    for (int64_t column = 0; column < step; ++column, to += p.phase) {
      // Columns of the input that are of this phase, and where the first of them lies.
      const int64_t skipped = ((column - s.left) % step + step) % step, place = (s.left + skipped) / step;
      const int64_t count = s.width > skipped ? ceil_div(s.width - skipped, step) : 0;
      for (int64_t i = 0; i < place; i += kLanes) store(to + i, vfloat{});
      for (int64_t line = 0; line < p.lines; ++line) {
        const int64_t at = top + line * s.stride_h + row;
        const int64_t behind = line == p.lines - 1 ? p.phase - p.lines * p.pitch - place : 0;
        float* const start = to + line * p.pitch + place;
        if (at < 0 || at >= s.height) {
          copy_line<1>(nullptr, 0, p.pitch + behind, start);
          continue;
        }
        const float* from = x + at * s.width + skipped;
        if (from + step * round_up(count, kLanes) > end) {  // vectors would be read beyond the end of all
          std::memcpy(spare, from, (s.width - skipped) * sizeof(float));
          from = spare;
        }
        if (step == 1)
          copy_line<1>(from, count, p.pitch + behind, start);
        else
          copy_line<2>(from, count, p.pitch + behind, start);
      }
    }
  }
}

// Lines of sums, `pitch` apart, to those of y, with a bias; nothing is written behind the last of them.
inline void finish_lines(const PlaneShape& s, int64_t lines, int64_t pitch, const float* from, float bias, float* to) {
  const vfloat more = splat(bias);
  const int64_t wide = s.out_width;
  float* const end = to + lines * wide;
  for (int64_t line = 0; line < lines; ++line, from += pitch, to += wide) {
    if (wide >= kLanes) {
      for (int64_t i = 0; i + kLanes <= wide; i += kLanes) store(to + i, load(from + i) + more);
      store(to + wide - kLanes, load(from + wide - kLanes) + more);
    } else if (to + kLanes <= end) {
      store(to, load(from) + more);
    } else {
      for (int64_t i = 0; i < wide; ++i) to[i] = from[i] + bias;
    }
  }
}

// to[line * pitch] = more + the sums of kernel columns at `Lines` output lines, one vector of each: what is loaded
// serves all rows of taps that see it.
template <int Rows, int Stride, int Lines>
struct ColumnKernel {
  static void run(int64_t columns, const float* weight, const float* x, int64_t pitch, int64_t odd,
                  const int64_t* offsets, vfloat more, float* to, int64_t to_pitch) {
    vfloat c[Lines];
    KH_UNROLL(8)
    for (int line = 0; line < Lines; ++line) c[line] = more;
    for (int64_t column = 0; column < columns; ++column) {
      const float* const from = x + offsets[column];
      KH_UNROLL(32)
      for (int i = 0; i < (Lines - 1) * Stride + Rows; ++i) {
        const vfloat seen = load(from + (i / Stride) * pitch + (i % Stride) * odd);
        KH_UNROLL(8)
        for (int r = 0; r < Rows; ++r) {
          if (i >= r && (i - r) % Stride == 0 && (i - r) / Stride < Lines)
            c[(i - r) / Stride] += splat(weight[r * columns + column]) * seen;
        }
      }
    }
    KH_UNROLL(8)
    for (int line = 0; line < Lines; ++line) store(to + line * to_pitch, c[line]);
  }
};

inline constexpr int64_t kMostColumns = 64;

struct Columns {
  void (*run)(int64_t, const float*, const float*, int64_t, int64_t, const int64_t*, vfloat, float*, int64_t);
  int64_t lines;
};
template <int Rows, int Stride, int Lines>
constexpr Columns kColumnsOf{ColumnKernel<Rows, Stride, Lines>::run, Lines};

// What makes the sums of one channel's kernel, null where nothing does.
inline const Columns* columns_of(const PlaneShape& s) {
  if (!s.is_depthwise() || s.dilation_h != 1 || s.columns > kMostColumns) return nullptr;
  static constexpr Columns kThree = kColumnsOf<3, 1, 7>, kFive = kColumnsOf<5, 1, 7>, kSeven = kColumnsOf<7, 1, 7>,
                           kThreeOfTwo = kColumnsOf<3, 2, 7>, kFiveOfTwo = kColumnsOf<5, 2, 7>;
  if (s.stride_h == 1) return s.rows == 3 ? &kThree : s.rows == 5 ? &kFive : s.rows == 7 ? &kSeven : nullptr;
  return s.rows == 3 ? &kThreeOfTwo : s.rows == 5 ? &kFiveOfTwo : nullptr;
}

inline void column_sums(const PlaneShape& s, const Padded& p, const Columns& kernel, int64_t lines, const float* weight,
                        const float* x, float bias, float* tile, float* y) {
  int64_t offsets[kMostColumns];
  for (int64_t column = 0; column < s.columns; ++column) {
    const int64_t at = column * s.dilation_w;
    offsets[column] = at % s.stride_w * p.phase + at / s.stride_w;
  }
  const bool fits = s.out_width >= kLanes && lines >= kernel.lines;
  const int64_t pitch = fits ? s.out_width : round_up(s.out_width, kLanes);
  float* const to = fits ? y : tile;
  const int64_t odd = p.phase * s.stride_w;
  for (int64_t line = 0; line < lines; line += kernel.lines) {
    const int64_t first = fits ? std::min(line, lines - kernel.lines) : line;
    for (int64_t j = 0; j < s.out_width; j += kLanes) {
      const int64_t column = fits ? std::min(j, s.out_width - kLanes) : j;
      kernel.run(s.columns, weight, x + first * p.pitch + column, p.pitch, odd, offsets, splat(bias),
                 to + first * pitch + column, pitch);
    }
  }
  if (!fits) finish_lines(s, lines, pitch, tile, 0.0f, y);
}

inline void by_lines(const PlaneShape& s, const float* x, const float* weight, const float* bias, const Finish& finish,
                     float* y) {
  const int64_t filters = s.filters(), channels = s.channels(), depth = s.depth();
  const int64_t blocks = ceil_div(filters, kMostRows), high = ceil_div(filters, blocks);
  int64_t out_lines = s.out_height;
  while (out_lines > 1 && channels * Padded(s, out_lines).plane + high * out_lines * Padded(s, out_lines).pitch > kNear)
    out_lines = ceil_div(out_lines, 2);
  const Padded p(s, out_lines);
  const int64_t slabs = ceil_div(s.out_height, out_lines);
  const int64_t count = (out_lines - 1) * p.pitch + s.out_width;
  const int64_t columns_floats = (out_lines + 8) * round_up(s.out_width, kLanes);
  const int64_t apart = round_up(std::max(count, columns_floats), 2 * kVectors * kLanes);
  const int64_t grain = std::max<int64_t>(1, 32768 / (filters * depth * count + 1));
  const int64_t spare_floats = round_up(s.width + 2 * kLanes, kLanes);
  const int64_t copies = round_up(channels * p.plane + kLanes + 8 * p.pitch, kLanes);
  const Columns* const columns = columns_of(s);
  const float* const end_of_x = x + s.n * s.c * s.in_plane();
  parallel(s.n * s.groups * slabs, grain, [&](int64_t begin, int64_t end) {
    float* const copied = workspace<Use::kRow>().floats(copies + kMostRows * apart + spare_floats);
    float* const tile = copied + copies;
    float* const spare = tile + kMostRows * apart;
    int64_t* const offsets = reinterpret_cast<int64_t*>(workspace<Use::kColumns>().floats(2 * depth));
    for (int64_t channel = 0, k = 0; channel < channels; ++channel) {
      for (int64_t row = 0; row < s.rows; ++row) {
        for (int64_t column = 0; column < s.columns; ++column, ++k) {
          const int64_t line = row * s.dilation_h, at = column * s.dilation_w;
          offsets[k] = channel * p.plane + (line % s.stride_h * s.stride_w + at % s.stride_w) * p.phase +
                       line / s.stride_h * p.pitch + at / s.stride_w;
        }
      }
    }
    for (int64_t task = begin; task < end; ++task) {
      const int64_t image = task / slabs, group = image % s.groups, first = task % slabs * out_lines;
      const int64_t lines = std::min(out_lines, s.out_height - first);
      const float* const seen = x + image * channels * s.in_plane();
      for (int64_t channel = 0; channel < channels; ++channel)
        copy_plane(s, p, seen + channel * s.in_plane(), end_of_x, first, spare, copied + channel * p.plane);
      if (columns != nullptr) {
        float* const to = y + image * s.out_plane() + first * s.out_width;
        const float more = bias == nullptr ? 0.0f : bias[group];
        column_sums(s, p, *columns, lines, weight + group * depth, copied, more, tile, to);
        finish.plane(to, lines * s.out_width, group);
        continue;
      }
      for (int64_t filter = 0; filter < filters; filter += high) {
        const int64_t some = std::min(high, filters - filter), of = group * filters + filter;
        const int64_t places = (lines - 1) * p.pitch + s.out_width;
        all_sums(some, places, depth, weight + of * depth, depth, offsets, copied, tile, apart);
        for (int64_t row = 0; row < some; ++row) {
          float* const to = y + (image * filters + filter + row) * s.out_plane() + first * s.out_width;
          finish_lines(s, lines, p.pitch, tile + row * apart, bias == nullptr ? 0.0f : bias[of + row], to);
          finish.plane(to, lines * s.out_width, of + row);
        }
      }
    }
  });
}

}  // namespace kh
