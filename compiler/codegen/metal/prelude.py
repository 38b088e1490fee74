"""Prelude of generated Metal: functions that Metal lacks, or defines otherwise than the IR does.

The rules are those of `native/scalar.h`: nothing traps, integers wrap around, what is out of range is as NumPy has it.
"""

from __future__ import annotations

METAL = r"""#include <metal_stdlib>

namespace kh {
// -- indices: a / b and a % b rounded down, for b > 0; an index that data gave, from the end where negative
inline int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }
inline int64_t floor_mod(int64_t a, int64_t b) { return a % b + (a % b < 0 ? b : 0); }
inline int64_t bounded(int64_t index, int64_t extent, int code, device int* failure) {
  const int64_t place = index < 0 ? index + extent : index;
  if (static_cast<uint64_t>(place) < static_cast<uint64_t>(extent)) return place;
  *failure = code;
  return 0;
}
// -- conversions
template <class Narrow> inline float rounded(float value) { return static_cast<float>(static_cast<Narrow>(value)); }
inline float clamped(float value, float low, float high) { return value < low ? low : value > high ? high : value; }
// Towards zero, then wrapped around; 0 of NaN and infinities.
template <class To> inline To to_integer(float value) {
  const float whole = metal::fabs(value) <= 3.402823466e38f ? value : 0.0f;
  const float wrapped = whole < 9223372036854775808.0f ? whole : whole - 18446744073709551616.0f;
  return static_cast<To>(static_cast<int64_t>(wrapped));
}
// The nearest number in low..high; 0 of NaN.
template <class To> inline To saturate_cast(float value, To low, To high) {
  if (value <= static_cast<float>(low)) return low;
  if (value >= static_cast<float>(high)) return high;
  return value == value ? static_cast<To>(value) : static_cast<To>(0);
}
template <class To, class From> inline To saturate_cast(From value, To low, To high) {
  if (value < 0 && (low == 0 || static_cast<int64_t>(value) < static_cast<int64_t>(low))) return low;
  if (value < 0) return static_cast<To>(value);
  return static_cast<uint64_t>(value) > static_cast<uint64_t>(high) ? high : static_cast<To>(value);
}
// -- arithmetic
// To a power by squaring; to a negative power towards zero.
template <class T> inline T power(T a, T b) {
  if (b < 0) return a == 1 ? 1 : a + 1 == 0 ? (b % 2 == 0 ? 1 : -1) : 0;
  T result = 1;
  for (; b != 0; b = b / 2) {
    if (b % 2 != 0) result = static_cast<T>(static_cast<uint64_t>(result) * static_cast<uint64_t>(a));
    a = static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(a));
  }
  return result;
}
// a - floor(a / b) * b, exactly, of the sign of b.
inline float remainder(float a, float b) {
  const float rest = metal::fmod(a, b);
  if (rest == 0) return metal::copysign(0.0f, b);
  return (b < 0) != (rest < 0) ? rest + b : rest;
}
// floor(a / b) of the exact quotient.
inline float floor_divide(float a, float b) {
  if (b == 0) return a / b;
  const float rest = metal::fmod(a, b);
  float quotient = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
  if (quotient == 0) return metal::copysign(0.0f, a / b);
  const float whole = metal::floor(quotient);
  return quotient - whole > 0.5f ? whole + 1 : whole;
}
// -- functions that Metal lacks. expm1 and log1p: W. Kahan's; erf: a minimax polynomial, N. Juffa's
inline float expm1(float x) {
  const float u = metal::precise::exp(x);
  if (u == 1.0f) return x;
  const float less = u - 1.0f;
  if (less == -1.0f || u > 3.402823466e38f) return less;
  return less * (x / metal::precise::log(u));
}
inline float log1p(float x) {
  const float u = 1.0f + x;
  if (u == 1.0f || u > 3.402823466e38f) return x;
  return metal::precise::log(u) * (x / (u - 1.0f));
}
inline float erf(float x) {
  const float t = metal::fabs(x), s = x * x;
  if (!(t > 0.927734375f)) {
    float r = -5.96761703e-4f;
    r = metal::fma(r, s, 4.99119423e-3f); r = metal::fma(r, s, -2.67681349e-2f);
    r = metal::fma(r, s, 1.12819925e-1f); r = metal::fma(r, s, -3.76125336e-1f);
    r = metal::fma(r, s, 1.28379166e-1f);
    return metal::fma(r, x, x);
  }
  if (t > 4.0f) return metal::copysign(1.0f, x);
  float r = metal::fma(-1.72853470e-5f, t, 3.83197126e-4f);
  const float u = metal::fma(-3.88396438e-3f, t, 2.42546219e-2f);
  r = metal::fma(r, s, u);
  r = metal::fma(r, t, -1.06777877e-1f); r = metal::fma(r, t, -6.34846687e-1f);
  r = metal::fma(r, t, -1.28717512e-1f); r = metal::fma(r, t, -t);
  return metal::copysign(1.0f - metal::precise::exp(r), x);
}
// -- reductions
// A float sum in parts of 64 turns; `rest` is what rounding took from the sum of the parts.
struct Sum {
  float total = 0, rest = 0, part = 0;
  int count = 0;
  void add(float value) {
    part += value;
    if (++count < 64) return;
    const float sum = total + part, moved = sum - total;
    rest += (total - (sum - moved)) + (part - moved);
    total = sum;
    part = 0, count = 0;
  }
  float value() const { return rest == rest ? total + (part + rest) : total + part; }
};
// Whether x goes before `best` in the search for the greatest (least): NaN does, once.
template <class T> inline bool is_greater(T x, T best) { return x > best || (x != x && best == best); }
template <class T> inline bool is_less(T x, T best) { return x < best || (x != x && best == best); }
// The greater (lesser); NaN where one is.
template <class T> inline T greater(T a, T b) { return a > b || a != a ? a : b; }
template <class T> inline T lesser(T a, T b) { return a < b || a != a ? a : b; }

}  // namespace kh
"""
