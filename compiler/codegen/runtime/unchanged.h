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

struct KhWindows {
  const char* start;  // windows of `width` bytes, one every `step` bytes
  int64_t step, places, width;
};

template <class T>
struct KhSpan {
  const T* first;
  int64_t count;
  const T* begin() const { return first; }
  const T* end() const { return first + count; }
};

struct KhWatched {
  KhPython python;
  KhSpan<KhHeld> held;
  KhSpan<KhTyped> typed;
  KhSpan<void*> empty;       // dicts that hold nothing
  KhSpan<const char*> next;  // where the caller looks itself, afterwards
  KhSpan<KhWindows> windows;
  const char* kept;  // the bytes of all windows, one after the other
};

extern "C" int kh_unchanged(const KhWatched* all) {
  const KhPython& python = all->python;
  for (const KhHeld& one : all->held) __builtin_prefetch(one.table);
  for (const KhTyped& one : all->typed) __builtin_prefetch(one.object);
  for (void* one : all->empty) __builtin_prefetch(one);
  for (const char* one : all->next) __builtin_prefetch(one);
  for (const KhWindows& one : all->windows)
    for (int64_t place = 0; place < one.places; ++place) __builtin_prefetch(one.start + place * one.step);
  for (const KhHeld& one : all->held)
    if (python.get(one.table, one.name) != one.value) return 0;
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
