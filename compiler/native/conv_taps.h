// Where the taps of a convolution's or a pool's kernel lie, for a few neighbouring output pixels at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "conv_shape.h"
#include "parallel.h"

KH_NAMESPACE {

// An output pixel, counted through.
struct Place {
  int64_t n, at[3];
  Place(const ConvShape& shape, int64_t row) {
    for (int i = 2; i >= 0; row /= shape.out[i--]) at[i] = row % shape.out[i];
    n = row;
  }
  // At most to the beginning of the next line.
  void forward(const ConvShape& shape, int64_t count) {
    at[2] += count;
    for (int i = 2; i >= 0 && at[i] == shape.out[i]; --i) {
      at[i] = 0;
      ++(i > 0 ? at[i - 1] : n);
    }
  }
};

// -- taps ---------------------------------------------------------------------------------------------------

inline constexpr int64_t kPixels = 4;  // neighbours that share the registers of weights, in most kernels

// Addresses of the taps of a few pixels: away from the borders one sum, at them a pointer each.
struct EvenTaps {
  const float* first;
  int64_t step;
  const int64_t* offsets;
  KH_INLINE const float* operator()(int64_t p, int64_t tap) const { return first + p * step + offsets[tap]; }
};
template <int64_t kCount>
struct TapPointers {
  const float* const* pointers;
  KH_INLINE const float* operator()(int64_t p, int64_t tap) const { return pointers[tap * kCount + p]; }
};

// Where the taps of kCount neighbouring output pixels lie.
template <int64_t kCount = kPixels>
class Taps {
 public:
  Taps(const ConvShape& shape, const Pixels& x, const float* neutral)
      : shape_(shape), x_(x), neutral_(neutral), offsets_(shape.taps()), columns_(kCount * shape.kernel[2]),
        pointers_(kCount * shape.taps()) {
    visit([&](int64_t tap, int64_t kd, int64_t kh, int64_t kw) {
      offsets_[tap] = kd * shape.dilation[0] * x.stride[1] + kh * shape.dilation[1] * x.stride[2] +
                      kw * shape.dilation[2] * x.stride[3];
    });
  }

  // f(address) for `count` pixels from `place` on, which moves behind them; address(pixel, tap) is where that tap
  // lies, or the neutral row.
  template <class F>
  KH_INLINE void find(Place& place, int64_t count, F&& f) {
    if (count == kCount && whole(place)) {
      const EvenTaps taps{address(place, 0, 0, 0), shape_.stride[2] * x_.stride[3], offsets_.data()};
      place.forward(shape_, count);
      f(taps);
      return;
    }
    beside(place, count);
    for (int64_t kd = 0, tap = 0; kd < shape_.kernel[0]; ++kd) {
      for (int64_t kh = 0; kh < shape_.kernel[1]; ++kh) {
        const int64_t d = seen(shape_, 0, place.at[0], kd), h = seen(shape_, 1, place.at[1], kh);
        const bool real = inside(shape_, 0, d) && inside(shape_, 1, h);
        const float* const line = x_.data + place.n * x_.stride[0] + d * x_.stride[1] + h * x_.stride[2];
        for (int64_t kw = 0; kw < shape_.kernel[2]; ++kw, ++tap) {
          for (int64_t p = 0; p < kCount; ++p) {
            const int64_t at = columns_[kw * kCount + p];
            pointers_[tap * kCount + p] = real && at >= 0 ? line + at : neutral_;
          }
        }
      }
    }
    place.forward(shape_, count);
    f(TapPointers<kCount>{pointers_.data()});
  }

 private:
  // Where in a line the taps of `count` pixels from `place` on lie; -1 outside, and of pixels behind these.
  void beside(const Place& place, int64_t count) {
    for (int64_t kw = 0; kw < shape_.kernel[2]; ++kw) {
      for (int64_t p = 0; p < kCount; ++p) {
        const int64_t w = seen(shape_, 2, place.at[2] + p, kw);
        columns_[kw * kCount + p] = p < count && inside(shape_, 2, w) ? w * x_.stride[3] : -1;
      }
    }
  }
  template <class F>
  void visit(F&& f) const {
    int64_t tap = 0;
    for (int64_t kd = 0; kd < shape_.kernel[0]; ++kd) {
      for (int64_t kh = 0; kh < shape_.kernel[1]; ++kh) {
        for (int64_t kw = 0; kw < shape_.kernel[2]; ++kw) f(tap++, kd, kh, kw);
      }
    }
  }
  const float* address(const Place& place, int64_t kd, int64_t kh, int64_t kw) const {
    return x_.data + place.n * x_.stride[0] + seen(shape_, 0, place.at[0], kd) * x_.stride[1] +
           seen(shape_, 1, place.at[1], kh) * x_.stride[2] + seen(shape_, 2, place.at[2], kw) * x_.stride[3];
  }
  // Whether no tap of kCount pixels of one line lies outside.
  bool whole(const Place& place) const {
    for (int i = 0; i < 3; ++i) {
      const int64_t last = place.at[i] + (i == 2 ? kCount - 1 : 0);
      if (seen(shape_, i, place.at[i], 0) < 0 || seen(shape_, i, last, shape_.kernel[i] - 1) >= shape_.in[i])
        return false;
    }
    return true;
  }

  const ConvShape& shape_;
  const Pixels& x_;
  const float* neutral_;
  std::vector<int64_t> offsets_, columns_;
  std::vector<const float*> pointers_;
};

// body(row, count, place, taps) for runs of at most kCount neighbouring output pixels of one line. reads:
// how many channels read each input channel by each tap.
template <int64_t kCount = kPixels, class F>
KH_INLINE void over_pixels(const ConvShape& shape, const Pixels& x, float neutral, F&& body, int64_t reads = 1) {
  const int64_t padded = round_up(shape.c, kLanes);
  const int64_t grain = std::max<int64_t>(kCount, 16384 / (shape.taps() * padded * reads + 1));
  parallel(shape.rows(), grain, [&](int64_t begin, int64_t end) {
    float* const outside = workspace<Use::kRow>().floats(padded);
    std::fill_n(outside, padded, neutral);
    Taps<kCount> taps(shape, x, outside);
    Place place(shape, begin);
    for (int64_t row = begin, count; row < end; row += count) {
      count = std::min({kCount, end - row, shape.out[2] - place.at[2]});
      body(row, count, place, taps);
    }
  });
}

}  // namespace kh
