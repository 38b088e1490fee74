// Compares the memory of weights with what it held when a copy was made of them: a few places of each at every call, all
// of them in four, and all of it in turns, within a small share of the time that calls take.
//
// Memory is cut into chunks, of which checksums are kept. One word that changes always changes its chunk's checksum:
// every step of it can be undone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <ctime>

// Python's functions, by address, so that this is linked to no release of Python. Whoever calls them holds the GIL.
struct KhPython {
  void* (*get)(void* dict, void* key);  // PyDict_GetItemWithError
  intptr_t (*size)(void* dict);         // PyDict_Size
  void* (*type)(void* object);          // PyObject_Type
  void (*release)(void* object);        // Py_DecRef
  void* (*address)(void* integer);      // PyLong_AsVoidPtr
  void* (*integer)(long value);         // PyLong_FromLong
  intptr_t (*length)(void* tuple);             // PyTuple_Size
  void* (*item)(void* tuple, intptr_t place);  // PyTuple_GetItem
  void** (*attributes)(void* object);          // _PyObject_GetDictPtr
  int (*next)(void* dict, intptr_t* place, void** key, void** value);  // PyDict_Next
};

// Weak: several translation units of one library may include this, and have one of each.
#define KH_ONCE __attribute__((weak))
__attribute__((weak, visibility("hidden"))) KhPython kh_python;

extern "C" KH_ONCE void kh_use_python(const KhPython* functions) { kh_python = *functions; }

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
  int64_t small;  // of these, the first ones, which are whole weights; after them those of one use next to each other
  int64_t asked;  // how often samples were compared
  int64_t bytes;  // of all chunks
  int64_t next;   // the chunk to be compared next
  int64_t turns;  // how often all of them were
  double credit;  // nanoseconds that may be spent
  double cost;    // nanoseconds a byte, of the chunks so far
  int64_t elapsed;  // nanoseconds of calls since they paid for comparing
  double asking;    // nanoseconds since then of what every call compares
};

// Of the time of calls. Small weights are compared within milliseconds of calls at the least share, larger ones within
// kKhTurn, four fifths of what is promised, as long as the largest share lasts for that; then within the promise, up to
// some 120 MB for each 10 GB/s that a thread reads. What every call compares comes off, so that both are kKhAll at most
// where that alone leaves the least share: in small calls it is half of it.
constexpr double kKhLeast = 0.002, kKhMost = 0.006, kKhAll = 0.008, kKhTurn = 1.6e9;
constexpr double kKhLongest = 1e9;  // a call that seems to take longer was suspended, or pays for a second

// Ask for the cache line at an address, which may be of nothing. A function that does no more than prefetch looks to GCC
// like one without effects, and its calls are left out: the empty assembly is an effect.
static inline void kh_ahead(const void* address) {
  __builtin_prefetch(address);
  __asm__ volatile("" : : "r"(address));
}

constexpr int64_t kKhUses = 4;  // in which all samples are compared

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

// The samples that are compared at one use: those of small weights, and a fourth of the rest.
template <class Visit>
static inline bool kh_samples(const KhGuard& guard, Visit visit) {
  for (int64_t i = 0; i < guard.small; ++i)
    if (!visit(guard.samples[i])) return false;
  const int64_t rest = guard.sampled - guard.small, turn = guard.asked % kKhUses;
  for (int64_t i = rest * turn / kKhUses; i < rest * (turn + 1) / kKhUses; ++i)
    if (!visit(guard.samples[guard.small + i])) return false;
  return true;
}

static inline void kh_samples_ahead(const KhGuard& guard) {
  kh_samples(guard, [](const KhSample& one) { return kh_ahead(one.start), true; });
}

static inline bool kh_samples_hold(KhGuard* guard) {
  const bool same = kh_samples(*guard, [](const KhSample& one) {
    return std::memcmp(one.start, one.kept, static_cast<size_t>(one.bytes)) == 0;
  });
  ++guard->asked;
  return same;
}

// How many chunks to compare now.
static inline int64_t kh_guard_due(KhGuard* guard) {
  if (guard->count == 0) return 0;
  const double elapsed = std::min(static_cast<double>(guard->elapsed), kKhLongest);
  const double bytes = static_cast<double>(guard->bytes), all = bytes * guard->cost;
  if (elapsed > 0) {
    const double most = std::min(kKhMost, kKhAll - guard->asking / elapsed);
    guard->credit += elapsed * std::max(kKhLeast, std::min(all / kKhTurn, most));
    guard->credit = std::min(guard->credit, all);  // once around is enough
    guard->elapsed = 0, guard->asking = 0;
  }
  const double each = all / static_cast<double>(guard->count);
  // Not less than one where all there are cost less than was saved for one: cut off by rounding.
  int64_t due = each > 0 ? static_cast<int64_t>(guard->credit / (each * 0.999999)) : guard->count;
  return due < 0 ? 0 : due > guard->count ? guard->count : due;
}

// What `due` chunks, `bytes` long, took of the call's time.
static inline void kh_guard_paid(KhGuard* guard, int64_t due, int64_t bytes, double took) {
  if (due == 0) return;
  // Bounded, and smoothed: other work that took the processor in between is not this one's.
  const double length = static_cast<double>(bytes > 0 ? bytes : 1), most = 4 * guard->cost;
  guard->credit -= std::min(took, most * length);
  const double cost = std::min(took / length, most);
  guard->cost += (cost - guard->cost) / 16;
  guard->next += due;
  while (guard->next >= guard->count) guard->next -= guard->count, ++guard->turns;
}

static inline KhChunk& kh_guard_chunk(KhGuard* guard, int64_t next, int64_t which) {
  return guard->chunks[(next + which) % guard->count];  // also while another thread goes on to the next turn
}

// Take down what memory holds.
extern "C" KH_ONCE void kh_guard_fill(KhGuard* guard) {
  const double begin = kh_guard_now();
  for (int64_t i = 0; i < guard->count; ++i)
    guard->chunks[i].sum = kh_checksum(guard->chunks[i].start, guard->chunks[i].bytes);
  for (int64_t i = 0; i < guard->sampled; ++i)
    std::memcpy(guard->samples[i].kept, guard->samples[i].start, static_cast<size_t>(guard->samples[i].bytes));
  guard->cost = (kh_guard_now() - begin) / static_cast<double>(guard->bytes > 0 ? guard->bytes : 1);
}

// Whether all of the memory holds what it did.
extern "C" KH_ONCE int kh_guard_holds_all(const KhGuard* guard) {
  for (int64_t i = 0; i < guard->count; ++i)
    if (!kh_chunk_holds(guard->chunks[i])) return 0;
  return 1;
}

// Whether memory holds what it did, as far as this call compares it.
// asked: when the question began, of which all but comparing in turns is what every call takes.
static inline int kh_guard_holds(KhGuard* guard, double asked) {
  kh_samples_ahead(*guard);
  if (!kh_samples_hold(guard)) return 0;
  const int64_t next = guard->next, due = kh_guard_due(guard);
  const double begin = kh_guard_now();
  guard->asking += begin - asked;
  if (due == 0) return 1;
  int64_t bytes = 0;
  bool same = true;
  for (int64_t i = 0; same && i < due; ++i) {
    const KhChunk& one = kh_guard_chunk(guard, next, i);
    same = kh_chunk_holds(one);
    bytes += one.bytes;
  }
  const double took = kh_guard_now() - begin;
  kh_guard_paid(guard, due, bytes, took);
  return same ? 1 : 0;
}

// What a tensor was: see tensor_state.py. Nothing that is pointed to is looked at before what points there was the same.
struct KhTensor {
  const char* object;          // of Python
  const char* implementation;  // what it points to
  const char* const* data;     // of the storage, where it points to its memory
  const char* memory;
  const uint32_t* counter;  // of versions; nullptr where they do not matter
  uint32_t version;
};

struct KhTensorState {
  KhTensor* tensors;
  int64_t count;
  int64_t implementation;  // bytes from the start of a Python tensor to that pointer
  uint64_t words;          // a bit for each word of the implementation that is compared
  const uint64_t* kept;    // these words of each tensor, and no others: a call finds none of it in a cache
};

static inline bool kh_tensor_same(const KhTensorState& all, int64_t tensor, const char* object) {
  const KhTensor& one = all.tensors[tensor];
  const uint64_t* kept = all.kept + tensor * __builtin_popcountll(all.words);
  const char* implementation;
  if (object != one.object) return false;
  std::memcpy(&implementation, object + all.implementation, sizeof implementation);
  if (implementation != one.implementation) return false;
  uint64_t differs = 0;
  for (uint64_t rest = all.words; rest != 0; rest &= rest - 1) {
    const int which = __builtin_ctzll(rest);
    uint64_t word;
    std::memcpy(&word, implementation + 8 * which, sizeof word);
    differs |= word ^ *kept++;
  }
  return differs == 0 && *one.data == one.memory &&
         (one.counter == nullptr || __atomic_load_n(one.counter, __ATOMIC_RELAXED) == one.version);
}

// Ask for all that `kh_tensor_same` looks at, together.
static inline void kh_tensors_ahead(const KhTensorState& all) {
  constexpr int kLine = 64;
  if (all.words == 0) return;
  const int first = 8 * __builtin_ctzll(all.words), last = 8 * (63 - __builtin_clzll(all.words));
  for (int64_t i = 0; i < all.count; ++i) {
    const KhTensor& one = all.tensors[i];
    kh_ahead(one.object + all.implementation);
    for (int place = first; place < last; place += kLine) kh_ahead(one.implementation + place);
    kh_ahead(one.implementation + last);
    kh_ahead(one.data);
    if (one.counter != nullptr) kh_ahead(one.counter);
  }
}

// A use of a copy: what the tensors are, and what they hold.
struct KhUse {
  KhTensorState* state;
  KhGuard* guard;  // nullptr where what they hold is not compared
  int64_t timed;   // of so many uses, one is timed
  int64_t uses;
};

enum KhUseState { kKhUnknown = 0, kKhHolds = 1, kKhWrittenTo = 2, kKhTime = 3 };

static inline KhUseState kh_use_holds(KhUse* use, void* tensors) {
  const KhTensorState& state = *use->state;
  const double asked = use->guard == nullptr ? 0 : kh_guard_now();
  if (kh_python.length(tensors) != state.count) return kKhUnknown;
  kh_tensors_ahead(state);
  if (use->guard != nullptr) kh_samples_ahead(*use->guard);
  for (int64_t i = 0; i < state.count; ++i)
    if (!kh_tensor_same(state, i, static_cast<const char*>(kh_python.item(tensors, i)))) return kKhUnknown;
  if (use->guard == nullptr) return kKhHolds;
  if (kh_guard_holds(use->guard, asked) == 0) return kKhWrittenTo;
  return use->uses++ % use->timed == 0 ? kKhTime : kKhHolds;
}

// Python's own. self: an integer, the address of the use; tensors: a tuple. Returns a KhUseState.
extern "C" KH_ONCE void* kh_use_asked(void* self, void* tensors) {
  return kh_python.integer(kh_use_holds(static_cast<KhUse*>(kh_python.address(self)), tensors));
}

// As a function of Python's own, which takes a tenth of the time of ctypes on cold caches. self: an integer, the guard's
// address.
extern "C" KH_ONCE void* kh_guard_asked(void* self, void*) {
  return kh_python.integer(kh_guard_holds(static_cast<KhGuard*>(kh_python.address(self)), kh_guard_now()));
}
