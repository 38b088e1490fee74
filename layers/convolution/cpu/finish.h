// What follows a convolution, made of its result while that lies in a cache: a batch norm by running statistics, then
// an activation.
#pragma once

#include <cmath>
#include <cstdint>

#include "activations.h"
#include "simd.h"

KH_NAMESPACE {

// As the caller has it; norm tensors (o), weight and bias null for 1 and 0, mean null without a norm.
struct Followers {
  int64_t activation;
  const float *weight, *bias, *mean, *variance;
  double eps;
};

// y = act(y * scale + shift), by channel. Made once a call, before the threads begin.
class Finish {
 public:
  Finish(const Followers* followers, int64_t channels) {
    if (followers == nullptr) return;
    const Followers& f = *followers;
    activation_ = f.activation;
    if (f.mean == nullptr) return;
    float* const scale = kept_.floats(2 * channels);
    float* const shift = scale + channels;
    const float eps = static_cast<float>(f.eps);
    for (int64_t i = 0; i < channels; ++i) {
      scale[i] = (f.weight == nullptr ? 1.0f : f.weight[i]) / std::sqrt(f.variance[i] + eps);
      shift[i] = (f.bias == nullptr ? 0.0f : f.bias[i]) - f.mean[i] * scale[i];
    }
    scale_ = scale, shift_ = shift;
  }

  // y[0..count) of one channel.
  void plane(float* y, int64_t count, int64_t channel) const {
    if (scale_ != nullptr) {
      const float scale = scale_[channel], shift = shift_[channel];
      for (int64_t i = 0; i < count; ++i) y[i] = y[i] * scale + shift;
    }
    if (activation_ != kNone) activate(y, count, activation_);
  }

  // y[0..pixels * count): of each pixel so many channels, from one on.
  void pixels(float* y, int64_t pixels, int64_t count, int64_t channel) const {
    for (float* at = y; scale_ != nullptr && at < y + pixels * count; at += count)
      for (int64_t i = 0; i < count; ++i) at[i] = at[i] * scale_[channel + i] + shift_[channel + i];
    if (activation_ != kNone) activate(y, pixels * count, activation_);
  }

 private:
  Workspace kept_;
  const float* scale_ = nullptr;
  const float* shift_ = nullptr;
  int64_t activation_ = kNone;
};

}  // namespace kh
