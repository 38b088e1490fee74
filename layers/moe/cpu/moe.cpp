// Gated experts, and the router's softmax and top-k, on the CPU.
//
// Weights lie as PyTorch has them, (experts, out, in); those of clamped experts as GPT-OSS has them, (experts, in, out).
// Tokens are sorted by expert first; then
//
//     1. h = activation(x gate^T) * (x up^T)     tasks: an expert and a block of columns
//     2. y = h down^T * routing weight
//     3. out = sum of a token's rows of y        one rounding, in the order of its experts' ranks
//
// run in one parallel region. h is rounded to the type of x, as PyTorch rounds it.
//
// Every function takes one record of 8-byte fields (packed by Python's struct module, in this order).

#include <omp.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>

#include "column_products.h"
#include "dot_products.h"
#include "exponential.h"

namespace {

// ---------------------------------------------------------------------------- experts

struct Experts {
  const void *x, *gate_up, *down;
  const int64_t* index;  // (tokens, picked)
  const void* weight;    // (tokens, picked), of weight_type
  void* out;
  int64_t tokens, picked, experts, width, inner, type, weight_type, activation;
};

template <class Record> inline float weight_at(const Record& p, int64_t at) {
  if (p.weight_type == kFloat32) return static_cast<const float*>(p.weight)[at];
  if (p.weight_type == kBFloat16) return load(static_cast<const bf16*>(p.weight)[at]);
  return load(static_cast<const f16*>(p.weight)[at]);
}

// Pairs (token, rank) in the order of their experts, tokens ascending.
struct Order {
  std::unique_ptr<int64_t[]> begin, pair, place;  // where each expert's pairs begin; pairs by place; places by pair
  int64_t wrong = -1;                             // a pair whose expert does not exist

  Order(const int64_t* index, int64_t pairs, int64_t experts)
      : begin(new int64_t[experts + 2]()), pair(new int64_t[pairs]), place(new int64_t[pairs]) {
    for (int64_t i = 0; i < pairs; ++i) {
      if (index[i] < 0 || index[i] > experts) {
        wrong = i;
        return;
      }
      ++begin[index[i] + 1];
    }
    for (int64_t e = 0; e <= experts; ++e) begin[e + 1] += begin[e];
    std::unique_ptr<int64_t[]> next(new int64_t[experts + 1]);
    std::memcpy(next.get(), begin.get(), sizeof(int64_t) * static_cast<size_t>(experts + 1));
    for (int64_t i = 0; i < pairs; ++i) pair[place[i] = next[index[i]]++] = i;
  }
};

// out = sum of a token's rows of y times their routing weights; within a parallel region.
template <class T, class Record> void sum_of_pairs(const Record& p, const Order& order, const float* y) {
#pragma omp for schedule(static)
  for (int64_t token = 0; token < p.tokens; ++token) {
    T* out = static_cast<T*>(p.out) + token * p.width;
    for (int64_t column = 0; column < p.width; column += kColumns) {
      const int64_t columns = p.width - column < kColumns ? p.width - column : kColumns;
      float sum[kColumns] = {};
      for (int64_t rank = 0; rank < p.picked; ++rank) {
        const int64_t pair = token * p.picked + rank;
        if (p.index[pair] == p.experts) continue;  // nobody's: another rank of an expert-parallel model has it
        const float weight = weight_at(p, pair);
        const float* from = y + order.place[pair] * p.width + column;
#pragma omp simd
        for (int64_t c = 0; c < columns; ++c) sum[c] += weight * from[c];
      }
#pragma omp simd
      for (int64_t c = 0; c < columns; ++c) out[column + c] = store<T>(sum[c]);
    }
  }
}

template <class To, class From> To as(From value) { return store<To>(load(value)); }

template <class T> int64_t run_experts(const Experts& p) {
  using X = OperandOf<T>;
  const int64_t pairs = p.tokens * p.picked, width = p.width, inner = p.inner;
  const Order order(p.index, pairs, p.experts);
  if (order.wrong >= 0) return order.wrong;
  const int64_t* begin = order.begin.get();
  std::unique_ptr<X[]> hidden(new X[pairs * inner]), copy;
  std::unique_ptr<float[]> y(new float[pairs * width]);
  const X* x = static_cast<const X*>(p.x);
  if (!std::is_same<X, T>::value) {
    copy.reset(new X[p.tokens * width]);
    const T* from = static_cast<const T*>(p.x);
    for (int64_t i = 0; i < p.tokens * width; ++i) copy[i] = as<X>(from[i]);
    x = copy.get();
  }
  const T *gate_up = static_cast<const T*>(p.gate_up), *down = static_cast<const T*>(p.down);
  const int64_t inner_blocks = (inner + kColumns - 1) / kColumns, blocks = (width + kColumns - 1) / kColumns;
#pragma omp parallel if (pairs * width * inner > kParallelWork)
  {
    float gate[kOperands * kColumns], up[kOperands * kColumns];
    const X* at[kOperands];
#pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < p.experts * inner_blocks; ++task) {
      const int64_t e = task / inner_blocks, column = task % inner_blocks * kColumns;
      const int64_t columns = inner - column < kColumns ? inner - column : kColumns;
      const T* rows = gate_up + (e * 2 * inner + column) * width;
      for (int64_t first = begin[e]; first < begin[e + 1]; first += kOperands) {
        const int64_t count = begin[e + 1] - first < kOperands ? begin[e + 1] - first : kOperands;
        for (int64_t t = 0; t < count; ++t) at[t] = x + order.pair[first + t] / p.picked * width;
        product<T>(at, count, rows, columns, width, gate, kColumns);
        product<T>(at, count, rows + inner * width, columns, width, up, kColumns);
        for (int64_t t = 0; t < count; ++t) {
          float *g = gate + t * kColumns, *u = up + t * kColumns;
          X* h = hidden.get() + (first + t) * inner + column;
          activate(g, columns, p.activation);
#pragma omp simd
          for (int64_t c = 0; c < columns; ++c) h[c] = store<X>(load(store<T>(g[c] * u[c])));
        }
      }
    }
#pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < p.experts * blocks; ++task) {
      const int64_t e = task / blocks, column = task % blocks * kColumns;
      const int64_t columns = width - column < kColumns ? width - column : kColumns;
      for (int64_t first = begin[e]; first < begin[e + 1]; first += kOperands) {
        const int64_t count = begin[e + 1] - first < kOperands ? begin[e + 1] - first : kOperands;
        for (int64_t t = 0; t < count; ++t) at[t] = hidden.get() + (first + t) * inner;
        product<T>(at, count, down + (e * width + column) * inner, columns, inner, y.get() + first * width + column,
                   width);
      }
    }
    sum_of_pairs<T>(p, order, y.get());
  }
  return -1;
}

// ---------------------------------------------------------------------------- clamped experts

struct ClampedExperts {
  const void *x, *gate_up, *gate_up_bias, *down, *down_bias;
  const int64_t* index;
  const void* weight;
  void* out;
  int64_t tokens, picked, experts, width, inner, type, weight_type;
  double alpha, limit;
};

constexpr int64_t kClamped = 128;  // columns of a task

// (clamp(up, -limit, limit) + 1) g sigmoid(alpha g) of g = min(gate, limit); NaN stays NaN, as clamp has it.
inline float clamped_gate(float gate, float up, float alpha, float limit) {
  gate = gate > limit ? limit : gate;
  up = up > limit ? limit : up < -limit ? -limit : up;
  return (up + 1.0f) * gate * sigmoid(alpha * gate);
}

template <class T> int64_t run_clamped(const ClampedExperts& p) {
  const int64_t pairs = p.tokens * p.picked, width = p.width, inner = p.inner;
  const Order order(p.index, pairs, p.experts);
  if (order.wrong >= 0) return order.wrong;
  const int64_t* begin = order.begin.get();
  std::unique_ptr<float[]> x(new float[p.tokens * width]), hidden(new float[pairs * inner]), y(new float[pairs * width]);
  for (int64_t i = 0; i < p.tokens * width; ++i) x[i] = load(static_cast<const T*>(p.x)[i]);
  const T *gate_up = static_cast<const T*>(p.gate_up), *gate_up_bias = static_cast<const T*>(p.gate_up_bias);
  const T *down = static_cast<const T*>(p.down), *down_bias = static_cast<const T*>(p.down_bias);
  const float alpha = static_cast<float>(p.alpha), limit = static_cast<float>(p.limit);
  const int64_t inner_blocks = (inner + kClamped - 1) / kClamped, blocks = (width + kClamped - 1) / kClamped;
#pragma omp parallel if (pairs * width * inner > kParallelWork)
  {
    float both[kOperands * 2 * kClamped];  // a gate and an up in turn
    const float* at[kOperands];
#pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < p.experts * inner_blocks; ++task) {
      const int64_t e = task / inner_blocks, column = task % inner_blocks * kClamped;
      const int64_t columns = inner - column < kClamped ? inner - column : kClamped;
      const T* weights = gate_up + e * width * 2 * inner + 2 * column;
      const T* bias = gate_up_bias + e * 2 * inner + 2 * column;
      for (int64_t first = begin[e]; first < begin[e + 1]; first += kOperands) {
        const int64_t count = begin[e + 1] - first < kOperands ? begin[e + 1] - first : kOperands;
        for (int64_t t = 0; t < count; ++t) at[t] = x.get() + order.pair[first + t] / p.picked * width;
        column_product<T>(at, count, weights, 2 * inner, 2 * columns, width, both, 2 * kClamped);
        for (int64_t t = 0; t < count; ++t) {
          const float* pre = both + t * 2 * kClamped;
          float* h = hidden.get() + (first + t) * inner + column;
#pragma omp simd
          for (int64_t c = 0; c < columns; ++c) {
            const float gate = pre[2 * c] + load(bias[2 * c]), up = pre[2 * c + 1] + load(bias[2 * c + 1]);
            h[c] = load(store<T>(clamped_gate(gate, up, alpha, limit)));
          }
        }
      }
    }
#pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < p.experts * blocks; ++task) {
      const int64_t e = task / blocks, column = task % blocks * kClamped;
      const int64_t columns = width - column < kClamped ? width - column : kClamped;
      const T* bias = down_bias + e * width + column;
      for (int64_t first = begin[e]; first < begin[e + 1]; first += kOperands) {
        const int64_t count = begin[e + 1] - first < kOperands ? begin[e + 1] - first : kOperands;
        for (int64_t t = 0; t < count; ++t) at[t] = hidden.get() + (first + t) * inner;
        float* rows = y.get() + first * width + column;
        column_product<T>(at, count, down + e * inner * width + column, width, columns, inner, rows, width);
        for (int64_t t = 0; t < count; ++t)
          for (int64_t c = 0; c < columns; ++c) rows[t * width + c] += load(bias[c]);
      }
    }
    sum_of_pairs<T>(p, order, y.get());
  }
  return -1;
}

struct ClampedGates {
  const void* pre;  // (count, 2): a gate and an up in turn
  void* out;        // (count,)
  int64_t count, type;
  double alpha, limit;
};

template <class T> void run_gates(const ClampedGates& p) {
  const T* pre = static_cast<const T*>(p.pre);
  T* out = static_cast<T*>(p.out);
  const float alpha = static_cast<float>(p.alpha), limit = static_cast<float>(p.limit);
#pragma omp parallel for simd schedule(static) if (p.count > kParallelWork)
  for (int64_t i = 0; i < p.count; ++i)
    out[i] = store<T>(clamped_gate(load(pre[2 * i]), load(pre[2 * i + 1]), alpha, limit));
}

// ---------------------------------------------------------------------------- router

struct Router {
  const void* logits;
  void* score;
  int64_t* index;
  int64_t tokens, experts, picked, type, score_type, renormalise;
};

template <class T, class S> void route(const Router& p) {
#pragma omp parallel if (p.tokens * p.experts > kParallelWork)
  {
    std::unique_ptr<float[]> scratch(new float[p.experts]);
    float* e = scratch.get();
#pragma omp for schedule(static)
    for (int64_t token = 0; token < p.tokens; ++token) {
      const T* x = static_cast<const T*>(p.logits) + token * p.experts;
      float most = load(x[0]), sum = 0;
      for (int64_t i = 1; i < p.experts; ++i) most = load(x[i]) > most ? load(x[i]) : most;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < p.experts; ++i) sum += e[i] = exponential(load(x[i]) - most);
      S* score = static_cast<S*>(p.score) + token * p.picked;
      int64_t* index = p.index + token * p.picked;
      float picked[64], share = 0;
      for (int64_t rank = 0; rank < p.picked; ++rank) {  // the first of equals; NaN before all, as torch.topk
        int64_t best = -1;
        for (int64_t i = 0; i < p.experts; ++i)
          if (e[i] != -1.0f && (best < 0 || e[i] > e[best] || (e[i] != e[i] && e[best] == e[best]))) best = i;
        picked[rank] = e[best] / sum;
        share += picked[rank];
        index[rank] = best;
        e[best] = -1.0f;
      }
      for (int64_t rank = 0; rank < p.picked; ++rank)
        score[rank] = store<S>(p.renormalise ? picked[rank] / share : picked[rank]);
    }
  }
}

template <class T> void route_as(const Router& p) {
  if (p.score_type == kFloat32) route<T, float>(p);
  else route<T, T>(p);
}

}  // namespace

extern "C" {

// The pair whose expert does not exist, or -1.
int64_t moe_experts(const void* record) {
  const Experts& p = *static_cast<const Experts*>(record);
  if (p.type == kFloat32) return run_experts<float>(p);
  return p.type == kBFloat16 ? run_experts<bf16>(p) : run_experts<f16>(p);
}

int64_t moe_clamped_experts(const void* record) {
  const ClampedExperts& p = *static_cast<const ClampedExperts*>(record);
  if (p.type == kFloat32) return run_clamped<float>(p);
  return p.type == kBFloat16 ? run_clamped<bf16>(p) : run_clamped<f16>(p);
}

void moe_clamped_gates(const void* record) {
  const ClampedGates& p = *static_cast<const ClampedGates*>(record);
  if (p.type == kFloat32) run_gates<float>(p);
  else if (p.type == kBFloat16) run_gates<bf16>(p);
  else run_gates<f16>(p);
}

void moe_route(const void* record) {
  const Router& p = *static_cast<const Router*>(record);
  if (p.type == kFloat32) route_as<float>(p);
  else if (p.type == kBFloat16) route_as<bf16>(p);
  else route_as<f16>(p);
}

}  // extern "C"
