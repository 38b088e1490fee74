/* The C interface of engine plugins of kernels_hub, version 1.0.
 *
 * A plugin is a shared library that exports the seven functions below. It lies in a folder of KERNELS_HUB_PLUGIN_PATH or
 * of set_plugin_paths, and ends in .so:
 *
 *     cc -O2 -shared -fPIC -I "$(kernels-hub engines include)" my_engine.c -o my_engine.so
 *
 * Versions: a plugin is loaded by a host of the same major version and of the same minor version or a later one. Fields
 * are only ever added at the end of a struct, and `size` says how many bytes of it there are.
 *
 * Memory: what the host gives is valid during the call, but for kh_graph's `data` (weights and constants), which is
 * valid as long as the plan. Tensors are dense, in row-major order, and begin at a multiple of their element's size. A
 * plugin never frees what the host gave.
 *
 * Threads: kh_engine_execute may be called by several threads at once with one plan; each brings its own workspace.
 *
 * A function that fails writes one line into `reason`, a buffer of `capacity` bytes, which is empty before. */
#ifndef KERNELS_HUB_ENGINE_H
#define KERNELS_HUB_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#define KH_ENGINE_ABI_MAJOR 1u
#define KH_ENGINE_ABI_MINOR 0u
#define KH_ENGINE_ABI ((KH_ENGINE_ABI_MAJOR << 16) | KH_ENGINE_ABI_MINOR)

#ifdef __cplusplus
extern "C" {
#endif

/* Element types. The host does not offer graphs with others. */
enum kh_dtype {
  KH_BOOL = 0, KH_UINT8 = 1, KH_INT8 = 2, KH_INT16 = 3, KH_INT32 = 4, KH_INT64 = 5,
  KH_FLOAT16 = 6, KH_BFLOAT16 = 7, KH_FLOAT32 = 8, KH_FLOAT64 = 9
};

/* What a caller may want to exclude; bits of kh_answer.notes. */
enum kh_note { KH_REDUCED_PRECISION = 1, KH_NONDETERMINISTIC = 2, KH_NEEDS_COMPILER = 4, KH_SLOW = 8 };

/* A value of a graph. data: the elements of a weight or a constant, NULL of what is computed or given. */
typedef struct kh_value {
  int32_t dtype;
  int32_t rank;
  const int64_t *sizes;
  const void *data;
} kh_value;

/* An op, its operands and results as indices of values, and its attributes as a JSON object. Nodes are in an order in
 * which operands come first. Inputs, weights and constants are values without a node. */
typedef struct kh_node {
  const char *op;
  const char *attributes;
  int32_t operand_count;
  const int32_t *operands;
  int32_t result_count;
  const int32_t *results;
} kh_node;

typedef struct kh_graph {
  size_t size;
  const char *name;
  int32_t value_count;
  const kh_value *values;
  int32_t node_count;
  const kh_node *nodes;
  int32_t input_count;
  const int32_t *inputs;
  int32_t output_count;
  const int32_t *outputs;
} kh_graph;

/* What a plugin says of a graph that it takes. */
typedef struct kh_answer {
  size_t size;
  uint32_t notes;
  int64_t workspace; /* an estimate in bytes */
} kh_answer;

/* KH_ENGINE_ABI of the header that the plugin was built with. Called first, and alone where versions differ. */
uint32_t kh_engine_abi(void);
/* Small letters, digits, '_', '.' and '-', a letter first. Constant. */
const char *kh_engine_name(void);
/* 0 where it takes the whole graph on the device ("cpu"); else the reason. */
int kh_engine_check(const kh_graph *graph, const char *device, kh_answer *answer, char *reason, size_t capacity);
/* A plan; NULL and the reason where it fails. */
void *kh_engine_compile(const kh_graph *graph, const char *device, char *reason, size_t capacity);
/* Bytes of scratch memory that kh_engine_execute wants. */
int64_t kh_engine_workspace(const void *plan);
/* 0, or the reason. inputs, outputs: addresses in the graph's order; workspace: 64-byte aligned, NULL where 0 bytes. */
int kh_engine_execute(const void *plan, const void *const *inputs, void *const *outputs, void *workspace, char *reason,
                      size_t capacity);
void kh_engine_free(void *plan);

#ifdef __cplusplus
}
#endif
#endif
