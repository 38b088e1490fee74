/* An engine plugin in C: it runs graphs of float32 additions, products and maxima, element by element.
 *
 *     cc -O2 -shared -fPIC -I "$(kernels-hub engines include)" elementwise.c -o elementwise.so
 *     KERNELS_HUB_PLUGIN_PATH=elementwise.so kernels-hub engines list
 *     python -c "from kernels_hub.compiler import compile; run = compile(..., engines=['elementwise-c'])"
 *
 * A plan copies the graph's nodes and sizes, as those of the host last for the call alone. Each value that is no input
 * and no output lies in the workspace. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels_hub_engine.h"

enum op { ADD, MUL, MAXIMUM, BROADCAST, OPS };
static const char *const NAMES[OPS] = {"add", "mul", "maximum", "broadcast"};

typedef struct { enum op op; int32_t operands[2], result; } step;
typedef struct {
  int32_t steps, values, inputs, outputs;
  step *step;
  int64_t *count, *offset; /* elements of each value; bytes into the workspace, or -1 */
  const void **data;       /* of weights and constants */
  int32_t *input, *output;
  int64_t workspace;
} plan;

uint32_t kh_engine_abi(void) { return KH_ENGINE_ABI; }
const char *kh_engine_name(void) { return "elementwise-c"; }

static int64_t elements(const kh_value *value) {
  int64_t count = 1;
  for (int32_t axis = 0; axis < value->rank; ++axis) count *= value->sizes[axis];
  return count;
}

static enum op op_of(const kh_node *node) {
  enum op op = ADD;
  while (op < OPS && strcmp(NAMES[op], node->op)) ++op;
  return op;
}

int kh_engine_check(const kh_graph *graph, const char *device, kh_answer *answer, char *reason, size_t capacity) {
  if (strcmp(device, "cpu")) return snprintf(reason, capacity, "it runs on the CPU, not on %s", device), 1;
  for (int32_t i = 0; i < graph->value_count; ++i)
    if (graph->values[i].dtype != KH_FLOAT32) return snprintf(reason, capacity, "it takes float32 alone"), 1;
  for (int32_t i = 0; i < graph->node_count; ++i) {
    const kh_node *node = graph->nodes + i;
    const enum op op = op_of(node);
    if (op == OPS) return snprintf(reason, capacity, "it has no op %s", node->op), 1;
    if (op == BROADCAST && elements(graph->values + node->operands[0]) != 1)
      return snprintf(reason, capacity, "it broadcasts scalars alone"), 1;
    answer->workspace += 4 * elements(graph->values + node->results[0]);
  }
  return 0;
}

static void *copied(const void *from, size_t size) {
  void *made = malloc(size ? size : 1);
  return made ? memcpy(made, from, size) : NULL;
}

void *kh_engine_compile(const kh_graph *graph, const char *device, char *reason, size_t capacity) {
  kh_answer answer = {sizeof answer, 0, 0};
  if (kh_engine_check(graph, device, &answer, reason, capacity)) return NULL;
  plan *made = calloc(1, sizeof *made);
  const size_t values = (size_t)graph->value_count;
  *made = (plan){.steps = graph->node_count, .values = graph->value_count, .inputs = graph->input_count,
                 .outputs = graph->output_count};
  made->step = calloc((size_t)graph->node_count + 1, sizeof *made->step);
  made->count = calloc(values, sizeof *made->count), made->offset = calloc(values, sizeof *made->offset);
  made->data = calloc(values, sizeof *made->data);
  made->input = copied(graph->inputs, sizeof(int32_t) * (size_t)graph->input_count);
  made->output = copied(graph->outputs, sizeof(int32_t) * (size_t)graph->output_count);
  for (size_t i = 0; i < values; ++i)
    made->count[i] = elements(graph->values + i), made->data[i] = graph->values[i].data, made->offset[i] = -1;
  for (int32_t i = 0; i < graph->node_count; ++i) {
    const kh_node *node = graph->nodes + i;
    const int32_t result = node->results[0];
    made->step[i] = (step){op_of(node), {node->operands[0], node->operands[node->operand_count - 1]}, result};
    made->offset[result] = made->workspace;
    made->workspace += (4 * made->count[result] + 63) / 64 * 64;
  }
  return made;
}

int64_t kh_engine_workspace(const void *of) { return ((const plan *)of)->workspace; }

static const float *read_from(const plan *of, int32_t value, const void *const *inputs, const char *workspace) {
  for (int32_t i = 0; i < of->inputs; ++i)
    if (of->input[i] == value) return inputs[i];
  return of->data[value] ? of->data[value] : (const void *)(workspace + of->offset[value]);
}

int kh_engine_execute(const void *of, const void *const *inputs, void *const *outputs, void *workspace, char *reason,
                      size_t capacity) {
  const plan *const my = of;
  (void)reason, (void)capacity;
  for (const step *one = my->step; one < my->step + my->steps; ++one) {
    const float *a = read_from(my, one->operands[0], inputs, workspace);
    const float *b = read_from(my, one->operands[1], inputs, workspace);
    float *to = (float *)((char *)workspace + my->offset[one->result]);
    for (int64_t i = 0; i < my->count[one->result]; ++i)
      switch (one->op) {
        case ADD: to[i] = a[i] + b[i]; break;
        case MUL: to[i] = a[i] * b[i]; break;
        case MAXIMUM: to[i] = a[i] != a[i] || a[i] > b[i] ? a[i] : b[i]; break;
        default: to[i] = a[0];
      }
  }
  for (int32_t i = 0; i < my->outputs; ++i)
    memcpy(outputs[i], read_from(my, my->output[i], inputs, workspace), 4 * (size_t)my->count[my->output[i]]);
  return 0;
}

void kh_engine_free(void *of) {
  plan *my = of;
  free(my->step), free(my->count), free(my->offset), free(my->data), free(my->input), free(my->output), free(my);
}
