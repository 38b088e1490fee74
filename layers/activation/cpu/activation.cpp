// Activations and gated activations on the CPU: float32 arithmetic on float, bfloat16 and half data.
//
// Every loop over a block is written so that the compiler vectorises it: clamps compare integers
// (compilers turn a float clamp into compare-and-blend, because of NaN and -0.0), 2^n is built from
// bits, and half-width data is widened to a buffer of floats that stays in the first-level cache.
//
// Tensors are rows of contiguous elements: row r of `x` starts at x + r * stride.

#include <algorithm>
#include <cstdint>
#include <cstring>
#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "decay.h"
#include "gelu.h"

namespace {

struct bfloat16 { uint16_t bits; };
struct float16 { uint16_t bits; };
#if defined(__aarch64__)
using Half = __fp16;  // GCC 12 has no _Float16 in C++ there
#else
using Half = _Float16;
#endif

inline int32_t bits_of(float x) { int32_t i; std::memcpy(&i, &x, sizeof i); return i; }
inline float float_of(int32_t i) { float x; std::memcpy(&x, &i, sizeof x); return x; }

// The activations. value(x); slope(x, y): y = value(x), returns the derivative.

// x * sigmoid(x). |error| <= 4 ulp.
struct Silu {
    static float value(float x) { return x / Decay(x).plus_one(); }
    static float slope(float x, float& y) {
        const float s = 1.0f / Decay(x).plus_one();
        y = x * s;
        return fused(y, 1.0f - s, s);
    }
};

// x * sigmoid(1.702 x). |error| <= 4 ulp, and for x < 0 1.5 |1.702 x| ulp more, from the rounding of 1.702 x.
struct QuickGelu {
    static constexpr float SCALE = 1.702f;
    static float value(float x) { return x / Decay(SCALE * x).plus_one(); }
    static float slope(float x, float& y) {
        const float s = 1.0f / Decay(SCALE * x).plus_one();
        y = x * s;
        return fused(y, SCALE * (1.0f - s), s);
    }
};

// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), with (1 + tanh(u)) / 2 = sigmoid(2u).
// |error| <= 4 ulp, and for x < 0 2.5 |2u| ulp more, from the rounding of u (1 + tanh(u) cancels there).
struct GeluTanh {
    static constexpr float LINEAR = 1.59576912f, CUBIC = 0.0713548163f;  // 2 sqrt(2/pi) and that * 0.044715
    static float value(float x) { return x / Decay(x * fused(x * x, CUBIC, LINEAR)).plus_one(); }
    static float slope(float x, float& y) {
        const float square = x * x;
        const float s = 1.0f / Decay(x * fused(square, CUBIC, LINEAR)).plus_one();
        y = x * s;
        // y (1 - s) is 0 where the square overflows: a finite one keeps their product from being a NaN.
        const float inner = fused(clamp_above(square, 1e30f), 3.0f * CUBIC, LINEAR);
        return fused(y * (1.0f - s), inner, s);
    }
};

// x Phi(x). |error| <= |x| 2^-22 (PyTorch's own: 1.4 times that).
struct Gelu {
    static float value(float x) { return x * normal_cdf(x, x * x); }
    static float slope(float x, float& y) {
        // Beyond 14 the density is 0 in float32, and Decay, which does not reach 0, must not meet a huge x.
        const float near = clamp(x, -14.0f, 14.0f), square = near * near, p = normal_cdf(near, square);
        y = x * p;
        const float slope = fused(near * 0.398942280f, Decay(0.5f * square).value(), p);  // x * density + Phi
        return fused(x, 0.0f, slope);  // NaN for NaN and inf, as x * density is
    }
};

// Widening to float and rounding back, to nearest, ties to even. bfloat16 converts inside the loops, by
// integer arithmetic that runs beside the multiplications; half goes through a buffer, because compilers
// do not vectorise its conversion.

inline float widen(float x) { return x; }
inline float widen(bfloat16 x) { return float_of(static_cast<int32_t>(uint32_t(x.bits) << 16)); }
inline void narrow(float x, float& y) { y = x; }
inline void narrow(float x, bfloat16& y) {
    // No NaN becomes inf: those that arise here have the low half 0, so rounding carries nothing upwards.
    const uint32_t bits = static_cast<uint32_t>(bits_of(x));
    y.bits = static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline void widen(const float16* __restrict source, float* __restrict target, int64_t n) {
    int64_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(target + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i))));
#endif
    for (; i < n; i++) {
        Half half;
        std::memcpy(&half, source + i, sizeof half);
        target[i] = half;
    }
}
inline void narrow(const float* __restrict source, float16* __restrict target, int64_t n) {
    int64_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(target + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(source + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i < n; i++) {
        const Half half = static_cast<Half>(source[i]);
        std::memcpy(target + i, &half, sizeof half);
    }
}

constexpr int64_t BLOCK = 512;             // elements: five float buffers of it are 10 KiB
constexpr int64_t PIECE = 8 * BLOCK;       // elements a thread takes at a time
constexpr int64_t PARALLEL_FROM = 32768;   // elements: below, starting the threads costs more than they save

// A block of a tensor in a form that the loops compute on: where it lies, or for half a buffer of floats.
template <class T> struct Input {
    const T* read(const T* source, int64_t) { return source; }
};
template <class T> struct Output {
    T* begin(T* target) { return target; }
    void end(T*, int64_t) {}
};
template <> struct Input<float16> {
    alignas(64) float buffer[BLOCK];
    const float* read(const float16* source, int64_t n) { widen(source, buffer, n); return buffer; }
};
template <> struct Output<float16> {
    alignas(64) float buffer[BLOCK];
    float* begin(float16*) { return buffer; }
    void end(float16* target, int64_t n) { narrow(buffer, target, n); }
};

// Cuts rows into pieces, shares them among the threads, and calls body(row, column, length) a block at a time.
template <class Body> void for_each_block(int64_t rows, int64_t columns, Body body) {
    const int64_t pieces = (columns + PIECE - 1) / PIECE;
#pragma omp parallel for schedule(static) if (rows * columns >= PARALLEL_FROM)
    for (int64_t piece = 0; piece < rows * pieces; piece++) {
        const int64_t row = piece / pieces, begin = piece % pieces * PIECE;
        const int64_t end = std::min(begin + PIECE, columns);
        for (int64_t column = begin; column < end; column += BLOCK) body(row, column, std::min(BLOCK, end - column));
    }
}

// The arguments of one call, as cpu/kernels.py packs them: one pointer crosses ctypes in a third of the time
// that a dozen arguments take. Strides are those of rows, in elements; outputs without one are contiguous.

struct Forward {
    int64_t kind, dtype;
    const void* x;
    void* y;
    int64_t rows, columns, x_stride;
};
struct Backward {
    int64_t kind, dtype;
    const void *dy, *x;
    void* dx;
    int64_t rows, columns, dy_stride, x_stride;
};
struct GatedForward {
    int64_t kind, dtype;
    const void *gate, *up;
    void* y;
    int64_t rows, columns, gate_stride, up_stride;
};
struct GatedBackward {
    int64_t kind, dtype;
    const void *dy, *gate, *up;
    void *dgate, *dup;
    int64_t rows, columns, dy_stride, gate_stride, up_stride, d_stride;
};

template <class T> const T* at(const void* tensor, int64_t offset) { return static_cast<const T*>(tensor) + offset; }
template <class T> T* at(void* tensor, int64_t offset) { return static_cast<T*>(tensor) + offset; }

template <class K, class T> void run(const Forward& call) {
    for_each_block(call.rows, call.columns, [=](int64_t row, int64_t column, int64_t n) {
        Input<T> x_block;
        Output<T> y_block;
        T* target = at<T>(call.y, row * call.columns + column);
        const auto* __restrict xs = x_block.read(at<T>(call.x, row * call.x_stride + column), n);
        auto* __restrict ys = y_block.begin(target);
        for (int64_t i = 0; i < n; i++) narrow(K::value(widen(xs[i])), ys[i]);
        y_block.end(target, n);
    });
}

template <class K, class T> void run(const Backward& call) {
    for_each_block(call.rows, call.columns, [=](int64_t row, int64_t column, int64_t n) {
        Input<T> dy_block, x_block;
        Output<T> dx_block;
        T* target = at<T>(call.dx, row * call.columns + column);
        const auto* __restrict dys = dy_block.read(at<T>(call.dy, row * call.dy_stride + column), n);
        const auto* __restrict xs = x_block.read(at<T>(call.x, row * call.x_stride + column), n);
        auto* __restrict dxs = dx_block.begin(target);
        for (int64_t i = 0; i < n; i++) {
            float value;
            narrow(widen(dys[i]) * K::slope(widen(xs[i]), value), dxs[i]);
        }
        dx_block.end(target, n);
    });
}

template <class K, class T> void run(const GatedForward& call) {
    for_each_block(call.rows, call.columns, [=](int64_t row, int64_t column, int64_t n) {
        Input<T> gate_block, up_block;
        Output<T> y_block;
        T* target = at<T>(call.y, row * call.columns + column);
        const auto* __restrict gates = gate_block.read(at<T>(call.gate, row * call.gate_stride + column), n);
        const auto* __restrict ups = up_block.read(at<T>(call.up, row * call.up_stride + column), n);
        auto* __restrict ys = y_block.begin(target);
        for (int64_t i = 0; i < n; i++) narrow(K::value(widen(gates[i])) * widen(ups[i]), ys[i]);
        y_block.end(target, n);
    });
}

template <class K, class T> void run(const GatedBackward& call) {
    for_each_block(call.rows, call.columns, [=](int64_t row, int64_t column, int64_t n) {
        Input<T> dy_block, gate_block, up_block;
        Output<T> dgate_block, dup_block;
        T* dgate_target = at<T>(call.dgate, row * call.d_stride + column);
        T* dup_target = at<T>(call.dup, row * call.d_stride + column);
        const auto* __restrict dys = dy_block.read(at<T>(call.dy, row * call.dy_stride + column), n);
        const auto* __restrict gates = gate_block.read(at<T>(call.gate, row * call.gate_stride + column), n);
        const auto* __restrict ups = up_block.read(at<T>(call.up, row * call.up_stride + column), n);
        auto* __restrict dgates = dgate_block.begin(dgate_target);
        auto* __restrict dups = dup_block.begin(dup_target);
        for (int64_t i = 0; i < n; i++) {
            float value;
            const float slope = K::slope(widen(gates[i]), value), grad = widen(dys[i]);
            narrow(grad * widen(ups[i]) * slope, dgates[i]);
            narrow(grad * value, dups[i]);
        }
        dgate_block.end(dgate_target, n);
        dup_block.end(dup_target, n);
    });
}

// The numbers are those of package/kinds.py and of TYPES in cpu/kernels.py.
template <class K, class Call> void dispatch_type(const Call& call) {
    switch (call.dtype) {
        case 0: return run<K, float>(call);
        case 1: return run<K, bfloat16>(call);
        case 2: return run<K, float16>(call);
    }
}
template <class Call> void dispatch(const Call& call) {
    switch (call.kind) {
        case 0: return dispatch_type<Silu>(call);
        case 1: return dispatch_type<Gelu>(call);
        case 2: return dispatch_type<GeluTanh>(call);
        case 3: return dispatch_type<QuickGelu>(call);
    }
}

}  // namespace

extern "C" {
void activation_forward(const Forward* call) { dispatch(*call); }
void activation_backward(const Backward* call) { dispatch(*call); }
void gated_activation_forward(const GatedForward* call) { dispatch(*call); }
void gated_activation_backward(const GatedBackward* call) { dispatch(*call); }
}
