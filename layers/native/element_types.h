// float, bfloat16 and float16 in memory: load() widens an element, store<T>() rounds a float to one.
#pragma once

#include <cstdint>
#include <cstring>

namespace {

struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };
enum Type : int64_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

inline uint32_t bits_of(float value) { uint32_t bits; std::memcpy(&bits, &value, 4); return bits; }
inline float float_of(uint32_t bits) { float value; std::memcpy(&value, &bits, 4); return value; }

inline float load(float value) { return value; }
inline float load(bf16 value) { return float_of(static_cast<uint32_t>(value.bits) << 16); }

// Written without branches or conversion instructions, so that loops over it vectorise anywhere.
inline float load(f16 value) {
  const uint32_t magnitude = value.bits & 0x7fffu, sign = (value.bits & 0x8000u) << 16;
  const float normal = float_of((magnitude << 13) + (112u << 23));
  const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f;
  const float special = float_of((magnitude << 13) | 0x7f800000u);
  const float result = magnitude >= 0x7c00u ? special : magnitude < 0x0400u ? subnormal : normal;
  return float_of(bits_of(result) | sign);
}

template <class T> inline T store(float value);
template <> inline float store<float>(float value) { return value; }

// Round to nearest even; a NaN keeps its sign and becomes quiet.
template <> inline bf16 store<bf16>(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x0040u;
  return {static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded)};
}

template <> inline f16 store<f16>(float value) {
  const uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude + 0x0fffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  // Adding 0.5 leaves the spacing of float16's subnormals, 2^-24: the addition does the rounding.
  const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t result = magnitude < 0x38800000u ? subnormal : normal;  // below 2^-14
  result = magnitude >= 0x477ff000u ? 0x7c00u : result;            // 65520 and above: infinity
  result = magnitude > 0x7f800000u ? 0x7e00u : result;
  return {static_cast<uint16_t>(result | ((bits >> 16) & 0x8000u))};
}

}  // namespace
