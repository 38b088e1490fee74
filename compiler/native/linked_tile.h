// How the kernels hand their tiles to a generated unit: whole, not row by row.
#pragma once

#include "gemm.h"
#include "linked.h"

KH_NAMESPACE {

// product() prefers these to its own for any epilogue, conv() this shift().
KH_INLINE void finish(int64_t i, int64_t rows, int64_t j, int64_t count, int64_t stride,
                      const Tile& epilogue, const float* tile) {
  epilogue.call(epilogue.state, epilogue.batch, i, rows, epilogue.shift + j, count, tile, stride);
}

KH_INLINE void finish(int64_t i, int64_t rows, int64_t j, int64_t count, int64_t stride, Tile& epilogue,
                      const float* tile) {
  finish(i, rows, j, count, stride, static_cast<const Tile&>(epilogue), tile);
}
KH_INLINE Tile shift(const Tile& tile, int64_t by) { return {tile.call, tile.state, tile.batch, tile.shift + by}; }

}  // namespace kh
