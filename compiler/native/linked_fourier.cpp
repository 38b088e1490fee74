// Fourier transforms of strided values: groups of a vector's width side by side, or one by one where they are few.
//
// Real samples of an even number are taken for complex ones of half that number, which are untangled behind, or tangled
// before, the transform. (Van Loan, 1992, ch. 4.3.)
#include <algorithm>
#include <map>
#include <mutex>

#include "fourier.h"
#include "linked_fourier.h"
#include "parallel.h"

KH_NAMESPACE {

namespace {

constexpr int64_t kFlopsPerThread = 1 << 16;  // below, a thread costs more than it does
constexpr int64_t kBytesSideBySide = 1 << 20;  // of the arrays of a group: more do not stay in the cache of a core

// What is known of a length, once for all calls. turns: exp(-2 pi i k / samples) for k up to samples / 4.
template <class T>
struct Plan {
  int64_t samples;
  bool folds;  // into complex samples of half the number
  Transform<T> transform;
  std::vector<Complex<T>> turns;

  Plan(int64_t samples, bool real)
      : samples(samples), folds(real && samples % 2 == 0), transform(folds ? samples / 2 : samples) {
    for (int64_t k = 0; folds && k <= samples / 4; ++k) turns.push_back(root_of_one<T>(k, samples));
  }
};

template <class T>
const Plan<T>& plan_of(int64_t samples, bool real) {
  static std::mutex mutex;
  static std::map<std::pair<int64_t, bool>, std::unique_ptr<Plan<T>>> plans;
  const std::lock_guard<std::mutex> guard(mutex);
  std::unique_ptr<Plan<T>>& plan = plans[{samples, real}];
  if (!plan) plan = std::make_unique<Plan<T>>(samples, real);
  return *plan;
}

template <class V>
KH_INLINE Complex<V> conjugate(const Complex<V>& a) {
  return {a.re, -a.im};
}

// -- real samples as half as many complex ones --------------------------------------------------------------

// The first half + 1 frequencies of the transform x of `half` such samples.
template <class V, class T>
void untangle(const Plan<T>& plan, Complex<V>* x) {
  const int64_t half = plan.samples / 2;
  const Complex<V> first = x[0];
  x[0] = {first.re + first.im, V{}};
  x[half] = {first.re - first.im, V{}};
  for (int64_t k = 1; k <= half / 2; ++k) {
    const Complex<V> a = x[k], b = x[half - k];
    const Complex<V> even{(a.re + b.re) * T(0.5), (a.im - b.im) * T(0.5)};
    const Complex<V> odd = times(Complex<V>{(a.im + b.im) * T(0.5), (b.re - a.re) * T(0.5)}, plan.turns[k]);
    x[k] = {even.re + odd.re, even.im + odd.im};
    x[half - k] = {even.re - odd.re, odd.im - even.im};
  }
}

// The other way, for the inverse; all is conjugated, as a forward transform is what follows.
template <class V, class T>
void tangle(const Plan<T>& plan, Complex<V>* x) {
  const int64_t half = plan.samples / 2;
  const Complex<V> first = x[0], last = x[half];
  x[0] = {first.re + last.re, last.re - first.re};
  for (int64_t k = 1; k <= half / 2; ++k) {
    const Complex<V> a = x[k], b = x[half - k];
    const Complex<V> even{a.re + b.re, a.im - b.im};
    const Complex<V> turn = times(Complex<V>{a.re - b.re, -(a.im + b.im)}, plan.turns[k]);  // conjugated
    const Complex<V> odd{turn.im, turn.re};  // i times what was conjugated
    x[k] = {even.re + odd.re, -(even.im + odd.im)};
    x[half - k] = {even.re - odd.re, even.im - odd.im};
  }
}

// -- groups -------------------------------------------------------------------------------------------------

template <class T>
class Group {
  using V = typename VectorOf<T>::Type;
  static constexpr int64_t kSide = kWidth<T>;

 public:
  Group(const Fourier& shape, const FourierInputs<T>& in, const FourierTile<T>& tile, const Plan<T>& plan)
      : shape_(shape), in_(in), tile_(tile), plan_(plan) {
    for (int64_t i = 0; i < shape.axis; ++i) before_ *= shape.dims[i];
    if (shape.axis + 1 < shape.rank) {
      inner_ = shape.dims[shape.rank - 1];
      for (int64_t i = shape.axis + 1; i + 1 < shape.rank; ++i) after_ *= shape.dims[i];
    }
    results_ = shape.form == FourierForm::kHalf ? shape.samples / 2 + 1 : shape.samples;
    const Transform<T>& transform = plan.transform;
    const int64_t alone = inner_ == 0 ? before_ * transform.cost_of_one() : 0;
    const int64_t bytes = 2 * transform.room() * 2 * kLanes * 4;
    const int64_t together = ceil_div(before_, kSide) * transform.cost();
    one_by_one_ = inner_ == 0 && (alone < together || (bytes > kBytesSideBySide && alone < 2 * together));
    width_ = one_by_one_ ? 1 : kSide;
  }

  // How many groups there are.
  int64_t count() const {
    return inner_ == 0 ? ceil_div(before_, width_) : before_ * after_ * ceil_div(inner_, width_);
  }
  int64_t flops() const { return 20 * kSide * (one_by_one_ ? plan_.transform.cost_of_one() : plan_.transform.cost()); }

  void run(int64_t begin, int64_t end) {
    const int64_t values = max(results_, plan_.transform.length()) + 1;
    const int64_t room = one_by_one_ ? max(plan_.transform.room_of_one(), ceil_div(values, kSide))
                                     : max(plan_.transform.room(), values);
    const int64_t row = round_up(2 * results_, kSide) * width_;
    const int64_t numbers = 4 * room * kSide + max(row, 2 * kSide);
    auto* const memory = reinterpret_cast<T*>(
        workspace<Use::kTransform>().floats(numbers * static_cast<int64_t>(sizeof(T) / sizeof(float))));
    rows_ = memory + 4 * room * kSide;
    for (int64_t group = begin; group < end; ++group) {
      if (one_by_one_)
        run_group<T>(group, reinterpret_cast<Complex<T>*>(memory),
                     reinterpret_cast<Complex<T>*>(memory + 2 * room * kSide));
      else
        run_group<V>(group, reinterpret_cast<Complex<V>*>(memory),
                     reinterpret_cast<Complex<V>*>(memory + 2 * room * kSide));
    }
  }

 private:
  // Where the transforms of a group begin, and how many there are.
  struct Members {
    int64_t first, count;            // of the rows of the result, or of its columns
    int64_t before, after;           // where there are columns
    int64_t real[kSide], imaginary[kSide];
  };

  Members members(int64_t group) const {
    Members found{};
    if (inner_ == 0) {
      found.first = group * width_;
      found.count = min(width_, before_ - found.first);
    } else {
      const int64_t pieces = ceil_div(inner_, width_);
      found.first = group % pieces * width_;
      found.count = min(width_, inner_ - found.first);
      found.after = group / pieces % after_;
      found.before = group / pieces / after_;
    }
    for (int64_t l = 0; l < found.count; ++l) {
      found.real[l] = place(in_.real_strides, found, l);
      if (in_.imaginary != nullptr) found.imaginary[l] = place(in_.imaginary_strides, found, l);
    }
    return found;
  }

  int64_t place(const int64_t* strides, const Members& of, int64_t member) const {
    int64_t found = 0, left = inner_ == 0 ? of.first + member : of.before;
    for (int64_t i = shape_.axis - 1; i >= 0; --i) {
      found += left % shape_.dims[i] * strides[i];
      left /= shape_.dims[i];
    }
    if (inner_ == 0) return found;
    found += (of.first + member) * strides[shape_.rank - 1];
    left = of.after;
    for (int64_t i = shape_.rank - 2; i > shape_.axis; --i) {
      found += left % shape_.dims[i] * strides[i];
      left /= shape_.dims[i];
    }
    return found;
  }

  // to[i * step + member] = element i of each of the group.
  void gather(const T* from, const int64_t* places, int64_t stride, int64_t count, int64_t elements, T* to,
              int64_t step) const {
    const int64_t apart = count > 1 ? places[1] - places[0] : 1;
    bool even = true;
    for (int64_t l = 1; l < count; ++l) even = even && places[l] - places[l - 1] == apart;
    if (one_by_one_) {
      for (int64_t i = 0; i < elements; ++i) to[i * step] = from[places[0] + i * stride];
      return;
    }
    if (count == kSide && even && apart == 1) {
      for (int64_t i = 0; i < elements; ++i) std::copy_n(from + places[0] + i * stride, kSide, to + i * step);
      return;
    }
    if constexpr (sizeof(T) == sizeof(float)) {
      if (count == kSide && even && stride == 1) {
        transpose(from + places[0], apart, to, step, kSide, elements);
        return;
      }
    }
    for (int64_t i = 0; i < elements; ++i) {
      for (int64_t l = 0; l < count; ++l) to[i * step + l] = from[places[l] + i * stride];
      for (int64_t l = count; l < kSide; ++l) to[i * step + l] = 0;
    }
  }

  template <class E>
  void run_group(int64_t group, Complex<E>* x, Complex<E>* other) {
    const Members of = members(group);
    read(of, reinterpret_cast<T*>(x));
    if (shape_.form == FourierForm::kReal) {
      before_real(x);
      plan_.transform.run(x, other);
      after_real(x);
      give(of, reinterpret_cast<const T*>(x), plan_.folds ? width_ : 2 * width_);
      return;
    }
    const bool swaps = shape_.inverse && in_.imaginary != nullptr;
    if (swaps) {
      for (int64_t k = 0; k < results_; ++k) x[k] = {x[k].im, x[k].re};
    }
    plan_.transform.run(x, other);
    if (in_.imaginary == nullptr) after_forward(x);
    const T scale = static_cast<T>(shape_.scale);
    if (swaps) {
      for (int64_t k = 0; k < results_; ++k) x[k] = {x[k].im * scale, x[k].re * scale};
    } else if (shape_.scale != 1.0) {
      for (int64_t k = 0; k < results_; ++k) x[k] = {x[k].re * scale, x[k].im * scale};
    }
    if (inner_ == 0) {
      give_rows_of(of, reinterpret_cast<const T*>(x), width_, 2 * results_);
    } else {
      give_pairs(of, reinterpret_cast<const T*>(x));
    }
  }

  void read(const Members& of, T* x) const {
    const int64_t elements = shape_.dims[shape_.axis], stride = in_.real_strides[shape_.axis];
    if (plan_.folds && shape_.form != FourierForm::kReal) {
      gather(in_.real, of.real, stride, of.count, elements, x, width_);
      return;
    }
    if (in_.imaginary != nullptr && are_pairs(of)) {
      if (stride == 2) {
        gather(in_.real, of.real, 1, of.count, 2 * elements, x, width_);
        return;
      }
      if (of.count == kSide && of.real[kSide - 1] - of.real[0] == 2 * (kSide - 1) && inner_ != 0) {
        for (int64_t i = 0; i < elements; ++i) {
          const T* const from = in_.real + of.real[0] + i * stride;
          T* const to = x + i * 2 * kSide;
#pragma omp simd
          for (int64_t l = 0; l < kSide; ++l) {
            to[l] = from[2 * l];
            to[kSide + l] = from[2 * l + 1];
          }
        }
        return;
      }
    }
    gather(in_.real, of.real, stride, of.count, elements, x, 2 * width_);
    if (in_.imaginary != nullptr) {
      const int64_t own = in_.imaginary_strides[shape_.axis];
      gather(in_.imaginary, of.imaginary, own, of.count, elements, x + width_, 2 * width_);
    } else {
      for (int64_t i = 0; i < elements; ++i) std::fill_n(x + width_ + i * 2 * width_, width_, T{0});
    }
  }

  // Whether an imaginary part lies behind each real one.
  bool are_pairs(const Members& of) const {
    bool equal = in_.imaginary + of.imaginary[0] == in_.real + of.real[0] + 1;
    for (int64_t i = 0; i < shape_.rank; ++i) equal = equal && in_.real_strides[i] == in_.imaginary_strides[i];
    return equal;
  }

  // Of real samples: what all forms want of their transform.
  template <class E>
  void after_forward(Complex<E>* x) const {
    if (plan_.folds) untangle(plan_, x);
    if (shape_.form != FourierForm::kFull) return;
    const int64_t samples = shape_.samples;
    if (plan_.folds) {
      for (int64_t k = samples / 2 + 1; k < samples; ++k) x[k] = conjugate(x[samples - k]);
    }
    if (shape_.inverse) {
      for (int64_t k = 0; k < samples; ++k) x[k] = conjugate(x[k]);
    }
  }

  template <class E>
  void before_real(Complex<E>* x) const {
    const int64_t samples = shape_.samples;
    if (plan_.folds) {
      tangle(plan_, x);
      return;
    }
    x[0].im = E{};
    for (int64_t k = 1; k <= samples / 2; ++k) {
      x[samples - k] = x[k];
      x[k] = conjugate(x[k]);
    }
  }

  template <class E>
  void after_real(Complex<E>* x) const {
    const T scale = static_cast<T>(shape_.scale);
    for (int64_t k = 0; k < plan_.transform.length(); ++k) x[k] = {x[k].re * scale, x[k].im * -scale};
  }

  // The samples, `step` numbers apart, to where they belong.
  void give(const Members& of, const T* x, int64_t step) const {
    if (inner_ == 0) {
      give_rows_of(of, x, step, results_);
      return;
    }
    for (int64_t k = 0; k < results_; ++k)
      tile_.call(tile_.state, row_of(of, k), 1, of.first, of.count, x + k * step, width_);
  }

  // Whole rows of so many columns.
  void give_rows_of(const Members& of, const T* x, int64_t step, int64_t columns) const {
    if (one_by_one_ && step != 1) {
      for (int64_t k = 0; k < columns; ++k) rows_[k] = x[k * step];
      x = rows_;
    }
    if (one_by_one_) {
      tile_.call(tile_.state, of.first, 1, 0, columns, x, columns);
      return;
    }
    const int64_t stride = round_up(columns, kSide);
    if constexpr (sizeof(T) == sizeof(float)) {
      transpose(x, step, rows_, stride, columns, kSide);
    } else {
      for (int64_t k = 0; k < columns; ++k) {
        for (int64_t l = 0; l < of.count; ++l) rows_[l * stride + k] = x[k * step + l];
      }
    }
    tile_.call(tile_.state, of.first, of.count, 0, columns, rows_, stride);
  }

  // A pair for each transform of the group, to each frequency's row.
  void give_pairs(const Members& of, const T* x) const {
    for (int64_t k = 0; k < results_; ++k) {
      const T* const from = x + k * 2 * kSide;
#pragma omp simd
      for (int64_t l = 0; l < kSide; ++l) {
        rows_[2 * l] = from[l];
        rows_[2 * l + 1] = from[kSide + l];
      }
      tile_.call(tile_.state, row_of(of, k), 1, 2 * of.first, 2 * of.count, rows_, 2 * kSide);
    }
  }

  int64_t row_of(const Members& of, int64_t k) const { return (of.before * results_ + k) * after_ + of.after; }

  const Fourier& shape_;
  const FourierInputs<T>& in_;
  const FourierTile<T>& tile_;
  const Plan<T>& plan_;
  int64_t before_ = 1, after_ = 1, inner_ = 0, results_, width_;  // inner: 0 where the axis is the last
  bool one_by_one_;
  T* rows_ = nullptr;
};

}  // namespace

template <class T>
void transform_tiles(const Fourier& shape, const FourierInputs<T>& in, const FourierTile<T>& tile) {
  for (int64_t i = 0; i < shape.rank; ++i) {
    if (shape.dims[i] == 0) return;
  }
  const bool real = in.imaginary == nullptr || shape.form == FourierForm::kReal;
  const Plan<T>& plan = plan_of<T>(shape.samples, real);
  const Group<T> all(shape, in, tile, plan);
  parallel(all.count(), max<int64_t>(1, kFlopsPerThread / max<int64_t>(all.flops(), 1)), [&](int64_t begin, int64_t end) {
    Group<T> own = all;
    own.run(begin, end);
  });
}

template void transform_tiles<float>(const Fourier&, const FourierInputs<float>&, const FourierTile<float>&);
template void transform_tiles<double>(const Fourier&, const FourierInputs<double>&, const FourierTile<double>&);

}  // namespace kh
