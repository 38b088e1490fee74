// Maxima and averages over windows of planes (height, width) in float32, on the CPU.
//
// A task is some planes. Of a few lines of the result at a time, the rows of the windows are joined first, in vectors
// along the width, into lines of scratch that have the padding at their ends; then the columns of those.

#include <cstdint>
#include <utility>
#include <vector>

#include "parallel.h"
#include "simd.h"
#include "standard.h"

namespace {

using kh::kLanes;
using kh::load;
using kh::splat;
using kh::store;
using kh::vfloat;

typedef int32_t vint __attribute__((vector_size(kLanes * 4)));

// As cpu/kernels.py packs it. Each pair: of rows, of columns.
struct Geometry {
  int64_t planes, in[2], out[2], kernel[2], stride[2], pad[2], dilation[2];
  int64_t counts_padding, divisor;  // of averages; divisor: 0 where elements are counted
};

struct Maximum {
  static constexpr float kNeutral = -__builtin_inff();
  static KH_INLINE vfloat join(vfloat a, vfloat b) {
    const vfloat larger = a > b ? a : b;  // b where either is NaN
    return a != a ? a : larger;
  }
  static KH_INLINE float join(float a, float b) { return b > a || b != b ? b : a; }
  static constexpr bool kDivides = false;
};

struct Average {
  static constexpr float kNeutral = 0.0f;
  static KH_INLINE vfloat join(vfloat a, vfloat b) { return a + b; }
  static KH_INLINE float join(float a, float b) { return a + b; }
  static constexpr bool kDivides = true;
};

// Lanes 0, 2, 4, ... of a and then b, or 1, 3, 5, ...
template <bool Odd, int... I>
KH_INLINE vfloat every_second(vfloat a, vfloat b, std::integer_sequence<int, I...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, (2 * I + Odd)...);
#else
  return __builtin_shuffle(a, b, vint{(2 * I + Odd)...});
#endif
}
constexpr std::make_integer_sequence<int, static_cast<int>(kLanes)> kOrder;

vint lanes_before(int64_t count) {
  vint inside;
  for (int64_t i = 0; i < kLanes; ++i) inside[i] = i < count ? -1 : 0;
  return inside;
}

// What lies before `end`, of a vector that may reach beyond.
KH_INLINE vfloat load_before(const float* from, const float* end) {
  if (end - from >= kLanes) return load(from);
  alignas(64) float part[kLanes] = {};
  for (int64_t i = 0; i < end - from; ++i) part[i] = from[i];
  return load(part);
}

KH_INLINE void store_before(float* to, vfloat value, const float* end) {
  if (end - to >= kLanes) return store(to, value);
  alignas(64) float part[kLanes];
  store(part, value);
  for (int64_t i = 0; i < end - to; ++i) to[i] = part[i];
}

// How often a loop runs, where that is known at compile time; 0: it is not.
template <int Known>
KH_INLINE int64_t times(int64_t count) {
  return Known > 0 ? Known : count;
}

// to[i] = from[i], from[i + pitch], ... together, of `rows` rows; end: of what may be read.
template <class Op, int Rows>
KH_INLINE void join_rows(const float* from, int64_t pitch, int64_t rows, int64_t width, const float* end, vint inside,
                         float* to) {
  if (width < kLanes) {
    vfloat joined = load_before(from, end);
    for (int64_t row = 1; row < times<Rows>(rows); ++row)
      joined = Op::join(joined, load_before(from + row * pitch, end));
    return store(to, inside ? joined : splat(Op::kNeutral));
  }
  for (int64_t next = 0; next < width; next += kLanes) {
    const int64_t at = kh::min(next, width - kLanes);
    vfloat joined = load(from + at);
    for (int64_t row = 1; row < times<Rows>(rows); ++row) joined = Op::join(joined, load(from + row * pitch + at));
    store(to + at, joined);
  }
}

template <class Op>
void join_rows(const float* from, int64_t pitch, int64_t rows, int64_t width, const float* end, vint inside, float* to) {
  switch (rows) {
    case 0: return kh::fill_n(to, width, Op::kNeutral);
    case 2: return join_rows<Op, 2>(from, pitch, rows, width, end, inside, to);
    case 3: return join_rows<Op, 3>(from, pitch, rows, width, end, inside, to);
    default: return join_rows<Op, 0>(from, pitch, rows, width, end, inside, to);
  }
}

// A vector of the result: of windows that begin at line[0], line[Stride], ...
template <class Op, int Stride, int Columns>
KH_INLINE vfloat join_columns(const float* line, int64_t columns, int64_t dilation) {
  if constexpr (Stride == 1) {
    vfloat joined = load(line);
    for (int64_t k = 1; k < times<Columns>(columns); ++k) joined = Op::join(joined, load(line + k * dilation));
    return joined;
  } else if constexpr (Columns > 0) {  // the dilation is 1: two columns of the windows lie in a pair of vectors
    vfloat joined{};
    for (int64_t k = 0; k < Columns; k += 2) {
      const vfloat low = load(line + k), high = load(line + k + kLanes);
      const vfloat even = every_second<false>(low, high, kOrder);
      joined = k == 0 ? even : Op::join(joined, even);
      if (k + 1 < Columns) joined = Op::join(joined, every_second<true>(low, high, kOrder));
    }
    return joined;
  } else {
    vfloat joined = every_second<false>(load(line), load(line + kLanes), kOrder);
    for (int64_t k = 1; k < columns; ++k) {
      const float* const from = line + k * dilation;
      joined = Op::join(joined, every_second<false>(load(from), load(from + kLanes), kOrder));
    }
    return joined;
  }
}

// What a line of the result is divided by: its rows in a window times its columns, which differ from place to place.
struct Divisors {
  float rows;
  const float* columns;
};

template <class Op, int Stride, int Columns>
void finish_line(const Geometry& g, const float* line, Divisors divisors, float* to, const float* end) {
  const int64_t width = g.out[1];
  const auto result = [&](int64_t at) {
    const vfloat joined = join_columns<Op, Stride, Columns>(line + at * Stride, g.kernel[1], g.dilation[1]);
    return Op::kDivides ? joined / (splat(divisors.rows) * load(divisors.columns + at)) : joined;
  };
  if (width < kLanes) return store_before(to, result(0), end);  // lines that follow are written later
  for (int64_t next = 0; next < width; next += kLanes) {
    const int64_t at = kh::min(next, width - kLanes);
    store(to + at, result(at));
  }
}

template <class Op>
void finish_line_one_by_one(const Geometry& g, const float* line, Divisors divisors, float* to, const float*) {
  for (int64_t i = 0; i < g.out[1]; ++i) {
    const float* const from = line + i * g.stride[1];
    float joined = from[0];
    for (int64_t k = 1; k < g.kernel[1]; ++k) joined = Op::join(joined, from[k * g.dilation[1]]);
    to[i] = Op::kDivides ? joined / (divisors.rows * divisors.columns[i]) : joined;
  }
}

using FinishLine = void (*)(const Geometry&, const float*, Divisors, float*, const float*);

template <class Op>
FinishLine line_finisher(const Geometry& g) {
  const int64_t columns = g.dilation[1] == 1 ? g.kernel[1] : 0;
  if (g.stride[1] == 1) return columns == 3 ? finish_line<Op, 1, 3> : finish_line<Op, 1, 0>;
  if (g.stride[1] > 2) return finish_line_one_by_one<Op>;
  return columns == 2 ? finish_line<Op, 2, 2> : columns == 3 ? finish_line<Op, 2, 3> : finish_line<Op, 2, 0>;
}

// The elements that the window at `at` of an axis counts.
float elements(const Geometry& g, int axis, int64_t at) {
  const int64_t before = g.counts_padding ? g.pad[axis] : 0, start = at * g.stride[axis] - g.pad[axis];
  const int64_t end = kh::min(start + g.kernel[axis], g.in[axis] + g.pad[axis]);
  return static_cast<float>(kh::min(end, g.in[axis] + before) - kh::max(start, -before));
}

// The rows that the windows of a line of the result have in the plane: the first, how many, what to divide by.
struct Rows {
  int64_t first, count;
  float divisor;
};

Rows rows_of(const Geometry& g, int64_t line) {
  const int64_t dilation = g.dilation[0], start = line * g.stride[0] - g.pad[0];
  const int64_t outside = start >= 0 ? 0 : kh::ceil_div(-start, dilation);
  const int64_t end = kh::min(g.kernel[0], kh::ceil_div(kh::max<int64_t>(g.in[0] - start, 0), dilation));
  const float divisor = g.divisor != 0 ? static_cast<float>(g.divisor) : elements(g, 0, line);
  return {start + outside * dilation, kh::max<int64_t>(end - outside, 0), divisor};
}

constexpr int64_t kMostLines = 8, kScratch = 16384, kShare = 65536;  // floats

template <class Op>
class Pooling {
 public:
  Pooling(const Geometry& g, const float* x, float* y)
      : g_(g), x_(x), y_(y), finish_line_(line_finisher<Op>(g)), inside_(lanes_before(g.in[1])) {
    const int64_t results = g.stride[1] <= 2 ? kh::max(g.out[1], kLanes) : g.out[1];
    const int64_t window = (g.kernel[1] - 1) * g.dilation[1] + 1;
    const int64_t read = (results - 1) * g.stride[1] + window + (g.stride[1] == 2);
    pitch_ = kh::round_up(kh::max(read, g.pad[1] + kh::max(g.in[1], kLanes)), kLanes);
    lines_ = kh::clamp<int64_t>(kScratch / pitch_, 1, kMostLines);
    rows_.reserve(static_cast<size_t>(g.out[0]));
    for (int64_t line = 0; line < g.out[0]; ++line) rows_.push_back(rows_of(g, line));
  }

  // Planes [begin, end).
  void run(int64_t begin, int64_t end) const {
    const int64_t columns = kh::round_up(g_.out[1], kLanes);
    float* const divisors = kh::workspace<kh::Use::kRow>().floats(lines_ * pitch_ + columns);
    float* const lines = divisors + columns;
    kh::fill_n(lines, lines_ * pitch_, Op::kNeutral);
    for (int64_t i = 0; i < columns; ++i)
      divisors[i] = g_.divisor != 0 || i >= g_.out[1] ? 1.0f : elements(g_, 1, i);
    const int64_t width = g_.in[1];
    const float* const last_in = x_ + g_.planes * g_.in[0] * width;
    float* const last_out = y_ + end * g_.out[0] * g_.out[1];
    for (int64_t plane = begin; plane < end; ++plane) {
      const float* const from = x_ + plane * g_.in[0] * width;
      float* const to = y_ + plane * g_.out[0] * g_.out[1];
      for (int64_t first = 0; first < g_.out[0]; first += lines_) {
        const int64_t count = kh::min(lines_, g_.out[0] - first);
        for (int64_t i = 0; i < count; ++i) {
          const Rows& rows = rows_[first + i];
          join_rows<Op>(from + rows.first * width, g_.dilation[0] * width, rows.count, width, last_in, inside_,
                        lines + i * pitch_ + g_.pad[1]);
        }
        for (int64_t i = 0; i < count; ++i) {
          finish_line_(g_, lines + i * pitch_, {rows_[first + i].divisor, divisors}, to + (first + i) * g_.out[1],
                       last_out);
        }
      }
    }
  }

 private:
  const Geometry& g_;
  const float* const x_;
  float* const y_;
  const FinishLine finish_line_;
  const vint inside_;
  int64_t pitch_, lines_;
  std::vector<Rows> rows_;
};

template <class Op>
void pool(const Geometry& g, const float* x, float* y) {
  const Pooling<Op> pooling(g, x, y);
  kh::parallel(g.planes, kh::max<int64_t>(kShare / (g.in[0] * g.in[1]), 1),
               [&](int64_t begin, int64_t end) { pooling.run(begin, end); });
}

}  // namespace

extern "C" {

// x (planes, in) to y (planes, out), both without gaps.
void pooling_maximum(const Geometry* g, const float* x, float* y) { pool<Maximum>(*g, x, y); }
void pooling_average(const Geometry* g, const float* x, float* y) { pool<Average>(*g, x, y); }
}
