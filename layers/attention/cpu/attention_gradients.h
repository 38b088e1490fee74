// The gradients of attention in float32, from the statistics of its rows: no matrix of weights in memory.
//
//   P = exp(S - maximum) / sum       dP = dO V^T       dS = P (dP - delta) c       delta = rowsum(dO O)
//   dV = P^T dO                      dK = dS^T (scale Q)                           dQ = scale dS K
//
// (c: the derivative of a softcap.) A task is one head of keys with the queries of all heads that share it, so
// every sum has one owner, and the order of summation does not depend on the number of threads. All five products
// run on the microkernels of gemm.h; those over queries are computed transposed, so that P and dS are written once,
// in the order in which the kernels read a right operand.
// Source: Dao et al., arXiv 2205.14135 (FlashAttention), algorithm 4.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "attention.h"

KH_NAMESPACE {

inline constexpr int64_t kBand = 8 * kRows;  // queries whose weights are in memory at once
inline constexpr int64_t kBandLines = round_up(kBand, kLine);


// scores(b, h, i, j, count, s, c) changes the scaled scores s in place, and multiplies c by the derivative of what it
// did to each of them.
template <class Scores>
class HeadGradients {
 public:
  HeadGradients(const AttentionShape& shape, Heads<const float> q, Heads<const float> k, Heads<const float> v,
                Heads<const float> out, Heads<const float> grad, float scale, Scores& scores, Heads<float> dq,
                Heads<float> dk, Heads<float> dv)
      : shape_(shape), q_(q), k_(k), v_(v), out_(out), grad_(grad), scale_(scale), scores_of_(scores), dq_(dq),
        dk_(dk), dv_(dv), rows_(shape.group() * shape.lq), d_(shape.d), dv_width_(shape.dv),
        deep_(round_up(shape.d, kLine)), deep_v_(round_up(shape.dv, kLine)), wide_(round_up(shape.d, kPanel)) {}

  void run(int64_t b, int64_t kv) {
    b_ = b, kv_ = kv;
    take_memory();
    read_rows();
    std::fill_n(query_gradients_, rows_ * wide_, 0.0f);
    for (int64_t j = 0; j < shape_.lk; j += kKeys) key_block(j, std::min(kKeys, shape_.lk - j));
    for (int64_t r = 0; r < rows_; ++r) {
      float* const to = dq_.at(b_, head_of(r), r % shape_.lq);
      const float* const from = query_gradients_ + r * wide_;
      if (dq_.stride[3] == 1) {
        for (int64_t e = 0; e < d_; ++e) to[e] = scale_ * from[e];
      } else {
        for (int64_t e = 0; e < d_; ++e) to[e * dq_.stride[3]] = scale_ * from[e];
      }
    }
  }

 private:
  int64_t head_of(int64_t r) const { return kv_ * shape_.group() + r / shape_.lq; }
  // Where row r stands in the statistics.
  int64_t place_of(int64_t r) const { return (b_ * shape_.heads + head_of(r)) * shape_.lq + r % shape_.lq; }

  void take_memory() {
    const int64_t bands = ceil_div(rows_, kBand), lines = round_up(rows_, kLine);
    float* next = workspace<Use::kAttention>().floats(
        rows_ * (deep_ + deep_v_ + wide_) + bands * kBandLines * (d_ + dv_width_) + 2 * lines +
        kKeys * (2 * d_ + 2 * wide_ + 2 * dv_width_) + 5 * kBandLines * kKeys + 32 * kLine);
    const auto take = [&next](int64_t count) { return std::exchange(next, next + round_up(count, kLine)); };
    queries_ = take(rows_ * deep_), grads_ = take(rows_ * deep_v_), query_gradients_ = take(rows_ * wide_);
    queries_across_ = take(bands * kBandLines * d_), grads_across_ = take(bands * kBandLines * dv_width_);
    delta_ = take(rows_);
    keys_across_ = take(kKeys * d_), values_across_ = take(kKeys * dv_width_), keys_ = take(kKeys * wide_);
    key_gradients_ = take(kKeys * d_), value_gradients_ = take(kKeys * dv_width_);
    scores_ = take(kBandLines * kKeys), slopes_ = take(kBandLines * kKeys);
    weights_ = take(kBandLines * kKeys), changes_ = take(kBandLines * kKeys);
    change_lines_ = take(kBandLines * kKeys);
  }

  // Scaled queries and output gradients, each as rows and across (a row of theirs is a feature of all queries).
  void read_rows() {
    for (int64_t first = 0; first < rows_; first += kBand) {
      const int64_t count = std::min(kBand, rows_ - first), band = first / kBand;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t r = first + i, h = head_of(r), query = r % shape_.lq;
        const int64_t r0 = first + i / kRows * kRows, height = std::min(kRows, rows_ - r0);
        const float *const q = q_.at(b_, h, query), *const g = grad_.at(b_, h, query);
        const float* const o = out_.at(b_, h, query);
        put_row(q, q_.stride[3], scale_, d_, queries_ + r0 * deep_ + (r - r0) * kLine, height);
        put_row(g, grad_.stride[3], 1.0f, dv_width_, grads_ + r0 * deep_v_ + (r - r0) * kLine, height);
        put_across(q, q_.stride[3], scale_, d_, i, queries_across_ + band * kBandLines * d_);
        put_across(g, grad_.stride[3], 1.0f, dv_width_, i, grads_across_ + band * kBandLines * dv_width_);
        float sum = 0.0f;
        if (grad_.stride[3] == 1 && out_.stride[3] == 1) {
#pragma omp simd reduction(+ : sum)
          for (int64_t e = 0; e < dv_width_; ++e) sum += g[e] * o[e];
        } else {
          for (int64_t e = 0; e < dv_width_; ++e) sum += g[e * grad_.stride[3]] * o[e * out_.stride[3]];
        }
        delta_[r] = sum;
      }
    }
  }

  static void put_row(const float* from, int64_t step, float factor, int64_t width, float* to, int64_t height) {
    int64_t e = 0;
    if (step == 1) {
      for (; e + kLanes <= width; e += kLanes)
        store(to + e / kLine * kLine * height + e % kLine, load(from + e) * factor);
    }
    for (; e < width; ++e) to[e / kLine * kLine * height + e % kLine] = from[e * step] * factor;
  }

  // Query i of a band: its features are rows, in blocks of kRows.
  static void put_across(const float* from, int64_t step, float factor, int64_t width, int64_t i, float* to) {
    for (int64_t e0 = 0; e0 < width; e0 += kRows) {
      const int64_t height = std::min(kRows, width - e0);
      float* const block = to + e0 * kBandLines + i / kLine * kLine * height + i % kLine;
      if (height == kRows) {
        KH_UNROLL(16)
        for (int64_t e = 0; e < kRows; ++e) block[e * kLine] = from[(e0 + e) * step] * factor;
      } else {
        for (int64_t e = 0; e < height; ++e) block[e * kLine] = from[(e0 + e) * step] * factor;
      }
    }
  }

  void key_block(int64_t j, int64_t count) {
    const int64_t padded = round_up(count, kPanel);
    for (int64_t x = 0; x < count; x += kPanel) {
      const int64_t columns = std::min(kPanel, count - x);
      pack_panel(k_.at(b_, kv_, j + x), d_, columns, kPanel, k_.stride[3], k_.stride[2], keys_across_ + x * d_);
      pack_panel(v_.at(b_, kv_, j + x), dv_width_, columns, kPanel, v_.stride[3], v_.stride[2],
                 values_across_ + x * dv_width_);
    }
    for (int64_t e = 0; e < d_; e += kPanel)
      pack_panel(k_.at(b_, kv_, j) + e * k_.stride[3], count, std::min(kPanel, d_ - e), kPanel, k_.stride[2],
                 k_.stride[3], keys_ + e * count);
    std::fill_n(key_gradients_, d_ * kKeys, 0.0f);
    std::fill_n(value_gradients_, dv_width_ * kKeys, 0.0f);
    for (int64_t first = 0; first < rows_; first += kBand) band(first, j, count, padded);
    write_across(key_gradients_, d_, count, dk_.at(b_, kv_, j), dk_.stride[2], dk_.stride[3]);
    write_across(value_gradients_, dv_width_, count, dv_.at(b_, kv_, j), dv_.stride[2], dv_.stride[3]);
  }

  // to (count, width) = the transpose of sums (width, kKeys)
  static void write_across(const float* sums, int64_t width, int64_t count, float* to, int64_t row, int64_t step) {
    const int64_t whole_e = step == 1 ? width / kLanes * kLanes : 0, whole_x = count / kLanes * kLanes;
    for (int64_t e = 0; e < whole_e; e += kLanes) {
      for (int64_t x = 0; x < whole_x; x += kLanes) transpose(sums + e * kKeys + x, kKeys, to + x * row + e, row);
    }
    for (int64_t x = 0; x < count; ++x) {
      for (int64_t e = x < whole_x ? whole_e : 0; e < width; ++e) to[x * row + e * step] = sums[e * kKeys + x];
    }
  }

  // Rows first .. first + kBand with keys j .. j + count.
  void band(int64_t first, int64_t j, int64_t count, int64_t padded) {
    const int64_t height = std::min(kBand, rows_ - first), number = first / kBand;
    int64_t seen = 0;
    for (int64_t r = first; r < first + height; ++r) seen = std::max(seen, shape_.visible(r % shape_.lq) - j);
    if (seen <= 0) return;
    for (int64_t i = 0; i < height; i += kRows) {
      const int64_t rows = std::min(kRows, height - i);
      for (int64_t x = 0; x < padded; x += kPanel) {
        kKernels[1][rows - 1](d_, queries_ + (first + i) * deep_, keys_across_ + x * d_, scores_ + i * kKeys + x,
                              kKeys, false);
        kKernels[1][rows - 1](dv_width_, grads_ + (first + i) * deep_v_, values_across_ + x * dv_width_,
                              slopes_ + i * kKeys + x, kKeys, false);
      }
      for (int64_t r = 0; r < rows; ++r) row(first + i + r, i + r, r, rows, j, count, padded, height);
      for (int64_t e = 0; e < d_; e += kPanel)
        kKernels[1][rows - 1](count, change_lines_, keys_ + e * count, query_gradients_ + (first + i) * wide_ + e,
                              wide_, true);
    }
    across(number, height, padded, dv_width_, grads_across_, weights_, value_gradients_);
    across(number, height, padded, d_, queries_across_, changes_, key_gradients_);
  }

  // sums (width, keys) += left (width, height of the band) @ right (height, keys)
  static void across(int64_t number, int64_t height, int64_t padded, int64_t width, const float* left,
                     const float* right, float* sums) {
    for (int64_t e = 0; e < width; e += kRows) {
      const int64_t rows = std::min(kRows, width - e);
      for (int64_t x = 0; x < padded; x += kPanel)
        kKernels[1][rows - 1](height, left + number * kBandLines * width + e * kBandLines, right + x * height,
                              sums + e * kKeys + x, kKeys, true);
    }
  }

  // The weights of row r, which is row `i` of its band and row `line` of the `lines` that one kernel takes, and the
  // gradients of its scores.
  void row(int64_t r, int64_t i, int64_t line, int64_t lines, int64_t j, int64_t count, int64_t padded,
           int64_t height) {
    const int64_t query = r % shape_.lq, statistics = shape_.batch * shape_.heads * shape_.lq;
    const int64_t seen = std::clamp<int64_t>(shape_.visible(query) - j, 0, count);
    float *const scores = scores_ + i * kKeys, *const slopes = slopes_ + i * kKeys;
    alignas(64) float factor[kKeys];
    std::fill_n(factor, padded, 1.0f);
    scores_of_(b_, head_of(r), query, j, count, scores, factor);
    for (int64_t x = seen; x < padded; ++x) scores[x] = -kInfinity, slopes[x] = 0.0f, factor[x] = 0.0f;
    const float maximum = shape_.statistics[place_of(r)], share = shape_.statistics[place_of(r) + statistics];
    const float delta = delta_[r];
    for (int64_t x = 0; x < padded; x += kPanel) {
      float *const weights = weights_ + x * height + i * kPanel, *const changes = changes_ + x * height + i * kPanel;
#pragma omp simd
      for (int64_t y = 0; y < kPanel; ++y) {
        const float weight = exp_falling(scores[x + y] - maximum) * share;
        weights[y] = weight;
        changes[y] = weight * (slopes[x + y] - delta) * factor[x + y];
      }
      constexpr int64_t piece = std::min(kPanel, kLine);  // of four lanes a panel is half a line
      for (int64_t y = 0; y < kPanel; y += piece) {
        const int64_t key = x + y, at = piece == kLine ? key * lines : key / kLine * kLine * lines + key % kLine;
        std::copy_n(changes + y, piece, change_lines_ + at + line * kLine);
      }
    }
  }

  const AttentionShape& shape_;
  Heads<const float> q_, k_, v_, out_, grad_;
  float scale_;
  Scores& scores_of_;
  Heads<float> dq_, dk_, dv_;
  int64_t rows_, d_, dv_width_, deep_, deep_v_, wide_;
  int64_t b_ = 0, kv_ = 0;
  float *queries_, *grads_, *queries_across_, *grads_across_, *query_gradients_, *delta_;
  float *keys_across_, *values_across_, *keys_, *key_gradients_, *value_gradients_;
  float *scores_, *slopes_, *weights_, *changes_, *change_lines_;
};

// All arguments as in attention(); out, grad and shape.statistics are of the forward pass; dq, dk, dv are written.
template <class Scores>
void attention_gradients(const AttentionShape& shape, Heads<const float> q, Heads<const float> k,
                         Heads<const float> v, Heads<const float> out, Heads<const float> grad, float scale,
                         Scores&& scores, Heads<float> dq, Heads<float> dk, Heads<float> dv) {
  const int64_t tasks = shape.batch * shape.kv_heads, rows = shape.group() * shape.lq;
  const int64_t team = tasks * rows * shape.lk * (shape.d + shape.dv) < kAlone ? 1 : threads();
  parallel_tasks(tasks, team, [&](Tickets& tickets) {
    HeadGradients task(shape, q, k, v, out, grad, scale, scores, dq, dk, dv);
    for (int64_t ticket; (ticket = tickets.next()) >= 0;) task.run(ticket / shape.kv_heads, ticket % shape.kv_heads);
  });
}

}  // namespace kh
