// A convolution of many channels, of images in planes: a product of the weights, whose rows lie as they are needed,
// with patches that are made a few vectors of output pixels at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "finish.h"
#include "parallel.h"
#include "plane_sums.h"

KH_NAMESPACE {

inline constexpr int64_t kChunk = kVectors * kLanes;  // output pixels that are made at once
inline constexpr int64_t kTasks = 4;  // of a thread, at least, where there is so much to do

// Rows of a task, at least, where threads share a chunk, so that each makes its patches: copies, or gathered.
inline constexpr int64_t kLeastRows = 4 * kMostRows, kLeastGatheredRows = 32 * kMostRows;

// to[0..count) = what a tap sees of a line from output column `first` on; `line` null where it sees none.
KH_INLINE void see(const PlaneShape& s, const float* line, int64_t first, int64_t count, int64_t tap, float* to) {
  const int64_t begin = first * s.stride_w - s.left + tap * s.dilation_w;
  if (line == nullptr) {
    for (int64_t i = 0; i < count; ++i) to[i] = 0.0f;
  } else if (begin >= 0 && begin + (count - 1) * s.stride_w < s.width) {
    if (s.stride_w == 1) {
      for (int64_t i = 0; i < count; ++i) to[i] = line[begin + i];
    } else if (s.stride_w == 2) {
      for (int64_t i = 0; i < count; ++i) to[i] = line[begin + 2 * i];
    } else {
      for (int64_t i = 0; i < count; ++i) to[i] = line[begin + i * s.stride_w];
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = begin + i * s.stride_w;
      to[i] = at >= 0 && at < s.width ? line[at] : 0.0f;
    }
  }
}

// packed[k - begin][i] = what output pixel first + i sees by (channel, row, column) k, from `begin` to `end`; zeros
// behind `count` pixels.
inline void pack_patches(const PlaneShape& s, const float* x, int64_t first, int64_t count, int64_t begin, int64_t end,
                         float* packed) {
  if (count < kChunk) std::memset(packed, 0, (end - begin) * kChunk * sizeof(float));
  if (s.is_pointwise()) {
    for (int64_t k = begin; k < end; ++k, packed += kChunk) {
      const float* const from = x + k * s.in_plane() + first;
      if (count == kChunk) {
        KH_UNROLL(4)
        for (int v = 0; v < kVectors; ++v) store(packed + v * kLanes, load(from + v * kLanes));
      } else {
        for (int64_t i = 0; i < count; ++i) packed[i] = from[i];
      }
    }
    return;
  }
  for (int64_t done = 0, run; done < count; done += run) {  // of one line each
    const int64_t h = (first + done) / s.out_width, w = (first + done) % s.out_width;
    run = std::min(count - done, s.out_width - w);
    int64_t channel = begin / s.taps(), row = begin / s.columns % s.rows, column = begin % s.columns;
    float* to = packed + done;
    for (int64_t k = begin; k < end; ++k, to += kChunk) {
      const int64_t at = h * s.stride_h - s.above + row * s.dilation_h;
      see(s, at >= 0 && at < s.height ? x + channel * s.in_plane() + at * s.width : nullptr, w, run, column, to);
      if (++column == s.columns) {
        column = 0;
        if (++row == s.rows) row = 0, ++channel;
      }
    }
  }
}

// How a product is cut: chunks of the pixels of all images and groups, of which a task has a run, so that threads write
// far from each other; or, where chunks are few, a part of the filters.
struct PlaneCut {
  int64_t chunks, all, team, pass, run, share, parts;  // of an image's group; in all; depth at once; of a task

  explicit PlaneCut(const PlaneShape& s) : chunks(ceil_div(s.out_plane(), kChunk)), all(s.n * s.groups * chunks) {
    const int64_t depth = s.depth(), filters = s.filters();
    team = all * kChunk * filters * depth < kAlone ? 1 : threads();
    pass = std::clamp<int64_t>(near_floats() / (2 * kChunk), 1, depth);  // half of L2
    const int64_t least = s.is_pointwise() && pass == depth ? kLeastRows : kLeastGatheredRows;
    run = std::max<int64_t>(1, all / (kTasks * team));
    parts = team == 1 ? 1 : std::clamp<int64_t>(ceil_div(kTasks * team, all), 1, std::max<int64_t>(1, filters / least));
    if (all < team && parts > team) parts = parts / team * team;
    share = round_up(ceil_div(filters, parts), kMostRows);
    parts = ceil_div(filters, share);
  }
};

inline void by_product(const PlaneShape& s, const float* x, const float* weight, const float* bias, const Finish& finish,
                       float* y) {
  const int64_t pixels = s.out_plane(), depth = s.depth(), filters = s.filters();
  const PlaneCut cut(s);
  parallel_tasks(ceil_div(cut.all, cut.run) * cut.parts, cut.team, [&](Tickets& tickets) {
    float* const packed = workspace<Use::kRight>().floats(cut.pass * kChunk + cut.share * kChunk);
    float* const tile = packed + cut.pass * kChunk;
    int64_t* const offsets = reinterpret_cast<int64_t*>(workspace<Use::kColumns>().floats(2 * cut.pass));
    for (int64_t k = 0; k < cut.pass; ++k) offsets[k] = k * kChunk;
    int64_t held = -1;  // the chunk whose patches are there, where they are made in one pass
    const auto multiply = [&](int64_t chunk, int64_t low, int64_t high) {
      const int64_t image = chunk / cut.chunks, group = image % s.groups;
      const int64_t first = chunk % cut.chunks * kChunk, count = std::min(kChunk, pixels - first);
      for (int64_t begin = 0; begin < depth; begin += cut.pass) {
        const int64_t end = std::min(depth, begin + cut.pass);
        if (held != chunk || cut.pass < depth)
          pack_patches(s, x + image * s.channels() * s.in_plane(), first, count, begin, end, packed);
        held = chunk;
        for (int64_t row = low; row < high; row += kMostRows) {
          const float* const a = weight + (group * filters + row) * depth + begin;
          const int64_t some = std::min<int64_t>(kMostRows, high - row);
          float* const sums = tile + (row - low) * kChunk;
          all_sums(some, count, end - begin, a, depth, offsets, packed, sums, kChunk, begin > 0);
          if (end < depth) continue;
          for (int64_t i = 0; i < some; ++i) {
            const float more = bias == nullptr ? 0.0f : bias[group * filters + row + i];
            float* const to = y + (image * filters + row + i) * pixels + first;
            for (int64_t j = 0; j < count; ++j) to[j] = sums[i * kChunk + j] + more;
            finish.plane(to, count, group * filters + row + i);
          }
        }
      }
    };
    for (int64_t task; (task = tickets.next()) >= 0;) {
      const int64_t begin = task / cut.parts * cut.run, end = std::min(begin + cut.run, cut.all);
      const int64_t low = task % cut.parts * cut.share, high = std::min(filters, low + cut.share);
      for (int64_t chunk = begin; chunk < end; ++chunk) multiply(chunk, low, high);
    }
  });
}

}  // namespace kh
