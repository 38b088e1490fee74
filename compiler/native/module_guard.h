// Whether a module is still what the state of its layer was made of. Every call asks it, with the GIL held, and with
// next to nothing of what it looks at in a cache: lines are asked for together before the first is read.
#pragma once

#include <cstdint>
#include <cstring>

#include "dict_version.h"
#include "weight_guard.h"

struct KhHeld {
  void *table, *name, *value;  // of a dict, the very object under a name, nullptr for none
};

// Whether a dict was changed in any way. One that was may hold the same objects as before, and is looked into.
struct KhVersion {
  const uint64_t* place;  // of the dict's version; nullptr where there is none: see dict_version.py
  uint64_t known;         // the version when all was last looked up; 0 for none
  uint64_t now() const { return place == nullptr ? 0 : *place; }
};

// A dict of which rows of `held` speak, from `begin` to `end`.
struct KhTable {
  void* table;
  KhVersion version;
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
  KhVersion version;
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
  const void* module;              // the module's own dict when this was made, which may have died
  KhVersion own_version;           // of that
};

// Whether rows about dicts hold, each of which is asked where its dict was changed since it last did.
template <class Rows, class Holds>
static bool kh_unchanged(const Rows& rows, Holds holds) {
  for (auto& row : rows) {
    const uint64_t now = row.version.now();
    if (now != 0 && now == row.version.known) continue;
    if (!holds(row)) return false;
    row.version.known = now;
  }
  return true;
}

static bool kh_held(KhModuleGuard* all, void* module) {
  const bool is_known = module == all->module;  // then it is alive, and its version can be read
  const uint64_t own = is_known ? all->own_version.now() : 0;
  if (own == 0 || own != all->own_version.known) {
    for (const KhHeld& one : all->own)
      if (kh_python.get(module, one.name) != one.value) return false;
    if (is_known) all->own_version.known = own;
  }
  return kh_unchanged(all->tables, [all](const KhTable& table) {
    for (int64_t row = table.begin; row < table.end; ++row) {
      const KhHeld& one = all->held.first[row];
      if (kh_python.get(one.table, one.name) != one.value) return false;
    }
    return true;
  });
}

static bool kh_in_order(KhModuleGuard* all) {
  return kh_unchanged(all->ordered, [](const KhOrdered& one) {
    if (kh_python.size(one.dict) != one.count) return false;
    intptr_t place = 0;
    void* key = nullptr;
    for (int64_t i = 0; i < one.count; ++i)
      if (!kh_python.next(one.dict, &place, &key, nullptr) || key != one.keys[i]) return false;
    return true;
  });
}

enum KhModuleState { kKhChanged = 0, kKhSame = 1, kKhContentChanged = 2, kKhTensorChanged = 3 };

static KhModuleState kh_parts_hold(KhModuleGuard* all, void* module) {
  for (const KhTyped& one : all->typed) {
    __builtin_prefetch(one.object);
    __builtin_prefetch(static_cast<const char*>(one.object) - 24);  // where CPython has its dict
  }
  for (const KhTable& one : all->tables) __builtin_prefetch(one.version.place);
  for (const KhOrdered& one : all->ordered) __builtin_prefetch(one.version.place);
  for (const KhField& one : all->fields) __builtin_prefetch(one.object + one.offset);
  for (const KhCell& one : all->cells) __builtin_prefetch(one.cell);
  for (const char* one : all->next) __builtin_prefetch(one);
  if (all->state != nullptr) kh_tensors_ahead(*all->state);
  if (all->guard != nullptr) kh_samples_ahead(*all->guard);
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
