// Rotary position embedding of (B, H, S, D) tensors on the CPU, in float32 arithmetic.
//
// Rows (the last dimension) are contiguous; the other three dimensions have any stride. Positions are the
// outer loop and heads the inner one, so that a row of cosines and sines is read once for all heads.

#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#ifdef __F16C__
#include <immintrin.h>
#endif

namespace {

struct bfloat16 { uint16_t bits; };
struct float16 { uint16_t bits; };

inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}
inline float float_of(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}
// By a mask, because a compiler that turns choices into jumps does not vectorise what is left.
inline uint32_t choose(bool first, uint32_t x, uint32_t y) {
    const uint32_t mask = -static_cast<uint32_t>(first);
    return (x & mask) | (y & ~mask);
}

inline float widen(float x) { return x; }
inline float widen(bfloat16 x) { return float_of(static_cast<uint32_t>(x.bits) << 16); }
// float16 by integer operations: not every compiler vectorises _Float16.
inline float widen(float16 x) {
    const uint32_t magnitude = x.bits & 0x7fffu, sign = (x.bits & 0x8000u) << 16;
    const uint32_t finite = (magnitude << 13) + (112u << 23), special = (magnitude << 13) | 0x7f800000u;
    const uint32_t subnormal = bits_of(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
    const uint32_t normal = choose(magnitude >= 0x7c00u, special, finite);
    return float_of(choose(magnitude < 0x0400u, subnormal, normal) | sign);
}

// The nearest value of type T, ties to even, as a float; NaN stays NaN.
inline float round_to(float x, float) { return x; }
inline float round_to(float x, bfloat16) {
    const uint32_t bits = bits_of(x), rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
    return float_of(choose((bits & 0x7fffffffu) > 0x7f800000u, bits | 0x00400000u, rounded));
}
// What was computed from bfloat16 values only: a NaN ends in sixteen zeros as they do, and no carry reaches it.
inline uint32_t round_bfloat16(float x) {
    const uint32_t bits = bits_of(x);
    return bits + 0x7fffu + ((bits >> 16) & 1u);
}
inline float round_to(float x, float16) {
    const uint32_t bits = bits_of(x), magnitude = bits & 0x7fffffffu;
    const uint32_t normal = (magnitude + 0x0fffu + ((magnitude >> 13) & 1u)) & 0xffffe000u;
    // 0.5 has the spacing of float16's subnormals, 2^-24: adding it rounds to that.
    const uint32_t subnormal = bits_of((float_of(magnitude) + 0.5f) - 0.5f);
    const uint32_t finite = choose(magnitude < 0x38800000u, subnormal, normal);  // below 2^-14
    const uint32_t infinite = choose(magnitude > 0x7f800000u, 0x7fc00000u, 0x7f800000u);
    return float_of(choose(magnitude >= 0x477ff000u, infinite, finite) | (bits & 0x80000000u));  // from 65520
}

inline void narrow(float x, float& y) { y = x; }
inline void narrow(float x, bfloat16& y) { y.bits = static_cast<uint16_t>(bits_of(round_to(x, y)) >> 16); }
inline void narrow(float x, float16& y) {
    const uint32_t bits = bits_of(round_to(x, y)), magnitude = bits & 0x7fffffffu;
    const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t normal = (magnitude - (112u << 23)) >> 13, special = (magnitude >> 13) & 0x7fffu;
    const uint32_t finite = choose(magnitude < 0x38800000u, subnormal, normal);
    const uint32_t half = choose(magnitude >= 0x7f800000u, 0x7c00u | (special & 0x3ffu), finite);
    y.bits = static_cast<uint16_t>(half | ((bits >> 16) & 0x8000u));
}

template <typename T, bool ROUND>
inline float product(float x, float y) {
    if constexpr (!ROUND) return x * y;
    if constexpr (std::is_same_v<T, bfloat16>) return float_of(round_bfloat16(x * y) & 0xffff0000u);
    return round_to(x * y, T{});
}

template <typename T, bool ROUND>
inline void put(float x, T& y) {
    if constexpr (ROUND && std::is_same_v<T, bfloat16>) {
        y.bits = static_cast<uint16_t>(round_bfloat16(x) >> 16);
    } else {
        narrow(x, y);
    }
}

// a' = a cos_a - b sin_a and b' = b cos_b + a sin_b, or the transpose of that. ROUND rounds the products,
// as PyTorch's operators do when tensors and angles have one dtype.
template <typename T, bool INVERSE, bool ROUND>
inline void rotate_pair(T a_, T b_, float cos_a, float sin_a, float cos_b, float sin_b, T& out_a, T& out_b) {
    const float a = widen(a_), b = widen(b_);
    const float sa = INVERSE ? -sin_b : sin_a, sb = INVERSE ? -sin_a : sin_b;
    put<T, ROUND>(product<T, ROUND>(a, cos_a) - product<T, ROUND>(b, sa), out_a);
    put<T, ROUND>(product<T, ROUND>(b, cos_b) + product<T, ROUND>(a, sb), out_b);
}

#ifdef __F16C__
inline __m256 widen8(const float16* x) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))); }
inline void narrow8(__m256 x, float16* y) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
template <bool ROUND>
inline __m256 product8(__m256 x, __m256 y) {
    const __m256 exact = _mm256_mul_ps(x, y);
    return ROUND ? _mm256_cvtph_ps(_mm256_cvtps_ph(exact, _MM_FROUND_TO_NEAREST_INT)) : exact;
}
#endif

// The halves as arrays of their own: told that they do not overlap, the compiler vectorises the loop.
template <typename T, bool INVERSE, bool ROUND>
void rotate_halves(const T* __restrict xa, const T* __restrict xb, const float* __restrict ca, const float* __restrict cb,
                   const float* __restrict sa, const float* __restrict sb, T* __restrict ya, T* __restrict yb,
                   int64_t half) {
    int64_t begin = 0;
#ifdef __F16C__
    if constexpr (std::is_same_v<T, float16>) {  // conversions by the hardware, which compilers do not vectorise to
        const __m256 sign = _mm256_set1_ps(INVERSE ? -1.0f : 1.0f);
        for (; begin + 8 <= half; begin += 8) {
            const __m256 a = widen8(xa + begin), b = widen8(xb + begin);
            const __m256 sin_a = _mm256_mul_ps(sign, _mm256_loadu_ps((INVERSE ? sb : sa) + begin));
            const __m256 sin_b = _mm256_mul_ps(sign, _mm256_loadu_ps((INVERSE ? sa : sb) + begin));
            const __m256 cos_a = _mm256_loadu_ps(ca + begin), cos_b = _mm256_loadu_ps(cb + begin);
            narrow8(_mm256_sub_ps(product8<ROUND>(a, cos_a), product8<ROUND>(b, sin_a)), ya + begin);
            narrow8(_mm256_add_ps(product8<ROUND>(b, cos_b), product8<ROUND>(a, sin_b)), yb + begin);
        }
    }
#endif
#pragma omp simd
    for (int64_t i = begin; i < half; ++i)
        rotate_pair<T, INVERSE, ROUND>(xa[i], xb[i], ca[i], sa[i], cb[i], sb[i], ya[i], yb[i]);
}

template <typename T, bool INTERLEAVED, bool INVERSE, bool ROUND>
void rotate_row(const T* __restrict x, const float* __restrict cos, const float* __restrict sin, T* __restrict y,
                int64_t half) {
    if constexpr (INTERLEAVED) {
#pragma omp simd
        for (int64_t i = 0; i < half; ++i) {
            const int64_t a = 2 * i, b = 2 * i + 1;
            rotate_pair<T, INVERSE, ROUND>(x[a], x[b], cos[a], sin[a], cos[b], sin[b], y[a], y[b]);
        }
    } else {
        rotate_halves<T, INVERSE, ROUND>(x, x + half, cos, cos + half, sin, sin + half, y, y + half, half);
    }
}

struct Tensor4 { void* data; int64_t batch, head, position; };  // strides in elements

struct Arguments {
    Tensor4 q, k, q_out, k_out, cos, sin;  // cos and sin: their head strides are 0
    int64_t batches, q_heads, k_heads, positions, width, dtype, angle_dtype, interleaved, inverse;
};

// A row of angles in float32: where it lies, or widened into `scratch`.
inline const float* angles(const Tensor4& x, int64_t type, int64_t batch, int64_t position, int64_t width, float* scratch) {
    const int64_t at = batch * x.batch + position * x.position;
    if (type == 0) return static_cast<const float*>(x.data) + at;
    if (type == 1) {
        const bfloat16* row = static_cast<const bfloat16*>(x.data) + at;
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) scratch[i] = widen(row[i]);
    } else {
        const float16* row = static_cast<const float16*>(x.data) + at;
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) scratch[i] = widen(row[i]);
    }
    return scratch;
}

template <typename T, bool INTERLEAVED, bool INVERSE, bool ROUND>
void run(const Arguments& a) {
    const int64_t rows = a.batches * a.positions;
    const int64_t elements = rows * (a.q_heads + a.k_heads) * a.width;
#pragma omp parallel if (elements > 32768)
    {
        const std::unique_ptr<float[]> scratch(new float[2 * a.width]);
#pragma omp for schedule(static)
        for (int64_t row = 0; row < rows; ++row) {
            const int64_t b = row / a.positions, s = row % a.positions;
            const float* cos = angles(a.cos, a.angle_dtype, b, s, a.width, scratch.get());
            const float* sin = angles(a.sin, a.angle_dtype, b, s, a.width, scratch.get() + a.width);
            for (int64_t h = 0; h < a.q_heads + a.k_heads; ++h) {
                const bool query = h < a.q_heads;
                const int64_t head = query ? h : h - a.q_heads;
                const Tensor4& in = query ? a.q : a.k;
                const Tensor4& out = query ? a.q_out : a.k_out;
                rotate_row<T, INTERLEAVED, INVERSE, ROUND>(
                    static_cast<const T*>(in.data) + b * in.batch + head * in.head + s * in.position, cos, sin,
                    static_cast<T*>(out.data) + b * out.batch + head * out.head + s * out.position, a.width / 2);
            }
        }
    }
}

template <typename T>
void dispatch(const Arguments& a) {
    constexpr bool narrow = !std::is_same_v<T, float>;
    if (a.interleaved) {
        a.inverse ? run<T, true, true, false>(a) : run<T, true, false, false>(a);
    } else if (a.inverse) {
        run<T, false, true, false>(a);
    } else {
        narrow && a.angle_dtype == a.dtype ? run<T, false, false, narrow>(a) : run<T, false, false, false>(a);
    }
}

}  // namespace

extern "C" void rotary_rotate(const char* packed) {  // the fields of Arguments, 8 bytes each
    Arguments a;
    std::memcpy(&a, packed, sizeof a);
    switch (a.dtype) {
        case 0: return dispatch<float>(a);
        case 1: return dispatch<bfloat16>(a);
        case 2: return dispatch<float16>(a);
    }
}
