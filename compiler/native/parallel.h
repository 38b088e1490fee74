// Loops over threads.
//
// How many is what OpenMP says, so omp_set_num_threads, OMP_NUM_THREADS and torch.set_num_threads govern it. The threads
// are OpenMP's, which PyTorch's kernels use too and which wait for one another by spinning; or, where a library was
// told so (`use_pool`), those of thread_pool.h, which are good neighbours of other processes. With OpenMP every region
// uses the whole team: a team that changes its size costs libgomp new threads. A body must not throw.
#pragma once

#include <omp.h>

#include <cstdint>

#include "simd.h"
#include "standard.h"
#include "thread_pool.h"

KH_NAMESPACE {

// Of this library, which kh_configure sets: whose threads it runs on, and whether denormal floats are 0 during a call.
// On most processors an operation with a denormal takes a hundred times as long as with another number.
inline bool use_pool = false;
inline bool flush_denormals = false;

// What a call begins with.
class CallState : public RoundingAs {
 public:
  explicit CallState(bool flush = flush_denormals) : RoundingAs(rounding() | (flush ? kFlushDenormals : 0)) {}
};

// How many threads a region that starts here gets.
inline int64_t threads() { return in_pool || omp_in_parallel() ? 1 : omp_get_max_threads(); }

// With a pool, long loops have several parts a thread: one that lost its core keeps others waiting for a quarter. To take
// a part costs more than a few grains of work, so that short loops have one.
constexpr int64_t kPartsPerThread = 4, kGrainsPerPart = 8;

// body(begin, end) over [0, n): equal, contiguous shares, none smaller than grain (but for the last).
// Inline where n <= grain, or inside a parallel region.
template <class F>
KH_INLINE void parallel(int64_t n, int64_t grain, F&& body) {
  if (n <= 0) return;
  const int64_t parts = n <= grain ? 1 : min(threads(), ceil_div(n, max<int64_t>(grain, 1)));
  if (parts <= 1) {
    body(int64_t{0}, n);
    return;
  }
  if (use_pool) {
    const int64_t long_parts = n / (kGrainsPerPart * max<int64_t>(grain, 1));
    const int64_t finer = clamp(long_parts, parts, kPartsPerThread * parts);
    struct Loop {
      F& body;
      int64_t share, n;
    } loop{body, ceil_div(n, finer), n};
    run_in_pool(ceil_div(n, loop.share), threads(), [](const void* state, int64_t part) {
      const Loop& own = *static_cast<const Loop*>(state);
      own.body(part * own.share, min(part * own.share + own.share, own.n));
    }, &loop);
    return;
  }
  const uint32_t state = rounding();
#pragma omp parallel
  {
    const RoundingAs caller(state);
    const int64_t share = ceil_div(n, min<int64_t>(parts, omp_get_num_threads()));
    const int64_t begin = omp_get_thread_num() * share;
    if (begin < n) body(begin, min(begin + share, n));
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
  if (use_pool) {
    struct Tasks {
      F& body;
      Tickets& tickets;
    } tasks{body, tickets};
    run_in_pool(min(team, threads()), threads(), [](const void* state, int64_t) {
      const Tasks& own = *static_cast<const Tasks*>(state);
      own.body(own.tickets);
    }, &tasks);
    return;
  }
  const uint32_t state = rounding();
#pragma omp parallel
  {
    const RoundingAs caller(state);
    body(tickets);
  }
}
template <class F>
KH_INLINE void parallel_tasks(int64_t count, F&& body) {
  parallel_tasks(count, threads(), body);
}

}  // namespace kh
