// float32 linear layers of many rows, on weights as PyTorch has them: what a task needs of them is packed at every call,
// into memory that stays in its thread's cache while all rows are multiplied with it.
//
// To pack an element takes the time of about ten multiplications, so of 64 rows it is a tenth of a call, of 512 a
// fiftieth; and no copy of the weights is kept that would hold memory, and would have to be compared with them.
//
// Every function takes one record of 8-byte fields (packed by Python's struct module, see linear_records.h).

#include <algorithm>
#include <cstdint>

#include "activations.h"
#include "gemm.h"
#include "linear_records.h"

namespace {

constexpr int64_t kTaskColumns = 2 * kh::kPanel;  // of a task
constexpr int64_t kMostLines = 1 << 21;  // floats of x that are multiplied with a weight at once: 8 MiB
constexpr int64_t kTasks = 4;            // of a thread, at least, where there is so much to do
constexpr int64_t kLeastBlocks = 8;      // of rows that a task multiplies with what it has packed, at least

// A weight with its bias. columns lie stride_n apart, what is summed over stride_k.
struct Right {
  const float *values, *bias;
  int64_t stride_k, stride_n;
};

// How the rows of x are cut: into blocks of nearly equal height, which lie in lines (see gemm.h).
struct Left {
  const float* lines;
  int64_t rows, width, deep;
  kh::Blocks blocks;
};

// Finishes a row of a tile: to = activation(sums + bias) of one product, or activation(sums + bias) * (ups + bias).
template <int kProducts>
KH_INLINE void finish(const Right (&rights)[kProducts], int64_t column, int64_t count, const float* sums,
                      const float* ups, int64_t activation, float* to) {
  const float* const bias = rights[0].bias;
  if (bias != nullptr) {
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) to[c] = sums[c] + bias[column + c];
  } else if (sums != to) {
    std::copy(sums, sums + count, to);
  }
  activate(to, count, activation);
  if constexpr (kProducts == 2) {
    const float* const more = rights[1].bias;
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) to[c] *= ups[c] + (more == nullptr ? 0.0f : more[column + c]);
  }
}

// out (left.rows, columns), `stride` floats a row, of rows that lie in lines.
template <int kProducts>
void multiply(const Left& left, const Right (&rights)[kProducts], int64_t columns, int64_t activation, float* out,
              int64_t stride) {
  const int64_t groups = kh::ceil_div(columns, kTaskColumns), work = left.rows * left.width * columns;
  const int64_t team = work < kh::kAlone ? 1 : kh::threads();
  const int64_t most_parts = std::max<int64_t>(1, left.blocks.count / kLeastBlocks);
  const int64_t parts = team == 1 ? 1 : std::clamp<int64_t>(kh::ceil_div(kTasks * team, groups), 1, most_parts);
  const int64_t share = kh::ceil_div(left.blocks.count, parts);
  kh::parallel_tasks(groups * parts, team, [&](kh::Tickets& tickets) {
    const int64_t depth = std::min(kh::kDepth, left.width);
    float* const packed = kh::workspace<kh::Use::kRight>().floats(kProducts * depth * kTaskColumns);
    const int64_t some_rows = std::min(left.rows, share * left.blocks.height);
    float* const tiles = kh::workspace<kh::Use::kColumns>().floats(2 * some_rows * kTaskColumns);
    kh::Multiplier<kh::Floats> multiplier;
    for (int64_t task; (task = tickets.next()) >= 0;) {
      const int64_t column = task / parts * kTaskColumns, wide = std::min(kTaskColumns, columns - column);
      const int64_t first = task % parts * share * left.blocks.height;
      const int64_t rows = std::min(first + share * left.blocks.height, left.rows) - first;
      if (rows <= 0) continue;
      const bool is_whole = wide % kh::kLanes == 0;  // vectors do not reach beyond the columns
      float* const sums = is_whole ? out + first * stride + column : tiles;
      const int64_t sums_stride = is_whole ? stride : kTaskColumns;
      float* const ups = tiles + some_rows * kTaskColumns;
      for (int64_t from = 0; from < left.width; from += depth) {
        const int64_t deep = std::min(depth, left.width - from), size = deep * kTaskColumns;
        const bool is_last = from + deep == left.width;
        for (int p = 0; p < kProducts; ++p) {
          const Right& right = rights[p];
          for (int64_t x = 0; x < wide; x += kh::kPanel)
            kh::pack_panel(right.values + (column + x) * right.stride_n + from * right.stride_k, deep,
                           std::min(kh::kPanel, wide - x), kh::panel_width(wide, x), right.stride_k, right.stride_n,
                           packed + p * size + x * deep);
        }
        for (int64_t row = 0; row < rows; row += left.blocks.height) {
          const int64_t high = std::min(left.blocks.height, rows - row);
          const float* const lines = left.lines + (first + row) * left.deep + from * high;
          for (int p = 0; p < kProducts; ++p) {
            float* const to = p == 0 ? sums + row * sums_stride : ups + row * kTaskColumns;
            const int64_t apart = p == 0 ? sums_stride : kTaskColumns;
            for (int64_t x = 0; x < wide; x += kh::kPanel)
              multiplier.multiply(high, kh::panel_width(wide, x), deep, lines, packed + p * size + x * deep, to + x,
                                  apart, from > 0);
          }
          if (!is_last) continue;
          for (int64_t r = row; r < row + high; ++r)
            finish(rights, column, wide, sums + r * sums_stride, ups + r * kTaskColumns, activation,
                   out + (first + r) * stride + column);
        }
      }
    }
  });
}

// multiply(left, first row) for rows of x, as many at once as stay near.
template <class Multiply>
void with_rows(const Linears& p, Multiply&& multiply) {
  const int64_t deep = kh::round_up(std::max<int64_t>(p.width, 1), kh::kLine);
  const int64_t times = kh::ceil_div(p.rows * deep, kMostLines), most = kh::ceil_div(p.rows, times);
  const float* const x = static_cast<const float*>(p.x);
  for (int64_t first = 0; first < p.rows; first += most) {
    const int64_t rows = std::min(most, p.rows - first);
    float* const lines = kh::workspace<kh::Use::kLeft>().floats(rows * deep);
    const kh::Blocks blocks(rows, kh::kRows);
    const kh::Matrix<float> matrix{x + first * p.width, p.width, 1, rows};
    kh::parallel(blocks.count, std::max<int64_t>(1, 32768 / (blocks.height * deep)), [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t row = block * blocks.height;
        if (row < rows) matrix.fill(row, std::min(blocks.height, rows - row), p.width, lines + row * deep);
      }
    });
    multiply(Left{lines, rows, p.width, deep, blocks}, first);
  }
}

Right right_of(const Weight& weight, int64_t stride_k, int64_t stride_n) {
  return {static_cast<const float*>(weight.values), static_cast<const float*>(weight.bias), stride_k, stride_n};
}

void linears(const Linears& p, bool is_transposed) {
  int64_t all = 0;
  for (const Weight& weight : p.weights) all += weight.columns;
  with_rows(p, [&](const Left& left, int64_t first) {
    float* out = static_cast<float*>(p.out) + first * all;
    for (const Weight& weight : p.weights) {
      if (weight.columns == 0) continue;
      const Right rights[] = {is_transposed ? right_of(weight, weight.columns, 1) : right_of(weight, 1, p.width)};
      multiply(left, rights, weight.columns, p.activation, out, all);
      out += weight.columns;
    }
  });
}

}  // namespace

extern "C" {

// weights (columns, width)
__attribute__((visibility("default"))) void many_rows_linears(const void* record) {
  linears(*static_cast<const Linears*>(record), false);
}

// weights (width, columns)
__attribute__((visibility("default"))) void many_rows_transposed(const void* record) {
  linears(*static_cast<const Linears*>(record), true);
}

// out (rows, columns) = activation(x gate^T) * (x up^T) of the first two weights, each with its bias
__attribute__((visibility("default"))) void many_rows_gated(const void* record) {
  const Linears& p = *static_cast<const Linears*>(record);
  const int64_t columns = p.weights[0].columns;
  const Right rights[] = {right_of(p.weights[0], 1, p.width), right_of(p.weights[1], 1, p.width)};
  with_rows(p, [&](const Left& left, int64_t first) {
    multiply(left, rights, columns, p.activation, static_cast<float*>(p.out) + first * columns, columns);
  });
}

}  // extern "C"
