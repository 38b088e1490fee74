// Row normalization on the CPU: RMSNorm and LayerNorm (with or without a residual added first), and
// RMSNorm with a gate. A row stays in the first-level cache between the passes over it, so each of
// them costs arithmetic only; memory is read once and written once.
//
// Every function takes one record of 8-byte fields (packed by Python's struct module, in this order).
// Arithmetic is float32. Rows are divided over OpenMP threads above kParallelWork elements, below
// which a fork costs more than it saves.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <omp.h>

#include "element_types.h"
#include "exponential.h"

namespace {

constexpr int64_t kParallelWork = 32768;

template <class T> inline float round_to(float value) { return load(store<T>(value)); }

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

// A vector of `width` parameters as float32: the tensor's own memory where it is that already.
class Parameters {
 public:
  __attribute__((noinline)) Parameters(const void* data, int64_t type, int64_t width, float offset, float absent) {
    if (data && type == kFloat32 && offset == 0) {
      values_ = static_cast<const float*>(data);
      return;
    }
    storage_.reset(new float[width]);
    float* out = storage_.get();
    values_ = out;
    if (!data) {
      for (int64_t i = 0; i < width; ++i) out[i] = absent;
    } else if (type == kFloat32) {
      widen(static_cast<const float*>(data), width, offset);
    } else if (type == kBFloat16) {
      widen(static_cast<const bf16*>(data), width, offset);
    } else {
      widen(static_cast<const f16*>(data), width, offset);
    }
  }
  const float* get() const { return values_; }

 private:
  template <class T> void widen(const T* data, int64_t width, float offset) {
    float* out = storage_.get();
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) out[i] = load(data[i]) + offset;
  }
  std::unique_ptr<float[]> storage_;
  const float* values_;
};

// ---------------------------------------------------------------------------- RMSNorm, LayerNorm

struct Forward {
  const void *x, *residual, *weight, *bias;
  void *y, *total;
  float *mean, *rstd;
  int64_t rows, width, x_stride, residual_stride, x_type, y_type, weight_type, bias_type;
  int64_t centered, round_first;
  double eps, offset;
};

template <class X, class Y, bool Centered>
void forward_rows(const Forward& p) {
  const int64_t n = p.width;
  const Parameters weights(p.weight, p.weight_type, n, static_cast<float>(p.offset), 1.0f);
  const Parameters biases(p.bias, p.bias_type, Centered ? n : 0, 0.0f, 0.0f);
  const float *weight = weights.get(), *bias = biases.get();
  const float eps = static_cast<float>(p.eps), share = 1.0f / static_cast<float>(n);
#pragma omp parallel for schedule(static) if (p.rows * n > kParallelWork)
  for (int64_t row = 0; row < p.rows; ++row) {
    const X* x = static_cast<const X*>(p.x) + row * p.x_stride;
    Y* y = static_cast<Y*>(p.y) + row * n;
    if (p.residual) {
      const X* residual = static_cast<const X*>(p.residual) + row * p.residual_stride;
      X* total = static_cast<X*>(p.total) + row * n;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) total[i] = store<X>(load(x[i]) + load(residual[i]));
      x = total;
    }
    const float mean = Centered ? share * sum(n, [=](int64_t i) { return load(x[i]); }) : 0.0f;
    const float variance = share * sum(n, [=](int64_t i) {
      const float centered = load(x[i]) - mean;
      return centered * centered;
    });
    const float rstd = 1.0f / std::sqrt(variance + eps);
    if (p.mean) p.mean[row] = mean;
    if (p.rstd) p.rstd[row] = rstd;
    if (Centered) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) y[i] = store<Y>((load(x[i]) - mean) * rstd * weight[i] + bias[i]);
    } else if (p.round_first) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) y[i] = store<Y>(weight[i] * round_to<X>(load(x[i]) * rstd));
    } else {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) y[i] = store<Y>(load(x[i]) * rstd * weight[i]);
    }
  }
}

struct Backward {
  const void *grad, *grad_total, *x, *weight;
  const float *mean, *rstd;
  void* dx;
  float *dweight, *dbias;
  int64_t rows, width, x_type, grad_type, weight_type, centered;
  double offset;
};

// One zeroed row of float32 a thread, summed at the end in the threads' order: the same numbers for
// the same number of threads.
class Partials {
 public:
  Partials(int64_t threads, int64_t width) : width_(width), values_(new float[threads * width]) {}
  __attribute__((noinline)) float* row(int64_t thread) {
    float* out = values_.get() + thread * width_;
    std::memset(out, 0, sizeof(float) * static_cast<size_t>(width_));
    return out;
  }
  __attribute__((noinline)) void sum_into(float* out, int64_t threads) const {
    for (int64_t i = 0; i < width_; ++i) out[i] = 0;
    for (int64_t thread = 0; thread < threads; ++thread) {
      const float* partial = values_.get() + thread * width_;
#pragma omp simd
      for (int64_t i = 0; i < width_; ++i) out[i] += partial[i];
    }
  }

 private:
  int64_t width_;
  std::unique_ptr<float[]> values_;
};

template <class X, class G, bool Centered>
void backward_rows(const Backward& p) {
  const int64_t n = p.width, most = omp_get_max_threads();
  const Parameters weights(p.weight, p.weight_type, n, static_cast<float>(p.offset), 1.0f);
  const float *weight = weights.get(), share = 1.0f / static_cast<float>(n);
  Partials dweights(most, n), dbiases(most, Centered ? n : 0);
  int64_t threads = 1;
#pragma omp parallel if (p.rows * n > kParallelWork)
  {
    const int64_t thread = omp_get_thread_num(), team = omp_get_num_threads();
#pragma omp single
    threads = team;
    float *dweight = dweights.row(thread), *dbias = dbiases.row(thread);
    for (int64_t row = p.rows * thread / team; row < p.rows * (thread + 1) / team; ++row) {
      const X* x = static_cast<const X*>(p.x) + row * n;
      const G* grad = static_cast<const G*>(p.grad) + row * n;
      X* dx = static_cast<X*>(p.dx) + row * n;
      const float mean = Centered ? p.mean[row] : 0.0f, rstd = p.rstd[row];
      const float first = Centered ? share * sum(n, [=](int64_t i) { return load(grad[i]) * weight[i]; }) : 0.0f;
      const float second = share * rstd * sum(n, [=](int64_t i) {
        return load(grad[i]) * weight[i] * (load(x[i]) - mean);
      });
      const X* grad_total = p.grad_total ? static_cast<const X*>(p.grad_total) + row * n : nullptr;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        const float incoming = load(grad[i]), normalized = (load(x[i]) - mean) * rstd;
        dweight[i] += incoming * normalized;
        if (Centered) dbias[i] += incoming;
        float result = rstd * (incoming * weight[i] - first - normalized * second);
        if (grad_total) result += load(grad_total[i]);
        dx[i] = store<X>(result);
      }
    }
  }
  if (p.dweight) dweights.sum_into(p.dweight, threads);
  if (p.dbias) dbiases.sum_into(p.dbias, threads);
}

// ---------------------------------------------------------------------------- RMSNorm with a gate

struct Gated {
  const void *grad, *x, *gate, *weight;
  void *y, *dx, *dgate;
  float* dweight;
  int64_t rows, groups, width, x_stride, gate_stride, x_type, y_type, weight_type;
  int64_t sigmoid, gate_first, round_first, round_product;
  double eps;
};

// For one row of one group: the gate's activation, its derivative if `slope` is given, and `values`,
// which are what is normalized.
template <bool Slope, class X>
inline void open_gate(const Gated& p, const X* x, const X* gate, float* values, float* act, float* slope) {
  const int64_t n = p.width;
  const bool sigmoid = p.sigmoid;
  if (!gate) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) act[i] = 1.0f;  // no gate: nobody reads the slope
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const float g = load(gate[i]), s = 1.0f / (1.0f + exponential(-g));
      act[i] = sigmoid ? s : g * s;
      if (Slope) slope[i] = s * (sigmoid ? 1.0f - s : 1.0f + g * (1.0f - s));
    }
  }
  if (p.gate_first) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) values[i] = load(x[i]) * act[i];
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) values[i] = load(x[i]);
  }
}

inline float rstd_of(const float* values, int64_t n, double eps) {
  const float squares = sum(n, [=](int64_t i) { return values[i] * values[i]; });
  return 1.0f / std::sqrt(squares / static_cast<float>(n) + static_cast<float>(eps));
}

template <class X, class Y>
void gated_forward_rows(const Gated& p) {
  const int64_t n = p.width, row_width = n * p.groups, items = p.rows * p.groups;
  const Parameters weights(p.weight, p.weight_type, row_width, 0.0f, 1.0f);
#pragma omp parallel if (items * n > kParallelWork)
  {
    std::unique_ptr<float[]> scratch(new float[2 * n]);
    float *values = scratch.get(), *act = values + n;
#pragma omp for schedule(static)
    for (int64_t item = 0; item < items; ++item) {
      const int64_t row = item / p.groups, column = item % p.groups * n;
      const X* x = static_cast<const X*>(p.x) + row * p.x_stride + column;
      const X* gate = p.gate ? static_cast<const X*>(p.gate) + row * p.gate_stride + column : nullptr;
      const float* weight = weights.get() + column;
      Y* y = static_cast<Y*>(p.y) + row * row_width + column;
      open_gate<false>(p, x, gate, values, act, nullptr);
      const float rstd = rstd_of(values, n, p.eps);
      if (p.round_first) {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) values[i] = weight[i] * round_to<X>(values[i] * rstd);
      } else {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) values[i] = weight[i] * (values[i] * rstd);
      }
      if (p.gate_first) {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) y[i] = store<Y>(values[i]);
      } else if (p.round_product) {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) y[i] = store<Y>(round_to<X>(values[i]) * act[i]);
      } else {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) y[i] = store<Y>(values[i] * act[i]);
      }
    }
  }
}

template <class X, class G>
void gated_backward_rows(const Gated& p) {
  const int64_t n = p.width, row_width = n * p.groups;
  const Parameters weights(p.weight, p.weight_type, row_width, 0.0f, 1.0f);
  Partials dweights(omp_get_max_threads(), row_width);
  int64_t threads = 1;
#pragma omp parallel if (p.rows * row_width > kParallelWork)
  {
    const int64_t thread = omp_get_thread_num(), team = omp_get_num_threads();
#pragma omp single
    threads = team;
    std::unique_ptr<float[]> scratch(new float[4 * n]);
    float *values = scratch.get(), *act = values + n, *slope = act + n, *incoming = slope + n;
    float* dweight_row = dweights.row(thread);
    for (int64_t item = p.rows * thread / team * p.groups; item < p.rows * (thread + 1) / team * p.groups; ++item) {
      const int64_t row = item / p.groups, column = item % p.groups * n, here = row * row_width + column;
      const X* x = static_cast<const X*>(p.x) + row * p.x_stride + column;
      const X* gate = p.gate ? static_cast<const X*>(p.gate) + row * p.gate_stride + column : nullptr;
      const G* grad = static_cast<const G*>(p.grad) + here;
      X *dx = static_cast<X*>(p.dx) + here, *dgate = p.dgate ? static_cast<X*>(p.dgate) + here : nullptr;
      const float* weight = weights.get() + column;
      float* dweight = dweight_row + column;
      open_gate<true>(p, x, gate, values, act, slope);
      const float rstd = rstd_of(values, n, p.eps);
      const bool after = !p.gate_first;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        incoming[i] = load(grad[i]) * (after ? act[i] : 1.0f);
        dweight[i] += incoming[i] * values[i] * rstd;
      }
      const float dot = sum(n, [=](int64_t i) { return incoming[i] * weight[i] * values[i]; });
      const float pull = dot * rstd * rstd / static_cast<float>(n);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        const float dvalue = rstd * (incoming[i] * weight[i] - values[i] * pull);
        const float opened = after ? load(grad[i]) * weight[i] * values[i] * rstd : dvalue * load(x[i]);
        dx[i] = store<X>(after ? dvalue : dvalue * act[i]);
        if (dgate) dgate[i] = store<X>(opened * slope[i]);
      }
    }
  }
  if (p.dweight) dweights.sum_into(p.dweight, threads);
}

// ---------------------------------------------------------------------------- choice of types

// Calls `run` with a value of the input's type and one of the result's: the same, or float32.
template <class Run> void with_types(int64_t x_type, int64_t y_type, Run run) {
  if (x_type == kFloat32) run(float{}, float{});
  else if (x_type == kBFloat16 && y_type == kBFloat16) run(bf16{}, bf16{});
  else if (x_type == kBFloat16) run(bf16{}, float{});
  else if (y_type == kFloat16) run(f16{}, f16{});
  else run(f16{}, float{});
}

}  // namespace

extern "C" {

void norm_forward(const void* record) {
  const Forward& p = *static_cast<const Forward*>(record);
  with_types(p.x_type, p.y_type, [&](auto x, auto y) {
    if (p.centered) forward_rows<decltype(x), decltype(y), true>(p);
    else forward_rows<decltype(x), decltype(y), false>(p);
  });
}

void norm_backward(const void* record) {
  const Backward& p = *static_cast<const Backward*>(record);
  with_types(p.x_type, p.grad_type, [&](auto x, auto grad) {
    if (p.centered) backward_rows<decltype(x), decltype(grad), true>(p);
    else backward_rows<decltype(x), decltype(grad), false>(p);
  });
}

void gated_forward(const void* record) {
  const Gated& p = *static_cast<const Gated*>(record);
  with_types(p.x_type, p.y_type, [&](auto x, auto y) { gated_forward_rows<decltype(x), decltype(y)>(p); });
}

void gated_backward(const void* record) {
  const Gated& p = *static_cast<const Gated*>(record);
  with_types(p.x_type, p.y_type, [&](auto x, auto grad) { gated_backward_rows<decltype(x), decltype(grad)>(p); });
}

}  // extern "C"
