// Loops over threads.
//
// The threads are OpenMP's, so omp_set_num_threads, OMP_NUM_THREADS and torch.set_num_threads govern them,
// and every region uses the whole team: a team that changes its size costs libgomp new threads.
// A body must not throw.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "simd.h"

KH_NAMESPACE {

// How many threads a region that starts here gets.
inline int64_t threads() { return omp_in_parallel() ? 1 : omp_get_max_threads(); }

// body(begin, end) over [0, n): equal, contiguous shares, none smaller than grain (but for the last).
// Inline where n <= grain, or inside a parallel region.
template <class F>
KH_INLINE void parallel(int64_t n, int64_t grain, F&& body) {
  if (n <= 0) return;
  const int64_t parts = n <= grain ? 1 : std::min(threads(), ceil_div(n, std::max<int64_t>(grain, 1)));
  if (parts <= 1) {
    body(int64_t{0}, n);
    return;
  }
#pragma omp parallel
  {
    const int64_t share = ceil_div(n, std::min<int64_t>(parts, omp_get_num_threads()));
    const int64_t begin = omp_get_thread_num() * share;
    if (begin < n) body(begin, std::min(begin + share, n));
  }
}

// Hands out 0, 1, ... count - 1, each once, then -1.
class Tickets {
 public:
  explicit Tickets(int64_t count) : count_(count) {}
  int64_t next() {
    const int64_t ticket = __atomic_fetch_add(&next_, 1, __ATOMIC_RELAXED);  // <atomic> takes 0.3 s to parse
    return ticket < count_ ? ticket : -1;
  }

 private:
  int64_t next_ = 0;
  int64_t count_;
};

// body(tickets) once a thread, for tasks of unequal length: the body calls tickets.next() until it gets -1.
// A team of one runs inline.
template <class F>
KH_INLINE void parallel_tasks(int64_t count, int64_t team, F&& body) {
  Tickets tickets(count);
  if (count <= 1 || team <= 1) {
    body(tickets);
    return;
  }
#pragma omp parallel
  body(tickets);
}
template <class F>
KH_INLINE void parallel_tasks(int64_t count, F&& body) {
  parallel_tasks(count, threads(), body);
}

}  // namespace kh
