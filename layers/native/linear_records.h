// What Python packs (struct) for functions that compute linear layers: fields of 8 bytes each, in this order.
#pragma once

#include <cstdint>

namespace {

struct Weight {
  const void *values, *bias;  // (columns, width), (columns,) or nullptr
  int64_t columns;
};

// out (rows, all columns) = activation(x weight^T + bias) of up to three weights, side by side.
struct Linears {
  const void* x;  // (rows, width)
  void* out;
  Weight weights[3];
  int64_t rows, width, type, activation;
};

// out (rows, down.columns) = (activation(x gate^T) * (x up^T)) down^T, each with its bias.
struct Gated {
  const void* x;
  void* out;
  Weight gate, up, down;
  int64_t rows, width, type, activation;
};

}  // namespace
