// Compares the memory of weights with what it held when a copy was made of them: a few places of each at every call, and
// all of it in turns, within a small share of the time that calls take.
//
// Memory is cut into chunks, of which checksums are kept. One word that changes always changes its chunk's checksum:
// every step of it can be undone. Nothing here calls Python.
#pragma once

#include <cstdint>
#include <cstring>
#include <ctime>

struct KhChunk {
  const char* start;
  int64_t bytes;
  uint64_t sum;
};

struct KhSample {
  const char* start;
  int64_t bytes;
  char* kept;  // what they were
};

struct KhGuard {
  KhChunk* chunks;
  int64_t count;
  KhSample* samples;
  int64_t sampled;
  int64_t bytes;  // of all chunks
  int64_t next;   // the chunk to be compared next
  int64_t turns;  // how often all of them were
  double credit;  // nanoseconds that may be spent
  double cost;    // nanoseconds a byte, of the chunks so far
};

// Of the time of calls. Small weights are compared within milliseconds of calls at the least share, larger ones within
// kKhTurn, half of what is promised, as long as the largest share lasts for that; then within the promise, up to some
// 130 MB for each 10 GB/s that a thread reads.
constexpr double kKhLeast = 0.002, kKhMost = 0.0085, kKhTurn = 1e9;
constexpr double kKhLongest = 1e9;  // a call that seems to take longer was suspended, or pays for a second

static inline double kh_guard_now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return 1e9 * static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec);
}

// Lanes are independent, so that they fill vectors and hide the latency of the products.
static inline uint64_t kh_checksum(const char* start, int64_t bytes) {
  constexpr int64_t kLanes = 64, kBlock = kLanes * 8;
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15ull;
  uint64_t lanes[kLanes], words[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) lanes[i] = static_cast<uint64_t>(i + 1) * kOdd;
  for (int64_t at = 0; at < bytes; at += kBlock) {
    if (bytes - at >= kBlock) {
      std::memcpy(words, start + at, kBlock);
    } else {
      std::memset(words, 0, kBlock);
      std::memcpy(words, start + at, static_cast<size_t>(bytes - at));
    }
#pragma omp simd
    for (int64_t i = 0; i < kLanes; ++i) {
      const uint64_t mixed = (lanes[i] ^ words[i]) * kOdd;
      lanes[i] = mixed ^ (mixed >> 32);
    }
  }
  uint64_t sum = 0;
  for (int64_t i = 0; i < kLanes; ++i) {
    sum = (sum ^ lanes[i]) * kOdd;
    sum ^= sum >> 32;
  }
  return sum;
}

static inline bool kh_chunk_holds(const KhChunk& one) { return kh_checksum(one.start, one.bytes) == one.sum; }

static inline bool kh_samples_hold(const KhSample* first, const KhSample* last) {
  for (const KhSample* one = first; one < last; ++one) __builtin_prefetch(one->start);
  for (const KhSample* one = first; one < last; ++one)
    if (std::memcmp(one->start, one->kept, static_cast<size_t>(one->bytes)) != 0) return false;
  return true;
}

// How many chunks to compare now. elapsed: nanoseconds of calls since the last time. team: threads that share them.
static inline int64_t kh_guard_due(KhGuard* guard, double elapsed, int64_t team) {
  if (guard->count == 0) return 0;
  const double bytes = static_cast<double>(guard->bytes), all = bytes * guard->cost / static_cast<double>(team);
  double share = all / kKhTurn;
  share = share < kKhLeast ? kKhLeast : share > kKhMost ? kKhMost : share;
  guard->credit += (elapsed < kKhLongest ? elapsed : kKhLongest) * share;
  if (guard->credit > all) guard->credit = all;  // once around is enough
  const double each = all / static_cast<double>(guard->count);
  // Not less than one where all there are cost less than was saved for one: cut off by rounding.
  int64_t due = each > 0 ? static_cast<int64_t>(guard->credit / (each * 0.999999)) : guard->count;
  return due < 0 ? 0 : due > guard->count ? guard->count : due;
}

// What `due` chunks, `bytes` long, took of the call's time, and of a thread's.
static inline void kh_guard_paid(KhGuard* guard, int64_t due, int64_t bytes, double wall, double thread) {
  if (due == 0) return;
  // Bounded, and smoothed: other work that took the processor in between is not this one's.
  const double length = static_cast<double>(bytes > 0 ? bytes : 1), most = 4 * guard->cost;
  guard->credit -= wall < most * length ? wall : most * length;
  const double cost = thread / length < most ? thread / length : most;
  guard->cost += (cost - guard->cost) / 16;
  guard->next += due;
  while (guard->next >= guard->count) guard->next -= guard->count, ++guard->turns;
}

static inline KhChunk& kh_guard_chunk(KhGuard* guard, int64_t next, int64_t which) {
  return guard->chunks[(next + which) % guard->count];  // also while another thread goes on to the next turn
}

// Take down what memory holds.
extern "C" void kh_guard_fill(KhGuard* guard) {
  const double begin = kh_guard_now();
  for (int64_t i = 0; i < guard->count; ++i)
    guard->chunks[i].sum = kh_checksum(guard->chunks[i].start, guard->chunks[i].bytes);
  for (int64_t i = 0; i < guard->sampled; ++i)
    std::memcpy(guard->samples[i].kept, guard->samples[i].start, static_cast<size_t>(guard->samples[i].bytes));
  guard->cost = (kh_guard_now() - begin) / static_cast<double>(guard->bytes > 0 ? guard->bytes : 1);
}

// Whether memory holds what it did, as far as this call compares it. whole: all of it.
extern "C" int kh_guard_holds(KhGuard* guard, int64_t elapsed, int whole) {
  if (!kh_samples_hold(guard->samples, guard->samples + guard->sampled)) return 0;
  if (whole) {
    for (int64_t i = 0; i < guard->count; ++i)
      if (!kh_chunk_holds(guard->chunks[i])) return 0;
    return 1;
  }
  const int64_t next = guard->next, due = kh_guard_due(guard, static_cast<double>(elapsed), 1);
  if (due == 0) return 1;
  const double begin = kh_guard_now();
  int64_t bytes = 0;
  bool same = true;
  for (int64_t i = 0; same && i < due; ++i) {
    const KhChunk& one = kh_guard_chunk(guard, next, i);
    same = kh_chunk_holds(one);
    bytes += one.bytes;
  }
  const double took = kh_guard_now() - begin;
  kh_guard_paid(guard, due, bytes, took, took);
  return same ? 1 : 0;
}
