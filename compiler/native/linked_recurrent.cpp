// Recurrent cells: a product of a few rows with the packed weight at each step, then the gates, on vectors.
//
// Sequences and directions do not depend on one another, so threads share these and never wait within a sequence. Where
// there are fewer of them than threads, and weights are large, threads share the columns of each step's product instead.
// Of quantized states a thread has all sequences of a direction, since what a step rounds by is theirs together.
#include <algorithm>
#include <cmath>
#include <vector>

#include "byte_panels.h"
#include "linked_recurrent.h"
#include "parallel.h"
#include "vector_math.h"

KH_NAMESPACE {

namespace {

constexpr int64_t kPanel = 4 * kLanes;  // columns that lie together in a packed weight
constexpr int64_t kRows = 4;            // sequences of one product
constexpr float kFlopsPerThread = 2e5f; // below, a thread costs more than it does
constexpr int64_t kBytesPerPart = 1 << 17;  // of a packed weight: a part of a step's product reads no less

int64_t gates_of(Cell cell) {
  return cell == Cell::kLstm ? 4 : cell == Cell::kGru || cell == Cell::kGruAfter ? 3 : 1;
}

// The candidate of kGru has a product of its own, for it is of r * h.
int64_t first_columns(Cell cell, int64_t hidden) { return (cell == Cell::kGru ? 2 : gates_of(cell)) * hidden; }
int64_t second_columns(Cell cell, int64_t hidden) { return cell == Cell::kGru ? hidden : 0; }

// Columns of a (rows, depth) matrix, by panels: element (row, k) of the weight is column `row` at depth k.
void pack_panels(const float* from, int64_t rows, int64_t depth, int64_t row_stride, int64_t stride, float* to) {
  for (int64_t panel = 0; panel < rows; panel += kPanel) {
    for (int64_t k = 0; k < depth; ++k) {
      for (int64_t j = 0; j < kPanel; ++j, ++to)
        *to = panel + j < rows ? from[(panel + j) * row_stride + k * stride] : 0.0f;
    }
  }
}

// out[row][0 .. kPanel) = sum over k of a[row][k] * packed[k], for so many rows.
template <int64_t Rows>
KH_INLINE void panel_product(const float* a, int64_t a_stride, const float* packed, int64_t depth, float* out,
                             int64_t out_stride) {
  vfloat sum[Rows][4];
  KH_UNROLL(4)
  for (int64_t row = 0; row < Rows; ++row) {
    KH_UNROLL(4)
    for (int64_t v = 0; v < 4; ++v) sum[row][v] = splat(0.0f);
  }
  for (int64_t k = 0; k < depth; ++k) {
    vfloat weight[4];
    KH_UNROLL(4)
    for (int64_t v = 0; v < 4; ++v) weight[v] = load(packed + k * kPanel + v * kLanes);
    KH_UNROLL(4)
    for (int64_t row = 0; row < Rows; ++row) {
      const vfloat left = splat(a[row * a_stride + k]);
      KH_UNROLL(4)
      for (int64_t v = 0; v < 4; ++v) sum[row][v] += left * weight[v];
    }
  }
  KH_UNROLL(4)
  for (int64_t row = 0; row < Rows; ++row) {
    KH_UNROLL(4)
    for (int64_t v = 0; v < 4; ++v) store(out + row * out_stride + v * kLanes, sum[row][v]);
  }
}

// The same for one row and two panels: as many sums under way as hide the latency of one.
KH_INLINE void two_panels(const float* a, const float* packed, int64_t depth, float* out) {
  const float* const second = packed + depth * kPanel;
  vfloat sum[8];
  KH_UNROLL(8)
  for (int64_t v = 0; v < 8; ++v) sum[v] = splat(0.0f);
  for (int64_t k = 0; k < depth; ++k) {
    const vfloat left = splat(a[k]);
    KH_UNROLL(4)
    for (int64_t v = 0; v < 4; ++v) {
      sum[v] += left * load(packed + k * kPanel + v * kLanes);
      sum[4 + v] += left * load(second + k * kPanel + v * kLanes);
    }
  }
  KH_UNROLL(8)
  for (int64_t v = 0; v < 8; ++v) store(out + v * kLanes, sum[v]);
}

void product(const float* a, int64_t rows, int64_t depth, const float* packed, int64_t columns, float* out,
             int64_t out_stride) {
  for (int64_t j = 0; j < columns; j += kPanel, packed += depth * kPanel) {
    if (rows == 1 && j + kPanel < columns) {
      two_panels(a, packed, depth, out + j);
      j += kPanel;
      packed += depth * kPanel;
    } else if (rows == 1) {
      panel_product<1>(a, depth, packed, depth, out + j, out_stride);
    } else if (rows == 2) {
      panel_product<2>(a, depth, packed, depth, out + j, out_stride);
    } else if (rows == 3) {
      panel_product<3>(a, depth, packed, depth, out + j, out_stride);
    } else {
      panel_product<4>(a, depth, packed, depth, out + j, out_stride);
    }
  }
}

// The same by all threads, in parts of an even number of panels.
void shared_product(const float* a, int64_t rows, int64_t depth, const float* packed, int64_t columns, float* out,
                    int64_t out_stride) {
  constexpr int64_t kPair = 2 * kPanel;
  const int64_t bytes = kPair * depth * static_cast<int64_t>(sizeof(float));
  parallel(ceil_div(columns, kPair), ceil_div(kBytesPerPart, bytes), [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kPair;
    product(a, rows, depth, packed + first * depth, std::min(end * kPair, columns) - first, out + first, out_stride);
  });
}

// One element in `stride` of x.
struct Strided {
  const float* at;
  int64_t stride;
  float operator[](int64_t i) const { return at[i * stride]; }
};
struct Dense {
  const float* at;
  float operator[](int64_t i) const { return at[i]; }
};

template <class X>
KH_INLINE void lstm_gates(const X& x, const float* product, int64_t hidden, float* h, float* c) {
#pragma omp simd
  for (int64_t j = 0; j < hidden; ++j) {
    const float i = sigmoid(x[j] + product[j]);
    const float o = sigmoid(x[hidden + j] + product[hidden + j]);
    const float f = sigmoid(x[2 * hidden + j] + product[2 * hidden + j]);
    const float n = tanh(x[3 * hidden + j] + product[3 * hidden + j]);
    const float cell = f * c[j] + i * n;
    c[j] = cell;
    h[j] = o * tanh(cell);
  }
}

// z in place of its sum, r * h to `reset`.
template <class X>
KH_INLINE void gru_gates(const X& x, float* product, int64_t hidden, const float* h, float* reset) {
#pragma omp simd
  for (int64_t j = 0; j < hidden; ++j) {
    product[j] = sigmoid(x[j] + product[j]);
    reset[j] = sigmoid(x[hidden + j] + product[hidden + j]) * h[j];
  }
}
template <class X>
KH_INLINE void gru_state(const X& x, const float* z, const float* candidate, int64_t hidden, float* h) {
#pragma omp simd
  for (int64_t j = 0; j < hidden; ++j) {
    const float n = tanh(x[2 * hidden + j] + candidate[j]);
    h[j] = (1.0f - z[j]) * n + z[j] * h[j];
  }
}
template <class X>
KH_INLINE void gru_after(const X& x, const float* product, const float* bias, int64_t bias_stride, int64_t hidden,
                         float* h) {
#pragma omp simd
  for (int64_t j = 0; j < hidden; ++j) {
    const float z = sigmoid(x[j] + product[j]);
    const float r = sigmoid(x[hidden + j] + product[hidden + j]);
    const float n = tanh(x[2 * hidden + j] + r * (product[2 * hidden + j] + bias[j * bias_stride]));
    h[j] = (1.0f - z) * n + z * h[j];
  }
}
template <class X>
KH_INLINE void simple_state(const X& x, const float* product, int64_t hidden, bool relu, float* h) {
  if (relu) {
#pragma omp simd
    for (int64_t j = 0; j < hidden; ++j) {
      const float sum = x[j] + product[j];
      h[j] = sum < 0.0f ? 0.0f : sum;
    }
  } else {
#pragma omp simd
    for (int64_t j = 0; j < hidden; ++j) h[j] = tanh(x[j] + product[j]);
  }
}

// A few sequences of one direction, from the first step to the last; `shared`: by all threads.
class Sequences {
 public:
  Sequences(const Recurrence& shape, const RecurrentInputs& in, const float* packed, const Tile& tile, int64_t way,
            int64_t first, int64_t rows, bool shared)
      : shape_(shape), in_(in), tile_(tile), way_(way), first_(first), rows_(rows), hidden_(shape.hidden),
        product_(shared ? shared_product : product) {
    const int64_t one = in.scales == nullptr ? recurrent_size(shape.cell, 1, hidden_) : recurrent_size_of_bytes(1, hidden_);
    packed_ = packed + way * one;
    width_ = round_up(gates_of(shape.cell) * hidden_, kPanel) + kPanel;
    memory_.resize(static_cast<size_t>(rows * (3 * hidden_ + width_ + kPanel + hidden_)));
    h_ = memory_.data();
    c_ = h_ + rows * hidden_;
    reset_ = c_ + rows * hidden_;
    sums_ = reset_ + rows * hidden_;
    candidate_ = sums_ + rows * width_;
    if (in.scales != nullptr) {
      bytes_.resize(static_cast<size_t>(rows * round_up(hidden_, kByteGroup)));
      row_sums_.resize(static_cast<size_t>(rows));
      totals_.resize(static_cast<size_t>(rows * width_));
    }
    copy_state(in.h, in.h_strides, h_);
    if (in.c != nullptr) copy_state(in.c, in.c_strides, c_);
  }

  void run() {
    for (int64_t step = 0; step < shape_.time; ++step) {
      advance(step);
      for (int64_t row = 0; row < rows_; ++row) give(time_of(step, row), row, goes_on(step, row));
    }
    for (int64_t row = 0; row < rows_; ++row) give(shape_.time, row, true);
  }

 private:
  int64_t length(int64_t row) const {
    return in_.lengths == nullptr
               ? shape_.time
               : std::clamp<int64_t>(in_.lengths[(first_ + row) * in_.length_stride], 0, shape_.time);
  }

  bool goes_on(int64_t step, int64_t row) const { return step < length(row); }

  // Where a row reads and writes at a step: backward from its own last one; behind its end, where it writes zeros.
  int64_t time_of(int64_t step, int64_t row) const {
    const bool backward = shape_.reverse || way_ == 1;
    return backward && goes_on(step, row) ? length(row) - 1 - step : step;
  }

  // What the gates get of h, rounded to bytes by the range of all rows that have not ended before; zeros are in it.
  void quantized_product(int64_t step) {
    float low = 0.0f, high = 0.0f;
    for (int64_t row = 0; row < rows_; ++row) {
      if (step > length(row)) continue;
      const float* const h = h_ + row * hidden_;
#pragma omp simd reduction(min : low) reduction(max : high)
      for (int64_t j = 0; j < hidden_; ++j) {
        low = h[j] < low ? h[j] : low;
        high = h[j] > high ? h[j] : high;
      }
    }
    const float range = (high - low) / 255.0f, scale = range == 0.0f ? 1.0f : range;
    const float zero = std::nearbyint(std::clamp(0.0f - low / scale, 0.0f, 255.0f));
    const auto whole_zero = static_cast<int32_t>(zero);
    const int64_t depth = round_up(hidden_, kByteGroup), columns = 4 * hidden_;
    for (int64_t row = 0; row < rows_; ++row) {
      const float* const h = h_ + row * hidden_;
      uint8_t* const to = bytes_.data() + row * depth;
      const float there = step > length(row) ? 0.0f : 1.0f;
      int32_t sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t j = 0; j < hidden_; ++j) {
        const float whole = std::nearbyint(there * h[j] / scale) + zero;
        const auto byte = static_cast<int32_t>(whole > 255.0f ? 255.0f : whole > 0.0f ? whole : 0.0f);
        to[j] = static_cast<uint8_t>(byte);
        sum += byte;
      }
      row_sums_[row] = sum - whole_zero * static_cast<int32_t>(hidden_);
    }
    const auto* const packed = reinterpret_cast<const int32_t*>(packed_);
    byte_product(bytes_.data(), rows_, hidden_, packed, columns, totals_.data(), width_);
    const int32_t* const of_column = column_sums(packed, columns, hidden_);
    const float *const scales = in_.scales + way_ * in_.scale_strides[0], *const zeros = in_.zeros + way_ * in_.zero_strides[0];
    for (int64_t row = 0; row < rows_; ++row) {
      const int32_t of_row = row_sums_[row], *const total = totals_.data() + row * width_;
      float* const to = sums_ + row * width_;
#pragma omp simd
      for (int64_t j = 0; j < columns; ++j) {
        const auto own_zero = static_cast<int32_t>(zeros[j * in_.zero_strides[1]]);
        const int32_t whole = total[j] - whole_zero * of_column[j] - own_zero * of_row;
        to[j] = static_cast<float>(whole) * (scale * scales[j * in_.scale_strides[1]]);
      }
    }
  }

  void copy_state(const float* from, const int64_t strides[3], float* to) {
    for (int64_t row = 0; row < rows_; ++row) {
      for (int64_t j = 0; j < hidden_; ++j)
        to[row * hidden_ + j] = from[way_ * strides[0] + (first_ + row) * strides[1] + j * strides[2]];
    }
  }

  void give(int64_t t, int64_t row, bool there) {
    static thread_local std::vector<float> zeros;
    const int64_t states = shape_.cell == Cell::kLstm ? 2 : 1;
    if (!there && static_cast<int64_t>(zeros.size()) < hidden_) zeros.resize(static_cast<size_t>(hidden_));
    for (int64_t state = 0; state < states; ++state) {
      const int64_t at = ((t * states + state) * shape_.ways + way_) * shape_.batch + first_ + row;
      const float* const values = there ? (state == 0 ? h_ : c_) + row * hidden_ : zeros.data();
      tile_.call(tile_.state, 0, at, 1, 0, hidden_, values, hidden_);
    }
  }

  void advance(int64_t step) {
    const int64_t columns = first_columns(shape_.cell, hidden_);
    if (in_.scales != nullptr)
      quantized_product(step);
    else
      product_(h_, rows_, hidden_, packed_, columns, sums_, width_);
    for (int64_t row = 0; row < rows_; ++row) {
      const int64_t offset = way_ * gates_of(shape_.cell) * hidden_ * in_.x_strides[2];
      const float* const x = in_.x + time_of(step, row) * in_.x_strides[0] + (first_ + row) * in_.x_strides[1] + offset;
      if (in_.x_strides[2] == 1)
        gates(Dense{x}, step, row);
      else
        gates(Strided{x, in_.x_strides[2]}, step, row);
    }
    if (shape_.cell != Cell::kGru) return;
    const float* const second = packed_ + round_up(columns, kPanel) * hidden_;
    product_(reset_, rows_, hidden_, second, hidden_, candidate_, hidden_ + kPanel);
    for (int64_t row = 0; row < rows_; ++row) {
      if (!goes_on(step, row)) continue;
      const int64_t offset = way_ * 3 * hidden_ * in_.x_strides[2];
      const float* const x = in_.x + time_of(step, row) * in_.x_strides[0] + (first_ + row) * in_.x_strides[1] + offset;
      const float *const z = sums_ + row * width_, *const candidate = candidate_ + row * (hidden_ + kPanel);
      if (in_.x_strides[2] == 1)
        gru_state(Dense{x}, z, candidate, hidden_, h_ + row * hidden_);
      else
        gru_state(Strided{x, in_.x_strides[2]}, z, candidate, hidden_, h_ + row * hidden_);
    }
  }

  template <class X>
  void gates(const X& x, int64_t step, int64_t row) {
    float *const sums = sums_ + row * width_, *const h = h_ + row * hidden_;
    if (shape_.cell == Cell::kGru) {
      gru_gates(x, sums, hidden_, h, reset_ + row * hidden_);
      return;
    }
    if (!goes_on(step, row)) return;
    if (shape_.cell == Cell::kLstm)
      lstm_gates(x, sums, hidden_, h, c_ + row * hidden_);
    else if (shape_.cell == Cell::kGruAfter)
      gru_after(x, sums, in_.bias + way_ * in_.bias_strides[0], in_.bias_strides[1], hidden_, h);
    else
      simple_state(x, sums, hidden_, shape_.cell == Cell::kRelu, h);
  }

  const Recurrence& shape_;
  const RecurrentInputs& in_;
  const Tile& tile_;
  int64_t way_, first_, rows_, hidden_, width_;
  decltype(&product) product_;
  const float* packed_;
  std::vector<float> memory_;
  float *h_, *c_, *reset_, *sums_, *candidate_;
  std::vector<uint8_t> bytes_;
  std::vector<int32_t> row_sums_, totals_;
};

// Whether threads share the products of each step: where half of them had no sequence of their own, and a step is long
// enough for all. With OpenMP never, whose regions may put threads to sleep between any two steps.
bool share_steps(const Recurrence& shape, const RecurrentInputs& in, int64_t team) {
  const int64_t bytes = first_columns(shape.cell, shape.hidden) * shape.hidden * static_cast<int64_t>(sizeof(float));
  return use_pool && in.scales == nullptr && 2 * shape.batch * shape.ways <= team && bytes >= 2 * kBytesPerPart;
}

}  // namespace

int64_t recurrent_size(Cell cell, int64_t ways, int64_t hidden) {
  return ways * hidden *
         (round_up(first_columns(cell, hidden), kPanel) + round_up(second_columns(cell, hidden), kPanel));
}

void pack_recurrent(Cell cell, int64_t ways, int64_t hidden, const float* weight, const int64_t strides[3],
                    float* packed) {
  const int64_t columns = first_columns(cell, hidden);
  for (int64_t way = 0; way < ways; ++way) {
    float* const to = packed + way * recurrent_size(cell, 1, hidden);
    const float* const from = weight + way * strides[0];
    pack_panels(from, columns, hidden, strides[1], strides[2], to);
    pack_panels(from + columns * strides[1], second_columns(cell, hidden), hidden, strides[1], strides[2],
                to + round_up(columns, kPanel) * hidden);
  }
}

int64_t recurrent_size_of_bytes(int64_t ways, int64_t hidden) { return ways * byte_panels_size(4 * hidden, hidden); }

void pack_recurrent_bytes(int64_t ways, int64_t hidden, const int8_t* weight, const int64_t strides[3], float* packed) {
  for (int64_t way = 0; way < ways; ++way) {
    pack_bytes(weight + way * strides[0], 4 * hidden, hidden, strides[1], strides[2],
               reinterpret_cast<int32_t*>(packed + way * recurrent_size_of_bytes(1, hidden)));
  }
}

void recur_tiles(const Recurrence& shape, const RecurrentInputs& in, const float* packed, const Tile& tile) {
  const int64_t team = threads();
  if (share_steps(shape, in, team)) {
    for (int64_t way = 0; way < shape.ways; ++way) {
      for (int64_t first = 0; first < shape.batch; first += kRows)
        Sequences(shape, in, packed, tile, way, first, std::min(kRows, shape.batch - first), true).run();
    }
    return;
  }
  const float flops = 2.0f * shape.time * shape.batch * shape.ways * gates_of(shape.cell) * shape.hidden * shape.hidden;
  const int64_t most = std::clamp<int64_t>(static_cast<int64_t>(flops / kFlopsPerThread), 1, team);
  const int64_t parts = std::max<int64_t>(1, ceil_div(most, shape.ways));
  const bool together = in.scales != nullptr;  // the range of a step is that of all sequences
  const int64_t rows = together ? shape.batch : std::clamp<int64_t>(ceil_div(shape.batch, parts), 1, kRows);
  const int64_t chunks = together ? 1 : ceil_div(shape.batch, rows);
  parallel_tasks(chunks * shape.ways, most, [&](Tickets& tickets) {
    for (int64_t ticket = tickets.next(); ticket >= 0; ticket = tickets.next()) {
      const int64_t first = ticket % chunks * rows;
      Sequences(shape, in, packed, tile, ticket / chunks, first, std::min(rows, shape.batch - first), false).run();
    }
  });
}

void recur_tiles_unpacked(const Recurrence& shape, const RecurrentInputs& in, const float* weight,
                          const int64_t strides[3], const Tile& tile) {
  std::vector<float> packed(static_cast<size_t>(recurrent_size(shape.cell, shape.ways, shape.hidden)));
  pack_recurrent(shape.cell, shape.ways, shape.hidden, weight, strides, packed.data());
  recur_tiles(shape, in, packed.data(), tile);
}

void recur_tiles_unpacked(const Recurrence& shape, const RecurrentInputs& in, const int8_t* weight,
                          const int64_t strides[3], const Tile& tile) {
  std::vector<float> packed(static_cast<size_t>(recurrent_size_of_bytes(shape.ways, shape.hidden)));
  pack_recurrent_bytes(shape.ways, shape.hidden, weight, strides, packed.data());
  recur_tiles(shape, in, packed.data(), tile);
}

}  // namespace kh
