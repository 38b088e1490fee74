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
  int64_t begin, end;
};

struct KhTyped {
  void *object, *type, *attributes;
};

struct KhCell {
  void* const* content;  // of a closure's cell: a place that was looked for
  void* value;           // the very object in it
};

// A function, and what of it can be replaced.
constexpr int kKhParts = 3;
struct KhFunction {
  const char* object;
  void* parts[kKhParts];
};

struct KhOrdered {
  void* dict;
  void* const* keys;  // the very objects, in the order in which it holds them
  int64_t count;
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
  KhSpan<const KhTable> tables;
  KhSpan<const KhHeld> held;  // a table's rows are next to each other
  KhSpan<const KhTyped> typed;
  KhSpan<const KhCell> cells;
  KhSpan<const KhOrdered> ordered;
  KhSpan<KhVersion> versions;  // of the tables, then of what is ordered: most calls look at nothing else of either
  KhSpan<const KhFunction> functions;
  KhSpan<const char* const> next;  // where the caller looks itself, afterwards
  const KhTensorState* state;      // of weights; nullptr where the caller looks
  KhGuard* guard;                  // of weights that were copied; nullptr where none is compared
  const void* module;              // the module's own dict when this was made, which may have died
  KhVersion own_version;           // of that
  int64_t offsets[kKhParts];       // in bytes, of a function's parts: places that were looked for
};

// Whether rows about dicts hold, each of which is asked where its dict was changed since it last did.
template <class Rows, class Holds>
static bool kh_unchanged(const Rows& rows, KhVersion* versions, Holds holds) {
  for (int64_t i = 0; i < rows.count; ++i) {
    KhVersion& version = versions[i];
    const uint64_t now = version.now();
    if (now != 0 && now == version.known) continue;
    if (!holds(rows.first[i])) return false;
    version.known = now;
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
  return kh_unchanged(all->tables, all->versions.first, [all](const KhTable& table) {
    for (int64_t row = table.begin; row < table.end; ++row) {
      const KhHeld& one = all->held.first[row];
      if (kh_python.get(one.table, one.name) != one.value) return false;
    }
    return true;
  });
}

static bool kh_in_order(KhModuleGuard* all) {
  return kh_unchanged(all->ordered, all->versions.first + all->tables.count, [](const KhOrdered& one) {
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
  if (all->guard != nullptr) kh_samples_ahead(*all->guard);  // which are farthest
  for (const KhTyped& one : all->typed) {
    kh_ahead(one.object);
    kh_ahead(static_cast<const char*>(one.object) - 24);  // where CPython has its dict
  }
  for (const KhVersion& one : all->versions) kh_ahead(one.place);
  for (const KhFunction& one : all->functions)
    for (const int64_t offset : all->offsets) kh_ahead(one.object + offset);
  for (const KhCell& one : all->cells) kh_ahead(one.content);
  for (const char* one : all->next) kh_ahead(one);
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
  for (const KhFunction& one : all->functions) {
    for (int part = 0; part < kKhParts; ++part) {
      void* value = nullptr;
      std::memcpy(&value, one.object + all->offsets[part], sizeof value);
      if (value != one.parts[part]) return kKhChanged;
    }
  }
  for (const KhCell& one : all->cells)
    if (*one.content != one.value) return kKhChanged;
  for (int64_t i = 0; all->state != nullptr && i < all->state->count; ++i)
    if (!kh_tensor_same(*all->state, i, all->state->tensors[i].object)) return kKhTensorChanged;
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
