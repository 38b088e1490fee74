// float32 convolution of 3 x 3 taps, stride 1, by Winograd's minimal filtering: F(2 x 2, 3 x 3).
//
//   output tile (2, 2) = A' [(G w G') * (B' x B)] A     x: the tile's input (4, 4); w: the taps (3, 3)
//
// Summed over the channels, the product in the middle is one matrix product for each of the 16 points: 16
// multiplications for four pixels instead of 36. B and A hold only 0, 1 and -1 and G halves, so rounding stays that of
// a direct sum. An infinity or NaN of the input reaches all four pixels of its tiles, not only those that see it.
// Source: Lavin & Gray, Fast Algorithms for Convolutional Neural Networks, arXiv 1509.09308.
//
// A task is a block of tiles: its transformed input (point, tile, channel) is made once, in L2, and multiplied with one
// group of output channels after another.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "conv_shape.h"
#include "gemm.h"

KH_NAMESPACE {

inline constexpr int64_t kPoints = 16;             // of a tile's input, 4 x 4
inline constexpr int64_t kTransformed = 96 * 1024;  // floats of a block of tiles in L2
inline constexpr int64_t kGathered = 48 * 1024;    // floats of products of all points

// Whether it can be done, and is worth it: whatever the sizes of the image, since weights are packed before these are
// known. With few channels the transforms cost more than the multiplications that they save.
inline bool is_winograd(const ConvShape& shape) {
  for (int i = 1; i < 3; ++i)
    if (shape.kernel[i] != 3 || shape.stride[i] != 1 || shape.dilation[i] != 1) return false;
  return shape.kernel[0] == 1 && shape.stride[0] == 1 && shape.pad[0] == 0 && shape.groups == 1 &&
         shape.c % kLine == 0 && shape.c >= 32 && shape.o >= 16;
}

// -- weights ------------------------------------------------------------------------------------------------

inline int64_t winograd_packed_size(const ConvShape& shape) { return kPoints * packed_size(shape.c, shape.o); }

// weight (o, c, kd, kh, kw) with `strides` in that order -> for each point a packed matrix (c, o).
inline void winograd_pack(const ConvShape& shape, const float* weight, const int64_t strides[5], float* packed) {
  const int64_t c = shape.c, o = shape.o;
  std::vector<float> points(kPoints * c * o);  // (point, channel, output channel)
  parallel(c, std::max<int64_t>(1, 4096 / (o + 1)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j < o; ++j) {
        const float* const taps = weight + j * strides[0] + i * strides[1];
        float rows[4][3];  // G w
        for (int64_t x = 0; x < 3; ++x) {
          const float a = taps[x * strides[4]], b = taps[strides[3] + x * strides[4]],
                      d = taps[2 * strides[3] + x * strides[4]];
          rows[0][x] = a, rows[1][x] = 0.5f * (a + d + b), rows[2][x] = 0.5f * (a + d - b), rows[3][x] = d;
        }
        for (int64_t y = 0; y < 4; ++y) {
          const float a = rows[y][0], b = rows[y][1], d = rows[y][2];
          const float found[4] = {a, 0.5f * (a + d + b), 0.5f * (a + d - b), d};
          for (int64_t x = 0; x < 4; ++x) points[((y * 4 + x) * c + i) * o + j] = found[x];
        }
      }
    }
  });
  for (int64_t p = 0; p < kPoints; ++p)
    pack(points.data() + p * c * o, c, o, o, 1, packed + p * packed_size(c, o));
}

// -- tiles --------------------------------------------------------------------------------------------------

// The tiles of all images, counted through: (n, depth, line, column).
struct Tiles {
  int64_t lines, columns, images, count;
  explicit Tiles(const ConvShape& shape)
      : lines(ceil_div(shape.out[1], 2)),
        columns(ceil_div(shape.out[2], 2)),
        images(shape.n * shape.out[0]),
        count(images * lines * columns) {}
};

// to[point * apart] = B' x B for the channels of one vector. rows: the four lines of the tile's input, from its first
// pixel; null: outside. Pixels `step` floats apart; those from `low` up to `high` are inside.
template <bool Whole>
KH_INLINE void transform_input(const float* const rows[4], int64_t step, int64_t low, int64_t high, float* to,
                               int64_t apart) {
  vfloat x[4][4];
  KH_UNROLL(4)
  for (int64_t i = 0; i < 4; ++i) {
    KH_UNROLL(4)
    for (int64_t j = 0; j < 4; ++j)
      x[i][j] = Whole || (rows[i] != nullptr && j >= low && j < high) ? load(rows[i] + j * step) : vfloat{};
  }
  KH_UNROLL(4)
  for (int64_t j = 0; j < 4; ++j) {
    const vfloat a = x[0][j], b = x[1][j], c = x[2][j], d = x[3][j];
    x[0][j] = a - c, x[1][j] = b + c, x[2][j] = c - b, x[3][j] = b - d;
  }
  KH_UNROLL(4)
  for (int64_t i = 0; i < 4; ++i) {
    const vfloat a = x[i][0], b = x[i][1], c = x[i][2], d = x[i][3];
    store(to + (i * 4 + 0) * apart, a - c), store(to + (i * 4 + 1) * apart, b + c);
    store(to + (i * 4 + 2) * apart, c - b), store(to + (i * 4 + 3) * apart, b - d);
  }
}

// y (2, 2) = A' m A for one vector of output channels; m[point * apart].
KH_INLINE void transform_output(const float* m, int64_t apart, vfloat y[2][2]) {
  vfloat rows[2][4];
  KH_UNROLL(4)
  for (int64_t j = 0; j < 4; ++j) {
    const vfloat a = load(m + j * apart), b = load(m + (4 + j) * apart), c = load(m + (8 + j) * apart),
                 d = load(m + (12 + j) * apart);
    rows[0][j] = a + (b + c), rows[1][j] = (b - c) - d;
  }
  KH_UNROLL(2)
  for (int64_t i = 0; i < 2; ++i) {
    y[i][0] = rows[i][0] + (rows[i][1] + rows[i][2]);
    y[i][1] = (rows[i][1] - rows[i][2]) - rows[i][3];
  }
}

// The transformed input of `count` tiles from `first` on: to[point * apart + ...] in the lines that kernel() reads.
inline void transform_inputs(const ConvShape& shape, const Pixels& x, const Tiles& tiles, int64_t first,
                             int64_t count, int64_t height, float* to, int64_t apart) {
  for (int64_t t = 0; t < count; ++t) {
    int64_t rest = first + t;
    const int64_t column = rest % tiles.columns;
    rest /= tiles.columns;
    const int64_t line = rest % tiles.lines, image = rest / tiles.lines;
    const float* const plane =
        x.data + image / shape.out[0] * x.stride[0] + image % shape.out[0] * x.stride[1];
    const int64_t top = 2 * line - shape.pad[1], left = 2 * column - shape.pad[2];
    const float* rows[4];
    for (int64_t i = 0; i < 4; ++i) {
      rows[i] = inside(shape, 1, top + i) ? plane + (top + i) * x.stride[2] + left * x.stride[3] : nullptr;
    }
    const int64_t low = std::max<int64_t>(0, -left), high = std::min<int64_t>(4, shape.in[2] - left);
    const int64_t block = t / height, row = t % height, rows_of_block = std::min(height, count - block * height);
    float* const place = to + block * height * shape.c + row * kLine;
    const bool whole = low == 0 && high == 4 && rows[0] != nullptr && rows[3] != nullptr;
    for (int64_t k = 0; k < shape.c; k += kLanes) {
      float* const lane = place + k / kLine * rows_of_block * kLine + k % kLine;
      const float* at[4];
      for (int64_t i = 0; i < 4; ++i) at[i] = rows[i] == nullptr ? nullptr : rows[i] + k;
      if (whole) {
        transform_input<true>(at, x.stride[3], 0, 4, lane, apart);
      } else {
        transform_input<false>(at, x.stride[3], low, high, lane, apart);
      }
    }
  }
}

// -- the convolution ------------------------------------------------------------------------------------------

template <class Epilogue>
void conv_winograd(const ConvShape& shape, const Pixels& x, const float* packed, Epilogue& epilogue) {
  const Tiles tiles(shape);
  const int64_t c = shape.c, o = shape.o, team = threads();
  const int64_t most = std::clamp<int64_t>(kTransformed / (kPoints * c) / kRows, 1, 9) * kRows;
  int64_t blocks = ceil_div(tiles.count, most);
  blocks = tiles.count >= team * kRows ? round_up(blocks, team) : blocks;
  const int64_t size = ceil_div(tiles.count, blocks);
  const int64_t group = std::clamp<int64_t>(kGathered / (kPoints * size) / kPanel, 1, 4) * kPanel;
  const int64_t groups = ceil_div(o, group);
  const int64_t chunks = team == 1 ? 1 : std::clamp<int64_t>(ceil_div(2 * team, blocks), 1, groups);
  parallel_tasks(blocks * chunks, team, [&](Tickets& tickets) {
    const int64_t apart = size * c, products = size * group, line = 2 * size * group;
    float* const input = workspace<Use::kLeft>().floats(kPoints * (apart + products) + 2 * line);
    float* const gathered = input + kPoints * apart;
    float* const pixels = gathered + kPoints * products;  // (2, 2 * tile, column)
    int64_t filled = -1;
    for (int64_t task; (task = tickets.next()) >= 0;) {
      const int64_t block = task / chunks, chunk = task % chunks;
      const int64_t first = block * size, count = std::min(size, tiles.count - first);
      if (count <= 0) continue;
      const Blocks split(count, kRows);
      if (filled != block) {
        transform_inputs(shape, x, tiles, first, count, split.height, input, apart);
        filled = block;
      }
      const int64_t end = std::min(o, groups * (chunk + 1) / chunks * group);
      for (int64_t j = groups * chunk / chunks * group; j < end; j += group) {
        const int64_t columns = std::min(group, end - j);
        for (int64_t p = 0; p < kPoints; ++p) {
          const float* const right = packed + p * packed_size(c, o);
          for (int64_t y = 0; y < columns; y += kPanel) {
            const int64_t width = panel_width(o, j + y);
            for (int64_t row = 0; row < count; row += split.height) {
              const int64_t high = std::min(split.height, count - row);
              kKernels[width / kLanes - 1][high - 1](c, input + p * apart + row * c, right + (j + y) * c,
                                                     gathered + p * products + row * group + y, group, false);
            }
          }
        }
        for (int64_t t = 0; t < count; ++t) {
          for (int64_t y = 0; y < columns; y += kLanes) {
            vfloat found[2][2];
            transform_output(gathered + t * group + y, products, found);
            KH_UNROLL(2)
            for (int64_t i = 0; i < 2; ++i) {
              store(pixels + i * line + 2 * t * group + y, found[i][0]);
              store(pixels + i * line + (2 * t + 1) * group + y, found[i][1]);
            }
          }
        }
        for (int64_t t = 0, run; t < count; t += run) {  // neighbours in a line
          const int64_t column = (first + t) % tiles.columns, above = (first + t) / tiles.columns;
          run = std::min(count - t, tiles.columns - column);
          const int64_t wide = std::min(2 * run, shape.out[2] - 2 * column);
          const int64_t top = above % tiles.lines * 2, high = std::min<int64_t>(2, shape.out[1] - top);
          for (int64_t i = 0; i < high; ++i) {
            const int64_t pixel = (above / tiles.lines * shape.out[1] + top + i) * shape.out[2] + 2 * column;
            finish(pixel, wide, j, columns, group, epilogue,
                   static_cast<const float*>(pixels + i * line + 2 * t * group));
          }
        }
      }
    }
  });
}

}  // namespace kh
