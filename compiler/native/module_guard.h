// Whether a module is still what the state of its layer was made of. Every call asks it, with the GIL held, and with
// next to nothing of what it looks at in a cache: lines are asked for together before the first is read.
#pragma once

#include <cstdint>
#include <cstring>

#include "weight_guard.h"

struct KhHeld {
  void *table, *name, *value;  // of a dict, the very object under a name, nullptr for none
};

// A dict of which rows of `held` speak, from `begin` to `end`.
struct KhTable {
  const char* table;
  uint64_t version;  // the dict's when these rows last held; 0 for none, or where Python counts none
  int64_t begin, end;
};

struct KhTyped {
  void *object, *type, *attributes;
};

struct KhCell {
  void *cell, *value;  // of a closure, the very object in it
};

// A field of an object that C made, at a place that was looked for: what of a function can be replaced.
struct KhField {
  const char* object;
  int64_t offset;
  void* value;
};

struct KhOrdered {
  void* dict;
  void* const* keys;  // the very objects, in the order in which it holds them
  int64_t count;
  uint64_t version;  // as that of a table
};

template <class T>
struct KhSpan {
  T* first;
  int64_t count;
  T* begin() const { return first; }
  T* end() const { return first + count; }
};

struct KhModuleGuard {
  KhSpan<const KhHeld> own;  // of the module's own dict, which every call brings: these have no table
  KhSpan<KhTable> tables;
  KhSpan<const KhHeld> held;  // a table's rows are next to each other
  KhSpan<const KhTyped> typed;
  KhSpan<const KhCell> cells;
  KhSpan<KhOrdered> ordered;
  KhSpan<const KhField> fields;
  KhSpan<const char* const> next;  // where the caller looks itself, afterwards
  const KhTensorState* state;      // of weights; nullptr where the caller looks
  KhGuard* guard;                  // of weights that were copied; nullptr where none is compared
  int64_t version;       // bytes from the start of a dict to its version, 0 where Python counts none: see dict_version.py
  uint64_t own_version;  // as that of a table
};

static inline uint64_t kh_dict_version(const KhModuleGuard* all, const void* dict) {
  uint64_t version = 0;
  if (all->version != 0) std::memcpy(&version, static_cast<const char*>(dict) + all->version, sizeof version);
  return version;
}

// A dict whose version is what it was was not changed in any way, nor is it another one: no two dicts have the same.
// Of one with another version, what it holds is asked for: it may be the same objects as before.
static bool kh_held(KhModuleGuard* all, void* module) {
  for (const KhTable& one : all->tables) __builtin_prefetch(one.table + all->version);
  const uint64_t own = kh_dict_version(all, module);
  if (own == 0 || own != all->own_version) {
    for (const KhHeld& one : all->own)
      if (kh_python.get(module, one.name) != one.value) return false;
    all->own_version = own;
  }
  for (KhTable& table : all->tables) {
    const uint64_t version = kh_dict_version(all, table.table);
    if (version != 0 && version == table.version) continue;
    for (int64_t row = table.begin; row < table.end; ++row) {
      const KhHeld& one = all->held.first[row];
      if (kh_python.get(one.table, one.name) != one.value) return false;
    }
    table.version = version;
  }
  return true;
}

static bool kh_in_order(KhModuleGuard* all) {
  for (KhOrdered& one : all->ordered) {
    const uint64_t version = kh_dict_version(all, one.dict);
    if (version != 0 && version == one.version) continue;
    if (kh_python.size(one.dict) != one.count) return false;
    intptr_t place = 0;
    void* key = nullptr;
    for (int64_t i = 0; i < one.count; ++i)
      if (!kh_python.next(one.dict, &place, &key, nullptr) || key != one.keys[i]) return false;
    one.version = version;
  }
  return true;
}

enum KhModuleState { kKhChanged = 0, kKhSame = 1, kKhContentChanged = 2, kKhTensorChanged = 3 };

static KhModuleState kh_parts_hold(KhModuleGuard* all, void* module) {
  for (const KhTyped& one : all->typed) {
    __builtin_prefetch(one.object);
    __builtin_prefetch(static_cast<const char*>(one.object) - 24);  // where CPython has its dict
  }
  for (const KhOrdered& one : all->ordered) __builtin_prefetch(one.dict);
  for (const KhCell& one : all->cells) __builtin_prefetch(one.cell);
  for (const char* one : all->next) __builtin_prefetch(one);
  if (all->state != nullptr) kh_tensors_ahead(*all->state);
  if (!kh_held(all, module)) return kKhChanged;
  for (const KhTyped& one : all->typed) {
    void* type = kh_python.type(one.object);
    kh_python.release(type);
    if (type != one.type) return kKhChanged;
    void* const* attributes = kh_python.attributes(one.object);
    if (attributes == nullptr || *attributes != one.attributes) return kKhChanged;
  }
  if (!kh_in_order(all)) return kKhChanged;
  for (const KhField& one : all->fields) {
    void* value = nullptr;
    std::memcpy(&value, one.object + one.offset, sizeof value);
    if (value != one.value) return kKhChanged;
  }
  for (const KhCell& one : all->cells) {
    void* value = kh_python.content(one.cell);
    if (value != nullptr) kh_python.release(value);
    if (value != one.value) return kKhChanged;
  }
  for (int64_t i = 0; all->state != nullptr && i < all->state->count; ++i)
    if (!kh_tensor_same(*all->state, all->state->tensors[i], all->state->tensors[i].object)) return kKhTensorChanged;
  return kKhSame;
}

// module: its own dict. Whether all is as it was, or what is not: the module, or what a weight holds.
static KhModuleState kh_module_guard_holds(KhModuleGuard* all, void* module) {
  const double asked = all->guard == nullptr ? 0 : kh_guard_now();
  const KhModuleState parts = kh_parts_hold(all, module);
  if (parts != kKhSame) return parts;
  return all->guard == nullptr || kh_guard_holds(all->guard, asked) ? kKhSame : kKhContentChanged;
}

// The same as a function of Python's own. self: an integer, the guard's address.
extern "C" void* kh_module_guard_asked(void* self, void* module) {
  return kh_python.integer(kh_module_guard_holds(static_cast<KhModuleGuard*>(kh_python.address(self)), module));
}
