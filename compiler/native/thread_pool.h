// Threads of a process that share the parts of a loop and never wait for one that is not running.
//
// OpenMP's barriers spin for milliseconds for a thread that another process has pushed off its core. Here parts are
// taken by whoever is free, the caller among them: one that was not taken is not waited for, and what is waited for
// is waited for by spinning for a moment, then asleep, which leaves the core to the thread that works.
//
// There is one pool in a process, however many libraries use it; a caller that finds it taken works alone.
#pragma once

#if defined(__linux__)
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstdint>

#include "simd.h"

// What libraries share: data only, for each has code of its own, for the instruction set that it was built for.
namespace kh_shared {
struct [[gnu::visibility("default")]] ThreadPool {
  // generation << 32 | parts << 16 | parts taken. One word: to take a part is to know which loop it is of.
  alignas(64) uint64_t job = 0;
  void (*call)(const void* body, int64_t part) = nullptr;
  const void* body = nullptr;
  int64_t helpers = 0;      // threads beside the caller that may take parts
  uint32_t rounding = 0;    // the caller's rounding and denormals
  alignas(64) uint32_t finished = 0;
  uint32_t caller_sleeps = 0;
  alignas(64) uint32_t rounds = 0;  // changes with each job
  int32_t sleepers = 0;
  alignas(64) int32_t taken = 0;  // by a caller
  int64_t threads = 0;            // that were started
};

// GCC makes this one object of a process ("unique"), also between libraries that are loaded locally.
[[gnu::visibility("default")]] inline ThreadPool& thread_pool_1() {
  static ThreadPool pool;
  return pool;
}
}  // namespace kh_shared

KH_NAMESPACE {

using kh_shared::ThreadPool;

// How this thread rounds, and what it makes of denormal floats.
KH_INLINE uint32_t rounding() {
#if defined(__SSE__)
  return __builtin_ia32_stmxcsr();
#elif defined(__aarch64__)
  uint64_t state;
  asm volatile("mrs %0, fpcr" : "=r"(state));
  return static_cast<uint32_t>(state);
#else
  return 0;
#endif
}
KH_INLINE void set_rounding(uint32_t state) {
#if defined(__SSE__)
  __builtin_ia32_ldmxcsr(state);
#elif defined(__aarch64__)
  asm volatile("msr fpcr, %0" ::"r"(static_cast<uint64_t>(state)));
#else
  (void)state;
#endif
}
#if defined(__SSE__)
inline constexpr uint32_t kFlushDenormals = 0x8040;  // results, and operands
#else
inline constexpr uint32_t kFlushDenormals = 1u << 24;
#endif

// Rounds as another thread does, for as long as it lives.
class RoundingAs {
 public:
  explicit RoundingAs(uint32_t state) : own_(rounding()) {
    if (state != own_) set_rounding(state);
  }
  RoundingAs(const RoundingAs&) = delete;
  ~RoundingAs() { set_rounding(own_); }

 private:
  uint32_t own_;
};

inline thread_local bool in_pool = false;  // inside of a part

#if defined(__linux__)
// glibc 2.34 gave this function, unchanged, another version: with the first one a library runs on older systems, too.
#if defined(__GLIBC__) && defined(__x86_64__)
asm(".symver pthread_create, pthread_create@GLIBC_2.2.5");
#elif defined(__GLIBC__) && defined(__aarch64__)
asm(".symver pthread_create, pthread_create@GLIBC_2.17");
#endif

namespace pool_detail {

constexpr int64_t kWorkerSpins = 4000, kCallerSpins = 1000;  // some 60 and 15 microseconds

KH_INLINE void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

inline void sleep_while(uint32_t* word, uint32_t value) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
inline void wake(uint32_t* word, int count) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0); }

// Takes parts of the loop that runs until there are none; `worker`: its number, -1 for the caller.
inline void take_parts(ThreadPool& pool, int64_t worker) {
  for (;;) {
    uint64_t seen = __atomic_load_n(&pool.job, __ATOMIC_ACQUIRE);
    const int64_t parts = seen >> 16 & 0xffff, next = seen & 0xffff;
    if (next >= parts) return;
    // These belong to the loop if nothing was taken of it in between: it does not end before its last part.
    const auto call = __atomic_load_n(&pool.call, __ATOMIC_RELAXED);
    const void* const body = __atomic_load_n(&pool.body, __ATOMIC_RELAXED);
    const uint32_t state = __atomic_load_n(&pool.rounding, __ATOMIC_RELAXED);
    if (worker >= __atomic_load_n(&pool.helpers, __ATOMIC_RELAXED)) return;
    if (!__atomic_compare_exchange_n(&pool.job, &seen, seen + 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) continue;
    if (worker >= 0) set_rounding(state);
    call(body, next);
    if (__atomic_add_fetch(&pool.finished, 1, __ATOMIC_SEQ_CST) == parts &&
        __atomic_load_n(&pool.caller_sleeps, __ATOMIC_SEQ_CST) != 0)
      wake(&pool.finished, 1);
  }
}

inline void* work(void* number) {
  ThreadPool& pool = kh_shared::thread_pool_1();
  in_pool = true;
  for (;;) {
    const uint32_t round = __atomic_load_n(&pool.rounds, __ATOMIC_SEQ_CST);
    take_parts(pool, reinterpret_cast<intptr_t>(number));
    for (int64_t spin = 0; spin < kWorkerSpins; ++spin) {
      if (__atomic_load_n(&pool.rounds, __ATOMIC_ACQUIRE) != round) break;
      pause();
    }
    if (__atomic_load_n(&pool.rounds, __ATOMIC_SEQ_CST) != round) continue;
    __atomic_add_fetch(&pool.sleepers, 1, __ATOMIC_SEQ_CST);
    sleep_while(&pool.rounds, round);
    __atomic_sub_fetch(&pool.sleepers, 1, __ATOMIC_SEQ_CST);
  }
  return nullptr;
}

// In the child of a fork there are no threads but the one that forked.
inline void forget() {
  ThreadPool& pool = kh_shared::thread_pool_1();
  pool.job = 0;
  pool.threads = 0;
  pool.sleepers = 0;
  pool.taken = 0;
}

// Has at least so many threads started, as far as the system lets it.
inline void start(ThreadPool& pool, int64_t wanted) {
  if (pool.threads == 0) pthread_atfork(nullptr, nullptr, forget);
  while (pool.threads < wanted) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_t thread;
    const int failed = pthread_create(&thread, &attributes, work, reinterpret_cast<void*>(pool.threads));
    pthread_attr_destroy(&attributes);
    if (failed != 0) return;
    ++pool.threads;
  }
}

}  // namespace pool_detail

// call(body, part) for 0 .. parts - 1, parts < 65536, on the caller and up to team - 1 others.
inline void run_in_pool(int64_t parts, int64_t team, void (*call)(const void* body, int64_t part), const void* body) {
  using namespace pool_detail;
  ThreadPool& pool = kh_shared::thread_pool_1();
  int32_t is_free = 0;
  if (in_pool || !__atomic_compare_exchange_n(&pool.taken, &is_free, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
    for (int64_t part = 0; part < parts; ++part) call(body, part);
    return;
  }
  if (pool.threads < team - 1) start(pool, team - 1);
  __atomic_store_n(&pool.call, call, __ATOMIC_RELAXED);
  __atomic_store_n(&pool.body, body, __ATOMIC_RELAXED);
  __atomic_store_n(&pool.rounding, rounding(), __ATOMIC_RELAXED);
  __atomic_store_n(&pool.helpers, team - 1, __ATOMIC_RELAXED);
  __atomic_store_n(&pool.finished, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&pool.caller_sleeps, 0, __ATOMIC_RELAXED);
  const uint64_t generation = (pool.job >> 32) + 1;
  __atomic_store_n(&pool.job, generation << 32 | static_cast<uint64_t>(parts) << 16, __ATOMIC_RELEASE);
  __atomic_add_fetch(&pool.rounds, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&pool.sleepers, __ATOMIC_SEQ_CST) > 0)
    wake(&pool.rounds, static_cast<int>(team - 1 < parts - 1 ? team - 1 : parts - 1));
  in_pool = true;
  take_parts(pool, -1);
  in_pool = false;
  uint32_t done = __atomic_load_n(&pool.finished, __ATOMIC_ACQUIRE);
  for (int64_t spin = 0; done < parts && spin < kCallerSpins; ++spin) {
    pause();
    done = __atomic_load_n(&pool.finished, __ATOMIC_ACQUIRE);
  }
  if (done < parts) {
    __atomic_store_n(&pool.caller_sleeps, 1, __ATOMIC_SEQ_CST);
    while ((done = __atomic_load_n(&pool.finished, __ATOMIC_SEQ_CST)) < parts) sleep_while(&pool.finished, done);
  }
  __atomic_store_n(&pool.taken, 0, __ATOMIC_RELEASE);
}
#else
inline void run_in_pool(int64_t parts, int64_t, void (*call)(const void* body, int64_t part), const void* body) {
  for (int64_t part = 0; part < parts; ++part) call(body, part);
}
#endif

}  // namespace kh
