// float32 depthwise convolution (a group for each channel), channels last, with a fused epilogue.
//
// A kernel makes kRun neighbouring pixels of an output line for one vector of channels, and loads each pixel of the
// input once for all taps of a line that see it (kernels of 3, 5 and 7 taps a line) or once a tap. Where taps lie
// outside, the former leave out those pixels; for the others, and where a vector reaches beyond the channels, what the
// run sees is copied first, with zeros around it. Runs and vectors at the end overlap those before.
// Up to kColumns channels of a run go to the epilogue at once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "conv_shape.h"
#include "gemm.h"

KH_NAMESPACE {

#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr int64_t kRun = 8;  // with 7 weights and a pixel: 16 of 32 registers
#else
inline constexpr int64_t kRun = 4;  // 12 of 16
#endif
inline constexpr int64_t kColumns = kGroup;
inline constexpr int64_t kApart = kColumns + kLanes;  // a vector that overlaps may begin before the first column

// What the kernels get: for each line of taps that is inside, where its first tap sees the run's first pixel, and its
// weights. Floats between pixels of the input, and between weights of neighbouring taps. Of the pixels that the run sees,
// those from `low` to `high` are inside.
struct Lines {
  const float* const* inputs;
  const float* const* weights;
  int64_t count, pixel, tap, low, high;
};

// to[p * kApart] = the pixels of a run. K: taps of a line, Stride: of the convolution; undilated. Whole: all is inside.
template <int K, int Stride, bool Whole>
[[gnu::noinline]] void run_of_taps(const Lines& lines, int64_t, int64_t, int64_t, float* to) {
  constexpr int run = static_cast<int>(kRun);
  vfloat c[run] = {};
  for (int64_t line = 0; line < lines.count; ++line) {
    const float* const x = lines.inputs[line];
    vfloat w[K];
    KH_UNROLL(8)
    for (int t = 0; t < K; ++t) w[t] = load(lines.weights[line] + t * lines.tap);
    KH_UNROLL(32)
    for (int i = 0; i < (run - 1) * Stride + K; ++i) {
      if (!Whole && (i < lines.low || i >= lines.high)) continue;
      const vfloat seen = load(x + i * lines.pixel);
      KH_UNROLL(8)
      for (int t = 0; t < K; ++t) {
        if (i >= t && (i - t) % Stride == 0 && (i - t) / Stride < run) c[(i - t) / Stride] += w[t] * seen;
      }
    }
  }
  KH_UNROLL(8)
  for (int p = 0; p < run; ++p) store(to + p * kApart, c[p]);
}

// The same for any taps, stride and dilation.
[[gnu::noinline]] inline void run_of_any(const Lines& lines, int64_t taps, int64_t stride, int64_t dilation, float* to) {
  vfloat c[kRun] = {};
  for (int64_t line = 0; line < lines.count; ++line) {
    const float *x = lines.inputs[line], *w = lines.weights[line];
    for (int64_t t = 0; t < taps; ++t, x += dilation * lines.pixel, w += lines.tap) {
      const vfloat weight = load(w);
      KH_UNROLL(8)
      for (int64_t p = 0; p < kRun; ++p) c[p] += weight * load(x + p * stride * lines.pixel);
    }
  }
  KH_UNROLL(8)
  for (int64_t p = 0; p < kRun; ++p) store(to + p * kApart, c[p]);
}

using RunKernel = void (*)(const Lines&, int64_t, int64_t, int64_t, float*);

// Kernels of runs that see nothing but the input, and of others; of the latter there may be none.
struct RunKernels {
  RunKernel whole, border;
};

inline RunKernels run_kernels(int64_t taps, int64_t stride, int64_t dilation) {
  if (taps == 1 || dilation == 1) {
    if (stride == 1 && taps == 3) return {run_of_taps<3, 1, true>, run_of_taps<3, 1, false>};
    if (stride == 1 && taps == 5) return {run_of_taps<5, 1, true>, run_of_taps<5, 1, false>};
    if (stride == 1 && taps == 7) return {run_of_taps<7, 1, true>, run_of_taps<7, 1, false>};
    if (stride == 2 && taps == 3) return {run_of_taps<3, 2, true>, run_of_taps<3, 2, false>};
    if (stride == 2 && taps == 5) return {run_of_taps<5, 2, true>, run_of_taps<5, 2, false>};
  }
  return {run_of_any, nullptr};
}

// packed: (taps, channels rounded up to vectors).
template <class Epilogue>
void conv_depthwise(const ConvShape& shape, const Pixels& x, const float* packed, Epilogue& epilogue) {
  const int64_t channels = shape.c, padded = round_up(channels, kLanes);
  const int64_t taps = shape.kernel[2], stride = shape.stride[2], dilation = shape.dilation[2], wide = shape.out[2];
  const int64_t groups = ceil_div(channels, kColumns), group = round_up(ceil_div(channels, groups), kLanes);
  const int64_t span = (kRun - 1) * stride + (taps - 1) * dilation + 1;  // pixels that a run sees
  const int64_t most = shape.kernel[0] * shape.kernel[1], lines_out = shape.rows() / std::max<int64_t>(wide, 1);
  const RunKernels kernels = run_kernels(taps, stride, dilation);
  const int64_t grain = std::max<int64_t>(1, 16384 / (shape.taps() * group * wide + 1));
  parallel(lines_out * groups, grain, [&](int64_t begin, int64_t end) {
    float* const copied = workspace<Use::kRow>().floats(most * span * kLanes + kRun * kApart);
    float* const tile = copied + most * span * kLanes + kLanes;  // a row ends kLanes before the next one begins
    std::vector<const float*> pointers(4 * most);
    const float **const seen_lines = pointers.data(), **const weights_of = seen_lines + most;
    const float **const inputs = weights_of + most, **const weights = inputs + most;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t out = task % lines_out, first = task / lines_out * group, last = std::min(first + group, channels);
      const int64_t h = out % shape.out[1], d = out / shape.out[1] % shape.out[0], n = out / (shape.out[1] * shape.out[0]);
      int64_t count = 0;
      for (int64_t kd = 0; kd < shape.kernel[0]; ++kd) {
        for (int64_t kh = 0; kh < shape.kernel[1]; ++kh) {
          const int64_t at_d = seen(shape, 0, d, kd), at_h = seen(shape, 1, h, kh);
          if (!inside(shape, 0, at_d) || !inside(shape, 1, at_h)) continue;
          seen_lines[count] = x.data + n * x.stride[0] + at_d * x.stride[1] + at_h * x.stride[2];
          weights_of[count++] = packed + (kd * shape.kernel[1] + kh) * taps * padded;
        }
      }
      for (int64_t done = 0; done < wide;) {
        const int64_t pixel = std::clamp<int64_t>(wide - kRun, 0, done);
        const int64_t left = pixel * stride - shape.pad[2], right = left + span;
        // A vector that reaches beyond the channels reads the pixels behind, which the last ones lack.
        const bool whole = left >= 0 && right + (channels < kLanes ? kLanes : 0) <= shape.in[2];
        const bool in_place = whole || (kernels.border != nullptr && channels >= kLanes);
        const RunKernel kernel = in_place && !whole ? kernels.border : kernels.whole;
        const int64_t low = std::clamp<int64_t>(-left, 0, span), high = std::clamp<int64_t>(shape.in[2] - left, low, span);
        for (int64_t j = first; j < last; j += kLanes) {
          const int64_t channel = std::max<int64_t>(0, std::min(j, channels - kLanes));
          for (int64_t line = 0; line < count; ++line) weights[line] = weights_of[line] + channel;
          Lines lines{inputs, weights, count, x.stride[3], padded, low, high};
          if (in_place) {
            for (int64_t line = 0; line < count; ++line) inputs[line] = seen_lines[line] + left * x.stride[3] + channel;
          } else {
            for (int64_t line = 0; line < count; ++line) {
              float* const to = copied + line * span * kLanes;
              for (int64_t i = 0; i < low; ++i) store(to + i * kLanes, vfloat{});
              for (int64_t i = low; i < high; ++i) {
                const float* const from = seen_lines[line] + (left + i) * x.stride[3] + channel;
                if (channels >= kLanes) {
                  store(to + i * kLanes, load(from));
                } else {
                  for (int64_t l = 0; l < kLanes; ++l) to[i * kLanes + l] = l < channels ? from[l] : 0.0f;
                }
              }
              for (int64_t i = high; i < span; ++i) store(to + i * kLanes, vfloat{});
              inputs[line] = to;
            }
            lines.pixel = kLanes;
          }
          kernel(lines, taps, stride, dilation, tile + channel - first);
        }
        const int64_t fresh = std::min(pixel + kRun, wide) - done;
        finish(out * wide + done, fresh, first, last - first, kApart, epilogue,
               static_cast<const float*>(tile + (done - pixel) * kApart));
        done += fresh;
      }
    }
  });
}

}  // namespace kh
