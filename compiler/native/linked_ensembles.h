// Tree ensembles and pairwise coupling as generated units call them; compiled once, in linked_ensembles.cpp.
#pragma once

#include <cstdint>

#include "linked.h"

KH_NAMESPACE {

enum class Aggregate { kSum, kMin, kMax };

// x (rows, features); roots (trees); weights (nodes, columns), with strides.
struct Trees {
  int64_t rows, features, trees, nodes, columns;
  Aggregate aggregate;
  const float* x;
  int64_t x_strides[2];
  const int64_t* roots;
  int64_t root_strides[1];
  const float* weights;
  int64_t weight_strides[2];
};

// Floats of so many nodes (nodes, 4), packed; and the packing, from any strides.
constexpr int64_t trees_size(int64_t nodes) { return 4 * (nodes + 1); }
void pack_trees(int64_t nodes, const int32_t* from, const int64_t strides[2], float* packed);

// False where nodes are no trees, or look at more features than there are: then the result is NaN.
bool climb_tiles(const Trees& shape, const float* packed, const Tile& tile);

// The same with nodes that are packed at each call.
bool climb_tiles_unpacked(const Trees& shape, const int32_t* nodes, const int64_t strides[2], const Tile& tile);

// e(0, row, 0, columns, acc): what the leaves say that a row reaches.
template <class Epilogue>
KH_INLINE bool climb(const Trees& shape, const float* packed, const Epilogue& e) {
  return climb_tiles(shape, packed, {give_rows<Epilogue>, &e, 0, 0});
}
template <class Epilogue>
KH_INLINE bool climb_unpacked(const Trees& shape, const int32_t* nodes, const int64_t (&strides)[2],
                                const Epilogue& e) {
  return climb_tiles_unpacked(shape, nodes, strides, {give_rows<Epilogue>, &e, 0, 0});
}

void couple_tiles(int64_t rows, int64_t classes, const float* sure, const int64_t strides[2], const Tile& tile);

// e(0, row, 0, classes, acc): probabilities of the classes of a row. sure (rows, pairs).
template <class Epilogue>
KH_INLINE void couple(int64_t rows, int64_t classes, const float* sure, const int64_t (&strides)[2],
                      const Epilogue& e) {
  couple_tiles(rows, classes, sure, strides, {give_rows<Epilogue>, &e, 0, 0});
}

}  // namespace kh
