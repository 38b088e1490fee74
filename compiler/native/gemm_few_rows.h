// float32 products that are too small for the packing that pays in others: their operands are read where they lie.
//
//   few rows, columns beside each other   a block of columns is kept in registers, as wide as rows leave room for
//   few rows, depth beside each other     dot products, vectors along the depth
//   few columns                           the same, with the operands in each other's place
//   next to nothing                       plain loops
#pragma once

#include "gemm.h"

KH_NAMESPACE {

inline constexpr int64_t kFewRows = 8;                                // from more rows on, packing pays
inline constexpr int64_t kRowsOfPanel = 64;                           // where packing would change little
inline constexpr int64_t kRowsAtOnce = 4;
inline constexpr int64_t kFewAccumulators = kLanes == 16 ? 24 : 12;   // vectors, of 32 and 16 registers
inline constexpr int64_t kColumnsAtOnce = 16 * kLanes;                // of a task

// sums (Rows, Vectors * kLanes) = a (Rows, k) @ b (k, Vectors * kLanes); rows of sums are `stride` floats apart.
// last: the columns that the last vector begins at; some of the one before may be among them.
template <int Rows, int Vectors>
void few_rows_across(int64_t k, const float* a, int64_t stride_m, int64_t stride_k, const float* b, int64_t b_stride_k,
                     float* sums, int64_t stride, int64_t last = (Vectors - 1) * kLanes) {
  const auto column = [last](int v) { return v + 1 < Vectors ? v * kLanes : last; };
  for (int64_t begin = 0; begin < k; begin += kChain) {
    const int64_t end = std::min(k, begin + kChain);
    vfloat acc[Rows][Vectors] = {};
    for (int64_t at = begin; at < end; ++at) {
      const float* const row = b + at * b_stride_k;
      vfloat right[Vectors];
      KH_UNROLL(16)
      for (int v = 0; v < Vectors; ++v) right[v] = load(row + column(v));
      KH_UNROLL(4)
      for (int r = 0; r < Rows; ++r) {
        const float left = a[r * stride_m + at * stride_k];
        KH_UNROLL(16)
        for (int v = 0; v < Vectors; ++v) acc[r][v] += left * right[v];
      }
    }
    KH_UNROLL(4)
    for (int r = 0; r < Rows; ++r) {
      if (begin > 0) {  // all are read before one is written: the last two may share columns
        KH_UNROLL(16)
        for (int v = 0; v < Vectors; ++v) acc[r][v] += load(sums + r * stride + column(v));
      }
      KH_UNROLL(16)
      for (int v = 0; v < Vectors; ++v) store(sums + r * stride + column(v), acc[r][v]);
    }
  }
}

// As many columns as are a multiple of kLanes; those of a block of Vectors first.
template <int Rows, int Vectors>
void few_rows_columns(int64_t columns, int64_t k, const float* a, int64_t stride_m, int64_t stride_k, const float* b,
                      int64_t b_stride_k, float* sums, int64_t stride) {
  if constexpr (Rows * Vectors > kFewAccumulators) {
    few_rows_columns<Rows, Vectors / 2>(columns, k, a, stride_m, stride_k, b, b_stride_k, sums, stride);
  } else {
    int64_t j = 0;
    for (; j + Vectors * kLanes <= columns; j += Vectors * kLanes)
      few_rows_across<Rows, Vectors>(k, a, stride_m, stride_k, b + j, b_stride_k, sums + j, stride);
    if constexpr (Vectors > 1) {
      if (j < columns)
        few_rows_columns<Rows, Vectors / 2>(columns - j, k, a, stride_m, stride_k, b + j, b_stride_k, sums + j, stride);
    }
  }
}

// So many columns are summed up at once: with Rows, they are as many sums as a vector has lanes.
template <int Rows>
inline constexpr int64_t kAlongColumns = kLanes / (Rows == 3 ? 4 : Rows);

// sums (Rows, Columns) = a (Rows, k) @ b (k, Columns) where both lie along k, of which there is a vector at least.
template <int Rows, int Columns>
void few_rows_along(int64_t k, const float* a, int64_t stride_m, const float* b, int64_t b_stride_n, float* sums,
                    int64_t stride) {
  vfloat acc[Rows][Columns] = {};
  int64_t at = 0;
  while (at + kLanes <= k) {
    vfloat chain[Rows][Columns] = {};
    for (const int64_t end = std::min(k, at + kChain * kLanes); at + kLanes <= end; at += kLanes) {
      vfloat left[Rows];
      KH_UNROLL(4)
      for (int r = 0; r < Rows; ++r) left[r] = load(a + r * stride_m + at);
      KH_UNROLL(16)
      for (int c = 0; c < Columns; ++c) {
        const vfloat right = load(b + c * b_stride_n + at);
        KH_UNROLL(4)
        for (int r = 0; r < Rows; ++r) chain[r][c] += left[r] * right;
      }
    }
    KH_UNROLL(16)
    for (int c = 0; c < Columns; ++c) {
      KH_UNROLL(4)
      for (int r = 0; r < Rows; ++r) acc[r][c] += chain[r][c];
    }
  }
  if (at < k) {  // the last vector, of which the lanes that are done already count as 0
    const int64_t done = at + kLanes - k;
    typedef int32_t vint __attribute__((vector_size(kLanes * 4)));
    vint fresh;
    for (int64_t lane = 0; lane < kLanes; ++lane) fresh[lane] = lane >= done ? -1 : 0;
    const auto last = [&](const float* from) {
      return reinterpret_cast<vfloat>(reinterpret_cast<vint>(load(from + k - kLanes)) & fresh);
    };
    for (int c = 0; c < Columns; ++c) {
      const vfloat right = last(b + c * b_stride_n);
      for (int r = 0; r < Rows; ++r) acc[r][c] += last(a + r * stride_m) * right;
    }
  }
  if constexpr (Rows * Columns * 4 >= kLanes * 3) {
    alignas(64) float rows[kLanes * kLanes] = {}, found[kLanes];
    KH_UNROLL(4)
    for (int r = 0; r < Rows; ++r) {
      KH_UNROLL(16)
      for (int c = 0; c < Columns; ++c) store(rows + (r * Columns + c) * kLanes, acc[r][c]);
    }
    store(found, reduced_rows(rows, [](vfloat x, vfloat y) { return x + y; }));
    for (int r = 0; r < Rows; ++r)
      for (int c = 0; c < Columns; ++c) sums[r * stride + c] = found[r * Columns + c];
  } else {
    for (int r = 0; r < Rows; ++r)
      for (int c = 0; c < Columns; ++c) sums[r * stride + c] = sum_of(acc[r][c]);
  }
}

template <int Rows>
void few_rows_group(int64_t columns, int64_t k, const float* a, int64_t stride_m, int64_t stride_k, const float* b,
                    int64_t b_stride_k, int64_t b_stride_n, float* sums, int64_t stride) {
  if (b_stride_n == 1 && columns >= kLanes) {
    const bool odd = columns % kLanes != 0;  // then the last two vectors share columns
    const int64_t whole = columns / kLanes * kLanes - (odd ? kLanes : 0);
    if (whole > 0) few_rows_columns<Rows, 16>(whole, k, a, stride_m, stride_k, b, b_stride_k, sums, stride);
    if (odd)
      few_rows_across<Rows, 2>(k, a, stride_m, stride_k, b + whole, b_stride_k, sums + whole, stride,
                               columns - whole - kLanes);
    return;
  }
  constexpr int64_t wide = kAlongColumns<Rows>;
  int64_t j = 0;
  for (; j + wide <= columns; j += wide)
    few_rows_along<Rows, wide>(k, a, stride_m, b + j * b_stride_n, b_stride_n, sums + j, stride);
  for (; j < columns; ++j) few_rows_along<Rows, 1>(k, a, stride_m, b + j * b_stride_n, b_stride_n, sums + j, stride);
}

// Whether few_rows() multiplies such operands.
inline bool has_few_rows(int64_t m, int64_t n, int64_t k, int64_t stride_k, int64_t b_stride_k, int64_t b_stride_n) {
  if (m < 1 || k < 1) return false;
  const bool as_packed = b_stride_n == 1 && b_stride_k <= kPanel && n <= kPanel;  // one panel, narrow enough as it lies
  if (m > (as_packed ? kRowsOfPanel : kFewRows)) return false;
  return (b_stride_n == 1 && n >= kLanes) || (b_stride_k == 1 && stride_k == 1 && k >= kLanes && n >= 1);
}

// give(i, rows, j, columns, stride, sums) for the pieces of c (m, n) = a (m, k) @ b (k, n), from any thread.
template <class Give>
void few_rows_pieces(int64_t m, int64_t n, int64_t k, const float* a, int64_t stride_m, int64_t stride_k, const float* b,
                     int64_t b_stride_k, int64_t b_stride_n, Give&& give) {
  const int64_t team = m * n < kAlone / (k + 1) ? 1 : threads();
  // The last piece takes what would be less than a vector.
  const int64_t pieces = std::max<int64_t>(1, n / kColumnsAtOnce + (n % kColumnsAtOnce >= kLanes));
  parallel_tasks(pieces, team, [&](Tickets& tickets) {
    constexpr int64_t stride = kColumnsAtOnce + kLanes;
    float* const sums = workspace<Use::kLeft>().floats(2 * kRowsAtOnce * stride);
    for (int64_t piece; (piece = tickets.next()) >= 0;) {
      const int64_t j = piece * kColumnsAtOnce;
      const int64_t columns = piece + 1 == pieces ? n - j : kColumnsAtOnce;
      for (int64_t i = 0; i < m; i += kRowsAtOnce) {
        const int64_t rows = std::min(kRowsAtOnce, m - i);
        const auto group = [&]<int Rows>(std::integral_constant<int, Rows>) {
          few_rows_group<Rows>(columns, k, a + i * stride_m, stride_m, stride_k, b + j * b_stride_n, b_stride_k,
                               b_stride_n, sums, stride);
        };
        if (rows == 1) group(std::integral_constant<int, 1>{});
        if (rows == 2) group(std::integral_constant<int, 2>{});
        if (rows == 3) group(std::integral_constant<int, 3>{});
        if (rows == 4) group(std::integral_constant<int, 4>{});
        give(i, rows, j, columns, stride, sums);
      }
    }
  });
}

// c (m, n) = a (m, k) @ b (k, n), its finished pieces given to the epilogue as product() does.
template <class Epilogue>
void few_rows(int64_t m, int64_t n, int64_t k, const float* a, int64_t stride_m, int64_t stride_k, const float* b,
              int64_t b_stride_k, int64_t b_stride_n, Epilogue& epilogue) {
  few_rows_pieces(m, n, k, a, stride_m, stride_k, b, b_stride_k, b_stride_n,
                  [&](int64_t i, int64_t rows, int64_t j, int64_t columns, int64_t stride, float* sums) {
                    finish(i, rows, j, columns, stride, epilogue, static_cast<const float*>(sums));
                  });
}

// The same where n is what there are few of: c is made turned round.
template <class Epilogue>
void few_columns(int64_t m, int64_t n, int64_t k, const float* a, int64_t stride_m, int64_t stride_k, const float* b,
                 int64_t b_stride_k, int64_t b_stride_n, Epilogue& epilogue) {
  few_rows_pieces(n, m, k, b, b_stride_n, b_stride_k, a, stride_k, stride_m,
                  [&](int64_t j, int64_t columns, int64_t i, int64_t rows, int64_t stride, float* sums) {
                    if (columns == 1) return finish(i, rows, j, 1, 1, epilogue, static_cast<const float*>(sums));
                    float* const turned = sums + kRowsAtOnce * stride;
                    for (int64_t r = 0; r < rows; ++r)
                      for (int64_t c = 0; c < columns; ++c) turned[r * columns + c] = sums[c * stride + r];
                    finish(i, rows, j, columns, columns, epilogue, static_cast<const float*>(turned));
                  });
}

// The same where columns of b do not lie along k while rows of a do: they are copied first, being so few. Whether it
// multiplied.
template <class Epilogue>
bool few_apart_columns(int64_t m, int64_t n, int64_t k, const float* a, int64_t stride_m, int64_t stride_k, const float* b,
                       int64_t b_stride_k, int64_t b_stride_n, Epilogue& epilogue) {
  if (n < 1 || n > kRowsAtOnce || m < 1 || stride_k != 1 || k < kLanes) return false;
  float* const columns = workspace<Use::kColumns>().floats(n * k);
  for (int64_t j = 0; j < n; ++j)
    for (int64_t at = 0; at < k; ++at) columns[j * k + at] = b[at * b_stride_k + j * b_stride_n];
  few_columns(m, n, k, a, stride_m, stride_k, columns, 1, k, epilogue);
  return true;
}

inline constexpr int64_t kNextToNothing = 256;  // multiplications

// c (m, n) = a (m, k) @ b (k, n) of next to nothing.
template <class Epilogue>
void next_to_nothing(int64_t m, int64_t n, int64_t k, const float* a, int64_t stride_m, int64_t stride_k, const float* b,
                     int64_t b_stride_k, int64_t b_stride_n, Epilogue& epilogue) {
  float sums[kNextToNothing];
  for (int64_t i = 0; i < m; ++i) {
    float* const row = sums + i * n;
    for (int64_t j = 0; j < n; ++j) {
      float sum = 0.0f;
      for (int64_t at = 0; at < k; ++at) sum += a[i * stride_m + at * stride_k] * b[at * b_stride_k + j * b_stride_n];
      row[j] = sum;
    }
  }
  finish(0, m, 0, n, n, epilogue, static_cast<const float*>(sums));
}

// Multiply without packing, where that is faster; whether it did.
template <class Epilogue>
bool multiplied_in_place(int64_t m, int64_t n, int64_t k, const float* a, int64_t stride_m, int64_t stride_k,
                         const float* b, int64_t b_stride_k, int64_t b_stride_n, Epilogue& epilogue) {
  if (m < 1 || n < 1 || k < 1) return false;
  if (m * n * k <= kNextToNothing) {
    next_to_nothing(m, n, k, a, stride_m, stride_k, b, b_stride_k, b_stride_n, epilogue);
    return true;
  }
  if (has_few_rows(m, n, k, stride_k, b_stride_k, b_stride_n)) {
    few_rows(m, n, k, a, stride_m, stride_k, b, b_stride_k, b_stride_n, epilogue);
    return true;
  }
  if (has_few_rows(n, m, k, b_stride_k, stride_k, stride_m)) {
    few_columns(m, n, k, a, stride_m, stride_k, b, b_stride_k, b_stride_n, epilogue);
    return true;
  }
  return few_apart_columns(m, n, k, a, stride_m, stride_k, b, b_stride_k, b_stride_n, epilogue);
}

}  // namespace kh
