// Nests of a program: loops, reductions, and what the runtime's products, convolutions, transforms and attention are
// given.
#pragma once

#include <array>
#include <memory>

#include "bytecode_chain.h"
#include "bytecode_compute.h"
#include "bytecode_memory.h"
#include "linked.h"
#include "linked_fourier.h"

KH_NAMESPACE {

namespace bytecode {

inline constexpr int64_t kGrain = 65536;  // work (additions) that is worth a thread

// The frame of this thread for a run of a nest.
inline Frame& frame_for(const Code& code, const Call& call) {
  static thread_local Frame frame;
  if (frame.nest != call.nest) frame.begin(code, call);
  return frame;
}

// Loops that a number counts, row-major; extents are numbers of the call.
struct Counted {
  std::vector<int32_t> extents;

  int64_t turns(const Call& call) const {
    int64_t total = 1;
    for (const int32_t one : extents) total *= call.numbers[one];
    return total;
  }
  // The digits of `count` rows from `first` on, as values of the row variables.
  void set_rows(Frame& frame, int64_t first, int64_t count) const {
    const int64_t loops = static_cast<int64_t>(extents.size());
    if (loops == 1) {
      for (int64_t r = 0; r < count; ++r) frame.row_values[r] = first + r;
      return;
    }
    std::array<int64_t, 16> digits{}, most{};
    for (int64_t at = loops - 1; at >= 0; --at) {
      most[at] = frame.number(extents[at]);
      digits[at] = at > 0 ? first % most[at] : first;
      first /= most[at];
    }
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t at = 0; at < loops; ++at) frame.row_values[at * kMostRows + r] = digits[at];
      for (int64_t at = loops - 1; at >= 0; --at) {
        if (++digits[at] < most[at] || at == 0) break;
        digits[at] = 0;
      }
    }
  }
  // The digits of one number as values of the scalar variables.
  void set_scalars(Frame& frame, int64_t number) const {
    for (int64_t at = static_cast<int64_t>(extents.size()) - 1; at >= 0; --at) {
      const int64_t extent = frame.number(extents[at]);
      frame.scalars[at] = at > 0 ? number % extent : number;
      number /= extent;
    }
  }
};

struct Nest {
  virtual ~Nest() = default;
  virtual void run(const Call& call) const = 0;
};

// -- loops --------------------------------------------------------------------------------------------------

// Rows of a nest in blocks, columns in chunks.
struct Tiling {
  int64_t rows, columns, row_tile, column_tile, row_blocks, column_blocks;

  Tiling(int64_t all_rows, int64_t all_columns, int64_t most, int64_t most_rows, int64_t most_columns)
      : rows(all_rows), columns(all_columns) {
    column_blocks = ceil_div(columns, std::min(most, most_columns));
    column_tile = ceil_div(columns, column_blocks);
    row_tile = std::clamp<int64_t>(most / column_tile, 1, std::min(kMostRows, most_rows));
    row_blocks = ceil_div(rows, row_tile);
  }
};

struct Loops : Nest {
  Counted outer;
  int32_t columns = -1;
  bool aligned = false;  // blocks of rows end where the last of their loops does
  int64_t most_rows = kMostRows, most_columns = kMostElements, work = 1;
  Code code;

  void run(const Call& call) const override {
    const int64_t rows = outer.turns(call), last = columns < 0 ? 1 : call.numbers[columns];
    if (rows <= 0 || last <= 0) return;
    Tiling tiling(rows, last, code.most_elements, most_rows, most_columns);
    int64_t per_turn = tiling.row_blocks, inner = rows;
    if (aligned && !outer.extents.empty()) {
      inner = call.numbers[outer.extents.back()];
      per_turn = ceil_div(inner, tiling.row_tile);
    }
    const int64_t blocks = rows / inner * per_turn * tiling.column_blocks;
    const int64_t grain = std::max<int64_t>(1, kGrain / (work * tiling.row_tile * tiling.column_tile));
    parallel(blocks, grain, [&](int64_t begin, int64_t end) {
      Frame& frame = frame_for(code, call);
      for (int64_t block = begin; block < end; ++block) {
        const int64_t turn = block / tiling.column_blocks, column = block % tiling.column_blocks * tiling.column_tile;
        const int64_t within = turn % per_turn * tiling.row_tile;
        const int64_t count = std::min(tiling.row_tile, inner - within);
        outer.set_rows(frame, turn / per_turn * inner + within, count);
        frame.column = column;
        frame.shape(count, std::min(tiling.column_tile, last - column));
        frame.run(0);
      }
    });
  }
};

// -- reductions -----------------------------------------------------------------------------------------------

// A segment runs once a tile of results; a pass runs over the inner loops.
struct Step {
  bool is_pass;
  int32_t list, lean, starts, ends;  // lean: what is left to do where values of earlier passes are all in registers
};

struct InnerLoop {
  int32_t variable, extent;
};

// Three ways to run the inner loops. Along: the last one is the columns. Across: the columns are results, each turn is a
// tile. Down: the columns are results, and the rows of a tile are turns of the last inner loop, for there are few results.
struct Reducing : Nest {
  Counted outer;
  bool across = false, down = false;
  int32_t columns = -1, turns_down = -1;
  int64_t work = 1;
  std::vector<InnerLoop> inner;
  std::vector<Step> steps;
  Code code;

  void run(const Call& call) const override {
    const int64_t results = outer.turns(call), last = columns < 0 ? 1 : call.numbers[columns];
    const bool is_along = !across && !down;
    if (results <= 0 || (!is_along && last <= 0)) return;
    int64_t turns = 1;
    for (const InnerLoop& one : inner) turns *= call.numbers[one.extent];
    const int64_t below = down ? call.numbers[turns_down] : 1;
    const Tiling tiling(down ? std::max<int64_t>(below, 1) : results, std::max<int64_t>(last, 1), code.most_elements,
                        kMostRows, code.most_elements);
    const bool lean = is_along && turns == 1 && tiling.column_blocks == 1 && last > 0;
    const int64_t blocks = (down ? results : tiling.row_blocks) * (is_along ? 1 : tiling.column_blocks);
    const int64_t rows = down ? below : tiling.row_tile;
    const int64_t each = work * std::max<int64_t>(rows * turns, 1) * (is_along ? last : tiling.column_tile);
    parallel(blocks, std::max<int64_t>(1, kGrain / std::max<int64_t>(each, 1)), [&](int64_t begin, int64_t end) {
      Frame& frame = frame_for(code, call);
      for (int64_t block = begin; block < end; ++block) {
        const int64_t at = is_along ? block : block / tiling.column_blocks;
        frame.column = is_along ? 0 : block % tiling.column_blocks * tiling.column_tile;
        const int64_t count = down ? 1 : std::min(tiling.row_tile, results - at * tiling.row_tile);
        if (down) {
          outer.set_scalars(frame, at);
        } else {
          outer.set_rows(frame, at * tiling.row_tile, count);
        }
        frame.shape(count, std::min(tiling.column_tile, std::max<int64_t>(last, 1) - frame.column));
        for (const Step& step : steps) {
          if (!step.is_pass) {
            frame.run(step.list);
            continue;
          }
          frame.run(step.starts);
          turn(frame, lean ? step.lean : step.list, 0, last, tiling);
          frame.run(step.ends);
        }
      }
    });
  }

 private:
  void turn(Frame& frame, int32_t list, size_t level, int64_t last, const Tiling& tiling) const {
    if (level < inner.size()) {
      const int64_t extent = frame.number(inner[level].extent);
      for (int64_t at = 0; at < extent; ++at) {
        frame.scalars[inner[level].variable] = at;
        turn(frame, list, level + 1, last, tiling);
      }
      return;
    }
    if (across) {
      frame.run(list);
    } else if (down) {
      const int64_t below = frame.number(turns_down), columns_now = frame.columns;
      for (int64_t row = 0; row < below; row += tiling.row_tile) {
        const int64_t count = std::min(tiling.row_tile, below - row);
        for (int64_t r = 0; r < count; ++r) frame.row_values[r] = row + r;
        frame.shape(count, columns_now);
        frame.run(list);
      }
      frame.shape(1, columns_now);
    } else {
      for (int64_t column = 0; column < last; column += tiling.column_tile) {
        frame.column = column;
        frame.shape(frame.rows, std::min(tiling.column_tile, last - column));
        frame.run(list);
      }
      frame.column = 0;
    }
  }
};

// -- epilogues ------------------------------------------------------------------------------------------------

// What becomes of tiles of results: list 0 of the code, `result` a view of the tile.
struct Epilogue {
  Counted rows, batch;
  int32_t result = -1;
  Code code;
};

// Rows of results of one thread that wait for more to come: small tiles are not worth their instructions.
template <class T>
struct Waiting {
  int64_t batch = 0, i = 0, rows = 0, j = 0, columns = 0;
  alignas(64) T results[kMostElements];
};

inline constexpr int64_t kGroupsWaiting = 8;

// A run of a kernel of the runtime, which gives its tiles.
template <class T>
class Giving {
 public:
  Giving(const Epilogue& epilogue, const Call& call) : epilogue_(epilogue), call_(call) {}

  // What still waits, when all threads have come to their ends.
  void end() {
    for (const std::unique_ptr<Waiting<T>>& one : waiting_) finish(*one);
  }

  static void give(const void* state, int64_t batch, int64_t i, int64_t rows, int64_t j, int64_t count,
                   const T* tile, int64_t stride) {
    // const: as the runtime's kernels hand it on
    const_cast<Giving*>(static_cast<const Giving*>(state))->take(batch, i, rows, j, count, tile, stride);
  }

 private:
  void take(int64_t batch, int64_t i, int64_t rows, int64_t j, int64_t count, const T* tile, int64_t stride) {
    const int64_t most = epilogue_.code.most_elements;
    if (rows * count * 2 > most) return run(batch, i, rows, j, count, tile, stride);
    Waiting<T>& own = mine(j, count);
    if (own.rows > 0 && (own.batch != batch || own.j != j || own.columns != count || own.i + own.rows != i ||
                         (own.rows + rows) * count > most || own.rows + rows > kMostRows))
      finish(own);
    if (own.rows == 0) own.batch = batch, own.i = i, own.j = j, own.columns = count;
    for (int64_t r = 0; r < rows; ++r) copy_row(tile + r * stride, 1, own.results + (own.rows + r) * count, count);
    own.rows += rows;
  }
  void finish(Waiting<T>& own) {
    if (own.rows > 0) run(own.batch, own.i, own.rows, own.j, own.columns, own.results, own.columns);
    own.rows = 0;
  }
  // Where this thread keeps columns from j on; groups of columns take turns.
  Waiting<T>& mine(int64_t j, int64_t count) {
    static thread_local std::array<Waiting<T>*, kGroupsWaiting> found;
    static thread_local uint64_t of = 0;
    if (of != call_.nest) found.fill(nullptr), of = call_.nest;
    Waiting<T>*& one = found[j / count % kGroupsWaiting];
    if (one == nullptr) {
      while (__atomic_test_and_set(&is_locked_, __ATOMIC_ACQUIRE)) {
      }
      waiting_.push_back(std::make_unique<Waiting<T>>());
      one = waiting_.back().get();
      __atomic_clear(&is_locked_, __ATOMIC_RELEASE);
    }
    return *one;
  }
  void run(int64_t batch, int64_t i, int64_t rows, int64_t j, int64_t count, const T* tile, int64_t stride) {
    const Code& code = epilogue_.code;
    Frame& frame = frame_for(code, call_);
    epilogue_.batch.set_scalars(frame, batch);
    if (rows <= kMostRows && rows * count <= code.most_elements)
      return run_tile(frame, i, rows, j, count, tile, stride);
    const Tiling tiling(rows, count, code.most_elements, kMostRows, code.most_elements);
    for (int64_t row = 0; row < rows; row += tiling.row_tile) {
      for (int64_t column = 0; column < count; column += tiling.column_tile)
        run_tile(frame, i + row, std::min(tiling.row_tile, rows - row), j + column,
                 std::min(tiling.column_tile, count - column), tile + row * stride + column, stride);
    }
  }
  void run_tile(Frame& frame, int64_t i, int64_t rows, int64_t j, int64_t count, const T* tile, int64_t stride) {
    epilogue_.rows.set_rows(frame, i, rows);
    frame.column = j;
    frame.shape(rows, count);
    frame.registers[epilogue_.result] = {reinterpret_cast<char*>(const_cast<T*>(tile)),
                                           stride * static_cast<int64_t>(sizeof(T)), nullptr};
    frame.run(0);
  }

  const Epilogue& epilogue_;
  const Call& call_;
  std::vector<std::unique_ptr<Waiting<T>>> waiting_;
  bool is_locked_ = false;
};

// f(T{}) for the elements that products, convolutions and attention take.
template <class F>
KH_INLINE void with_operand(Element element, F&& f) {
  if (element == Element::kBF16) return f(bf16{});
  if (element == Element::kF16) return f(f16{});
  f(float{});
}

// Where an operand begins.
struct Operand {
  int32_t buffer = -1, offset = -1;

  template <class T>
  const T* at(const Call& call) const {
    return static_cast<const T*>(call.buffers[buffer]) + call.numbers[offset];
  }
};

// -- products -------------------------------------------------------------------------------------------------

struct Digit {
  int32_t extent, a_step, b_step;
};

struct Multiplying : Nest {
  Element element{};
  Operand a, b;
  int32_t packed = -1;  // the buffer of the second operand, packed; -1 of one that is packed when its turn comes
  int32_t batch = -1, m = -1, n = -1, k = -1, a_row = -1, a_depth = -1, b_depth = -1, b_column = -1;
  std::vector<Digit> digits;
  Epilogue epilogue;

  void run(const Call& call) const override {
    with_operand(element, [&](auto kind) { multiply_as<decltype(kind)>(call); });
  }

 private:
  void offsets(const Call& call, int64_t number, int64_t& of_a, int64_t& of_b) const {
    of_a = of_b = 0;
    for (size_t at = digits.size(); at-- > 0;) {
      const int64_t extent = call.numbers[digits[at].extent], digit = at > 0 ? number % extent : number;
      of_a += digit * call.numbers[digits[at].a_step];
      of_b += digit * call.numbers[digits[at].b_step];
      number /= extent;
    }
  }

  template <class T>
  void multiply_as(const Call& call) const {
    const int64_t *const at = call.numbers, count = at[batch], rows = at[m], columns = at[n], depth = at[k];
    Giving<float> giving(epilogue, call);
    if (count <= 0 || rows <= 0 || columns <= 0) return;
    const T* const left = a.at<T>(call);
    if (packed < 0) {
      struct Where {
        const Multiplying& own;
        const Call& call;
        const T *left, *right;
      } where{*this, call, left, b.at<T>(call)};
      const auto operands = [](const void* state, int64_t number) {
        const Where& one = *static_cast<const Where*>(state);
        int64_t of_a, of_b;
        one.own.offsets(one.call, number, of_a, of_b);
        return Operands<T>{one.left + of_a, one.right + of_b};
      };
      multiply_tiles_batched<T>(count, rows, columns, depth, operands, &where, at[a_row], at[a_depth], at[b_depth],
                                at[b_column], {Giving<float>::give, &giving, 0, 0});
      return giving.end();
    }
    const float* const right = static_cast<const float*>(call.buffers[packed]);
    const int64_t size = right_size<T>(depth, columns);
    for (int64_t number = 0; number < count; ++number) {
      int64_t of_a, of_b;
      offsets(call, number, of_a, of_b);
      multiply_tiles(rows, columns, depth, left + of_a, at[a_row], at[a_depth], right + of_b * size,
                     {Giving<float>::give, &giving, number, 0});
    }
    giving.end();
  }
};

// -- convolutions -----------------------------------------------------------------------------------------------

// Numbers of a Convolution in the order of its fields.
using Sizes = std::array<int32_t, 22>;

inline Convolution convolution_of(const Sizes& sizes, const int64_t* numbers) {
  Convolution shape{};
  shape.n = numbers[sizes[0]], shape.c = numbers[sizes[1]], shape.o = numbers[sizes[2]];
  shape.groups = numbers[sizes[3]];
  int64_t(*const triples[])[3] = {&shape.in, &shape.kernel, &shape.stride, &shape.pad, &shape.dilation, &shape.out};
  for (int i = 0; i < 18; ++i) (*triples[i / 3])[i % 3] = numbers[sizes[4 + i]];
  return shape;
}

struct Convolving : Nest {
  Element element{};
  Sizes sizes{};
  Operand x, w;
  int32_t packed = -1;  // the buffer of the packed weight, -1 of one that is packed at each call
  std::array<int32_t, 5> x_steps{}, w_steps{};
  Epilogue epilogue;

  void run(const Call& call) const override {
    with_operand(element, [&](auto kind) { convolve_as<decltype(kind)>(call); });
  }

 private:
  template <class T>
  void convolve_as(const Call& call) const {
    const Convolution shape = convolution_of(sizes, call.numbers);
    int64_t x_strides[5], w_strides[5];
    for (int i = 0; i < 5; ++i) x_strides[i] = call.numbers[x_steps[i]], w_strides[i] = call.numbers[w_steps[i]];
    const Row<float> space(packed < 0 ? filter_size<T>(shape) : 0);
    const float* right = &space[0];
    if (packed < 0) {
      pack_filter(shape, w.at<T>(call), w_strides, &space[0]);
    } else {
      right = static_cast<const float*>(call.buffers[packed]);
    }
    Giving<float> giving(epilogue, call);
    convolve_tiles(shape, x.at<T>(call), x_strides, right, {Giving<float>::give, &giving, 0, 0});
    giving.end();
  }
};

// -- Fourier transforms -----------------------------------------------------------------------------------------

struct Transforming : Nest {
  Element element{};
  FourierForm form{};
  bool inverse = false, has_imaginary = false;
  int64_t samples = 0, axis = 0;
  double scale = 1;
  std::vector<int32_t> dims, real_steps, imaginary_steps;
  Operand real, imaginary;
  Epilogue epilogue;

  void run(const Call& call) const override {
    element == Element::kF64 ? transform_as<double>(call) : transform_as<float>(call);
  }

 private:
  template <class T>
  void transform_as(const Call& call) const {
    const auto numbers = [&](const std::vector<int32_t>& places) {
      std::vector<int64_t> found;
      for (const int32_t one : places) found.push_back(call.numbers[one]);
      return found;
    };
    const auto extents = numbers(dims), of_real = numbers(real_steps), of_imaginary = numbers(imaginary_steps);
    const Fourier shape{form, inverse, samples, scale, static_cast<int64_t>(extents.size()), axis, extents.data()};
    const FourierInputs<T> in{real.at<T>(call), of_real.data(), has_imaginary ? imaginary.at<T>(call) : nullptr,
                              of_imaginary.data()};
    Giving<T> giving(epilogue, call);
    const auto give = [](const void* state, int64_t i, int64_t rows, int64_t j, int64_t count, const T* tile,
                         int64_t stride) { Giving<T>::give(state, 0, i, rows, j, count, tile, stride); };
    transform_tiles<T>(shape, in, {give, &giving});
    giving.end();
  }
};

// -- attention --------------------------------------------------------------------------------------------------

// What becomes of a row of scores: list 0 of the code, from `score` (a view of them) to `result`.
struct Scoring {
  bool is_there = false;
  int32_t score = -1, result = -1;
  Code code;
};

// Whether a query sees each key: list 0, `condition`. steps: of (batch, heads, queries) among what is found.
struct Looking {
  bool is_there = false, plain = false;
  int32_t condition = -1;
  std::array<int32_t, 3> sizes{}, steps{};
  Code code;
};

struct Attending : Nest {
  Element element{};
  std::array<int32_t, 7> sizes{};  // batch, heads, heads of keys, queries, keys, width, width of values
  bool causal = false, blank = false;
  int32_t causal_offset = -1;
  float scale = 1;
  Weights weights{};
  Operand q, k, v, out;
  std::array<int32_t, 4> q_steps{}, k_steps{}, v_steps{}, out_steps{};
  Scoring scoring;
  Looking looking;
  int32_t buffers = 0, space = -1;  // space: floats for the result, which `rest` reads as the buffer -1
  std::unique_ptr<Nest> rest;

  void run(const Call& call) const override {
    with_operand(element, [&](auto kind) { attend_as<decltype(kind)>(call); });
  }

 private:
  static void mask(const void* state, int64_t b, int64_t h, int64_t i, int64_t j, int64_t count, float* scores) {
    const auto& [own, call] = *static_cast<const std::pair<const Attending*, const Call*>*>(state);
    const Code& code = own->scoring.code;
    Frame& frame = frame_for(code, *call);
    frame.scalars[0] = b, frame.scalars[1] = h, frame.scalars[2] = i;
    for (int64_t first = 0; first < count; first += code.most_elements) {
      const int64_t columns = std::min(code.most_elements, count - first);
      frame.column = j + first;
      frame.shape(1, columns);
      frame.registers[own->scoring.score] = {reinterpret_cast<char*>(scores + first), 0, nullptr};
      frame.run(0);
      const bool wide = frame.is_wide(own->scoring.result);
      copy_row(frame.registers[own->scoring.result].row<float>(0), wide ? 1 : 0, scores + first, columns);
    }
  }

  Reach look(const Call& call, int64_t b, int64_t h, int64_t i, std::vector<char>& seen) const {
    Frame& frame = frame_for(looking.code, call);
    frame.scalars[0] = b, frame.scalars[1] = h, frame.scalars[2] = i;
    const int64_t keys = call.numbers[sizes[4]];
    seen.resize(keys);
    for (int64_t first = 0; first < keys; first += looking.code.most_elements) {
      const int64_t columns = std::min(looking.code.most_elements, keys - first);
      frame.column = first;
      frame.shape(1, columns);
      frame.run(0);
      const bool wide = frame.is_wide(looking.condition);
      const bool* const found = frame.registers[looking.condition].row<bool>(0);
      for (int64_t key = 0; key < columns; ++key) seen[first + key] = found[wide ? key : 0];
    }
    return reach_of(keys, [&](int32_t key) { return seen[key]; });
  }

  template <class T>
  void attend_as(const Call& given) const {
    Call call = given;
    const int64_t* const at = call.numbers;
    std::vector<void*> places;
    const Row<float> result(rest == nullptr ? 0 : at[space]);
    if (rest != nullptr) {
      places.push_back(&result[0]);
      places.insert(places.end(), call.buffers, call.buffers + buffers);
      call.buffers = places.data() + 1;
    }
    const auto steps = [&](const std::array<int32_t, 4>& numbers) {
      return std::array<int64_t, 4>{at[numbers[0]], at[numbers[1]], at[numbers[2]], at[numbers[3]]};
    };
    const auto of_q = steps(q_steps), of_k = steps(k_steps), of_v = steps(v_steps), of_out = steps(out_steps);
    kh::Attention shape{at[sizes[0]], at[sizes[1]], at[sizes[2]], at[sizes[3]], at[sizes[4]], at[sizes[5]],
                        at[sizes[6]], causal, at[causal_offset], blank, {}, weights};
    std::vector<Reach> found;
    if (looking.is_there) {
      const int64_t count[] = {at[looking.sizes[0]], at[looking.sizes[1]], at[looking.sizes[2]]};
      found.resize(std::max<int64_t>(count[0] * count[1] * count[2], 1));
      Call looks = call;
      looks.nest = next_nest();
      find_reaches(count[0], count[1], count[2], at[sizes[4]], found.data(), [&](int64_t b, int64_t h, int64_t i) {
        static thread_local std::vector<char> seen;
        return look(looks, b, h, i, seen);
      });
      shape.reaches = {found.data(), {at[looking.steps[0]], at[looking.steps[1]], at[looking.steps[2]]}, looking.plain};
    }
    const std::pair<const Attending*, const Call*> state{this, &call};
    attend_masked<T>(shape, q.at<T>(call), of_q.data(), k.at<T>(call), of_k.data(), v.at<T>(call), of_v.data(), scale,
                     scoring.is_there ? mask : nullptr, &state, const_cast<float*>(out.at<float>(call)), of_out.data());
    if (rest != nullptr) {
      call.nest = next_nest();
      rest->run(call);
    }
  }

 public:
  static uint64_t next_nest() {
    static uint64_t last = 0;
    return __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
  }
};

}  // namespace bytecode

}  // namespace kh
