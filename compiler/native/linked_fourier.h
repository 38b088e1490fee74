// Fourier transforms as generated units call them; compiled once, in linked_fourier.cpp.
#pragma once

#include <cstdint>

#include "linked.h"

KH_NAMESPACE {

// kFull: all frequencies; kHalf: the first samples / 2 + 1 of real samples; kReal: real samples of those.
enum class FourierForm { kFull, kHalf, kReal };

// dims: of the operands. What they transform lies along `axis`.
struct Fourier {
  FourierForm form;
  bool inverse;
  int64_t samples;
  double scale;
  int64_t rank, axis;
  const int64_t* dims;
};

// imaginary: null where samples are real.
template <class T>
struct FourierInputs {
  const T* real;
  const int64_t* real_strides;
  const T* imaginary;
  const int64_t* imaginary_strides;
};

// As Tile, of T.
template <class T>
struct FourierTile {
  void (*call)(const void* state, int64_t i, int64_t rows, int64_t j, int64_t count, const T* tile, int64_t stride);
  const void* state;
};

template <class T>
void transform_tiles(const Fourier& shape, const FourierInputs<T>& in, const FourierTile<T>& tile);

// e(0, row, j, count, acc): columns j .. of a row of the result. `row` counts its dims but for the last, which has a pair
// of columns, a real and an imaginary part, for each complex number.
template <class T, class Epilogue>
KH_INLINE void transform(const Fourier& shape, const FourierInputs<T>& in, const Epilogue& e) {
  const auto give = [](const void* state, int64_t i, int64_t rows, int64_t j, int64_t count, const T* tile,
                       int64_t stride) {
    const Epilogue& own = *static_cast<const Epilogue*>(state);
    for (int64_t row = 0; row < rows; ++row) own(0, i + row, j, count, tile + row * stride);
  };
  transform_tiles<T>(shape, in, {give, &e});
}

}  // namespace kh
