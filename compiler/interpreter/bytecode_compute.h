// Instructions on registers: the operations of the op table, choices, conversions, reductions.
#pragma once

#include "bytecode_vectors.h"

KH_NAMESPACE {

namespace bytecode {

// -- operations -------------------------------------------------------------------------------------------

#define KH_OPERATION(NAME, KIND, ARITY, RESULT, ...)                                                          \
  struct NAME##_##KIND {                                                                                      \
    template <class D, class A>                                                                               \
    KH_INLINE static D of([[maybe_unused]] A a, [[maybe_unused]] A b) {                                       \
      return static_cast<D>(__VA_ARGS__);                                                                     \
    }                                                                                                         \
  };
#include "bytecode_operations.h"
#undef KH_OPERATION

template <class Op, class D, class A>
void unary(Frame& frame, const Instruction& one) {
  const Register &to = frame.registers[one.to], &a = frame.registers[one.a];
  int64_t rows = frame.rows_of(one.to), columns = frame.columns_of(one.to);
  if (is_dense<D>(to, rows, columns) && is_dense<A>(a, rows, columns)) columns *= rows, rows = 1;
  for (int64_t r = 0; r < rows; ++r) {
    D* const into = to.row<D>(r);
    const A* const from = a.row<A>(r);
#pragma omp simd
    for (int64_t i = 0; i < columns; ++i) into[i] = Op::template of<D, A>(from[i], from[i]);
  }
}

template <class Op, class D, class A>
void binary(Frame& frame, const Instruction& one) {
  const Register &to = frame.registers[one.to], &a = frame.registers[one.a], &b = frame.registers[one.b];
  int64_t rows = frame.rows_of(one.to), columns = frame.columns_of(one.to);
  const bool wide_a = columns == 1 || frame.is_wide(one.a), wide_b = columns == 1 || frame.is_wide(one.b);
  if (wide_a && wide_b && is_dense<D>(to, rows, columns) && is_dense<A>(a, rows, columns) &&
      is_dense<A>(b, rows, columns))
    columns *= rows, rows = 1;
  for (int64_t r = 0; r < rows; ++r) {
    D* const into = to.row<D>(r);
    const A *const left = a.row<A>(r), *const right = b.row<A>(r);
    if (wide_a && wide_b) {
#pragma omp simd
      for (int64_t i = 0; i < columns; ++i) into[i] = Op::template of<D, A>(left[i], right[i]);
    } else if (wide_a) {
      const A other = *right;
#pragma omp simd
      for (int64_t i = 0; i < columns; ++i) into[i] = Op::template of<D, A>(left[i], other);
    } else {
      const A other = *left;
#pragma omp simd
      for (int64_t i = 0; i < columns; ++i) into[i] = Op::template of<D, A>(other, right[i]);
    }
  }
}

using Run = void (*)(Frame&, const Instruction&);

template <class Op, class D, class A, int kArity>
constexpr Run run_of() {
  if constexpr (kArity == 1) {
    return unary<Op, D, A>;
  } else {
    return binary<Op, D, A>;
  }
}

// Of floats, of doubles; of integers and truths both are the same.
struct Operation {
  Run narrow, wide;
};

struct same {};
template <class Result, class A>
using ResultOf = std::conditional_t<std::is_same_v<Result, same>, A, Result>;

#define KH_TYPES_real float, double
#define KH_TYPES_integer int64_t, int64_t
#define KH_TYPES_truth bool, bool

template <class Op, int kArity, class Result, class Narrow, class Wide>
constexpr Operation operation_of() {
  return {run_of<Op, ResultOf<Result, Narrow>, Narrow, kArity>(), run_of<Op, ResultOf<Result, Wide>, Wide, kArity>()};
}

#define KH_OPERATION(NAME, KIND, ARITY, RESULT, ...) \
  operation_of<NAME##_##KIND, ARITY, RESULT, KH_TYPES_##KIND>(),
inline constexpr Operation kOperations[] = {
#include "bytecode_operations.h"
};
#undef KH_OPERATION

// -- choices and copies -------------------------------------------------------------------------------------

// f(T{}) with the C++ type of a register.
template <class F>
KH_INLINE void with_kind(RegisterKind kind, F&& f) {
  switch (kind) {
    case RegisterKind::kFloat: return f(float{});
    case RegisterKind::kDouble: return f(double{});
    case RegisterKind::kInteger: return f(int64_t{});
    case RegisterKind::kTruth: return f(bool{});
  }
}

// Whether an operand of rows one behind the other is as long as they are, or one number.
template <class T>
KH_INLINE bool is_long_or_same(const Frame& frame, int32_t which, int64_t rows, int64_t columns) {
  const Register& one = frame.registers[which];
  if (columns == 1 || frame.is_wide(which)) return is_dense<T>(one, rows, columns);
  return rows == 1 || (one.step == 0 && one.pointers == nullptr);
}

template <class T>
void select_as(Frame& frame, const Instruction& one) {
  const Register &to = frame.registers[one.to], &test = frame.registers[one.a];
  int64_t rows = frame.rows_of(one.to), columns = frame.columns_of(one.to);
  const bool wide_test = columns == 1 || frame.is_wide(one.a);
  const bool wide_b = columns == 1 || frame.is_wide(one.b), wide_c = columns == 1 || frame.is_wide(one.c);
  if (wide_test && is_dense<T>(to, rows, columns) && is_dense<bool>(test, rows, columns) &&
      is_long_or_same<T>(frame, one.b, rows, columns) && is_long_or_same<T>(frame, one.c, rows, columns))
    columns *= rows, rows = 1;
  for (int64_t r = 0; r < rows; ++r) {
    T* const into = to.row<T>(r);
    const bool* const holds = test.row<bool>(r);
    const T *const b = frame.registers[one.b].row<T>(r), *const c = frame.registers[one.c].row<T>(r);
    if (wide_test && wide_b && wide_c) {
#pragma omp simd
      for (int64_t i = 0; i < columns; ++i) into[i] = holds[i] ? b[i] : c[i];
    } else if (wide_test && wide_b) {
      const T other = *c;
#pragma omp simd
      for (int64_t i = 0; i < columns; ++i) into[i] = holds[i] ? b[i] : other;
    } else if (wide_test && wide_c) {
      const T other = *b;
#pragma omp simd
      for (int64_t i = 0; i < columns; ++i) into[i] = holds[i] ? other : c[i];
    } else if (wide_test) {
      const T left = *b, right = *c;
#pragma omp simd
      for (int64_t i = 0; i < columns; ++i) into[i] = holds[i] ? left : right;
    } else {
      const bool wide = *holds ? wide_b : wide_c;
      const T* const chosen = *holds ? b : c;
      if (wide) {
        std::memcpy(into, chosen, columns * sizeof(T));
      } else {
        std::fill_n(into, columns, *chosen);
      }
    }
  }
}
inline void select(Frame& frame, const Instruction& one) {
  with_kind(frame.code->registers[one.to].kind, [&](auto kind) { select_as<decltype(kind)>(frame, one); });
}

template <class T>
void copy_as(Frame& frame, const Instruction& one) {
  const Register &to = frame.registers[one.to], &a = frame.registers[one.a];
  const int64_t rows = frame.rows_of(one.to), columns = frame.columns_of(one.to);
  const bool wide = columns == 1 || frame.is_wide(one.a);
  for (int64_t r = 0; r < rows; ++r) {
    T* const into = to.row<T>(r);
    const T* const from = a.row<T>(r);
    if (wide) {
      std::memcpy(into, from, columns * sizeof(T));
    } else {
      std::fill_n(into, columns, *from);
    }
  }
}
inline void copy(Frame& frame, const Instruction& one) {
  with_kind(frame.code->registers[one.to].kind, [&](auto kind) { copy_as<decltype(kind)>(frame, one); });
}

// -- conversions ------------------------------------------------------------------------------------------

// A value as an element of T, held as such elements are.
template <class T, class A>
KH_INLINE typename Held<T>::Type converted(A value, bool saturates) {
  using H = typename Held<T>::Type;
  if constexpr (std::is_same_v<T, bool>) {
    return value != A{};
  } else if constexpr (std::is_same_v<T, f16> || std::is_same_v<T, bf16>) {
    float wide = static_cast<float>(value);
    if (saturates && !std::is_same_v<A, bool>) {
      constexpr float kLimit = std::is_same_v<T, f16> ? 65504.0f : 0x1.fep127f;
      wide = std::clamp(wide, -kLimit, kLimit);
    }
    return T::wide(T::of(wide));
  } else if constexpr (std::is_integral_v<T>) {
    if constexpr (!std::is_same_v<A, bool>) {
      if (saturates)
        return static_cast<H>(saturate_cast<T>(value, std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
    }
    if constexpr (std::is_floating_point_v<A>) {
      return static_cast<H>(to_integer<T>(value));
    } else {
      return static_cast<H>(static_cast<T>(value));
    }
  } else {
    return static_cast<H>(value);
  }
}

template <class T, class A>
void cast_from(Frame& frame, const Instruction& one) {
  using H = typename Held<T>::Type;
  const Register &to = frame.registers[one.to], &a = frame.registers[one.a];
  int64_t rows = frame.rows_of(one.to), columns = frame.columns_of(one.to);
  const bool saturates = one.extra != 0;
  if (is_dense<H>(to, rows, columns) && is_dense<A>(a, rows, columns)) columns *= rows, rows = 1;
  for (int64_t r = 0; r < rows; ++r) {
    H* const into = to.row<H>(r);
    const A* const from = a.row<A>(r);
    if (saturates) {
      for (int64_t i = 0; i < columns; ++i) into[i] = converted<T>(from[i], true);
    } else {
#pragma omp simd
      for (int64_t i = 0; i < columns; ++i) into[i] = converted<T>(from[i], false);
    }
  }
}
inline void cast(Frame& frame, const Instruction& one) {
  with_element(one.element, [&](auto element) {
    with_kind(frame.code->registers[one.a].kind,
              [&](auto kind) { cast_from<decltype(element), decltype(kind)>(frame, one); });
  });
}

// -- indices that data gave ------------------------------------------------------------------------------------

inline void bound(Frame& frame, const Instruction& one) {
  const Register &to = frame.registers[one.to], &a = frame.registers[one.a];
  const int64_t rows = frame.rows_of(one.to), columns = frame.columns_of(one.to), extent = frame.number(one.number);
  for (int64_t r = 0; r < rows; ++r) {
    int64_t* const into = to.row<int64_t>(r);
    const int64_t* const from = a.row<int64_t>(r);
    for (int64_t i = 0; i < columns; ++i) into[i] = bounded(from[i], extent, one.extra, *frame.call.failure);
  }
}

// Whether number <= a < extra, both of them numbers.
inline void between(Frame& frame, const Instruction& one) {
  const Register &to = frame.registers[one.to], &a = frame.registers[one.a];
  const int64_t rows = frame.rows_of(one.to), columns = frame.columns_of(one.to);
  const int64_t low = frame.number(one.number), high = frame.number(one.extra);
  for (int64_t r = 0; r < rows; ++r) {
    bool* const into = to.row<bool>(r);
    const int64_t* const from = a.row<int64_t>(r);
    for (int64_t i = 0; i < columns; ++i) into[i] = low <= from[i] && from[i] < high;
  }
}

// -- reductions -------------------------------------------------------------------------------------------

enum class Reduction : int32_t { kSum, kProd, kMax, kMin, kAny, kAll };

inline constexpr int64_t kBlock = 512;  // terms of float that are added up in float

// The sum of a row, in double where it is long.
KH_INLINE double sum_row(const float* from, int64_t count) {
  double total = 0;
  for (int64_t block = 0; block < count; block += kBlock) {
    const int64_t stop = std::min(block + kBlock, count);
    float part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t i = block; i < stop; ++i) part += from[i];
    total += part;
  }
  return total;
}
template <class A>
KH_INLINE A sum_row(const A* from, int64_t count) {
  A total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < count; ++i) total += from[i];
  return total;
}

// The greatest, or the least, of a row and `best`; NaN where one is. By lanes: OpenMP's reductions begin with the greatest
// finite number in Clang, which an infinity is not.
template <bool kGreatest, class A>
KH_INLINE A best_of(const A* from, int64_t count, A best) {
  constexpr int64_t lanes = 64 / sizeof(A);
  A found[lanes];
  int32_t is_nan[lanes] = {};
  std::fill_n(found, lanes, best);
  const auto take = [&](int64_t lane, A value) {
    const bool better = kGreatest ? value > found[lane] : value < found[lane];
    found[lane] = better ? value : found[lane];
    is_nan[lane] |= value != value;
  };
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
#pragma omp simd
    for (int64_t lane = 0; lane < lanes; ++lane) take(lane, from[i + lane]);
  }
  for (; i < count; ++i) take(i % lanes, from[i]);
  bool any_nan = false;
  for (int64_t lane = 0; lane < lanes; ++lane) {
    best = (kGreatest ? found[lane] > best : found[lane] < best) ? found[lane] : best;
    any_nan |= is_nan[lane] != 0;
  }
  return any_nan ? std::numeric_limits<A>::quiet_NaN() : best;
}

// Register `to`, an element a row, takes in the columns of register a.
template <class T, class A>
void feed_rows(Frame& frame, const Instruction& one) {
  const Register &to = frame.registers[one.to], &a = frame.registers[one.a];
  const int64_t rows = frame.rows_of(one.to), columns = frame.columns;
  if constexpr (std::is_same_v<A, float>) {
    if (rows >= kLanes / 2 && columns <= kFewColumns) {
      switch (static_cast<Reduction>(one.extra)) {
        case Reduction::kSum: return feed_short_rows<Adding, T>(to, a, rows, columns);
        case Reduction::kMax: return feed_short_rows<Greatest, T>(to, a, rows, columns);
        case Reduction::kMin: return feed_short_rows<Least, T>(to, a, rows, columns);
        default: break;
      }
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    T& total = *to.row<T>(r);
    const A* const from = a.row<A>(r);
    switch (static_cast<Reduction>(one.extra)) {
      case Reduction::kSum: total += static_cast<T>(sum_row(from, columns)); break;
      case Reduction::kProd:
        for (int64_t i = 0; i < columns; ++i) total *= static_cast<T>(from[i]);
        break;
      case Reduction::kMax: total = total != total ? total : best_of<true>(from, columns, A(total)); break;
      case Reduction::kMin: total = total != total ? total : best_of<false>(from, columns, A(total)); break;
      default: break;
    }
  }
}
inline void feed_truths(Frame& frame, const Instruction& one) {
  const Register &to = frame.registers[one.to], &a = frame.registers[one.a];
  const int64_t rows = frame.rows_of(one.to), columns = frame.columns;
  const bool any = static_cast<Reduction>(one.extra) == Reduction::kAny;
  for (int64_t r = 0; r < rows; ++r) {
    bool& total = *to.row<bool>(r);
    const bool* const from = a.row<bool>(r);
    bool found = !any;
    for (int64_t i = 0; i < columns; ++i) found = any ? found || from[i] : found && from[i];
    total = any ? total || found : total && found;
  }
}
inline void feed(Frame& frame, const Instruction& one) {
  const RegisterKind to = frame.code->registers[one.to].kind, a = frame.code->registers[one.a].kind;
  if (a == RegisterKind::kTruth) return feed_truths(frame, one);
  if (a == RegisterKind::kInteger) return feed_rows<int64_t, int64_t>(frame, one);
  if (a == RegisterKind::kDouble) return feed_rows<double, double>(frame, one);
  return to == RegisterKind::kDouble ? feed_rows<double, float>(frame, one) : feed_rows<float, float>(frame, one);
}

// Totals take in as many elements.
template <class T, class A>
KH_INLINE void feed_row(Reduction kind, const A* from, T* total, int64_t count) {
  switch (kind) {
    case Reduction::kSum:
      if constexpr (!std::is_same_v<T, bool>) {
#pragma omp simd
        for (int64_t i = 0; i < count; ++i) total[i] += static_cast<T>(from[i]);
      }
      break;
    case Reduction::kProd:
      if constexpr (!std::is_same_v<T, bool>) {
#pragma omp simd
        for (int64_t i = 0; i < count; ++i) total[i] *= static_cast<T>(from[i]);
      }
      break;
    case Reduction::kMax:
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) total[i] = greater(static_cast<T>(from[i]), total[i]);
      break;
    case Reduction::kMin:
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) total[i] = lesser(static_cast<T>(from[i]), total[i]);
      break;
    case Reduction::kAny:
      for (int64_t i = 0; i < count; ++i) total[i] = static_cast<T>(total[i] != T{} || from[i] != A{});
      break;
    case Reduction::kAll:
      for (int64_t i = 0; i < count; ++i) total[i] = static_cast<T>(total[i] != T{} && from[i] != A{});
      break;
  }
}

// Register `to` takes in register a, element by element.
template <class T, class A>
void feed_elements(Frame& frame, const Instruction& one) {
  const Register &to = frame.registers[one.to], &a = frame.registers[one.a];
  int64_t rows = frame.rows_of(one.to), columns = frame.columns_of(one.to);
  if (is_dense<T>(to, rows, columns) && is_dense<A>(a, rows, columns)) columns *= rows, rows = 1;
  for (int64_t r = 0; r < rows; ++r)
    feed_row(static_cast<Reduction>(one.extra), a.row<A>(r), to.row<T>(r), columns);
}
inline void feed_each(Frame& frame, const Instruction& one) {
  const RegisterKind to = frame.code->registers[one.to].kind, a = frame.code->registers[one.a].kind;
  if (a == RegisterKind::kTruth) return feed_elements<bool, bool>(frame, one);
  if (a == RegisterKind::kInteger) return feed_elements<int64_t, int64_t>(frame, one);
  if (a == RegisterKind::kDouble) return feed_elements<double, double>(frame, one);
  return to == RegisterKind::kDouble ? feed_elements<double, float>(frame, one) : feed_elements<float, float>(frame, one);
}

// Register `to`, an element a column, takes in the rows of register a.
template <class T, class A>
void feed_columns(Frame& frame, const Instruction& one) {
  const Register &to = frame.registers[one.to], &a = frame.registers[one.a];
  const int64_t rows = frame.rows, columns = frame.columns_of(one.to);
  T* const total = to.row<T>(0);
  for (int64_t r = 0; r < rows; ++r) feed_row(static_cast<Reduction>(one.extra), a.row<A>(r), total, columns);
}
inline void feed_down(Frame& frame, const Instruction& one) {
  const RegisterKind to = frame.code->registers[one.to].kind, a = frame.code->registers[one.a].kind;
  if (a == RegisterKind::kTruth) return feed_columns<bool, bool>(frame, one);
  if (a == RegisterKind::kInteger) return feed_columns<int64_t, int64_t>(frame, one);
  if (a == RegisterKind::kDouble) return feed_columns<double, double>(frame, one);
  return to == RegisterKind::kDouble ? feed_columns<double, float>(frame, one) : feed_columns<float, float>(frame, one);
}

// Register `to` is what register c, an element a row, comes to while it takes in the columns of register a.
template <class T, class A>
void run_rows(Frame& frame, const Instruction& one) {
  const Register &to = frame.registers[one.to], &a = frame.registers[one.a], &carried = frame.registers[one.c];
  const int64_t rows = frame.rows_of(one.to), columns = frame.columns;
  for (int64_t r = 0; r < rows; ++r) {
    T& total = *carried.row<T>(r);
    const A* const from = a.row<A>(r);
    T* const sums = to.row<T>(r);
    const auto each = [&](auto take) {
      for (int64_t i = 0; i < columns; ++i) sums[i] = total = take(static_cast<T>(from[i]));
    };
    switch (static_cast<Reduction>(one.extra)) {
      case Reduction::kSum: each([&](T now) { return total + now; }); break;
      case Reduction::kProd: each([&](T now) { return total * now; }); break;
      case Reduction::kMax: each([&](T now) { return total != total || now <= total ? total : now; }); break;
      case Reduction::kMin: each([&](T now) { return total != total || now >= total ? total : now; }); break;
      default: break;
    }
  }
}
inline void running(Frame& frame, const Instruction& one) {
  const RegisterKind to = frame.code->registers[one.to].kind, a = frame.code->registers[one.a].kind;
  if (a == RegisterKind::kInteger) return run_rows<int64_t, int64_t>(frame, one);
  if (a == RegisterKind::kDouble) return run_rows<double, double>(frame, one);
  return to == RegisterKind::kDouble ? run_rows<double, float>(frame, one) : run_rows<float, float>(frame, one);
}

// The place of the greatest or the least: registers to (the place), c (the value there), a, b (places of a's elements).
template <class A>
void find_as(Frame& frame, const Instruction& one) {
  const Register &to = frame.registers[one.to], &best = frame.registers[one.c];
  const Register &a = frame.registers[one.a], &b = frame.registers[one.b];
  const bool is_each = frame.is_wide(one.to), wide = frame.is_wide(one.a), wide_place = frame.is_wide(one.b);
  const int64_t rows = std::max(frame.rows_of(one.to), std::max(frame.rows_of(one.a), frame.rows_of(one.b)));
  const int64_t columns = is_each || wide ? frame.columns : 1;
  const bool greatest = static_cast<Reduction>(one.extra) == Reduction::kMax;
  for (int64_t r = 0; r < rows; ++r) {
    int64_t* const place = to.row<int64_t>(r);
    A* const value = best.row<A>(r);
    const A* const from = a.row<A>(r);
    const int64_t* const at = b.row<int64_t>(r);
    for (int64_t i = 0; i < columns; ++i) {
      const A now = from[wide ? i : 0];
      const int64_t j = is_each ? i : 0;
      if (greatest ? is_greater(now, value[j]) : is_less(now, value[j])) value[j] = now, place[j] = at[wide_place ? i : 0];
    }
  }
}
inline void find(Frame& frame, const Instruction& one) {
  with_kind(frame.code->registers[one.a].kind, [&](auto kind) { find_as<decltype(kind)>(frame, one); });
}

}  // namespace bytecode

}  // namespace kh
