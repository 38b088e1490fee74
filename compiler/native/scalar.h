// What generated expressions use beyond operators: conversions, integer arithmetic, and exact remainders.
//
// The rules are those of the IR's reference (ops/conversion.py, ops/pointwise.py): nothing here traps, integers
// wrap around, what is out of range is as NumPy has it.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "vector_math.h"
#include "parallel.h"
#include "simd.h"
#include "standard.h"
#include "types.h"

// Reductions of floats to the greatest and the least. Clang's own begin with the greatest finite number, which is wrong of
// a row of infinities.
#if defined(__clang__)
#pragma omp declare reduction(kh_greatest : float, double : omp_out = omp_in > omp_out ? omp_in : omp_out) \
    initializer(omp_priv = -__builtin_inff())
#pragma omp declare reduction(kh_least : float, double : omp_out = omp_out > omp_in ? omp_in : omp_out) \
    initializer(omp_priv = __builtin_inff())
#define KH_MAX kh_greatest
#define KH_MIN kh_least
#else
#define KH_MAX max
#define KH_MIN min
#endif

KH_NAMESPACE {

// -- indices ----------------------------------------------------------------------------------------------

// a / b and a % b rounded down, for b > 0.
KH_INLINE int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }
KH_INLINE int64_t floor_mod(int64_t a, int64_t b) { return a % b + (a % b < 0 ? b : 0); }

// An index that data gave into a dim of `extent`: from its end where negative; the call fails with `code` where it
// is out of range.
KH_INLINE int64_t bounded(int64_t index, int64_t extent, int code, int& failure) {
  const int64_t place = index < 0 ? index + extent : index;
  if (static_cast<uint64_t>(place) < static_cast<uint64_t>(extent)) return place;
  __atomic_store_n(&failure, code, __ATOMIC_RELAXED);
  return 0;
}

// The same in a loop over vectors, where no call fails: what was out of range leaves a one in `wrong`.
KH_INLINE int64_t bounded(int64_t index, int64_t extent, int64_t& wrong) {
  const int64_t place = index < 0 ? index + extent : index;
  const bool inside = static_cast<uint64_t>(place) < static_cast<uint64_t>(extent);
  wrong |= inside ? 0 : 1;
  return inside ? place : 0;
}

// A call fails with `code`, if something was out of range.
KH_INLINE void check(int64_t wrong, int code, int& failure) {
  if (wrong != 0) __atomic_store_n(&failure, code, __ATOMIC_RELAXED);
}

// -- conversions ------------------------------------------------------------------------------------------

// a where the condition holds, else b: of numbers that were read by an index that data gave. GCC reads them in a branch
// where they are an operand of ?:, and makes no vectors of it then.
template <class T>
KH_INLINE T pick(bool condition, T a, T b) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  const Bits mask = -static_cast<Bits>(condition);
  return std::bit_cast<T>((std::bit_cast<Bits>(a) & mask) | (std::bit_cast<Bits>(b) & ~mask));
}

// To a narrower float and back.
template <class Narrow, class T>
KH_INLINE float rounded(T value) {
  return Narrow::wide(Narrow::of(static_cast<float>(value)));
}

// A float as an integer: towards zero, then wrapped around; 0 of NaN and infinities.
template <class To, class From>
KH_INLINE To to_integer(From value) {
  const From whole = std::fabs(value) <= std::numeric_limits<From>::max() ? value : From{0};
  if constexpr (sizeof(To) < 8) {
    return static_cast<To>(static_cast<int64_t>(whole));
  } else {
    const double wide = static_cast<double>(whole);
    return static_cast<To>(static_cast<int64_t>(wide < 0x1p63 ? wide : wide - 0x1p64));
  }
}

// The nearest number in low..high; 0 of NaN.
template <class To, class From>
KH_INLINE To saturate_cast(From value, To low, To high) {
  if constexpr (std::is_floating_point_v<From>) {
    const double wide = static_cast<double>(value);
    if (wide <= static_cast<double>(low)) return low;
    if (wide >= static_cast<double>(high)) return high;
    return wide == wide ? static_cast<To>(wide) : To{0};
  } else {
    if (std::cmp_less(value, low)) return low;
    return std::cmp_greater(value, high) ? high : static_cast<To>(value);
  }
}

// The lowest bits of an integer, as a number of that many bits.
template <int kBits, class T>
KH_INLINE T wrapped(T value) {
  return static_cast<T>(static_cast<T>(value << (8 - kBits)) >> (8 - kBits));
}

// -- arithmetic -------------------------------------------------------------------------------------------

// a to the b by squaring; to a negative power towards zero.
template <class T>
inline T power(T a, T b) {
  if constexpr (std::is_signed_v<T>) {
    if (b < 0) return a == 1 ? T{1} : a == -1 ? static_cast<T>(b % 2 == 0 ? 1 : -1) : T{0};
  }
  std::make_unsigned_t<T> result = 1, base = static_cast<std::make_unsigned_t<T>>(a);
  for (; b != 0; b = static_cast<T>(b / 2)) {
    if (b % 2 != 0) result = static_cast<std::make_unsigned_t<T>>(result * base);
    base = static_cast<std::make_unsigned_t<T>>(base * base);
  }
  return static_cast<T>(result);
}

// a - floor(a / b) * b, exactly, of the sign of b.
template <class T>
inline T remainder(T a, T b) {
  const T rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(T{0}, b);
  return (b < 0) != (rest < 0) ? rest + b : rest;
}

// floor(a / b) of the exact quotient, as NumPy has it.
template <class T>
inline T floor_divide(T a, T b) {
  if (b == 0) return a / b;
  T rest = std::fmod(a, b);
  T quotient = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(T{0}, a / b);
  const T whole = std::floor(quotient);
  return quotient - whole > T(0.5) ? whole + 1 : whole;
}

// Whether x goes before `best` in the search for the greatest (least): NaN does, once.
template <class T>
KH_INLINE bool is_greater(T x, T best) {
  return x > best || (x != x && best == best);
}
template <class T>
KH_INLINE bool is_less(T x, T best) {
  return x < best || (x != x && best == best);
}

// The greater (lesser); NaN where one is. In two steps, of which the first is one instruction that hands b's NaN on.
template <class T>
KH_INLINE T greater(T a, T b) {
  const T most = a > b ? a : b;
  return a != a ? a : most;
}
template <class T>
KH_INLINE T lesser(T a, T b) {
  const T least = a < b ? a : b;
  return a != a ? a : least;
}

// Takes in `count` values (at most 2^16) that follow those seen, the first of them at the place `first`: `best` is the
// greatest (least) of all, and `place` where it stands first. NaN goes before all.
template <bool kGreatest, class T>
inline void search_row(const T* x, int64_t count, int64_t first, T& best, int64_t& place) {
  using Lane = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;  // as wide as a value, where vectors have such lanes
  T most = best;
  Lane nan = 0, at = std::numeric_limits<Lane>::max();
  if constexpr (std::is_floating_point_v<T> && kGreatest) {
    most = -std::numeric_limits<T>::infinity();
    KH_PRAGMA(omp simd reduction(KH_MAX : most) reduction(| : nan))
    for (int64_t i = 0; i < count; ++i) most = x[i] > most ? x[i] : most, nan |= x[i] != x[i];
  } else if constexpr (std::is_floating_point_v<T>) {
    most = std::numeric_limits<T>::infinity();
    KH_PRAGMA(omp simd reduction(KH_MIN : most) reduction(| : nan))
    for (int64_t i = 0; i < count; ++i) most = x[i] < most ? x[i] : most, nan |= x[i] != x[i];
  } else if constexpr (kGreatest) {
    KH_PRAGMA(omp simd reduction(max : most))
    for (int64_t i = 0; i < count; ++i) most = x[i] > most ? x[i] : most;
  } else {
    KH_PRAGMA(omp simd reduction(min : most))
    for (int64_t i = 0; i < count; ++i) most = x[i] < most ? x[i] : most;
  }
  if (best != best || !(nan || (kGreatest ? most > best : most < best))) return;
  const auto is_hit = [=](T value) { return nan ? value != value : value == most; };
  KH_PRAGMA(omp simd reduction(min : at))
  for (int64_t i = 0; i < count; ++i) {
    const Lane here = is_hit(x[i]) ? static_cast<Lane>(i) : std::numeric_limits<Lane>::max();
    at = here < at ? here : at;
  }
  best = x[at];
  place = first + at;
}

// Scratch for a row of values.
template <class T>
class Row {
 public:
  explicit Row(int64_t count) : data_(new T[count > 0 ? count : 1]) {}
  Row(const Row&) = delete;
  Row& operator=(const Row&) = delete;
  ~Row() { delete[] data_; }
  KH_INLINE T& operator[](int64_t place) const { return data_[place]; }

 private:
  T* data_;
};

// Turns that are worth a thread, for turns of so many steps.
KH_INLINE int64_t grain(int64_t steps) { return max<int64_t>(1, 65536 / max<int64_t>(1, steps)); }

}  // namespace kh
