// Whether a module is still what the state of its layer was made of. Every call asks it, with the GIL held, and with
// next to nothing of what it looks at in a cache: lines are asked for together before the first is read.
//
// Python's functions come as addresses, so that this is linked to no release of Python. They are called by the thread that
// holds the GIL; meanwhile the others compare what weights hold, which is not Python's.
#pragma once

#include <cstdint>
#include <cstring>

#include "parallel.h"
#include "weight_guard.h"

struct KhPython {
  void* (*get)(void* dict, void* key);  // PyDict_GetItemWithError
  intptr_t (*size)(void* dict);         // PyDict_Size
  void* (*type)(void* object);          // PyObject_Type
  void (*release)(void* object);        // Py_DecRef
};

struct KhHeld {
  void *table, *name, *value;  // of a dict, the very object under a name, nullptr for none
};

struct KhTyped {
  void *object, *type;
};

struct KhVersion {
  const uint64_t* now;  // another number whenever a dict changes
  uint64_t seen;        // what it was when all was looked up and found unchanged
};

template <class T>
struct KhSpan {
  T* first;
  int64_t count;
  T* begin() const { return first; }
  T* end() const { return first + count; }
};

struct KhWatched {
  KhPython python;
  KhSpan<const KhHeld> own;  // of the module's own dict, which every call brings: these have no table
  KhSpan<const KhHeld> held;
  KhSpan<KhVersion> versions;  // of the dicts of `held`; none where this Python counts none
  KhSpan<const KhTyped> typed;
  KhSpan<void* const> empty;       // dicts that hold nothing
  KhSpan<const char* const> next;  // where the caller looks itself, afterwards
  KhGuard* guard;                  // of weights that were copied; nullptr where none is compared
  int64_t version_at;  // bytes from a dict to its version; 0 where this Python counts none
  uint64_t own_seen;   // of the module's own dict, as in KhVersion
};

// A look into a dict costs three lines of the cache that depend on one another, its version one that depends on none.
static bool kh_versions_hold(const KhWatched* all, const uint64_t* own) {
  if (own == nullptr) return false;  // this Python counts none
  uint64_t differences = *own ^ all->own_seen;
  for (const KhVersion& one : all->versions) differences |= *one.now ^ one.seen;
  return differences == 0;
}

static const uint64_t* kh_version_of(const KhWatched* all, const char* dict) {
  return all->version_at == 0 ? nullptr : reinterpret_cast<const uint64_t*>(dict + all->version_at);
}

static bool kh_held(KhWatched* all, void* module) {
  const uint64_t* own = kh_version_of(all, static_cast<const char*>(module));
  if (kh_versions_hold(all, own)) return true;
  for (const KhHeld& one : all->held) __builtin_prefetch(one.table);
  for (const KhHeld& one : all->own)
    if (all->python.get(module, one.name) != one.value) return false;
  for (const KhHeld& one : all->held)
    if (all->python.get(one.table, one.name) != one.value) return false;
  for (KhVersion& one : all->versions) one.seen = *one.now;
  if (own != nullptr) all->own_seen = *own;
  return true;
}

static bool kh_parts_hold(KhWatched* all, void* module) {
  const KhPython& python = all->python;
  for (const KhVersion& one : all->versions) __builtin_prefetch(one.now);
  for (const KhTyped& one : all->typed) __builtin_prefetch(one.object);
  for (void* one : all->empty) __builtin_prefetch(one);
  for (const char* one : all->next) __builtin_prefetch(one);
  if (!kh_held(all, module)) return false;
  for (const KhTyped& one : all->typed) {
    void* type = python.type(one.object);
    python.release(type);
    if (type != one.type) return false;
  }
  for (void* one : all->empty)
    if (python.size(one) != 0) return false;
  return true;
}

enum KhUnchanged { kKhChanged = 0, kKhSame = 1, kKhWritten = 2 };

// module: its own dict. elapsed: nanoseconds that calls took since the last time. Whether all is as it was, or what is not:
// the module, or what a weight holds.
extern "C" int kh_unchanged(KhWatched* all, void* module, int64_t elapsed) {
  constexpr int64_t kTogether = 32;  // samples that are asked for together
  constexpr int64_t kWorthATeam = 256;
  KhGuard* guard = all->guard;
  const int64_t sampled = guard == nullptr ? 0 : guard->sampled, team = sampled < kWorthATeam ? 1 : kh::threads();
  if (team <= 1) {
    if (!kh_parts_hold(all, module)) return kKhChanged;
    return guard == nullptr || kh_guard_holds(guard, elapsed, 0) ? kKhSame : kKhWritten;
  }
  const int64_t groups = kh::ceil_div(sampled, kTogether), next = guard->next;
  const int64_t due = kh_guard_due(guard, static_cast<double>(elapsed), team);
  kh::Tickets tickets(groups + due);
  bool changed = false, written = false;
  int64_t bytes = 0, nanoseconds = 0;
#pragma omp parallel
  {
    if (omp_get_thread_num() == 0 && !kh_parts_hold(all, module)) changed = true;  // the first is the one that was called
    int64_t own_bytes = 0;
    double own_time = 0;
    bool same = true;
    for (int64_t task = tickets.next(); same && task >= 0; task = tickets.next()) {
      if (task < groups) {
        const KhSample* first = guard->samples + task * kTogether;
        same = kh_samples_hold(first, first + std::min(kTogether, sampled - task * kTogether));
        continue;
      }
      const KhChunk& one = kh_guard_chunk(guard, next, task - groups);
      const double begin = kh_guard_now();
      same = kh_chunk_holds(one);
      own_time += kh_guard_now() - begin;
      own_bytes += one.bytes;
    }
    if (!same) __atomic_store_n(&written, true, __ATOMIC_RELAXED);
    __atomic_fetch_add(&bytes, own_bytes, __ATOMIC_RELAXED);
    __atomic_fetch_add(&nanoseconds, static_cast<int64_t>(own_time), __ATOMIC_RELAXED);
  }
  const double took = static_cast<double>(nanoseconds);
  kh_guard_paid(guard, due, bytes, took / static_cast<double>(std::min(team, std::max<int64_t>(due, 1))), took);
  return changed ? kKhChanged : written ? kKhWritten : kKhSame;
}
