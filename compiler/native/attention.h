// softmax(scale q k^T + mask) v in float32, without the matrix of scores in memory; also with the scores themselves as
// weights, and the logarithm of a row's sum of exponentials alone: see Weights in reach.h. Where the processor has
// tiles (gemm_amx.h), both products of bfloat16 are on them, added up in float32: weights are rounded to bfloat16, as
// PyTorch does.
//
// A task has some rows (queries of the heads that share one head of keys), goes through the keys in blocks that
// stay in cache, and keeps for each row the maximum so far, the sum of exponentials and the unnormalised output,
// which it rescales when the maximum grows. Both products run on the microkernels of gemm.h; the weights are
// written straight in the order in which those read them. One or a few queries (decoding) read k and v in place,
// and share the keys among threads where there are few heads.
// Sources: Milakov & Gimelshein, arXiv 1805.02867 (online softmax); Dao et al., arXiv 2205.14135
// (FlashAttention); Flash-Decoding (2023) for the split over keys.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "gemm_amx.h"
#include "reach.h"
#include "vector_math.h"

KH_NAMESPACE {

// heads is a multiple of kv_heads. With `causal`, query i sees keys 0 .. i + causal_offset.
struct AttentionShape {
  int64_t batch, heads, kv_heads, lq, lk, d, dv;
  bool causal;
  int64_t causal_offset;
  bool blank = false;  // a row that has nothing but -inf gives 0, not NaN
  float* statistics = nullptr;  // (2, batch, heads, lq): each row's maximum, and 1 / its sum; 0, 0 of a blank one
  Reaches reaches{};            // of the mask, where it was looked at
  Weights weights = Weights::kSoftmax;

  int64_t group() const { return heads / kv_heads; }
  // How many of the keys query i sees.
  int64_t visible(int64_t i) const {
    return causal ? std::clamp<int64_t>(i + causal_offset + 1, 0, lk) : lk;
  }
  // The keys that query i of head h may see; `all`: its scores need no mask.
  Reach reach(int64_t b, int64_t h, int64_t i) const {
    const int32_t last = static_cast<int32_t>(visible(i));
    if (reaches.of == nullptr) return {0, last, false};
    const Reach& of = reaches.at(b, h, i);
    return {std::min(of.first, last), std::min(of.last, last), of.all && reaches.plain};
  }
  // For a backward pass: the weights of row i are exp(score - maximum) / sum.
  void note(int64_t b, int64_t h, int64_t i, float maximum, float sum) const {
    if (statistics == nullptr) return;
    float* const to = statistics + (b * heads + h) * lq + i;
    to[0] = maximum == -kInfinity ? 0.0f : maximum;
    to[batch * heads * lq] = sum == 0.0f ? 0.0f : 1.0f / sum;
  }
};

// A tensor (batch, heads, length, width) with strides in elements.
template <class T>
struct Heads {
  T* data;
  const int64_t* stride;
  T* at(int64_t b, int64_t h, int64_t i) const { return data + b * stride[0] + h * stride[1] + i * stride[2]; }
};

struct NoMask {
  void operator()(int64_t, int64_t, int64_t, int64_t, int64_t, float*) const {}
};

inline constexpr int64_t kKeys = 128;       // of a block
inline constexpr int64_t kTaskRows = 448;   // at most
inline constexpr int64_t kFewRows = 4;      // up to so many read k and v in place

inline constexpr float kLog2E = 1.44269504f;  // powers of 2 take fewer operations than those of e

// Where either is NaN: b.
KH_INLINE vfloat larger(vfloat a, vfloat b) { return a > b ? a : b; }

KH_INLINE float largest_of(vfloat x) {
  constexpr std::make_integer_sequence<int, static_cast<int>(kLanes)> order;
  KH_UNROLL(4)
  for (int64_t step = 1; step < kLanes; step *= 2)
    x = larger(interleave<false>(x, x, order), interleave<true>(x, x, order));
  return x[0];
}

KH_INLINE float largest(const float* x, int64_t count, float start) {
  vfloat high = splat(start);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) high = larger(high, load(x + i));
  float result = largest_of(high);
  for (; i < count; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

// What exponents are taken relative to: a row that saw only -inf has no maximum.
KH_INLINE float finite_or_zero(float maximum) { return maximum == -kInfinity ? 0.0f : maximum; }

// exp(score - base), for a base that no score of the row exceeds. Of rows that are infinite themselves, a sum of powers
// counts what is as large as the base; in a softmax they give NaN.
KH_INLINE float total_power(float score, float base) {
  return score == kInfinity ? 1.0f : exp2_falling((score - base) * kLog2E);
}

// The logarithm of a row's sum of exponentials, of its maximum and the sum relative to that.
KH_INLINE float log_of_total(float maximum, float sum) { return finite_or_zero(maximum) + std::log(sum); }

// One task: rows first .. first + rows of head `kv` of batch b; row r is query r % lq of head r / lq of the group.
// Elements: Floats, or Amx of bf16, of which a float of an operand holds two: of a query, a key, a row's weights.
template <class Elements, class T, class Mask>
class RowsAttention {
  static constexpr int64_t kOfOne = sizeof(float) / sizeof(T);                  // elements in a float
  static constexpr int64_t kHigh = Elements::kBlock;                            // rows of a block
  static constexpr int64_t kRowLanes = round_up(kHigh, kLanes);                 // of a block's rows, a row a lane

 public:
  RowsAttention(const AttentionShape& shape, Heads<const T> q, Heads<const T> k, Heads<const T> v, float scale,
                Mask& mask, Heads<float> out)
      : shape_(shape), q_(q), k_(k), v_(v), scale_(scale), mask_(mask), out_(out), depth_(ceil_div(shape.d, kOfOne)),
        deep_(round_up(depth_, kLine)), wide_(round_up(shape.dv, kLanes)) {}

  void run(int64_t b, int64_t kv, int64_t first, int64_t rows) {
    b_ = b, kv_ = kv, count_ = rows;
    const int64_t lanes = place(round_up(rows, kHigh));
    float* next = workspace<Use::kAttention>().floats(rows * (deep_ + wide_ + kLanes) + lanes +
                                                      kKeys * (deep_ + wide_ + 2 * kHigh) + 9 * kLanes);
    const auto take = [&next](int64_t count) { return std::exchange(next, next + round_up(count, kLanes)); };
    queries_ = take(rows * deep_), outputs_ = take(rows * wide_), sums_ = take(rows * kLanes);
    keys_ = take(kKeys * deep_), values_ = take(kKeys * wide_);
    scores_ = take(kKeys * kHigh), weights_ = take(kKeys * kHigh), maxima_ = take(lanes);
    rows_.clear(), blocks_.clear();
    int64_t head = kv * shape_.group() + first / shape_.lq, query = first % shape_.lq;
    for (int64_t r = 0; r < rows; ++r) {
      rows_.push_back({head, query, shape_.reach(b, head, query)});
      if (++query == shape_.lq) query = 0, ++head;
    }
    int64_t from = shape_.lk, to = 0;
    for (int64_t r = 0; r < rows; r += kHigh) {
      blocks_.push_back(seen(r, std::min(kHigh, rows - r)));
      from = std::min(from, blocks_.back().from), to = std::max(to, blocks_.back().to);
    }
    start();
    for (int64_t j = from; j < to; j += kKeys) {
      const int64_t count = std::min(kKeys, to - j);
      load_keys(j, count);
      for (int64_t r = 0; r < rows; r += kHigh) block(r, std::min(kHigh, rows - r), j, count);
    }
    write();
  }

 private:
  struct Row {
    int64_t head, query;
    Reach keys;
  };
  // Rows that are multiplied together.
  struct Block {
    int64_t from, to;    // the keys that any of them sees lie between
    bool begun = false;  // whether they have outputs
  };

  Block seen(int64_t r0, int64_t rows) const {
    Block all{shape_.lk, 0};
    for (int64_t r = r0; r < r0 + rows; ++r) {
      const Reach& of = rows_[r].keys;
      if (of.first < of.last) all = {std::min<int64_t>(all.from, of.first), std::max<int64_t>(all.to, of.last)};
    }
    return all;
  }

  // Queries in lines, as the kernels read a left operand, floats scaled; nothing seen yet.
  void start() {
    for (int64_t r0 = 0; r0 < count_; r0 += kHigh) {
      const int64_t height = std::min(kHigh, count_ - r0);
      for (int64_t r = 0; r < height; ++r) {
        const T* const from = q_.at(b_, rows_[r0 + r].head, rows_[r0 + r].query);
        load_query(from, height, queries_ + r0 * deep_ + r * kLine);
      }
    }
    std::fill_n(sums_, count_ * kLanes, 0.0f);
    std::fill_n(maxima_, place(round_up(count_, kHigh)), -kInfinity);
  }

  void load_query(const float* from, int64_t height, float* to) const {
    int64_t i = 0;
    if (q_.stride[3] == 1) {
      for (; i + kLanes <= depth_; i += kLanes)
        store(to + i / kLine * kLine * height + i % kLine, load(from + i) * scale_);
    }
    for (; i < depth_; ++i) to[i / kLine * kLine * height + i % kLine] = from[i * q_.stride[3]] * scale_;
  }
  void load_query(const bf16* from, int64_t height, float* to) const {
    for (int64_t i = 0; i < depth_; i += kLine)
      std::memcpy(to + i * height, from + 2 * i, std::min(kLine, depth_ - i) * sizeof(float));
  }

  void load_keys(int64_t j, int64_t count) {
    const T* const keys = k_.at(b_, kv_, j);
    const T* const values = v_.at(b_, kv_, j);
    for (int64_t i = 0; i < count; i += kPanel) {
      // Pairs of a key lie beside one another, and are moved as floats are.
      pack_panel(reinterpret_cast<const float*>(keys + i * k_.stride[2]), depth_, std::min(kPanel, count - i),
                 panel_width(count, i), k_.stride[3], k_.stride[2] / kOfOne, keys_ + i * depth_);
    }
    for (int64_t i = 0; i < shape_.dv; i += kPanel) {
      const int64_t columns = std::min(kPanel, shape_.dv - i), width = panel_width(shape_.dv, i);
      float* const to = values_ + i * ceil_div(count, kOfOne);
      if constexpr (kOfOne == 1) {
        pack_panel(values + i * v_.stride[3], count, columns, width, v_.stride[2], v_.stride[3], to);
      } else {
        pack_value_pairs(values + i, count, columns, width, to);
      }
    }
  }

  // Pairs of values of two keys, one after the other: of an odd count the last has a zero.
  void pack_value_pairs(const bf16* from, int64_t count, int64_t columns, int64_t width, float* to) const {
    for (int64_t key = 0; key < count; key += 2, from += 2 * v_.stride[2], to += width) {
      const bf16* const second = key + 1 < count ? from + v_.stride[2] : nullptr;
      uint32_t pairs[kPanel] = {};
      if (second != nullptr) {
#pragma omp simd
        for (int64_t x = 0; x < columns; ++x) pairs[x] = uint32_t{from[x].bits} | uint32_t{second[x].bits} << 16;
      } else {
        for (int64_t x = 0; x < columns; ++x) pairs[x] = from[x].bits;
      }
      std::memcpy(to, pairs, width * sizeof(float));
    }
  }

  // Rows r0 .. r0 + height against keys j .. j + count: those panels that any of the rows sees.
  void block(int64_t r0, int64_t height, int64_t j, int64_t count) {
    Block& of = blocks_[r0 / kHigh];
    if (of.to <= j || of.from >= j + count) return;
    constexpr int64_t whole = std::max(kPanel, kLine * kOfOne);  // of keys and of weights
    const int64_t lead = std::max<int64_t>(of.from - j, 0) / whole * whole, needed = std::min(of.to - j, count);
    for (int64_t i = lead; i < needed; i += kPanel) {
      const int64_t width = panel_width(count, i);
      multiplier_.multiply(height, width, depth_, queries_ + r0 * deep_, keys_ + i * depth_, scores_ + i, kKeys, false);
    }
    if (shape_.weights == Weights::kScores) {
      keep_scores(r0, height, j, lead, needed);
    } else {
      softmax(r0, height, j, lead, needed);
    }
    const bool begun = std::exchange(of.begun, true);
    const int64_t first = lead / kOfOne, deep = ceil_div(needed - lead, kOfOne), all = ceil_div(count, kOfOne);
    for (int64_t i = 0; i < shape_.dv; i += kPanel) {
      const int64_t width = panel_width(shape_.dv, i);
      multiplier_.multiply(height, width, deep, weights_ + first * height, values_ + i * all + first * width,
                           outputs_ + r0 * wide_ + i, wide_, begun);
    }
  }

  // The scores of a row of the block, scaled and masked, from `lead` on.
  float* masked(int64_t r0, int64_t r, int64_t j, int64_t lead, int64_t needed) {
    const Row& of = rows_[r0 + r];
    float* const scores = scores_ + r * kKeys;
    if constexpr (kOfOne > 1) {
      for (int64_t i = lead; i < needed; i += kLanes) store(scores + i, load(scores + i) * scale_);
    }
    if (!of.keys.all) mask_(b_, of.head, of.query, j + lead, needed - lead, scores + lead);
    return scores;
  }

  // The scores of a block's rows are their weights.
  void keep_scores(int64_t r0, int64_t height, int64_t j, int64_t lead, int64_t needed) {
    const int64_t padded = round_up(needed, kLine * kOfOne);
    for (int64_t r = 0; r < height; ++r) {
      float* const scores = masked(r0, r, j, lead, needed);
      std::fill(scores + needed, scores + padded, 0.0f);
      for (int64_t i = lead; i < padded; i += kLine)
        keep(scores + i, weights_ + i / kOfOne / kLine * kLine * height + r * kLine, i % (kLine * kOfOne));
    }
  }

  // The weights of a block's rows from their scores; sums and outputs are made relative to new maxima. What a row needs
  // once is computed for all rows together, a row a lane.
  void softmax(int64_t r0, int64_t height, int64_t j, int64_t lead, int64_t needed) {
    const int64_t padded = round_up(needed, kLine * kOfOne);
    alignas(64) float tops[kRowLanes * kLanes], before[kRowLanes], bases[kRowLanes], factors[kRowLanes];
    for (int64_t r = 0; r < height; ++r) {
      const Row& of = rows_[r0 + r];
      float* const scores = masked(r0, r, j, lead, needed);
      for (int64_t i = lead; i < std::min(of.keys.first - j, padded); ++i) scores[i] = -kInfinity;
      for (int64_t i = std::clamp(of.keys.last - j, lead, needed); i < padded; ++i) scores[i] = -kInfinity;
      vfloat high = load(scores + lead);
      for (int64_t i = lead + kLanes; i < padded; i += kLanes) high = larger(high, load(scores + i));
      store(tops + r * kLanes, high);
    }
    std::fill_n(tops + height * kLanes, (kRowLanes - height) * kLanes, -kInfinity);
    float* const maxima = maxima_ + place(r0);
    for (int64_t r = 0; r < kRowLanes; r += kLanes) {
      store(before + r, load(maxima + r));
      store(maxima + r, larger(load(maxima + r), reduced_rows(tops + r * kLanes, larger)));
    }
#pragma omp simd
    for (int64_t r = 0; r < kRowLanes; ++r) {
      bases[r] = finite_or_zero(maxima[r]);
      const bool infinite = before[r] == -kInfinity || before[r] == kInfinity;
      factors[r] = infinite ? 1.0f : exp2_falling((before[r] - bases[r]) * kLog2E);
    }
    for (int64_t r = 0; r < height; ++r) {
      const float base = bases[r], factor = factors[r];
      float* const sums = sums_ + (r0 + r) * kLanes;
      if (factor != 1.0f) {
        float* const output = outputs_ + (r0 + r) * wide_;
        store(sums, load(sums) * factor);
        for (int64_t i = 0; i < wide_; i += kLanes) store(output + i, load(output + i) * factor);
      }
      const float* const scores = scores_ + r * kKeys;
      vfloat sum = load(sums);
      for (int64_t i = lead; i < padded; i += kLine) {
        alignas(64) float weights[kLine];
        if (shape_.weights == Weights::kTotal) {
#pragma omp simd
          for (int64_t x = 0; x < kLine; ++x) weights[x] = total_power(scores[i + x], base);
        } else {
#pragma omp simd
          for (int64_t x = 0; x < kLine; ++x) weights[x] = exp2_falling((scores[i + x] - base) * kLog2E);
        }
        for (int64_t x = 0; x < kLine; x += kLanes) sum += load(weights + x);
        keep(weights, weights_ + i / kOfOne / kLine * kLine * height + r * kLine, i % (kLine * kOfOne));
      }
      store(sums, sum);
    }
  }

  // Weights as the kernels read a left operand: some of the line at `to`, from an element on.
  static void keep(const float* weights, float* to, int64_t from) {
    if constexpr (kOfOne == 1) {
      for (int64_t x = 0; x < kLine; x += kLanes) store(to + x, load(weights + x));
    } else {
      narrow_line(weights, reinterpret_cast<bf16*>(to) + from);
    }
  }

  void write() const {
    alignas(64) float all[kRowLanes * kLanes], sums[kRowLanes], shares[kRowLanes];
    for (int64_t r0 = 0; r0 < count_; r0 += kHigh) {
      const int64_t height = std::min(kHigh, count_ - r0);
      std::copy_n(sums_ + r0 * kLanes, height * kLanes, all);
      std::fill_n(all + height * kLanes, (kRowLanes - height) * kLanes, 1.0f);
      for (int64_t r = 0; r < kRowLanes; r += kLanes) {
        const vfloat sum = reduced_rows(all + r * kLanes, [](vfloat a, vfloat b) { return a + b; });
        store(sums + r, sum);
        store(shares + r, 1.0f / sum);
      }
      for (int64_t r = 0; r < height; ++r) {
        const Row& of = rows_[r0 + r];
        const float sum = sums[r], share = shares[r];
        shape_.note(b_, of.head, of.query, maxima_[place(r0) + r], sum);
        float* const to = out_.at(b_, of.head, of.query);
        const float* const from = outputs_ + (r0 + r) * wide_;
        if (shape_.weights == Weights::kTotal) {
          to[0] = log_of_total(maxima_[place(r0) + r], sum);
        } else if (shape_.weights == Weights::kScores) {
          const bool begun = blocks_[r0 / kHigh].begun;
          for (int64_t i = 0; i < shape_.dv; ++i) to[i * out_.stride[3]] = begun ? from[i] : 0.0f;
        } else if (sum == 0.0f) {  // no key was seen, so there may be no output either
          for (int64_t i = 0; i < shape_.dv; ++i) to[i * out_.stride[3]] = shape_.blank ? 0.0f : kNaN;
        } else if (out_.stride[3] == 1) {
          for (int64_t i = 0; i < shape_.dv; ++i) to[i] = from[i] * share;
        } else {
          for (int64_t i = 0; i < shape_.dv; ++i) to[i * out_.stride[3]] = from[i] * share;
        }
      }
    }
  }

  // Where the lanes of the block from row r0 on lie, of what has a lane a row.
  static int64_t place(int64_t r0) { return r0 / kHigh * kRowLanes; }

  const AttentionShape& shape_;
  Heads<const T> q_, k_, v_;
  float scale_;
  Mask& mask_;
  Heads<float> out_;
  int64_t depth_, deep_, wide_;  // floats of a query, of its lines, and of an output
  Multiplier<Elements> multiplier_;
  int64_t b_ = 0, kv_ = 0, count_ = 0;
  std::vector<Row> rows_;
  std::vector<Block> blocks_;
  float *queries_, *outputs_, *sums_, *keys_, *values_, *scores_, *weights_, *maxima_;
};

template <class Elements, class T, class Mask>
void attend_rows(const AttentionShape& shape, Heads<const T> q, Heads<const T> k, Heads<const T> v, float scale,
                 Mask& mask, Heads<float> out) {
  constexpr int64_t high = Elements::kBlock;
  const int64_t rows = shape.group() * shape.lq, heads = shape.batch * shape.kv_heads;
  const int64_t team = rows * heads * shape.lk * (shape.d + shape.dv) < kAlone ? 1 : threads();
  const int64_t wanted = team == 1 ? 1 : ceil_div(4 * team, heads);
  const int64_t chunks = std::max(ceil_div(rows, kTaskRows), std::min(wanted, ceil_div(rows, 2 * high)));
  const int64_t height = round_up(ceil_div(rows, chunks), high);
  const int64_t tasks = ceil_div(rows, height);
  parallel_tasks(heads * tasks, team, [&](Tickets& tickets) {
    RowsAttention<Elements, T, Mask> task(shape, q, k, v, scale, mask, out);
    for (int64_t ticket; (ticket = tickets.next()) >= 0;) {
      const int64_t head = ticket / tasks, first = (tasks - 1 - ticket % tasks) * height;  // the longest first
      task.run(head / shape.kv_heads, head % shape.kv_heads, first, std::min(height, rows - first));
    }
  });
}

// -- a few queries ------------------------------------------------------------------------------------------

// Of one row over some of its keys: output (dv) before it is divided by the sum.
struct Partial {
  float maximum, sum;
};

// result[p] = query . key[p]
template <int Count, class T>
KH_INLINE void dot(const float* query, const T* const* key, int64_t d, float* result) {
  vfloat sums[Count] = {};
  int64_t e = 0;
  for (; e + kLanes <= d; e += kLanes) {
    for (int p = 0; p < Count; ++p) sums[p] += load(query + e) * load(key[p] + e);
  }
  for (int p = 0; p < Count; ++p) result[p] = sum_of(sums[p]);
  for (; e < d; ++e) {
    for (int p = 0; p < Count; ++p) result[p] += query[e] * static_cast<float>(key[p][e]);
  }
}

// Some keys of one row; k and v have adjacent elements.
template <class T, class Mask>
Partial attend_in_place(const AttentionShape& shape, Heads<const T> q, Heads<const T> k, Heads<const T> v, float scale,
                        Mask& mask, int64_t b, int64_t h, int64_t i, const Reach& keys, float* output) {
  const int64_t kv = h / shape.group(), dv = shape.dv;
  float* const query = workspace<Use::kRow>().floats(shape.d);
  for (int64_t e = 0; e < shape.d; ++e) query[e] = static_cast<float>(q.at(b, h, i)[e * q.stride[3]]) * scale;
  const bool softens = shape.weights != Weights::kScores;
  Partial result{softens ? -kInfinity : 0.0f, 0.0f};
  std::fill_n(output, dv, 0.0f);
  alignas(64) float scores[kKeys];
  for (int64_t j = keys.first; j < keys.last; j += kKeys) {
    const int64_t count = std::min(kKeys, keys.last - j);
    for (int64_t x = 0; x < count; x += 4) {
      const T* key[4];
      for (int64_t p = 0; p < 4; ++p) key[p] = k.at(b, kv, j + std::min(x + p, count - 1));
      dot<4>(query, key, shape.d, scores + x);
    }
    for (int64_t x = 0; x < count && !keys.all; x += kPanel)
      mask(b, h, i, j + x, std::min(kPanel, count - x), scores + x);
    float factor = 1.0f;
    if (softens) {
      const float maximum = largest(scores, count, result.maximum), base = finite_or_zero(maximum);
      factor = maximum == result.maximum ? 1.0f : exp_falling(result.maximum - maximum);
      float sum = 0.0f;
      if (shape.weights == Weights::kTotal) {
#pragma omp simd reduction(+ : sum)
        for (int64_t x = 0; x < count; ++x) sum += total_power(scores[x], base);
      } else {
#pragma omp simd reduction(+ : sum)
        for (int64_t x = 0; x < count; ++x) {
          scores[x] = exp_falling(scores[x] - base);
          sum += scores[x];
        }
      }
      result = {maximum, result.sum * factor + sum};
    }
    int64_t e = 0;
    for (; e + 4 * kLanes <= dv; e += 4 * kLanes) {  // four registers go through all keys of the block
      vfloat acc[4];
      for (int64_t p = 0; p < 4; ++p) acc[p] = load(output + e + p * kLanes) * factor;
      for (int64_t x = 0; x < count; ++x) {
        const T* const value = v.at(b, kv, j + x) + e;
        for (int64_t p = 0; p < 4; ++p) acc[p] += scores[x] * load(value + p * kLanes);
      }
      for (int64_t p = 0; p < 4; ++p) store(output + e + p * kLanes, acc[p]);
    }
    for (int64_t y = e; y < dv; ++y) output[y] *= factor;
    for (int64_t x = 0; x < count && e < dv; ++x) {
      const T* const value = v.at(b, kv, j + x);
#pragma omp simd
      for (int64_t y = e; y < dv; ++y) output[y] += scores[x] * static_cast<float>(value[y]);
    }
  }
  return result;
}

template <class T, class Mask>
void attend_few(const AttentionShape& shape, Heads<const T> q, Heads<const T> k, Heads<const T> v, float scale,
                Mask& mask, Heads<float> out) {
  const int64_t rows = shape.batch * shape.heads * shape.lq, team = threads(), dv = shape.dv;
  const int64_t splits = rows >= 2 * team ? 1 : std::clamp<int64_t>(shape.lk / kKeys, 1, ceil_div(2 * team, rows));
  const int64_t share = round_up(ceil_div(shape.lk, splits), kLanes);
  // A split writes its maximum, its sum, and its output.
  float* const partials = workspace<Use::kAttention>().floats(rows * splits * (dv + 2));
  const auto part = [&](int64_t task) {
    const int64_t row = task / splits, split = task % splits;
    const int64_t i = row % shape.lq, h = row / shape.lq % shape.heads, b = row / (shape.lq * shape.heads);
    Reach keys = shape.reach(b, h, i);
    keys.last = static_cast<int32_t>(std::min<int64_t>((split + 1) * share, keys.last));
    keys.first = static_cast<int32_t>(std::clamp<int64_t>(split * share, keys.first, std::max(keys.first, keys.last)));
    float* const to = partials + task * (dv + 2);
    const Partial done = attend_in_place(shape, q, k, v, scale, mask, b, h, i, keys, to + 2);
    to[0] = done.maximum, to[1] = done.sum;
  };
  const auto combine = [&](int64_t row) {
    const int64_t i = row % shape.lq, h = row / shape.lq % shape.heads, b = row / (shape.lq * shape.heads);
    const float* const from = partials + row * splits * (dv + 2);
    float maximum = -kInfinity, sum = 0.0f;
    for (int64_t s = 0; s < splits; ++s) maximum = std::max(maximum, from[s * (dv + 2)]);
    float* const to = out.at(b, h, i);
    for (int64_t s = 0; s < splits; ++s) {
      const float* const split = from + s * (dv + 2);
      const float factor = split[0] == maximum ? 1.0f : exp_falling(split[0] - maximum);
      sum += split[1] * factor;
      for (int64_t e = 0; e < dv; ++e)
        to[e * out.stride[3]] = (s == 0 ? 0.0f : to[e * out.stride[3]]) + split[2 + e] * factor;
    }
    if (shape.weights == Weights::kTotal) to[0] = log_of_total(maximum, sum);
    if (shape.weights != Weights::kSoftmax) return;
    shape.note(b, h, i, maximum, sum);
    if (shape.blank && sum == 0.0f) sum = 1.0f;
    for (int64_t e = 0; e < dv; ++e) to[e * out.stride[3]] /= sum;
  };
  const bool alone = rows * shape.lk * (shape.d + dv) < kAlone;
  parallel(rows * splits, alone ? rows * splits : 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) part(task);
  });
  for (int64_t row = 0; row < rows; ++row) combine(row);
}

// -- the public function ------------------------------------------------------------------------------------

// Whether attention() takes operands of T as they are: all floats; of narrower ones a few queries, and bfloat16 on tiles.
template <class T>
bool attends(const AttentionShape& shape, const int64_t q_strides[4], const int64_t k_strides[4],
             const int64_t v_strides[4]) {
  if constexpr (std::is_same_v<T, float>) return true;
  if (k_strides[3] != 1 || v_strides[3] != 1) return false;
  if (shape.group() * shape.lq <= kFewRows) return true;
  const bool even = shape.d % 2 == 0 && (k_strides[0] | k_strides[1] | k_strides[2]) % 2 == 0;
  return std::is_same_v<T, bf16> && has_amx() && even && q_strides[3] == 1;
}

// q (batch, heads, lq, d), k (batch, kv_heads, lk, d), v (batch, kv_heads, lk, dv), out (batch, heads, lq, dv):
// strides of each in that order, in elements, of operands that attends().
// mask(b, h, i, j, count, scores) changes the scaled scores of query i with keys j .. j + count, in place; NoMask
// for none. A row with nothing but -inf gives NaN, as softmax does, or, with `blank`, 0. With kTotal nothing is read of
// v, dv is 0, and a row of out has one element.
template <class T, class Mask>
void attention(const AttentionShape& shape, const T* q, const int64_t q_strides[4], const T* k,
               const int64_t k_strides[4], const T* v, const int64_t v_strides[4], float scale, Mask&& mask, float* out,
               const int64_t out_strides[4]) {
  const int64_t rows = shape.group() * shape.lq, heads = shape.batch * shape.kv_heads;
  if (rows <= 0 || heads <= 0 || (shape.dv <= 0 && shape.weights != Weights::kTotal)) return;
  const Heads<const T> queries{q, q_strides}, keys{k, k_strides}, values{v, v_strides};
  const Heads<float> outputs{out, out_strides};
  if (rows <= kFewRows && k_strides[3] == 1 && v_strides[3] == 1)
    return attend_few(shape, queries, keys, values, scale, mask, outputs);
  if constexpr (std::is_same_v<T, float>) attend_rows<Floats>(shape, queries, keys, values, scale, mask, outputs);
  if constexpr (std::is_same_v<T, bf16>) attend_rows<Amx>(shape, queries, keys, values, scale, mask, outputs);
}

}  // namespace kh
