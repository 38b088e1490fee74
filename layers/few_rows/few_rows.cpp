// Linear layers and gated feed-forward blocks of a few rows, on weights as PyTorch has them.
//
// What takes the time is reading the weights, once, whatever is done with them: so they are not copied into another
// order first, and threads share their rows. x and the hidden rows stay in the caches.
//
// Every function takes one record of 8-byte fields (packed by Python's struct module, in this order).

#include <omp.h>

#include <cstdint>
#include <memory>
#include <type_traits>

#include "dot_products.h"
#include "linear_records.h"
#include "team_pace.h"

namespace {

// How many columns a task has: every thread of the team has one, if there are enough.
int64_t task_columns(int64_t columns) {
  const int64_t team = omp_get_num_threads(), share = (columns + team - 1) / team;
  const int64_t tiles = (share + kRows - 1) / kRows * kRows;
  return tiles < kColumns ? tiles : kColumns;
}

// The rows of x as a product takes them: x itself, or a copy.
template <class T>
class Rows {
 public:
  using X = OperandOf<T>;
  Rows(const void* x, int64_t rows, int64_t width) : width_(width) {
    if constexpr (std::is_same_v<X, T>) {
      first_ = static_cast<const X*>(x);
    } else {
      copy_.reset(new X[rows * width]);
      for (int64_t i = 0; i < rows * width; ++i) copy_[i] = store<X>(load(static_cast<const T*>(x)[i]));
      first_ = copy_.get();
    }
  }
  const X* row(int64_t i) const { return first_ + i * width_; }

 private:
  std::unique_ptr<X[]> copy_;
  const X* first_;
  int64_t width_;
};

// A block of columns of x weight^T + bias for up to kOperands rows.
template <class T>
void block(const OperandOf<T>* const* rows, int64_t count, const Weight& weight, int64_t width, int64_t column,
           int64_t columns, float* out) {
  product<T>(rows, count, static_cast<const T*>(weight.values) + column * width, columns, width, out, kColumns);
  if (weight.bias == nullptr) return;
  const T* bias = static_cast<const T*>(weight.bias) + column;
  for (int64_t t = 0; t < count; ++t)
    for (int64_t c = 0; c < columns; ++c) out[t * kColumns + c] += load(bias[c]);
}

// each(first row, rows, their places, column, columns) for every piece of a matrix, columns shared by the threads of
// the region that this is called in, who do not wait for each other at its end.
template <class X, class RowOf, class Each>
void pieces(int64_t rows, int64_t columns, RowOf&& row_of, Each&& each) {
  const int64_t step = task_columns(columns);
#pragma omp for schedule(dynamic) nowait
  for (int64_t column = 0; column < columns; column += step) {
    const int64_t wide = columns - column < step ? columns - column : step;
    const X* at[kOperands];
    for (int64_t first = 0; first < rows; first += kOperands) {
      const int64_t count = rows - first < kOperands ? rows - first : kOperands;
      for (int64_t t = 0; t < count; ++t) at[t] = row_of(first + t);
      each(first, count, at, column, wide);
    }
  }
}

template <class T>
void linears(const Linears& p) {
  using X = OperandOf<T>;
  int64_t all = 0;
  for (const Weight& weight : p.weights) all += weight.columns;
  const Rows<T> x(p.x, p.rows, p.width);
  PacedRegion region(p.rows * p.width * all, kParallelWork);
#pragma omp parallel if (region.has_team())
  {
    float sums[kOperands * kColumns];
    T* out = static_cast<T*>(p.out);
    for (const Weight& weight : p.weights) {
      if (weight.columns == 0) continue;
      pieces<X>(p.rows, weight.columns, [&](int64_t i) { return x.row(i); },
                [&](int64_t first, int64_t count, const X* const* at, int64_t column, int64_t columns) {
                  block<T>(at, count, weight, p.width, column, columns, sums);
                  for (int64_t t = 0; t < count; ++t) {
                    float* row = sums + t * kColumns;
                    T* to = out + (first + t) * all + column;
                    activate(row, columns, p.activation);
                    for (int64_t c = 0; c < columns; ++c) to[c] = store<T>(row[c]);
                  }
                });
      out += weight.columns;
    }
    region.arrive();
  }
}

template <class T>
void gated(const Gated& p) {
  using X = OperandOf<T>;
  const int64_t inner = p.gate.columns, columns = p.down.columns;
  const Rows<T> x(p.x, p.rows, p.width);
  const std::unique_ptr<X[]> hidden(new X[p.rows * inner]);
  PacedRegion region(p.rows * p.width * inner, kParallelWork);
#pragma omp parallel if (region.has_team())
  {
    float gate[kOperands * kColumns], up[kOperands * kColumns];
    pieces<X>(p.rows, inner, [&](int64_t i) { return x.row(i); },
              [&](int64_t first, int64_t count, const X* const* at, int64_t column, int64_t wide) {
                block<T>(at, count, p.gate, p.width, column, wide, gate);
                block<T>(at, count, p.up, p.width, column, wide, up);
                for (int64_t t = 0; t < count; ++t) {
                  float *g = gate + t * kColumns, *u = up + t * kColumns;
                  X* h = hidden.get() + (first + t) * inner + column;
                  activate(g, wide, p.activation);
#pragma omp simd
                  for (int64_t c = 0; c < wide; ++c) h[c] = store<X>(load(store<T>(g[c] * u[c])));
                }
              });
    region.barrier();
    pieces<X>(p.rows, columns, [&](int64_t i) { return hidden.get() + i * inner; },
              [&](int64_t first, int64_t count, const X* const* at, int64_t column, int64_t wide) {
                block<T>(at, count, p.down, inner, column, wide, gate);
                for (int64_t t = 0; t < count; ++t) {
                  T* to = static_cast<T*>(p.out) + (first + t) * columns + column;
                  for (int64_t c = 0; c < wide; ++c) to[c] = store<T>(gate[t * kColumns + c]);
                }
              });
    region.arrive();
  }
}

}  // namespace

extern "C" {

void few_rows_linears(const void* record) {
  const Linears& p = *static_cast<const Linears*>(record);
  if (p.type == kFloat32) linears<float>(p);
  else if (p.type == kBFloat16) linears<bf16>(p);
  else linears<f16>(p);
}

void few_rows_gated(const void* record) {
  const Gated& p = *static_cast<const Gated*>(record);
  if (p.type == kFloat32) gated<float>(p);
  else if (p.type == kBFloat16) gated<bf16>(p);
  else gated<f16>(p);
}

}  // extern "C"
