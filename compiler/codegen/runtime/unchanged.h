// Whether a module is still what the state of its layer was made of. Every call asks it, with the GIL held, and with
// next to nothing of what it looks at in a cache: lines are asked for together before the first is read.
//
// Python's functions come as addresses, so that this is linked to no release of Python. They are called by the thread that
// holds the GIL; meanwhile the others compare elements of weights, which are not Python's.
#pragma once

#include <cstdint>
#include <cstring>

#include "parallel.h"

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

struct KhWindows {
  const char* start;  // windows of `width` bytes, one every `step` bytes
  int64_t step, places, width;
  const char* kept;  // what they held, one after the other
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
  KhSpan<const KhWindows> windows;
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

static bool kh_windows_hold(const KhWindows* first, const KhWindows* last) {
  for (const KhWindows* one = first; one < last; ++one)
    for (int64_t place = 0; place < one->places; ++place) __builtin_prefetch(one->start + place * one->step);
  for (const KhWindows* one = first; one < last; ++one)
    for (int64_t place = 0; place < one->places; ++place)
      if (std::memcmp(one->start + place * one->step, one->kept + place * one->width, one->width) != 0)
        return false;
  return true;
}

// module: its own dict.
extern "C" int kh_unchanged(KhWatched* all, void* module) {
  constexpr int64_t kTogether = 4;  // weights whose windows are asked for together: a few dozen lines
  constexpr int64_t kWorthATeam = 16;
  const int64_t count = all->windows.count, tasks = kh::ceil_div(count, kTogether);
  const int64_t team = count < kWorthATeam ? 1 : kh::threads();
  if (team <= 1) return kh_parts_hold(all, module) && kh_windows_hold(all->windows.begin(), all->windows.end());
  kh::Tickets tickets(tasks);
  bool changed = false;
#pragma omp parallel
  {
    bool same = omp_get_thread_num() != 0 || kh_parts_hold(all, module);  // the first is the one that was called
    for (int64_t task = tickets.next(); same && task >= 0; task = tickets.next()) {
      const KhWindows* first = all->windows.first + task * kTogether;
      same = kh_windows_hold(first, first + std::min(kTogether, count - task * kTogether));
    }
    if (!same) __atomic_store_n(&changed, true, __ATOMIC_RELAXED);
  }
  return !changed;
}
