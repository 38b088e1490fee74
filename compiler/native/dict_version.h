// Versions of dicts for Pythons that count none: from 3.13 on, a dict watcher does. See dict_version.py.
#pragma once

#include <cstdint>

struct KhWatchedDict {
  const void* dict;
  uint64_t* version;
  KhWatchedDict* next;  // of its bucket
};

// Used with the GIL held. What is pointed to is never freed: dicts change while Python ends, and guards ask for versions
// of dicts that died. Versions lie next to each other, apart from what only a change looks at. No standard container:
// every exported layer compiles this, which would take it another 0.3 s.
struct KhWatchedDicts {
  static constexpr int kBuckets = 1 << 12, kBlock = 512;
  KhWatchedDict* buckets[kBuckets];
  uint64_t* block;
  int left;          // in the block
  uint64_t changes;  // of all dicts: no two have the same version

  KhWatchedDict** place(const void* dict) {  // where a dict is pointed to, or would be
    const uint64_t mixed = reinterpret_cast<uint64_t>(dict) * 0x9e3779b97f4a7c15ull;
    KhWatchedDict** one = &buckets[mixed >> 52];
    while (*one != nullptr && (*one)->dict != dict) one = &(*one)->next;
    return one;
  }
};

static KhWatchedDicts kh_watched_dicts;

// PyDict_WatchCallback: Python calls it before a watched dict changes, and before it dies. Its version is 0 from then on.
extern "C" int kh_dict_changed(int event, void* dict, void*, void*) {
  constexpr int kDies = 5;  // PyDict_EVENT_DEALLOCATED
  KhWatchedDict** place = kh_watched_dicts.place(dict);
  KhWatchedDict* one = *place;
  if (one == nullptr) return 0;
  *one->version = event == kDies ? 0 : ++kh_watched_dicts.changes;
  if (event == kDies) {
    *place = one->next;
    delete one;
  }
  return 0;
}

// Where the version of a dict lies, which is to be watched.
extern "C" const uint64_t* kh_dict_version_at(const void* dict) {
  KhWatchedDicts& all = kh_watched_dicts;
  KhWatchedDict** place = all.place(dict);
  if (*place != nullptr) return (*place)->version;
  if (all.left == 0) all.block = new uint64_t[KhWatchedDicts::kBlock], all.left = KhWatchedDicts::kBlock;
  uint64_t* version = &all.block[KhWatchedDicts::kBlock - all.left--];
  *version = ++all.changes;
  *place = new KhWatchedDict{dict, version, nullptr};
  return version;
}
