// Tree ensembles, and probabilities of classes out of those of pairs.
//
// A step down a tree waits for memory three times: for the node, for the feature that it looks at, for the comparison.
// So eight ways go down together: those of eight rows in one tree, whose nodes stay in the nearest cache, or of one row
// in eight trees. A leaf leads to itself, so that no step has a branch. What is compared are keys: integers in the order
// of the floats, which are compared in a cycle, and among which NaN has a place.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include "linked_ensembles.h"
#include "parallel.h"

KH_NAMESPACE {

namespace {

// The way goes to `child` unless the feature's key is greater, then to the next node; `mixed` says what else holds.
struct Node {
  int32_t key, feature, child, mixed;
};

// features: how many the nodes look at.
struct Header {
  int32_t flags, features, unused[2];
};
static_assert(sizeof(Node) == 16 && sizeof(Header) == 16);

constexpr int32_t kBroken = 1, kHasEqual = 2, kHasNanHolds = 4;  // of a header
constexpr int32_t kLeaf = 0, kLess = 2, kEqual = 3, kNanHolds = 4;  // of the op
constexpr int64_t kWays = 8;
constexpr int64_t kStepsBetween = 4;      // steps after which it is seen whether all ways have ended
constexpr int64_t kBlockRows = 64;        // rows that go down a tree before the next one
constexpr int64_t kBlockKeys = 8192;      // of their features, which stay in the nearest cache
constexpr int64_t kWaysPerThread = 4096;  // below, a thread costs more than it does
constexpr int32_t kNanKey = INT32_MAX, kBelowAll = INT32_MIN;

// In the order of floats; -0 is 0, and NaN is greater than all others.
KH_INLINE int32_t key_of(float x) {
  const int32_t bits = std::bit_cast<int32_t>(x);
  const int32_t key = bits ^ (bits >> 31 & INT32_MAX);
  return x != x ? kNanKey : key == -1 ? 0 : key;
}

template <bool kMixed>
KH_INLINE int32_t next_of(const Node& node, int32_t key) {
  if constexpr (!kMixed) return node.child + static_cast<int32_t>(key > node.key);
  const bool equal = (node.mixed & 3) == kEqual, nan_holds = (node.mixed & kNanHolds) != 0;
  const bool holds = (equal ? key == node.key : key <= node.key) || (nan_holds && key == kNanKey);
  return node.child + static_cast<int32_t>(!holds);
}

// From roots to leaves; key(way, feature). False where a way does not end.
template <bool kMixed, class Key>
bool descend(const Node* nodes, int64_t count, const Key& key, int32_t (&at)[kWays]) {
  int32_t here[kWays];
  KH_UNROLL(8)
  for (int64_t way = 0; way < kWays; ++way) here[way] = at[way];
  bool ended = false;
  for (int64_t step = 0; step < count + kStepsBetween && !ended; step += kStepsBetween) {
    for (int64_t turn = 0; turn < kStepsBetween; ++turn) {
      KH_UNROLL(8)
      for (int64_t way = 0; way < kWays; ++way) {
        const Node& node = nodes[here[way]];
        here[way] = next_of<kMixed>(node, key(way, node.feature));
      }
    }
    int32_t elsewhere = 0;
    KH_UNROLL(8)
    for (int64_t way = 0; way < kWays; ++way) elsewhere |= nodes[here[way]].key ^ kNanKey;
    ended = elsewhere == 0;
  }
  KH_UNROLL(8)
  for (int64_t way = 0; way < kWays; ++way) at[way] = here[way];
  return ended;
}

// Rows of one block, one thread's.
class Block {
 public:
  Block(const Trees& shape, const float* packed) : shape_(shape), nodes_(reinterpret_cast<const Node*>(packed) + 1) {
    Header header;
    std::memcpy(&header, packed, sizeof(Header));
    flags_ = header.flags | (header.features > shape.features ? kBroken : 0);
    roots_.resize(static_cast<size_t>(shape.trees));
    for (int64_t tree = 0; tree < shape.trees; ++tree) {
      const int64_t root = shape.roots[tree * shape.root_strides[0]];
      if (root < 0 || root >= shape.nodes) flags_ |= kBroken;
      roots_[tree] = static_cast<int32_t>(root);
    }
    width_ = std::max<int64_t>(shape.features, 1);  // a leaf looks at the first feature, whatever it is
    // Keys of rows are kept; not where there are more features than looks at them.
    keeps_ = shape.features < 4 * shape.trees;
    const int64_t fitting = kBlockKeys / width_ / kWays * kWays;
    rows_ = keeps_ ? std::clamp(fitting, kWays, kBlockRows) : kBlockRows;
    totals_.resize(static_cast<size_t>(std::min(rows_, shape.rows) * shape.columns));
    out_.resize(totals_.size());
    if (keeps_) keys_.resize(static_cast<size_t>(round_up(std::min(rows_, shape.rows), kWays) * width_));
  }

  int64_t rows() const { return rows_; }

  // False: see climb_tiles.
  bool run(int64_t first, int64_t rows, const Tile& tile) {
    const double start = shape_.aggregate == Aggregate::kSum || shape_.trees == 0 ? 0.0
                         : shape_.aggregate == Aggregate::kMin ? std::numeric_limits<double>::infinity()
                                                               : -std::numeric_limits<double>::infinity();
    std::fill(totals_.begin(), totals_.end(), start);
    bool ended = false;
    if ((flags_ & kBroken) == 0) {
      const bool mixed = (flags_ & kHasEqual) != 0 || ((flags_ & kHasNanHolds) != 0 && has_nan(first, rows));
      ended = mixed ? all_trees<true>(first, rows) : all_trees<false>(first, rows);
    }
    for (int64_t i = 0; i < rows * shape_.columns; ++i)
      out_[i] = ended ? static_cast<float>(totals_[i]) : std::numeric_limits<float>::quiet_NaN();
    tile.call(tile.state, 0, first, rows, 0, shape_.columns, out_.data(), shape_.columns);
    return ended;
  }

 private:
  bool has_nan(int64_t first, int64_t rows) const {
    int32_t found = 0;
    for (int64_t row = first; row < first + rows; ++row) {
      const float* const x = shape_.x + row * shape_.x_strides[0];
      const int64_t stride = shape_.x_strides[1];
      if (stride == 1) {
#pragma omp simd reduction(| : found)
        for (int64_t i = 0; i < shape_.features; ++i) found |= x[i] != x[i];
      } else {
        for (int64_t i = 0; i < shape_.features; ++i) found |= x[i * stride] != x[i * stride];
      }
    }
    return found != 0;
  }

  // What the leaves of so many ways say, of the rows from `row` on, or of one row (step 0). Not inlined: eight copies
  // of it take six seconds to compile.
  [[gnu::noinline]] void take_in(int64_t row, int64_t step, const int32_t* leaves, int64_t count) {
    if (shape_.aggregate == Aggregate::kSum)
      each(row, step, leaves, count, [](double total, double weight) { return total + weight; });
    else if (shape_.aggregate == Aggregate::kMin)
      each(row, step, leaves, count, [](double least, double x) { return x < least || x != x ? x : least; });
    else
      each(row, step, leaves, count, [](double most, double x) { return x > most || x != x ? x : most; });
  }

  template <class Op>
  KH_INLINE void each(int64_t row, int64_t step, const int32_t* leaves, int64_t count, const Op& op) {
    const int64_t columns = shape_.columns, from = shape_.weight_strides[0], stride = shape_.weight_strides[1];
    const float* const weights = shape_.weights;
    double* totals = totals_.data() + row * columns;
    for (int64_t way = 0; way < count; ++way, totals += step * columns) {
      const float* const said = weights + leaves[way] * from;
      for (int64_t column = 0; column < columns; ++column) totals[column] = op(totals[column], said[column * stride]);
    }
  }

  const float* row_at(int64_t row) const { return shape_.x + row * shape_.x_strides[0]; }

  template <bool kMixed>
  bool all_trees(int64_t first, int64_t rows) {
    const int64_t whole = rows / kWays * kWays, stride = shape_.x_strides[1];
    if (keeps_) keep(first, rows, whole);
    bool ended = true;
    for (int64_t tree = 0; tree < shape_.trees && whole > 0; ++tree) {
      for (int64_t row = 0; row < whole; row += kWays) {
        int32_t at[kWays];
        std::fill_n(at, kWays, roots_[tree]);
        if (keeps_) {
          const int32_t* const keys = keys_.data() + row * width_;
          const auto look = [keys](int64_t way, int64_t feature) { return keys[feature * kWays + way]; };
          ended &= descend<kMixed>(nodes_, shape_.nodes, look, at);
        } else {
          const float* const x = row_at(first + row);
          const int64_t step = shape_.x_strides[0];
          const auto look = [=](int64_t way, int64_t feature) { return key_of(x[way * step + feature * stride]); };
          ended &= descend<kMixed>(nodes_, shape_.nodes, look, at);
        }
        take_in(row, 1, at, kWays);
      }
    }
    for (int64_t row = whole; row < rows; ++row) {
      if (keeps_) {
        const int32_t* const keys = keys_.data() + row * width_;
        ended &= one_row<kMixed>(row, [keys](int64_t, int64_t feature) { return keys[feature]; });
      } else {
        const float* const x = row_at(first + row);
        ended &= one_row<kMixed>(row, [=](int64_t, int64_t feature) { return key_of(x[feature * stride]); });
      }
    }
    return ended;
  }

  template <bool kMixed, class Key>
  bool one_row(int64_t row, const Key& look) {
    bool ended = true;
    for (int64_t tree = 0; tree < shape_.trees; tree += kWays) {
      const int64_t trees = std::min(kWays, shape_.trees - tree);
      int32_t at[kWays];
      for (int64_t way = 0; way < kWays; ++way) at[way] = roots_[tree + std::min(way, trees - 1)];
      ended &= descend<kMixed>(nodes_, shape_.nodes, look, at);
      take_in(row, 0, at, trees);
    }
    return ended;
  }

  // Keys: of whole groups of kWays rows feature by feature, of the others row by row.
  void keep(int64_t first, int64_t rows, int64_t whole) {
    for (int64_t row = 0; row < rows; ++row) {
      const float* const x = row_at(first + row);
      const int64_t group = row < whole ? row / kWays * kWays : row, step = row < whole ? kWays : 1;
      int32_t* const to = keys_.data() + group * width_ + (row < whole ? row % kWays : 0);
      for (int64_t i = 0; i < shape_.features; ++i) to[i * step] = key_of(x[i * shape_.x_strides[1]]);
    }
  }

  const Trees& shape_;
  const Node* nodes_;
  int32_t flags_;
  bool keeps_;
  int64_t rows_, width_;
  std::vector<int32_t> roots_, keys_;
  std::vector<double> totals_;
  std::vector<float> out_;
};

}  // namespace

void pack_trees(int64_t count, const int32_t* from, const int64_t strides[2], float* packed) {
  Node* const nodes = reinterpret_cast<Node*>(packed) + 1;
  Header header{0, 0, {0, 0}};
  for (int64_t i = 0; i < count; ++i) {
    const int32_t* const own = from + i * strides[0];
    const int32_t feature = own[0], kind = own[strides[1]], child = own[2 * strides[1]];
    const float split = std::bit_cast<float>(own[3 * strides[1]]);
    if ((kind & 3) == kLeaf) {
      nodes[i] = {kNanKey, 0, static_cast<int32_t>(i), kLeaf};
      continue;
    }
    if (feature < 0 || feature == INT32_MAX || child < 0 || child > count - 2) header.flags |= kBroken;
    header.features = std::max(header.features, feature < INT32_MAX ? feature + 1 : 0);
    if ((kind & 3) == kEqual) header.flags |= kHasEqual;
    if ((kind & kNanHolds) != 0) header.flags |= kHasNanHolds;
    const int32_t key = split != split ? kBelowAll : key_of(split) - ((kind & 3) == kLess ? 1 : 0);
    nodes[i] = {key, feature, child, kind};
  }
  std::memcpy(packed, &header, sizeof(Header));
}

bool climb_tiles(const Trees& shape, const float* packed, const Tile& tile) {
  int32_t broken = 0;
  const int64_t grain = std::max<int64_t>(kWays, kWaysPerThread / std::max<int64_t>(shape.trees, 1));
  parallel(shape.rows, round_up(grain, kWays), [&](int64_t begin, int64_t end) {
    Block block(shape, packed);
    for (int64_t row = begin; row < end; row += block.rows()) {
      if (!block.run(row, std::min(block.rows(), end - row), tile)) __atomic_store_n(&broken, 1, __ATOMIC_RELAXED);
    }
  });
  return broken == 0;
}

bool climb_tiles_unpacked(const Trees& shape, const int32_t* nodes, const int64_t strides[2], const Tile& tile) {
  std::vector<float> packed(static_cast<size_t>(trees_size(shape.nodes)));
  pack_trees(shape.nodes, nodes, strides, packed.data());
  return climb_tiles(shape, packed.data(), tile);
}

// -- pairwise coupling --------------------------------------------------------------------------------------

namespace {

// kLanes rows at once, each in its lane, until the last of them has ended.
void couple_block(int64_t first, int64_t rows, int64_t classes, const float* sure, const int64_t strides[2],
                  float* memory, float* out, const Tile& tile) {
  float* const wins = memory;                                  // (classes, classes, lanes)
  float* const table = wins + classes * classes * kLanes;      // the same
  float* const p = table + classes * classes * kLanes;         // (classes, lanes), and so are the next
  float* const next = p + classes * kLanes;
  float* const sums = next + classes * kLanes;
  const auto row_of = [=](int64_t lane) { return first + std::min(lane, rows - 1); };
  for (int64_t i = 0, pair = 0; i < classes; ++i) {
    for (int64_t j = i + 1; j < classes; ++j, ++pair) {
      for (int64_t l = 0; l < kLanes; ++l) {
        const float likely = sure[row_of(l) * strides[0] + pair * strides[1]];
        wins[(i * classes + j) * kLanes + l] = likely;
        wins[(j * classes + i) * kLanes + l] = 1.0f - likely;
      }
    }
  }
  for (int64_t t = 0; t < classes; ++t) {
    float* const own = table + (t * classes + t) * kLanes;
    std::fill_n(own, kLanes, 0.0f);
    for (int64_t j = 0; j < classes; ++j) {
      const float* const against = wins + (j * classes + t) * kLanes;
      const float* const with = wins + (t * classes + j) * kLanes;
      float* const cell = table + (t * classes + j) * kLanes;
      if (j == t) continue;
#pragma omp simd
      for (int64_t l = 0; l < kLanes; ++l) {
        own[l] += against[l] * against[l];
        cell[l] = -(against[l] * with[l]);
      }
    }
  }
  float going[kLanes], total[kLanes], error[kLanes], step[kLanes];
  std::fill_n(p, classes * kLanes, 1.0f / static_cast<float>(classes));
  std::fill_n(going, kLanes, 1.0f);
  const float least = static_cast<float>(0.005 / static_cast<double>(classes));
  for (int64_t turn = 0; turn < std::max<int64_t>(100, classes); ++turn) {
    std::fill_n(total, kLanes, 0.0f);
    std::fill_n(error, kLanes, 0.0f);
    for (int64_t t = 0; t < classes; ++t) {
      float* const sum = sums + t * kLanes;
      std::fill_n(sum, kLanes, 0.0f);
      for (int64_t j = 0; j < classes; ++j) {
#pragma omp simd
        for (int64_t l = 0; l < kLanes; ++l) sum[l] += table[(t * classes + j) * kLanes + l] * p[j * kLanes + l];
      }
#pragma omp simd
      for (int64_t l = 0; l < kLanes; ++l) total[l] += sum[l] * p[t * kLanes + l];
    }
    for (int64_t t = 0; t < classes; ++t) {
#pragma omp simd
      for (int64_t l = 0; l < kLanes; ++l) {
        const float apart = sums[t * kLanes + l] - total[l], size = apart < 0.0f ? -apart : apart;
        error[l] = size > error[l] || size != size ? size : error[l];
      }
    }
    float any = 0.0f;
    for (int64_t l = 0; l < kLanes; ++l) {
      going[l] = error[l] >= least ? going[l] : 0.0f;
      any += going[l];
    }
    if (any == 0.0f) break;
    std::copy_n(p, classes * kLanes, next);
    for (int64_t t = 0; t < classes; ++t) {
      const float* const own = table + (t * classes + t) * kLanes;
#pragma omp simd
      for (int64_t l = 0; l < kLanes; ++l) {
        step[l] = (total[l] - sums[t * kLanes + l]) / own[l];
        next[t * kLanes + l] += step[l];
        const float grown = step[l] + 1.0f;
        total[l] = (total[l] + step[l] * (step[l] * own[l] + sums[t * kLanes + l] * 2.0f)) / grown / grown;
      }
      for (int64_t j = 0; j < classes; ++j) {
        const float* const cell = table + (t * classes + j) * kLanes;
#pragma omp simd
        for (int64_t l = 0; l < kLanes; ++l) {
          const float grown = step[l] + 1.0f;
          sums[j * kLanes + l] = (sums[j * kLanes + l] + step[l] * cell[l]) / grown;
          next[j * kLanes + l] /= grown;
        }
      }
    }
    for (int64_t j = 0; j < classes; ++j) {
#pragma omp simd
      for (int64_t l = 0; l < kLanes; ++l)
        p[j * kLanes + l] = going[l] != 0.0f ? next[j * kLanes + l] : p[j * kLanes + l];
    }
  }
  for (int64_t l = 0; l < rows; ++l) {
    for (int64_t j = 0; j < classes; ++j) out[l * classes + j] = p[j * kLanes + l];
  }
  tile.call(tile.state, 0, first, rows, 0, classes, out, classes);
}

}  // namespace

void couple_tiles(int64_t rows, int64_t classes, const float* sure, const int64_t strides[2], const Tile& tile) {
  const int64_t blocks = ceil_div(rows, kLanes);
  parallel(blocks, std::max<int64_t>(1, 64 / (classes * classes)), [&](int64_t begin, int64_t end) {
    std::vector<float> memory(static_cast<size_t>((2 * classes * classes + 4 * classes) * kLanes));
    float* const out = memory.data() + (2 * classes * classes + 3 * classes) * kLanes;
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kLanes;
      couple_block(first, std::min(kLanes, rows - first), classes, sure, strides, memory.data(), out, tile);
    }
  });
}

}  // namespace kh
