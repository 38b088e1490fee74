// Cross-entropy of rows of logits on the CPU, in float32 arithmetic; see forms.py for the formulas.
//
// Every function takes one record of 8-byte fields (packed by Python's struct module, in this order) and
// returns the row of a class that is out of range, or -1. Rows are divided over OpenMP threads. A row goes
// to float32 in a buffer that stays in the second-level cache between the passes over it: the maximum, the
// exponentials and their sum, and, where wanted, the gradient, for which the exponentials are kept.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <omp.h>

#include "element_types.h"
#include "exponential.h"

namespace {

constexpr int64_t kParallelWork = 32768;

// ---------------------------------------------------------------------------- row primitives

// Sum of term(0) … term(n - 1). Four streams, each vectorised: independent chains of additions, and
// partial sums short enough to keep the error of long rows at a few units in the last place.
template <class Term> inline float sum(int64_t n, Term term) {
  const int64_t quarter = n / 4;
  float a = 0, b = 0, c = 0, d = 0;
#pragma omp simd reduction(+ : a, b, c, d)
  for (int64_t i = 0; i < quarter; ++i) {
    a += term(i);
    b += term(i + quarter);
    c += term(i + 2 * quarter);
    d += term(i + 3 * quarter);
  }
  for (int64_t i = 4 * quarter; i < n; ++i) a += term(i);
  return (a + b) + (c + d);
}

inline float hyperbolic_tangent(float x) { return 1.0f - 2.0f / (exponential(2.0f * x) + 1.0f); }

// ---------------------------------------------------------------------------- cross-entropy

struct Loss {
  const void* logits;
  const int64_t* target;
  const float* grad;  // of each row's loss; null for 1
  void* gradient;     // of the logits, may be the logits themselves; null where it is not wanted
  float *loss, *lse;  // null where they are not wanted; the log-sum-exp is read where the loss is not
  int64_t rows, width, type, ignore_index;
  double label_smoothing, z_loss, softcap;
};

template <class T>
void zero(T* row, int64_t n) { std::memset(static_cast<void*>(row), 0, sizeof(T) * static_cast<size_t>(n)); }

// `y`: the row in float32; `e`: exp(y - max).
template <class T> void one_row(const Loss& p, int64_t row, float* buffer, float* e) {
  const int64_t n = p.width, target = p.target[row];
  const T* x = static_cast<const T*>(p.logits) + row * n;
  T* gradient = p.gradient ? static_cast<T*>(p.gradient) + row * n : nullptr;
  if (target == p.ignore_index) {
    if (p.loss) p.loss[row] = 0;
    if (p.loss && p.lse) p.lse[row] = 0;
    if (gradient) zero(gradient, n);
    return;
  }
  const float cap = static_cast<float>(p.softcap), smoothing = static_cast<float>(p.label_smoothing);
  const float z = static_cast<float>(p.z_loss);
  if (cap > 0) {
    const float inverse = 1.0f / cap;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) buffer[i] = cap * hyperbolic_tangent(load(x[i]) * inverse);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) buffer[i] = load(x[i]);
  }
  const float* y = buffer;
  float lse, total = 1.0f;
  if (!p.loss) {  // a gradient of what was computed before
    lse = p.lse[row];
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) e[i] = exponential(y[i] - lse);
  } else {
    float most = y[0];
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < n; ++i) most = y[i] > most ? y[i] : most;
    total = sum(n, [=](int64_t i) { return e[i] = exponential(y[i] - most); });
    lse = most + std::log(total);
    if (p.lse) p.lse[row] = lse;
  }
  if (p.loss) {
    float loss = (1.0f - smoothing) * (lse - y[target]);
    if (smoothing > 0) loss += smoothing * (lse - sum(n, [=](int64_t i) { return y[i]; }) / static_cast<float>(n));
    p.loss[row] = loss + (z != 0 ? z * lse * lse : 0.0f);
  }
  if (!gradient) return;
  const float grad = p.grad ? p.grad[row] : 1.0f;
  const float scale = grad * (1.0f + 2.0f * z * lse) / total, even = grad * smoothing / static_cast<float>(n);
  const float hot = grad * (1.0f - smoothing);
  const float at_target = e[target] * scale - even - hot;
  if (cap > 0) {
    const float inverse = 1.0f / cap, t = y[target] * inverse;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const float slope = y[i] * inverse;
      gradient[i] = store<T>((e[i] * scale - even) * (1.0f - slope * slope));
    }
    gradient[target] = store<T>(at_target * (1.0f - t * t));
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) gradient[i] = store<T>(e[i] * scale - even);
    gradient[target] = store<T>(at_target);
  }
}

template <class T> int64_t all_rows(const Loss& p) {
  for (int64_t row = 0; row < p.rows; ++row) {  // before anything is written
    const int64_t target = p.target[row];
    if (target != p.ignore_index && (target < 0 || target >= p.width)) return row;
  }
#pragma omp parallel if (p.rows * p.width > kParallelWork)
  {
    std::unique_ptr<float[]> scratch(new float[2 * p.width]);
#pragma omp for schedule(dynamic, 4)
    for (int64_t row = 0; row < p.rows; ++row) one_row<T>(p, row, scratch.get(), scratch.get() + p.width);
  }
  return -1;
}

}  // namespace

extern "C" int64_t cross_entropy(const void* record) {
  const Loss& p = *static_cast<const Loss*>(record);
  if (p.type == kFloat32) return all_rows<float>(p);
  return p.type == kBFloat16 ? all_rows<bf16>(p) : all_rows<f16>(p);
}
