// Complex Fourier transforms of any length, of as many at once as a vector has lanes, or of one.
//
// A length of small prime factors goes through passes of Stockham's, which need no reordering: each reads and writes
// whole vectors, of transforms side by side. One transform alone is made a matrix, whose columns are transformed side by
// side, multiplied by twiddles, transposed, and transformed again. Any other length is a convolution with a chirp of
// Bluestein's, by transforms of a length of small factors. All factors are computed in double, once for a length.
// Sources: Van Loan, Computational Frameworks for the Fast Fourier Transform, 1992, ch. 1.7, 3.2, 4.2.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "simd.h"
#include "standard.h"

KH_NAMESPACE {

typedef double vdouble __attribute__((vector_size(kLanes * 4)));

template <class T>
struct VectorOf;
template <>
struct VectorOf<float> {
  using Type = vfloat;
};
template <>
struct VectorOf<double> {
  using Type = vdouble;
};
template <class T>
inline constexpr int64_t kWidth = kLanes * 4 / static_cast<int64_t>(sizeof(T));

// V: a number, or a vector of them.
template <class V>
struct Complex {
  V re, im;
};

template <class V, class T>
KH_INLINE Complex<V> times(const Complex<V>& a, const Complex<T>& b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

constexpr double kTurn = 6.283185307179586476925286766559;
constexpr int64_t kMostDirect = 61;  // the largest prime whose transform is a product with its matrix

// exp(-2 pi i place / length), of a place that is reduced to an eighth of a turn.
template <class T>
Complex<T> root_of_one(int64_t place, int64_t length) {
  place %= length;
  const int64_t eighth = 8 * place / length;
  const int64_t quarter = (eighth + 1) / 2;
  const double angle = kTurn * static_cast<double>(4 * place - quarter * length) / static_cast<double>(4 * length);
  const double c = std::cos(angle), s = -std::sin(angle);
  switch (quarter % 4) {
    case 0: return {static_cast<T>(c), static_cast<T>(s)};
    case 1: return {static_cast<T>(s), static_cast<T>(-c)};
    case 2: return {static_cast<T>(-c), static_cast<T>(-s)};
    default: return {static_cast<T>(-s), static_cast<T>(c)};
  }
}

// -- transforms of a few elements ---------------------------------------------------------------------------

template <class V>
KH_INLINE void two(Complex<V>& a, Complex<V>& b) {
  const Complex<V> other{a.re - b.re, a.im - b.im};
  a = {a.re + b.re, a.im + b.im};
  b = other;
}

// By -i.
template <class V>
KH_INLINE Complex<V> turned(const Complex<V>& a) {
  return {a.im, -a.re};
}

template <class V>
KH_INLINE void four(Complex<V>& a, Complex<V>& b, Complex<V>& c, Complex<V>& d) {
  two(a, c);
  two(b, d);
  d = turned(d);
  two(a, b);
  two(c, d);
  std::swap(b, c);
}

// roots: exp(-2 pi i k / R).
template <int R, class T, class V>
KH_INLINE void butterfly(Complex<V>* x, const Complex<T>* roots) {
  if constexpr (R == 2) {
    two(x[0], x[1]);
  } else if constexpr (R == 4) {
    four(x[0], x[1], x[2], x[3]);
  } else if constexpr (R == 8) {
    constexpr T half = static_cast<T>(0.70710678118654752440);
    KH_UNROLL(4)
    for (int k = 0; k < 4; ++k) two(x[k], x[k + 4]);
    x[5] = {(x[5].re + x[5].im) * half, (x[5].im - x[5].re) * half};
    x[6] = turned(x[6]);
    x[7] = {(x[7].im - x[7].re) * half, -(x[7].re + x[7].im) * half};
    four(x[0], x[1], x[2], x[3]);
    four(x[4], x[5], x[6], x[7]);
    const Complex<V> y[8] = {x[0], x[4], x[1], x[5], x[2], x[6], x[3], x[7]};
    KH_UNROLL(8)
    for (int k = 0; k < 8; ++k) x[k] = y[k];
  } else {
    constexpr int half = R / 2;
    Complex<V> sum[half], apart[half];
    const Complex<V> first = x[0];
    KH_UNROLL(8)
    for (int k = 0; k < half; ++k) {
      sum[k] = {x[k + 1].re + x[R - 1 - k].re, x[k + 1].im + x[R - 1 - k].im};
      apart[k] = {x[k + 1].re - x[R - 1 - k].re, x[k + 1].im - x[R - 1 - k].im};
      x[0].re += sum[k].re;
      x[0].im += sum[k].im;
    }
    KH_UNROLL(8)
    for (int j = 1; j <= half; ++j) {
      Complex<V> even = first, odd{};
      KH_UNROLL(8)
      for (int k = 0; k < half; ++k) {
        const Complex<T> root = roots[j * (k + 1) % R];
        even.re += sum[k].re * root.re;
        even.im += sum[k].im * root.re;
        odd.re -= apart[k].im * root.im;
        odd.im += apart[k].re * root.im;
      }
      x[j] = {even.re + odd.re, even.im + odd.im};
      x[R - j] = {even.re - odd.re, even.im - odd.im};
    }
  }
}

// The same of any odd number of elements.
template <class T, class V>
inline void any_butterfly(int64_t radix, Complex<V>* x, const Complex<T>* roots) {
  const int64_t half = radix / 2;
  Complex<V> sum[kMostDirect / 2], apart[kMostDirect / 2];
  const Complex<V> first = x[0];
  for (int64_t k = 0; k < half; ++k) {
    const Complex<V> a = x[k + 1], b = x[radix - 1 - k];
    sum[k] = {a.re + b.re, a.im + b.im};
    apart[k] = {a.re - b.re, a.im - b.im};
    x[0] = {x[0].re + sum[k].re, x[0].im + sum[k].im};
  }
  for (int64_t j = 1; j <= half; ++j) {
    Complex<V> even = first, odd{};
    for (int64_t k = 0, place = j; k < half; ++k) {
      const Complex<T> root = roots[place];
      even.re += sum[k].re * root.re;
      even.im += sum[k].im * root.re;
      odd.re -= apart[k].im * root.im;
      odd.im += apart[k].re * root.im;
      place += place + j >= radix ? j - radix : j;
    }
    x[j] = {even.re + odd.re, even.im + odd.im};
    x[radix - j] = {even.re - odd.re, even.im - odd.im};
  }
}

// -- passes -------------------------------------------------------------------------------------------------

// One pass: `length` elements in all that are still to be transformed together, as (radix, length / radix).
template <class T>
struct Pass {
  int64_t radix, length;
  std::vector<Complex<T>> roots, twiddles;  // twiddles (length / radix, radix - 1)
};

template <int R, class T, class V>
void run_pass(const Pass<T>& pass, int64_t stride, const Complex<V>* from, Complex<V>* to) {
  const int64_t radix = R > 0 ? R : pass.radix, rest = pass.length / radix;
  for (int64_t p = 0; p < rest; ++p) {
    const Complex<T>* const twiddles = pass.twiddles.data() + p * (radix - 1);
    for (int64_t q = 0; q < stride; ++q) {
      Complex<V> x[R > 0 ? R : kMostDirect];
      if constexpr (R > 0) {
        KH_UNROLL(16)
        for (int k = 0; k < R; ++k) x[k] = from[(k * rest + p) * stride + q];
        butterfly<R>(x, pass.roots.data());
        Complex<V>* const at = to + p * R * stride + q;
        at[0] = x[0];
        if (p == 0) {
          KH_UNROLL(16)
          for (int k = 1; k < R; ++k) at[k * stride] = x[k];
        } else {
          KH_UNROLL(16)
          for (int k = 1; k < R; ++k) at[k * stride] = times(x[k], twiddles[k - 1]);
        }
      } else {
        for (int64_t k = 0; k < radix; ++k) x[k] = from[(k * rest + p) * stride + q];
        any_butterfly(radix, x, pass.roots.data());
        Complex<V>* const at = to + p * radix * stride + q;
        at[0] = x[0];
        for (int64_t k = 1; k < radix; ++k) at[k * stride] = times(x[k], twiddles[k - 1]);
      }
    }
  }
}

inline bool has_small_factors(int64_t length) {
  for (int64_t divisor = 2; divisor <= kMostDirect; ++divisor)
    while (length % divisor == 0) length /= divisor;
  return length == 1;
}

// Transforms of `length` elements, of small factors, side by side.
template <class T>
class Passes {
 public:
  explicit Passes(int64_t length) : length_(length) {
    int64_t stride = 1, twos = 0;
    std::vector<int64_t> radices;
    while (length % 2 == 0) {
      length /= 2;
      ++twos;
    }
    for (; twos % 3 != 0 && twos > 1; twos -= 2) radices.push_back(4);
    if (twos == 1) radices.push_back(2);
    for (; twos >= 3; twos -= 3) radices.push_back(8);
    for (int64_t divisor = 3; length > 1; divisor += 2) {
      for (; length % divisor == 0; length /= divisor) radices.push_back(divisor);
    }
    int64_t left = length_;
    for (const int64_t radix : radices) {
      Pass<T> pass{radix, left, {}, {}};
      for (int64_t k = 0; k < radix; ++k) pass.roots.push_back(root_of_one<T>(k, radix));
      for (int64_t p = 0; p < left / radix; ++p) {
        for (int64_t k = 1; k < radix; ++k) pass.twiddles.push_back(root_of_one<T>(p * k, left));
      }
      passes_.push_back(std::move(pass));
      left /= radix;
      stride *= radix;
    }
  }

  // x (length, stride); both are overwritten, and x is then where the result lies.
  template <class V>
  void run(int64_t stride, Complex<V>*& x, Complex<V>*& other) const {
    for (const Pass<T>& pass : passes_) {
      switch (pass.radix) {
        case 2: run_pass<2>(pass, stride, x, other); break;
        case 3: run_pass<3>(pass, stride, x, other); break;
        case 4: run_pass<4>(pass, stride, x, other); break;
        case 5: run_pass<5>(pass, stride, x, other); break;
        case 7: run_pass<7>(pass, stride, x, other); break;
        case 8: run_pass<8>(pass, stride, x, other); break;
        case 11: run_pass<11>(pass, stride, x, other); break;
        case 13: run_pass<13>(pass, stride, x, other); break;
        default: run_pass<0>(pass, stride, x, other);
      }
      std::swap(x, other);
      stride *= pass.radix;
    }
  }

  int64_t length() const { return length_; }
  int64_t count() const { return static_cast<int64_t>(passes_.size()); }

 private:
  int64_t length_;
  std::vector<Pass<T>> passes_;
};

// -- transforms of any length -------------------------------------------------------------------------------

template <class T>
class Transform {
  using V = typename VectorOf<T>::Type;

 public:
  static constexpr int64_t kLanesOf = kWidth<T>;

  explicit Transform(int64_t length);

  int64_t length() const { return length_; }

  // Vectors of complex elements that each of the two arrays of `run` needs: of a vector of transforms, or of one.
  int64_t room() const { return chirp_ ? chirp_->transform.room() : length_; }
  int64_t room_of_one() const { return chirp_ ? chirp_->transform.room_of_one() : max(length_ / kLanesOf + 1, room_of_matrix()); }

  // About how many vectors are worked on, for a vector of transforms, or for one.
  int64_t cost() const { return chirp_ ? 3 * chirp_->transform.cost() : length_ * passes_->count(); }
  int64_t cost_of_one() const {
    return chirp_ ? 3 * chirp_->transform.cost_of_one()
                  : rows_->length() * vectors(columns_->length()) * rows_->count() +
                        columns_->length() * vectors(rows_->length()) * columns_->count() + length_ / 2;
  }

  // `x` is where the result lies, as in Passes. E: V, for a vector of transforms, or T, for one.
  template <class E>
  void run(Complex<E>*& x, Complex<E>*& other) const {
    if (chirp_) {
      convolve_with_chirp(x, other);
    } else if constexpr (sizeof(E) == sizeof(V)) {
      passes_->run(1, x, other);
    } else {
      run_matrix(x, other);
    }
  }

 private:
  struct Chirp;

  static int64_t vectors(int64_t count) { return ceil_div(count, kLanesOf); }

  int64_t room_of_matrix() const {
    return max(rows_->length() * vectors(columns_->length()), columns_->length() * vectors(rows_->length()));
  }

  template <class E>
  void convolve_with_chirp(Complex<E>*& x, Complex<E>*& other) const {
    const Transform& inner = chirp_->transform;
    const int64_t whole = inner.length();
    for (int64_t j = 0; j < length_; ++j) x[j] = times(x[j], chirp_->chirp[j]);
    for (int64_t j = length_; j < whole; ++j) x[j] = Complex<E>{};
    inner.run(x, other);
    for (int64_t j = 0; j < whole; ++j) {
      const Complex<E> product = times(x[j], chirp_->spectrum[j]);
      x[j] = {product.re, -product.im};
    }
    inner.run(x, other);
    for (int64_t j = 0; j < length_; ++j) x[j] = times(Complex<E>{x[j].re, -x[j].im}, chirp_->chirp[j]);
  }

  // As a matrix of `rows` by `columns`; element (row, column) of its transposed result is the frequency.
  void run_matrix(Complex<T>*& x, Complex<T>*& other) const {
    const int64_t rows = rows_->length(), columns = columns_->length();
    const int64_t across = vectors(columns), along = vectors(rows);
    auto* a = reinterpret_cast<Complex<V>*>(other);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t first = 0; first < columns; first += kLanesOf) {
        T* const to = reinterpret_cast<T*>(a + row * across + first / kLanesOf);
        const T* const from = reinterpret_cast<const T*>(x) + 2 * (row * columns + first);
        const int64_t count = min(kLanesOf, columns - first);
        for (int64_t l = 0; l < count; ++l) {
          to[l] = from[2 * l];
          to[kLanesOf + l] = from[2 * l + 1];
        }
        for (int64_t l = count; l < kLanesOf; ++l) to[l] = to[kLanesOf + l] = 0;
      }
    }
    auto* b = reinterpret_cast<Complex<V>*>(x);
    rows_->run(across, a, b);
    const auto* const twiddles = reinterpret_cast<const Complex<V>*>(twiddles_.get());
    for (int64_t i = 0; i < rows * across; ++i) a[i] = times(a[i], twiddles[i]);
    const T* const from = reinterpret_cast<const T*>(a);
    T* const to = reinterpret_cast<T*>(b);
    for (int64_t column = 0; column < columns; ++column) {
      for (int64_t row = 0; row < along * kLanesOf; ++row) {
        const int64_t place = 2 * ((row * across + column / kLanesOf) * kLanesOf) + column % kLanesOf;
        const int64_t target = 2 * ((column * along + row / kLanesOf) * kLanesOf) + row % kLanesOf;
        to[target] = row < rows ? from[place] : 0;
        to[target + kLanesOf] = row < rows ? from[place + kLanesOf] : 0;
      }
    }
    columns_->run(along, b, a);
    T* const result = reinterpret_cast<T*>(a);
    const T* const found = reinterpret_cast<const T*>(b);
    for (int64_t column = 0; column < columns; ++column) {
      for (int64_t first = 0; first < rows; first += kLanesOf) {
        const T* const block = found + 2 * (column * along + first / kLanesOf) * kLanesOf;
        T* const out = result + 2 * (column * rows + first);
        const int64_t count = min(kLanesOf, rows - first);
        for (int64_t l = 0; l < count; ++l) {
          out[2 * l] = block[l];
          out[2 * l + 1] = block[kLanesOf + l];
        }
      }
    }
    x = reinterpret_cast<Complex<T>*>(result);
    other = reinterpret_cast<Complex<T>*>(b);
  }

  struct Free {
    void operator()(T* memory) const { std::free(memory); }
  };

  int64_t length_;
  std::unique_ptr<Passes<T>> passes_, rows_, columns_;
  std::unique_ptr<T[], Free> twiddles_;
  std::unique_ptr<Chirp> chirp_;
};

template <class T>
struct Transform<T>::Chirp {
  Transform transform;
  std::vector<Complex<T>> chirp, spectrum;
};

template <class T>
Transform<T>::Transform(int64_t length) : length_(length) {
  if (has_small_factors(length)) {
    passes_ = std::make_unique<Passes<T>>(length);
    int64_t best = 1, least = length * vectors(1) + vectors(length);
    for (int64_t rows = 2; rows * rows <= length; ++rows) {
      if (length % rows != 0) continue;
      const int64_t columns = length / rows, cost = rows * vectors(columns) + columns * vectors(rows);
      if (cost < least) best = rows, least = cost;
    }
    rows_ = std::make_unique<Passes<T>>(best);
    columns_ = std::make_unique<Passes<T>>(length / best);
    const int64_t columns = length / best, across = vectors(columns);
    twiddles_.reset(static_cast<T*>(std::aligned_alloc(64, round_up(best * across * 2 * kLanes * 4, 64))));
    if (!twiddles_) throw std::bad_alloc();
    for (int64_t row = 0; row < best; ++row) {
      for (int64_t column = 0; column < across * kLanesOf; ++column) {
        T* const to = twiddles_.get() + 2 * (row * across + column / kLanesOf) * kLanesOf + column % kLanesOf;
        const Complex<T> root = column < columns ? root_of_one<T>(row * column, length) : Complex<T>{1, 0};
        to[0] = root.re;
        to[kLanesOf] = root.im;
      }
    }
    return;
  }
  int64_t whole = 0;  // the least of 2^a, 3 * 2^a, 5 * 2^a, 9 * 2^a … that holds the convolution
  for (const int64_t odd : {1, 3, 5, 9, 15}) {
    int64_t one = odd;
    while (one < 2 * length - 1) one *= 2;
    if (whole == 0 || one < whole) whole = one;
  }
  chirp_ = std::unique_ptr<Chirp>(new Chirp{Transform(whole), {}, {}});
  const Transform<double> wide(whole);
  const int64_t room = 2 * wide.room_of_one() * 2 * kWidth<double>;
  const std::unique_ptr<double, decltype(&std::free)> memory(
      static_cast<double*>(std::aligned_alloc(64, round_up(room * 8, 64))), &std::free);
  if (!memory) throw std::bad_alloc();
  auto* x = reinterpret_cast<Complex<double>*>(memory.get());
  auto* other = reinterpret_cast<Complex<double>*>(memory.get() + room / 2);
  std::fill_n(memory.get(), room, 0.0);
  for (int64_t j = 0; j < length; ++j) {
    const Complex<double> root = root_of_one<double>(j * j % (2 * length), 2 * length);
    chirp_->chirp.push_back({static_cast<T>(root.re), static_cast<T>(root.im)});
    x[j] = {root.re, -root.im};
    if (j > 0) x[whole - j] = x[j];
  }
  wide.run(x, other);
  for (int64_t j = 0; j < whole; ++j) {
    const double scale = 1.0 / static_cast<double>(whole);
    chirp_->spectrum.push_back({static_cast<T>(x[j].re * scale), static_cast<T>(x[j].im * scale)});
  }
}

}  // namespace kh
