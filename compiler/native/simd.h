// One vector type of the width that the target has: 16 floats (AVX-512), 8 (AVX), else 4 (SSE, NEON).
//
// GCC's and Clang's vector extensions and no intrinsics, so the same text compiles for every target. Everything is
// hidden: libraries built for different targets are loaded into one process, and must not share what was inlined
// here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

#define KH_NAMESPACE namespace [[gnu::visibility("hidden")]] kh
#define KH_INLINE inline __attribute__((always_inline))
#define KH_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define KH_UNROLL(count) KH_PRAGMA(unroll count)
#else
#define KH_UNROLL(count) KH_PRAGMA(GCC unroll count)
#endif

KH_NAMESPACE {

#if defined(__AVX512F__)
inline constexpr int64_t kLanes = 16;
#elif defined(__AVX__)
inline constexpr int64_t kLanes = 8;
#else
inline constexpr int64_t kLanes = 4;
#endif

typedef float vfloat __attribute__((vector_size(kLanes * 4)));
typedef float vfloat_unaligned __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

KH_INLINE vfloat load(const float* from) { return *reinterpret_cast<const vfloat_unaligned*>(from); }
KH_INLINE void store(float* to, vfloat value) { *reinterpret_cast<vfloat_unaligned*>(to) = value; }
KH_INLINE vfloat splat(float value) { return value - vfloat{}; }  // x - 0 is x; of a loop GCC makes 16 instructions

// The lanes of x with these indices.
template <int... I>
KH_INLINE vfloat shuffled(vfloat x) {
#if defined(__clang__)
  return __builtin_shufflevector(x, x, I...);
#else
  typedef int32_t vint __attribute__((vector_size(kLanes * 4)));
  return __builtin_shuffle(x, vint{I...});
#endif
}

// The lanes of a and b by turns: of their lower halves, or their upper ones.
template <bool Upper, int... I>
KH_INLINE vfloat interleave(vfloat a, vfloat b, std::integer_sequence<int, I...>) {
  constexpr int lanes = static_cast<int>(kLanes);
#if defined(__clang__)
  return __builtin_shufflevector(a, b, (I / 2 + I % 2 * lanes + (Upper ? lanes / 2 : 0))...);
#else
  typedef int32_t vint __attribute__((vector_size(kLanes * 4)));
  return __builtin_shuffle(a, b, vint{(I / 2 + I % 2 * lanes + (Upper ? lanes / 2 : 0))...});
#endif
}

// The sum of the lanes, pairwise.
KH_INLINE float sum_of(vfloat x) {
  constexpr std::make_integer_sequence<int, static_cast<int>(kLanes)> order;
  KH_UNROLL(4)
  for (int64_t step = 1; step < kLanes; step *= 2)
    x = interleave<false>(x, x, order) + interleave<true>(x, x, order);
  return x[0];
}

// Lane i is what `op` makes of the lanes of row i, for kLanes rows of so many floats: each step halves them all at once.
template <class Op>
KH_INLINE vfloat reduced_rows(const float* rows, Op&& op) {
  constexpr std::make_integer_sequence<int, static_cast<int>(kLanes)> order;
  vfloat left[kLanes];
  KH_UNROLL(16)
  for (int64_t i = 0; i < kLanes; ++i) {
    int64_t mirrored = 0;  // the bits of i, in which the steps leave the rows
    KH_UNROLL(4)
    for (int64_t bit = 1; bit < kLanes; bit *= 2) mirrored = 2 * mirrored + (i / bit & 1);
    left[i] = load(rows + mirrored * kLanes);
  }
  KH_UNROLL(4)
  for (int64_t count = kLanes / 2; count > 0; count /= 2) {
    KH_UNROLL(8)
    for (int64_t i = 0; i < count; ++i)
      left[i] = op(interleave<false>(left[2 * i], left[2 * i + 1], order),
                   interleave<true>(left[2 * i], left[2 * i + 1], order));
  }
  return left[0];
}

// to[column * to_stride + row] = from[row * from_stride + column] for kLanes rows, and of as many columns, which are all
// read, the first `columns`.
KH_INLINE void transpose(const float* from, int64_t from_stride, float* to, int64_t to_stride,
                         int64_t columns = kLanes) {
  constexpr std::make_integer_sequence<int, static_cast<int>(kLanes)> order;
  vfloat rows[kLanes], next[kLanes];
  KH_UNROLL(16)
  for (int64_t i = 0; i < kLanes; ++i) rows[i] = load(from + i * from_stride);
  KH_UNROLL(4)
  for (int64_t step = 1; step < kLanes; step *= 2) {
    KH_UNROLL(8)
    for (int64_t i = 0; i < kLanes / 2; ++i) {
      next[2 * i] = interleave<false>(rows[i], rows[i + kLanes / 2], order);
      next[2 * i + 1] = interleave<true>(rows[i], rows[i + kLanes / 2], order);
    }
    KH_UNROLL(16)
    for (int64_t i = 0; i < kLanes; ++i) rows[i] = next[i];
  }
  KH_UNROLL(16)
  for (int64_t i = 0; i < kLanes; ++i)
    if (i < columns) store(to + i * to_stride, rows[i]);
}

// The same for any number of them: whole vectors of both, then what is left.
inline void transpose(const float* from, int64_t from_stride, float* to, int64_t to_stride, int64_t rows,
                      int64_t columns) {
  const int64_t whole_rows = rows / kLanes * kLanes, whole_columns = columns / kLanes * kLanes;
  const auto one_by_one = [=](int64_t first_row, int64_t last_row, int64_t first_column) {
    for (int64_t column = first_column; column < columns; ++column)
      for (int64_t row = first_row; row < last_row; ++row)
        to[column * to_stride + row] = from[row * from_stride + column];
  };
  for (int64_t row = 0; row < whole_rows; row += kLanes)
    for (int64_t column = 0; column < whole_columns; column += kLanes)
      transpose(from + row * from_stride + column, from_stride, to + column * to_stride + row, to_stride);
  one_by_one(0, whole_rows, whole_columns);
  one_by_one(whole_rows, rows, 0);
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// Memory of one thread that grows and is kept from call to call, aligned for any vector.
class Workspace {
 public:
  Workspace() = default;
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() { std::free(data_); }

  float* floats(int64_t count) {
    if (count > capacity_) {
      std::free(data_);
      capacity_ = 0;
      data_ = static_cast<float*>(std::aligned_alloc(64, round_up(count * 4, 4096)));
      if (data_ == nullptr) throw std::bad_alloc();
      capacity_ = count;
    }
    return data_;
  }

 private:
  float* data_ = nullptr;
  int64_t capacity_ = 0;
};

// What a thread keeps, by use: a use must not nest within itself.
enum class Use { kLeft, kRight, kColumns, kRow, kInput, kAttention, kTransform };
template <Use>
inline Workspace& workspace() {
  static thread_local Workspace kept;
  return kept;
}

}  // namespace kh
