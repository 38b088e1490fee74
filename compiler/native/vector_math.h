// Elementary functions of float, branch-free, so that a loop over them vectorises; std:: for double.
//
// Each states its largest error in units in the last place, over all floats (as the tests measure it, with FMA;
// a unit more without), and gives what IEEE 754 and C give for NaN, infinities, -0.0 and subnormals. Nothing here
// relies on -ffast-math, nor survives it.
// Sources: Cephes (Moshier) for the polynomials of exp, log, sin and cos; N. Juffa's erff; Payne and Hanek's reduction of
// angles (1983), in floating point; Lawson's algorithm for the polynomials of tan, asin, atan and sinh; fdlibm for how
// asin and acos reduce what they are given; Muller et al., Handbook of Floating-Point Arithmetic.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "simd.h"
#include "standard.h"

KH_NAMESPACE {

// -- parts ------------------------------------------------------------------------------------------------

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

KH_INLINE float with_sign(float magnitude, float sign) {
  return std::bit_cast<float>((std::bit_cast<uint32_t>(magnitude) & 0x7fffffffu) |
                              (std::bit_cast<uint32_t>(sign) & 0x80000000u));
}
KH_INLINE float magnitude(float x) { return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0x7fffffffu); }
// NaN stays NaN.
KH_INLINE float at_most(float x, float limit) { return x > limit ? limit : x; }
KH_INLINE float at_least(float x, float limit) { return x < limit ? limit : x; }

// 2^n for -126 <= n <= 127.
KH_INLINE float power_of_two(int32_t n) { return std::bit_cast<float>((n + 127) << 23); }
// x * 2^n for -252 <= n <= 254, rounded once.
KH_INLINE float scale(float x, int32_t n) { return x * power_of_two(n >> 1) * power_of_two(n - (n >> 1)); }

// The nearest whole number, as float and as int: |x| < 2^21. The sum's last place is 1.
struct Whole {
  float value;
  int32_t integer;
};
KH_INLINE Whole nearest(float x) {
  const float shifted = x + 0x1.8p23f;
  return {shifted - 0x1.8p23f, std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(0x1.8p23f)};
}

// (e^r - 1 - r) / r^2 for |r| <= ln 2 / 2
KH_INLINE float reduced_exp_tail(float r) {
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  return p * r + 5.0000001201e-1f;
}

// x = n ln 2 + r; gives e^r - 1 for |r| <= ln 2 / 2.
KH_INLINE float reduced_expm1(float x, float n) {
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  return reduced_exp_tail(r) * (r * r) + r;
}

// -- exponentials -----------------------------------------------------------------------------------------

// 1.05 ulp
KH_INLINE float exp(float x) {
  const float inside = at_least(at_most(x, 89.0f), -104.0f);
  const Whole n = nearest(inside * 1.44269504f);
  return scale(reduced_expm1(inside, n.value) + 1.0f, n.integer);
}

inline constexpr float kExponent = 0x1.8p23f + 127.0f;  // the lowest bits of n + this are n + 127: the exponent of 2^n

// 1.05 ulp for x <= 0, as softmax has it; below 2^-126 become 0.
KH_INLINE float exp_falling(float x) {
  const float inside = at_least(x, -88.0f);
  const float shifted = inside * 1.44269504f + kExponent;
  const float p = reduced_expm1(inside, shifted - kExponent) + 1.0f;
  return p * std::bit_cast<float>(std::bit_cast<uint32_t>(shifted) << 23);
}

// 1.5 ulp
KH_INLINE float expm1(float x) {
  const float inside = at_least(at_most(x, 89.0f), -18.0f);
  const Whole n = nearest(inside * 1.44269504f);
  const float p = reduced_expm1(inside, n.value);
  const float half = power_of_two(n.integer - 1);  // 2^128 is not a float
  const float result = 2.0f * (p * half + (half - 0.5f));
  return x == 0.0f ? x : n.integer == 0 ? p : result;
}

// 2^r for |r| <= 1 / 2
KH_INLINE float reduced_exp2(float r) {
  float p = 1.535336188319500e-4f;
  p = p * r + 1.339887440266574e-3f;
  p = p * r + 9.618437357674640e-3f;
  p = p * r + 5.550332471162809e-2f;
  p = p * r + 2.402264791363012e-1f;
  p = p * r + 6.931472028550421e-1f;
  return p * r + 1.0f;
}

// 1 ulp
KH_INLINE float exp2(float x) {
  const float inside = at_least(at_most(x, 129.0f), -151.0f);
  const Whole n = nearest(inside);
  return scale(reduced_exp2(inside - n.value), n.integer);
}

// 1 ulp for x < 128; below 2^-126 become 0.
KH_INLINE float exp2_falling(float x) {
  const float inside = at_least(x, -127.0f);
  const float shifted = inside + kExponent;
  return reduced_exp2(inside - (shifted - kExponent)) * std::bit_cast<float>(std::bit_cast<uint32_t>(shifted) << 23);
}

// e^x / 2 for x >= 0, where e^x is infinite, too.
KH_INLINE float half_exp(float x) {
  const float inside = at_most(x, 91.0f);
  const Whole n = nearest(inside * 1.44269504f);
  return scale(reduced_expm1(inside, n.value) + 1.0f, n.integer - 1);
}

// 1.7 ulp
KH_INLINE float sinh(float x) {
  const float a = magnitude(x), z = a * a, half = half_exp(a);
  float p = 2.7822132e-6f;
  p = p * z + 1.9842896e-4f;
  p = p * z + 8.3333105e-3f;
  p = p * z + 1.6666667e-1f;
  return with_sign(a < 1.0f ? p * z * a + a : half - 0.25f / half, x);
}

// 1.5 ulp
KH_INLINE float cosh(float x) {
  const float half = half_exp(magnitude(x));
  return half + 0.25f / half;
}

// 2.5 ulp
KH_INLINE float sigmoid(float x) {
  constexpr float bias = kExponent + 64.0f;
  const float a = -magnitude(x), shifted = a * 1.44269504f + bias;
  const float power = std::bit_cast<float>(std::bit_cast<uint32_t>(shifted) << 23);
  const float inside = (reduced_expm1(a, shifted - bias) + 1.0f) * power * 0x1p-64f;
  const float small = a < -104.0f ? 0.0f : inside;  // e^a
  return (x < 0.0f ? small : 1.0f) / (1.0f + small);
}

// 2.5 ulp
KH_INLINE float tanh(float x) {
  const float twice = 2.0f * at_most(magnitude(x), 10.0f);
  const Whole n = nearest(twice * 1.44269504f);
  const float power = power_of_two(n.integer);
  const float t = reduced_expm1(twice, n.value) * power + (power - 1.0f);  // e^2x - 1
  return with_sign(t / (t + 2.0f), x);
}

// 1.05 ulp
KH_INLINE float erf(float x) {
  const float t = magnitude(x), s = t * t;
  float tail = -1.72853470e-5f * t + 3.83197126e-4f;  // log(1 - erf(t))
  tail = tail * s + (-3.88396438e-3f * t + 2.42546219e-2f);
  tail = tail * t + -1.06777877e-1f;
  tail = tail * t + -6.34846687e-1f;
  tail = tail * t + -1.28717512e-1f;
  tail = tail * t + -t;
  // As exp_falling, but ln 2 is one float: what that loses is small next to 1.
  const float shifted = tail * 1.44269504f + kExponent, r = tail - (shifted - kExponent) * 0.693147182f;
  const float power = std::bit_cast<float>(std::bit_cast<uint32_t>(shifted) << 23);
  tail = (1.0f - power) - (reduced_exp_tail(r) * r + 1.0f) * (r * power);
  float middle = -5.96761703e-4f;
  middle = middle * s + 4.99119423e-3f;
  middle = middle * s + -2.67681349e-2f;
  middle = middle * s + 1.12819925e-1f;
  middle = middle * s + -3.76125336e-1f;
  middle = middle * s + 1.28379166e-1f;
  middle = middle * t + t;
  tail = t > 4.0f ? 1.0f : tail;
  return with_sign(t > 0.921875f ? tail : middle, x);
}

// x * P(X <= x) of a normal X: GELU, 1.2e-7 |x| off. The tail beyond |x| is 2^p; what erf(x) of small x has to be to the
// last bit, a sum with 1 forgets.
KH_INLINE float gelu(float x) {
  constexpr float bias = kExponent - 1.0f;  // of half a power
  const float t = magnitude(x);
  float p = -2.67934784e-6f;
  p = p * t + 3.77994705e-5f;
  p = p * t + -1.79911871e-4f;
  p = p * t + -1.49378184e-4f;
  p = p * t + 7.07647124e-3f;
  p = p * t + -5.25031979e-2f;
  p = p * t + -4.59206486e-1f;
  p = p * t + -1.15110534f;
  p = at_least(p * t, -126.0f);
  const float shifted = p + bias, r = p - (shifted - bias);
  const float half = std::bit_cast<float>(std::bit_cast<uint32_t>(shifted) << 23);
  float power = 1.32647291e-3f;  // 2^r for |r| <= 1 / 2
  power = power * r + 9.67151264e-3f;
  power = power * r + 5.55073374e-2f;
  power = power * r + 2.40222421e-1f;
  power = power * r + 6.93146978e-1f;
  const float tail = (power * r + 1.0f) * half;
  return x * (x < 0.0f ? tail : 1.0f - tail);
}

// -- logarithms -------------------------------------------------------------------------------------------

// x = 2^exponent (1 + fraction), fraction in [sqrt(1/2) - 1, sqrt(2) - 1); x positive and finite.
struct Parts {
  float exponent, fraction;
};
KH_INLINE Parts parts(float x) {
  const bool subnormal = x < 0x1p-126f;
  const int32_t bits = std::bit_cast<int32_t>(subnormal ? x * 0x1p24f : x) - 0x3f3504f3;
  return {static_cast<float>((bits >> 23) - (subnormal ? 24 : 0)),
          std::bit_cast<float>((bits & 0x7fffff) + 0x3f3504f3) - 1.0f};
}

// log(1 + f) - f + f^2 / 2
KH_INLINE float log_tail(float f) {
  float p = 7.0376836292e-2f;
  p = p * f + -1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f + -1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f + -1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f + -2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  return p * f * (f * f);
}

// What every logarithm gives outside of (0, inf).
KH_INLINE float log_edges(float x, float inside) {
  const float low = x == 0.0f ? -kInfinity : kNaN;
  return x > 0.0f ? (x == kInfinity ? x : inside) : low;
}

// The logarithm of a positive finite number.
KH_INLINE float log_of(const Parts& part) {
  const float f = part.fraction;
  float tail = log_tail(f) + part.exponent * -2.12194440e-4f;
  tail = tail + -0.5f * (f * f);
  return (f + tail) + part.exponent * 0.693359375f;
}

KH_INLINE float log_inside(float x) { return log_of(parts(x)); }

// 0.8 ulp
KH_INLINE float log(float x) { return log_edges(x, log_inside(x)); }

// 1.3 ulp
KH_INLINE float log2(float x) {
  const Parts part = parts(x);
  const float f = part.fraction, tail = log_tail(f) + -0.5f * (f * f);
  constexpr float above = 0.442695041f;  // log2(e) - 1
  return log_edges(x, (((tail * above + f * above) + tail) + f) + part.exponent);
}

// 1.5 ulp
KH_INLINE float log1p(float x) {
  const float u = 1.0f + x;
  const float lost = x > 1.0f ? 1.0f - (u - x) : x - (u - 1.0f);  // u + lost is 1 + x
  const float inside = with_sign(log_inside(u) + lost / u, x);
  const float low = x == -1.0f ? -kInfinity : kNaN;
  return x > -1.0f ? (x == kInfinity ? x : inside) : low;
}

// The logarithm of a number >= 1, of which two floats hold the half.
KH_INLINE float log_of_wide(double x) {
  const double half = 0.5 * x;
  const float high = static_cast<float>(half);
  const Parts part = parts(high);
  return log_of({part.exponent + 1.0f, part.fraction}) + static_cast<float>(half - static_cast<double>(high)) / high;
}

// 1.3 ulp
KH_INLINE float asinh(float x) {
  const float a = magnitude(x);
  const double wide = static_cast<double>(a);
  const float inside = log_of_wide(wide + std::sqrt(wide * wide + 1.0));
  const float finite = a < 0x1p-12f ? a : inside;
  return with_sign(a == kInfinity ? a : finite, x);
}

// 1.3 ulp
KH_INLINE float acosh(float x) {
  const double wide = static_cast<double>(at_least(x, 1.0f));
  const float inside = log_of_wide(wide + std::sqrt(wide * wide - 1.0));
  return x < 1.0f ? kNaN : x < kInfinity ? inside : x;
}

// 1.3 ulp
KH_INLINE float atanh(float x) {
  const float a = magnitude(x);
  const double wide = static_cast<double>(at_most(a, 0x1.fffffep-1f));
  const float inside = 0.5f * log_of_wide((1.0 + wide) / (1.0 - wide));
  const float edge = a == 1.0f ? kInfinity : kNaN;
  return with_sign(a < 0x1p-12f ? a : a < 1.0f ? inside : edge, x);
}

// -- powers -----------------------------------------------------------------------------------------------

// 1.5 ulp
KH_INLINE float rsqrt(float x) { return 1.0f / std::sqrt(x); }

// 0.6 ulp: base-2 logarithm and exponential in double.
KH_INLINE float pow(float x, float y) {
  const float a = magnitude(x);
  const Parts part = parts(a);
  const double f = static_cast<double>(part.fraction);
  const double s = f / (2.0 + f), z = s * s;  // log(1 + f) = 2 atanh(s)
  double p = 1.0 / 17;
  p = p * z + 1.0 / 15;
  p = p * z + 1.0 / 13;
  p = p * z + 1.0 / 11;
  p = p * z + 1.0 / 9;
  p = p * z + 1.0 / 7;
  p = p * z + 1.0 / 5;
  p = p * z + 1.0 / 3;
  p = p * z + 1.0;
  const double logarithm = part.exponent + s * p * 2.8853900817779268;  // 2 / ln 2
  double power = logarithm * y;
  power = power > 160.0 ? 160.0 : power < -160.0 ? -160.0 : power;
  const double shifted = power + 0x1.8p52;
  const double r = (power - (shifted - 0x1.8p52)) * 0.69314718055994531;
  double e = 1.0 / 3628800;
  e = e * r + 1.0 / 362880;
  e = e * r + 1.0 / 40320;
  e = e * r + 1.0 / 5040;
  e = e * r + 1.0 / 720;
  e = e * r + 1.0 / 120;
  e = e * r + 1.0 / 24;
  e = e * r + 1.0 / 6;
  e = e * r + 0.5;
  e = e * r + 1.0;
  e = e * r + 1.0;
  const double two_n = std::bit_cast<double>((std::bit_cast<int64_t>(shifted) << 52) + (int64_t{1023} << 52));
  float result = static_cast<float>(e * two_n);

  // Selects alone, no logic on truth values of which one is a select's: those do not vectorise.
  const float big = magnitude(y), half = 0.5f * y;
  const float up = y > 0.0f ? kInfinity : 0.0f, down = y > 0.0f ? 0.0f : kInfinity;
  result = a == 0.0f ? down : a == kInfinity ? up : result;
  result = big == kInfinity ? (a == 1.0f ? 1.0f : a > 1.0f ? up : down) : result;
  const float whole_sign = big < 0x1p24f ? (std::trunc(half) == half ? result : -result) : result;
  const float broken = a == 0.0f ? result : a == kInfinity ? result : kNaN;
  const float negative = std::trunc(y) == y ? whole_sign : broken;
  result = std::bit_cast<int32_t>(x) < 0 ? negative : result;
  result = x == x ? (y == y ? result : kNaN) : kNaN;
  return x == 1.0f ? 1.0f : y == 0.0f ? 1.0f : result;
}

// -- trigonometry -----------------------------------------------------------------------------------------

// x = quarters pi/2 + rest, |rest| <= pi/4, quarters modulo 4.
struct Angle {
  int32_t quarters;
  double rest;
};

// What a number of turns is beyond whole ones, at most a half: exact. NaN of infinitely many.
KH_INLINE double beyond_whole(double turns) {
#if defined(__SSE4_1__) || defined(__aarch64__)
  return turns - std::rint(turns);
#else  // std::rint is a call
  const double large = turns < 0.0 ? -0x1p52 : 0x1p52;
  return std::fabs(turns) < 0x1p52 ? turns - ((turns + large) - large) : turns - turns;
#endif
}

// x / (2 pi) in seven parts: 1 / (2 pi) is cut into pieces of 29 bits, whose products with the 24 of x are exact, and so
// is what each of them is beyond whole turns. No table, no branch and no integers: those kept loops from vectorising.
KH_INLINE Angle reduce_angle(float x) {
  const double a = static_cast<double>(x);
  const double t0 = beyond_whole(a * 0x1.45f306dp-3), t1 = beyond_whole(a * 0x1.9391054p-32);
  const double t2 = beyond_whole(a * 0x1.4fe13abp-61), t3 = beyond_whole(a * 0x1.d1f534dp-90);
  const double t4 = beyond_whole(a * 0x1.b81b6c5p-119), t5 = beyond_whole(a * 0x1.5993c4p-150);
  const double t6 = beyond_whole(a * 0x1.c820ff3p-177);
  const double sum = t0 + (t1 + (t2 + (t3 + (t4 + (t5 + t6)))));
  const double quarters = (4.0 * sum + 0x1.8p52) - 0x1.8p52;  // the nearest whole number
  // From the largest on: where two cancel, their sum is exact.
  const double rest = (((((t0 - 0.25 * quarters) + t1) + t2) + t3) + t4) + t5 + t6;
  return {static_cast<int32_t>(quarters), rest * 0x1.921fb54442d18p+2};
}

// sin (quarter even) or cos (odd) of the rest, negated in the second half turn.
KH_INLINE float sine_of(int32_t quarters, float r) {
  const float z = r * r;
  const float sine = ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * r + r;
  const float cosine =
      ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f) * (z * z) -
      0.5f * z + 1.0f;
  const float value = (quarters & 1) != 0 ? cosine : sine;
  return (quarters & 2) != 0 ? -value : value;
}

// 1.6 ulp
KH_INLINE float sin(float x) {
  const Angle angle = reduce_angle(x);
  return x == 0.0f ? x : sine_of(angle.quarters, static_cast<float>(angle.rest));
}

// 1.6 ulp
KH_INLINE float cos(float x) {
  const Angle angle = reduce_angle(x);
  return sine_of(angle.quarters + 1, static_cast<float>(angle.rest));
}

// 1.7 ulp
KH_INLINE float tan(float x) {
  const Angle angle = reduce_angle(x);
  const float r = static_cast<float>(angle.rest), z = r * r;
  float p = 4.372544e-3f;
  p = p * z + 9.8504956e-5f;
  p = p * z + 1.0827285e-2f;
  p = p * z + 2.128625e-2f;
  p = p * z + 5.405891e-2f;
  p = p * z + 1.3332675e-1f;
  p = p * z + 3.333335e-1f;
  p = p * z;
  const float lost = static_cast<float>(angle.rest - static_cast<double>(r));
  const float tangent = r + (p * r + (lost + lost * z));
  return x == 0.0f ? x : (angle.quarters & 1) != 0 ? -1.0f / tangent : tangent;
}

inline constexpr float kQuarterTurn = 1.57079637f, kQuarterTurnRest = -4.37113883e-8f;  // pi/2 in two parts

// atan(q) for 0 <= q <= 1
KH_INLINE float reduced_atan(float q) {
  const float z = q * q;
  float p = -1.7821442e-3f;
  p = p * z + 1.0866271e-2f;
  p = p * z + -3.1093534e-2f;
  p = p * z + 5.787887e-2f;
  p = p * z + -8.399208e-2f;
  p = p * z + 1.0950861e-1f;
  p = p * z + -1.4264014e-1f;
  p = p * z + 1.999853e-1f;
  p = p * z + -3.33333e-1f;
  return p * z * q + q;
}

// 1.4 ulp
KH_INLINE float atan(float x) {
  const float a = magnitude(x);
  const float r = reduced_atan(a > 1.0f ? 1.0f / a : a);
  return with_sign(a > 1.0f ? kQuarterTurn + (kQuarterTurnRest - r) : r, x);
}

// 1.5 ulp
KH_INLINE float atan2(float y, float x) {
  const float a = magnitude(y), b = magnitude(x);
  const float low = a > b ? b : a, high = a > b ? a : b;  // NaN stays in one of them
  const float r = reduced_atan(low == high ? (high > 0.0f ? 1.0f : 0.0f) : low / high);
  const uint32_t left = std::bit_cast<uint32_t>(x) & 0x80000000u, flip = a > b ? left ^ 0x80000000u : left;
  const float turned = std::bit_cast<float>(std::bit_cast<uint32_t>(r) ^ flip);
  const float flat = left != 0u ? 2.0f : 0.0f, quarters = a > b ? 1.0f : flat;
  return with_sign(quarters * kQuarterTurn + (quarters * kQuarterTurnRest + turned), y);
}

// asin(s) - s for a root s of z, 0 <= z <= 1/4
KH_INLINE float asin_tail(float s, float z) {
  float p = 4.2158306e-2f;
  p = p * z + 2.4184778e-2f;
  p = p * z + 4.546915e-2f;
  p = p * z + 7.4953094e-2f;
  p = p * z + 1.6666752e-1f;
  return p * z * s;
}

// The root of z in two parts, of which the first has 12 bits.
struct Root {
  float high, low;
};
KH_INLINE Root root_of(float z) {
  const float s = std::sqrt(z);
  const float high = std::bit_cast<float>(std::bit_cast<uint32_t>(s) & 0xfffff000u);
  return {high, (z - high * high) / (s + high + 0x1p-126f)};
}

// 0.8 ulp
KH_INLINE float asin(float x) {
  const float a = magnitude(x), far = 0.5f - 0.5f * a;
  const Root root = root_of(far);
  const float z = a > 0.5f ? far : a * a, s = a > 0.5f ? root.high + root.low : a;
  const float tail = asin_tail(s, z);
  const float turned = (kQuarterTurn - 2.0f * root.high) + (kQuarterTurnRest - 2.0f * (root.low + tail));
  return with_sign(a > 0.5f ? turned : s + tail, x);
}

// 1.1 ulp
KH_INLINE float acos(float x) {
  const float a = magnitude(x), far = 0.5f - 0.5f * a;
  const Root root = root_of(far);
  const float z = a > 0.5f ? far : a * a, s = a > 0.5f ? root.high + root.low : x;
  const float tail = asin_tail(s, z), half = root.high + (root.low + tail);
  const float near = kQuarterTurn - (x + (tail - kQuarterTurnRest));
  const float left = 2.0f * (kQuarterTurn - (half - kQuarterTurnRest));
  const float outside = x < 0.0f ? left : 2.0f * half;
  return a > 0.5f ? outside : near;
}

// -- remainders -------------------------------------------------------------------------------------------

// a - trunc(a / b) * b, exactly, of the sign of a: the quotient, of up to 277 bits, in pieces of which each times b is
// exact, or so in a fused operation. Each takes off the nearest multiple of b times a power of 2.
KH_INLINE float fmod(float a, float b) {
#if defined(__FMA__) || defined(__aarch64__)
  constexpr int kSteps = 6, kBits = 47;
  constexpr double kStep = 0x1p47;
#else
  constexpr int kSteps = 10, kBits = 28;
  constexpr double kStep = 0x1p28;
#endif
  static_assert(kSteps * kBits >= 277);
  const double wide = static_cast<double>(magnitude(b));
  const double divisor = wide > 0x1p130 ? 0x1p130 : wide;  // beyond every float in place of infinity
  double unit = 1.0;
  for (int step = 1; step < kSteps; ++step) unit *= kStep;
  double rest = static_cast<double>(magnitude(a)), multiple = divisor * unit, inverse = 1.0 / divisor / unit;
  for (int step = 0; step < kSteps; ++step) {
    const double count = (rest * inverse + 0x1.8p52) - 0x1.8p52;
#if defined(__FMA__) || defined(__aarch64__)
    rest = std::fma(-count, multiple, rest);
#else
    rest = rest - count * multiple;
#endif
    multiple *= 1.0 / kStep;
    inverse *= kStep;
  }
  return with_sign(static_cast<float>(rest < 0.0 ? rest + divisor : rest), a);
}

// a - floor(a / b) * b of the exact quotient, of the sign of b.
KH_INLINE float remainder(float a, float b) {
  const float rest = fmod(a, b), moved = rest + b;
  const int32_t differ = std::bit_cast<int32_t>(rest) ^ std::bit_cast<int32_t>(b);
  return rest == 0.0f ? with_sign(0.0f, b) : differ < 0 ? moved : rest;
}

// floor(a / b) of the exact quotient, as NumPy has it.
KH_INLINE float floor_divide(float a, float b) {
  const float rest = fmod(a, b), ratio = a / b, whole = (a - rest) / b;
  const int32_t differ = std::bit_cast<int32_t>(rest) ^ std::bit_cast<int32_t>(b);
  const float less = differ < 0 ? whole - 1.0f : whole, quotient = rest == 0.0f ? whole : less;
  const float floor = std::floor(quotient), nearer = quotient - floor > 0.5f ? floor + 1.0f : floor;
  const float result = quotient == 0.0f ? with_sign(0.0f, ratio) : nearer;
  return b == 0.0f ? ratio : result;
}

// -- double: the C library's --------------------------------------------------------------------------------

inline double exp(double x) { return std::exp(x); }
inline double expm1(double x) { return std::expm1(x); }
inline double exp2(double x) { return std::exp2(x); }
inline double log(double x) { return std::log(x); }
inline double log1p(double x) { return std::log1p(x); }
inline double log2(double x) { return std::log2(x); }
inline double tanh(double x) { return std::tanh(x); }
inline double erf(double x) { return std::erf(x); }
inline double sigmoid(double x) {
  const double small = std::exp(-std::fabs(x));
  return (x < 0 ? small : 1.0) / (1.0 + small);
}
inline double sin(double x) { return std::sin(x); }
inline double cos(double x) { return std::cos(x); }
inline double tan(double x) { return std::tan(x); }
inline double asin(double x) { return std::asin(x); }
inline double acos(double x) { return std::acos(x); }
inline double atan(double x) { return std::atan(x); }
inline double atan2(double y, double x) { return std::atan2(y, x); }
inline double sinh(double x) { return std::sinh(x); }
inline double cosh(double x) { return std::cosh(x); }
inline double asinh(double x) { return std::asinh(x); }
inline double acosh(double x) { return std::acosh(x); }
inline double atanh(double x) { return std::atanh(x); }
inline double fmod(double a, double b) { return std::fmod(a, b); }
inline double pow(double x, double y) { return std::pow(x, y); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }

}  // namespace kh
