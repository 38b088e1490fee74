// OpenMP for prebuilt libraries, without a runtime of their own: what Clang calls of LLVM's, by GNU's.
//
// PyTorch has loaded a GNU runtime (or one that offers its functions, as Intel's and LLVM's do), under a name that
// differs from wheel to wheel. It is looked for among the loaded objects at the first call, so that libraries link
// none, all regions run on the threads that PyTorch's kernels run on, and torch.set_num_threads governs both. Where
// there is none, a region runs on the thread that calls.
//
// Here is what the sources use: parallel regions with `if`, loops (static, static in chunks, dynamic), single, barrier.
// Anything else is missing when a library is linked.
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>

#include <cstdarg>
#include <cstring>
#include <utility>

#include "omp.h"

namespace {

struct Runtime {
  void (*parallel)(void (*)(void*), void*, unsigned, unsigned);
  void (*barrier)();
  bool (*single_start)();
  bool (*dynamic_start)(long, long, long, long, long*, long*);
  bool (*dynamic_next)(long*, long*);
  void (*end_nowait)();
  int (*max_threads)(), (*num_threads)(), (*thread_num)(), (*in_parallel)();
};

template <class F>
bool find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  return function != nullptr;
}

bool of(void* library, Runtime& to) {
  return find(library, "GOMP_parallel", to.parallel) && find(library, "GOMP_barrier", to.barrier) &&
         find(library, "GOMP_single_start", to.single_start) &&
         find(library, "GOMP_loop_dynamic_start", to.dynamic_start) &&
         find(library, "GOMP_loop_dynamic_next", to.dynamic_next) &&
         find(library, "GOMP_loop_end_nowait", to.end_nowait) &&
         find(library, "omp_get_max_threads", to.max_threads) &&
         find(library, "omp_get_num_threads", to.num_threads) &&
         find(library, "omp_get_thread_num", to.thread_num) && find(library, "omp_in_parallel", to.in_parallel);
}

struct Search {
  Runtime found;
  bool is_found;
};

// A loaded object that is an OpenMP runtime by its name.
int look(dl_phdr_info* object, size_t, void* to) {
  const char* const slash = std::strrchr(object->dlpi_name, '/');
  const char* const name = slash == nullptr ? object->dlpi_name : slash + 1;
  if (std::strncmp(name, "libgomp", 7) != 0 && std::strncmp(name, "libiomp", 7) != 0 &&
      std::strncmp(name, "libomp", 6) != 0)
    return 0;
  Search& own = *static_cast<Search*>(to);
  void* const library = dlopen(object->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
  own.is_found = library != nullptr && of(library, own.found);
  return own.is_found;
}

Search search;
pthread_once_t searched = PTHREAD_ONCE_INIT;

const Runtime* runtime() {
  pthread_once(&searched, [] { dl_iterate_phdr(look, &search); });
  return search.is_found ? &search.found : nullptr;
}

thread_local int alone = 0;  // regions that this thread runs by itself, one inside of the other

const Runtime* team() { return alone > 0 ? nullptr : runtime(); }

using Task = void (*)(int32_t*, int32_t*, ...);
constexpr int kMostArguments = 32;

struct Region {
  Task task;
  int count;
  void* arguments[kMostArguments];
};

template <size_t... I>
void call(const Region& region, std::index_sequence<I...>) {
  int32_t thread = omp_get_thread_num(), bound = 0;
  region.task(&thread, &bound, region.arguments[I]...);
}

template <size_t... Counts>
void run(const Region& region, std::index_sequence<Counts...>) {
  ((region.count == static_cast<int>(Counts) ? call(region, std::make_index_sequence<Counts>()) : void()), ...);
}

void run(void* region) { run(*static_cast<Region*>(region), std::make_index_sequence<kMostArguments + 1>()); }

// The loop of `dynamic` that a thread is in.
struct Loop {
  int64_t first, last, step, chunk;
  bool is_begun;
};
thread_local Loop loop;

constexpr int32_t kChunks = 33;

// A thread's turns of a loop: equal, contiguous shares; or its first chunk, and how far it is to the next.
template <class T, class Step>
void turns_of_thread(int32_t schedule, int32_t& is_last, T& lower, T& upper, Step& stride, Step step, Step chunk) {
  const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num(), by = static_cast<int64_t>(step);
  if (by > 0 ? upper < lower : upper > lower) {
    is_last = 0;
    stride = step;
    return;
  }
  const int64_t first = static_cast<int64_t>(lower), turns = (static_cast<int64_t>(upper) - first) / by + 1;
  int64_t before = 0, mine = 0, apart = 0;
  if (schedule == kChunks) {
    mine = chunk < 1 ? 1 : static_cast<int64_t>(chunk);
    before = thread * mine;
    apart = threads * mine;
    is_last = thread == (turns - 1) / mine % threads;
  } else {
    const int64_t share = turns / threads, more = turns % threads;
    before = thread * share + (thread < more ? thread : more);
    mine = share + (thread < more);
    apart = turns;
    is_last = mine > 0 && before + mine == turns;
  }
  lower = static_cast<T>(first + by * before);
  upper = static_cast<T>(first + by * (before + mine - 1));
  stride = static_cast<Step>(by * apart);
}

template <class T, class Step>
int32_t next_turns(int32_t& is_last, T& lower, T& upper, Step& step) {
  const Runtime* const own = team();
  const bool begins = !loop.is_begun;
  const int64_t towards = loop.step > 0 ? 1 : -1;
  loop.is_begun = true;
  long first = loop.first, past = loop.last + towards;
  bool found = begins && (loop.step > 0 ? loop.first <= loop.last : loop.first >= loop.last);
  if (own != nullptr) {
    found = begins ? own->dynamic_start(loop.first, past, loop.step, loop.chunk, &first, &past)
                   : own->dynamic_next(&first, &past);
    if (!found) own->end_nowait();
  }
  if (!found) return 0;
  lower = static_cast<T>(first);
  upper = static_cast<T>(past - towards);
  step = static_cast<Step>(loop.step);
  is_last = 0;
  return 1;
}

}  // namespace

extern "C" {

struct Ident;

int omp_get_max_threads() {
  const Runtime* const own = runtime();
  return own == nullptr ? 1 : own->max_threads();
}
int omp_get_num_threads() {
  const Runtime* const own = team();
  return own == nullptr ? 1 : own->num_threads();
}
int omp_get_thread_num() {
  const Runtime* const own = team();
  return own == nullptr ? 0 : own->thread_num();
}
int omp_in_parallel() {
  const Runtime* const own = runtime();
  return own != nullptr && own->in_parallel();
}

int32_t __kmpc_global_thread_num(Ident*) { return omp_get_thread_num(); }

void __kmpc_serialized_parallel(Ident*, int32_t) { ++alone; }
void __kmpc_end_serialized_parallel(Ident*, int32_t) { --alone; }

void __kmpc_fork_call(Ident* where, int32_t count, Task task, ...) {
  Region region{task, count, {}};
  if (count > kMostArguments) __builtin_trap();
  va_list list;
  va_start(list, task);
  for (int i = 0; i < count; ++i) region.arguments[i] = va_arg(list, void*);
  va_end(list);
  if (const Runtime* const own = team()) {
    own->parallel(run, &region, 0, 0);
  } else {
    __kmpc_serialized_parallel(where, 0);
    run(&region);
    __kmpc_end_serialized_parallel(where, 0);
  }
}

void __kmpc_barrier(Ident*, int32_t) {
  if (const Runtime* const own = team()) own->barrier();
}

int32_t __kmpc_single(Ident*, int32_t) {
  const Runtime* const own = team();
  return own == nullptr || own->single_start();
}
void __kmpc_end_single(Ident*, int32_t) {}

#define KH_LOOPS(name, T, Step)                                                                                     \
  void __kmpc_for_static_init_##name(Ident*, int32_t, int32_t schedule, int32_t* is_last, T* lower, T* upper,       \
                                     Step* stride, Step step, Step chunk) {                                         \
    turns_of_thread(schedule, *is_last, *lower, *upper, *stride, step, chunk);                                      \
  }                                                                                                                 \
  void __kmpc_dispatch_init_##name(Ident*, int32_t, int32_t, T lower, T upper, Step step, Step chunk) {             \
    loop = {static_cast<int64_t>(lower), static_cast<int64_t>(upper), static_cast<int64_t>(step),                   \
            chunk < 1 ? 1 : static_cast<int64_t>(chunk), false};                                                    \
  }                                                                                                                 \
  int32_t __kmpc_dispatch_next_##name(Ident*, int32_t, int32_t* is_last, T* lower, T* upper, Step* step) {          \
    return next_turns(*is_last, *lower, *upper, *step);                                                             \
  }
KH_LOOPS(4, int32_t, int32_t)
KH_LOOPS(4u, uint32_t, int32_t)
KH_LOOPS(8, int64_t, int64_t)
KH_LOOPS(8u, uint64_t, int64_t)

void __kmpc_for_static_fini(Ident*, int32_t) {}
void __kmpc_dispatch_deinit(Ident*, int32_t) {}

// Whether regions run on the process's threads.
__attribute__((visibility("default"))) int kh_has_threads() { return runtime() != nullptr; }
}
