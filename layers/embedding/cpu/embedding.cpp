// Rows of a table by index, and the dense gradient of the table, on the CPU.
//
// The gradient sorts places by index first (counting), so that each row is summed by one thread, in the order of its
// places: the result does not depend on the number of threads.

#include <cstdint>
#include <cstring>
#include <vector>

#include "parallel.h"
#include "types.h"

namespace {

struct Arguments {
  void* rows;           // (count, width), contiguous: what was looked up, or its gradient
  const void* indices;  // (count,)
  void* table;          // (table_rows, width), rows `stride` apart: the weight, or its gradient (contiguous)
  int64_t count, width, table_rows, stride, type, wide_indices, padding, scaled;
  double scale;
};

int64_t index_at(const Arguments& a, int64_t i) {
  return a.wide_indices != 0 ? static_cast<const int64_t*>(a.indices)[i] : static_cast<const int32_t*>(a.indices)[i];
}

// The first place of an index outside of the table; -1 for none.
int64_t first_outside(const Arguments& a) {
  for (int64_t i = 0; i < a.count; ++i) {
    if (static_cast<uint64_t>(index_at(a, i)) >= static_cast<uint64_t>(a.table_rows)) return i;
  }
  return -1;
}

int64_t grain(const Arguments& a) { return 32768 / (a.width + 1) + 1; }

template <class T>
void look_up(const Arguments& a) {
  const float scale = static_cast<float>(a.scale);
  kh::parallel(a.count, grain(a), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* const from = static_cast<const T*>(a.table) + index_at(a, i) * a.stride;
      T* const to = static_cast<T*>(a.rows) + i * a.width;
      if (a.scaled == 0) {
        std::memcpy(to, from, static_cast<size_t>(a.width) * sizeof(T));
      } else {
#pragma omp simd
        for (int64_t e = 0; e < a.width; ++e) to[e] = T(static_cast<float>(from[e]) * scale);
      }
    }
  });
}

template <class T>
void sum_up(const Arguments& a) {
  std::vector<int64_t> ends(static_cast<size_t>(a.table_rows) + 1, 0), places(static_cast<size_t>(a.count));
  for (int64_t i = 0; i < a.count; ++i) ++ends[index_at(a, i) + 1];
  for (int64_t row = 0; row < a.table_rows; ++row) ends[row + 1] += ends[row];
  for (int64_t i = 0; i < a.count; ++i) places[ends[index_at(a, i)]++] = i;  // now ends[row] is where row ends
  const float scale = a.scaled != 0 ? static_cast<float>(a.scale) : 1.0f;
  kh::parallel(a.table_rows, grain(a), [&](int64_t begin, int64_t end) {
    std::vector<float> sums(static_cast<size_t>(a.width));
    for (int64_t row = begin; row < end; ++row) {
      T* const to = static_cast<T*>(a.table) + row * a.width;
      const int64_t first = row == 0 ? 0 : ends[row - 1], last = ends[row];
      if (first == last || row == a.padding) {
        std::memset(static_cast<void*>(to), 0, static_cast<size_t>(a.width) * sizeof(T));
        continue;
      }
      float* const sum = sums.data();
      std::memset(sum, 0, static_cast<size_t>(a.width) * sizeof(float));
      for (int64_t p = first; p < last; ++p) {
        const T* const from = static_cast<const T*>(a.rows) + places[p] * a.width;
#pragma omp simd
        for (int64_t e = 0; e < a.width; ++e) sum[e] += static_cast<float>(from[e]);
      }
#pragma omp simd
      for (int64_t e = 0; e < a.width; ++e) to[e] = T(sum[e] * scale);
    }
  });
}

}  // namespace

// -1, or the first place of an index outside of the table, in which case nothing was written.
extern "C" int64_t embedding_forward(const Arguments* a) {
  const int64_t outside = first_outside(*a);
  if (outside >= 0) return outside;
  if (a->type == 0) look_up<float>(*a);
  if (a->type == 1) look_up<kh::bf16>(*a);
  if (a->type == 2) look_up<kh::f16>(*a);
  return -1;
}

extern "C" int64_t embedding_backward(const Arguments* a) {
  const int64_t outside = first_outside(*a);
  if (outside >= 0) return outside;
  if (a->type == 0) sum_up<float>(*a);
  if (a->type == 1) sum_up<kh::bf16>(*a);
  if (a->type == 2) sum_up<kh::f16>(*a);
  return -1;
}
