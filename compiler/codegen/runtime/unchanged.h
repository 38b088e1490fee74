// Whether a module is still what the state of its layer was made of. Every call asks it, with the GIL held, and with
// next to nothing of what it looks at in a cache: lines are asked for together before the first is read.
//
// Python's functions come as addresses, so that this is linked to no release of Python.
#pragma once

#include <cstdint>
#include <cstring>

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
  const char* kept;    // the bytes of all windows, one after the other
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

// module: its own dict.
extern "C" int kh_unchanged(KhWatched* all, void* module) {
  const KhPython& python = all->python;
  for (const KhVersion& one : all->versions) __builtin_prefetch(one.now);
  for (const KhTyped& one : all->typed) __builtin_prefetch(one.object);
  for (void* one : all->empty) __builtin_prefetch(one);
  for (const char* one : all->next) __builtin_prefetch(one);
  for (const KhWindows& one : all->windows)
    for (int64_t place = 0; place < one.places; ++place) __builtin_prefetch(one.start + place * one.step);
  if (!kh_held(all, module)) return 0;
  for (const KhTyped& one : all->typed) {
    void* type = python.type(one.object);
    python.release(type);
    if (type != one.type) return 0;
  }
  for (void* one : all->empty)
    if (python.size(one) != 0) return 0;
  const char* kept = all->kept;
  for (const KhWindows& one : all->windows)
    for (int64_t place = 0; place < one.places; ++place, kept += one.width)
      if (std::memcmp(one.start + place * one.step, kept, one.width) != 0) return 0;
  return 1;
}
