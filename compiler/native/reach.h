// The keys that each query may see, found in a mask before attention begins: what lies outside is never computed, and
// a mask that shows all that lies inside is not read again.
#pragma once

#include <cstdint>

#include "parallel.h"
#include "standard.h"

KH_NAMESPACE {

// What a row of scores becomes before it is multiplied by v. kTotal: it is not; log(sum(exp(score))) is the result.
enum class Weights : int32_t { kSoftmax, kScores, kTotal };

// Of one query: no key before `first`, none from `last` on; of those between all, or some.
struct Reach {
  int32_t first, last;
  bool all;
};

// Of all queries, where there is a mask. A stride is 0 where the mask is the same along (batch, heads, queries).
struct Reaches {
  const Reach* of = nullptr;
  int64_t stride[3] = {};
  bool plain = false;  // all that happens to a score is the mask

  const Reach& at(int64_t b, int64_t h, int64_t i) const { return of[b * stride[0] + h * stride[1] + i * stride[2]]; }
};

// sees: whether each of the keys is seen, given as 1 or 0 to vectorise over: sees(key).
template <class Sees>
KH_INLINE Reach reach_of(int64_t keys, Sees&& sees) {
  const int32_t none = static_cast<int32_t>(keys);
  int32_t first = none, last = 0, count = 0;
#pragma omp simd reduction(min : first) reduction(max : last) reduction(+ : count)
  for (int32_t key = 0; key < none; ++key) {
    const int32_t seen = -static_cast<int32_t>(sees(key));  // all bits or none: compilers vectorise no choice by a byte
    first = min(first, (key & seen) | (none & ~seen));
    last = max(last, (key + 1) & seen);
    count -= seen;
  }
  return {min(first, last), last, count == last - first || count == 0};
}

// to (batch, heads, queries) = look(b, h, i), on threads.
template <class Look>
void find_reaches(int64_t batch, int64_t heads, int64_t queries, int64_t keys, Reach* to, const Look& look) {
  parallel(batch * heads * queries, max<int64_t>(1, 65536 / (keys + 1)), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      to[row] = look(row / (heads * queries), row / queries % heads, row % queries);
  });
}

}  // namespace kh
