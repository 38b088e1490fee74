// Whether a module is still what the state of its layer was made of. Every call asks it, with the GIL held, and with
// next to nothing of what it looks at in a cache: lines are asked for together before the first is read.
//
// Python's functions are called by the thread that holds the GIL; meanwhile the others compare what weights hold, which is
// not Python's.
#pragma once

#include <cstdint>
#include <cstring>

#include "parallel.h"
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
  KhSpan<void* const> empty;       // dicts that hold nothing
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

enum KhModuleState { kKhChanged = 0, kKhSame = 1, kKhContentChanged = 2, kKhTensorChanged = 3 };

static KhModuleState kh_parts_hold(KhModuleGuard* all, void* module) {
  for (const KhTyped& one : all->typed) {
    __builtin_prefetch(one.object);
    __builtin_prefetch(static_cast<const char*>(one.object) - 24);  // where CPython has its dict
  }
  for (void* one : all->empty) __builtin_prefetch(one);
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
  for (void* one : all->empty)
    if (kh_python.size(one) != 0) return kKhChanged;
  for (int64_t i = 0; all->state != nullptr && i < all->state->count; ++i)
    if (!kh_tensor_same(*all->state, all->state->tensors[i], all->state->tensors[i].object)) return kKhTensorChanged;
  return kKhSame;
}

// module: its own dict. Whether all is as it was, or what is not: the module, or what a weight holds.
static KhModuleState kh_module_guard_holds(KhModuleGuard* all, void* module) {
  constexpr int64_t kTogether = 32;  // samples that are asked for together
  constexpr int64_t kWorthATeam = 256;
  KhGuard* guard = all->guard;
  const double asked = guard == nullptr ? 0 : kh_guard_now();
  const int64_t sampled = guard == nullptr ? 0 : guard->sampled, team = sampled < kWorthATeam ? 1 : kh::threads();
  if (team <= 1) {
    const KhModuleState parts = kh_parts_hold(all, module);
    if (parts != kKhSame) return parts;
    return guard == nullptr || kh_guard_holds(guard, asked) ? kKhSame : kKhContentChanged;
  }
  const int64_t groups = kh::ceil_div(sampled, kTogether), next = guard->next;
  const int64_t due = kh_guard_due(guard, team);
  kh::Tickets tickets(groups + due);
  KhModuleState parts = kKhSame;
  bool written = false;
  int64_t bytes = 0, nanoseconds = 0;
#pragma omp parallel
  {
    if (omp_get_thread_num() == 0) parts = kh_parts_hold(all, module);  // the first is the one that was called
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
  const double wall = took / static_cast<double>(std::min(team, std::max<int64_t>(due, 1)));
  guard->asking += std::max(0.0, kh_guard_now() - asked - wall);
  kh_guard_paid(guard, due, bytes, wall, took);
  return parts != kKhSame ? parts : written ? kKhContentChanged : kKhSame;
}

// The same as a function of Python's own. self: an integer, the guard's address.
extern "C" void* kh_module_guard_asked(void* self, void* module) {
  return kh_python.integer(kh_module_guard_holds(static_cast<KhModuleGuard*>(kh_python.address(self)), module));
}
