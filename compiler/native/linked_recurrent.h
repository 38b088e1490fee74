// Recurrent cells as generated units call them; compiled once, in linked_recurrent.cpp.
#pragma once

#include <cstdint>

#include "linked.h"

KH_NAMESPACE {

// kGruAfter: its reset gate multiplies what the candidate gets of h, bias included.
enum class Cell { kLstm, kGru, kGruAfter, kTanh, kRelu };

// Steps, sequences, hidden units, directions: one, that may be backward, or forward and backward.
struct Recurrence {
  Cell cell;
  int64_t time, batch, hidden, ways;
  bool reverse;
};

// What it reads, with strides. x (time, batch, ways * gates * hidden); h and c (ways, batch, hidden), c of an LSTM;
// bias (ways, hidden) of kGruAfter; scales and zeros (ways, gates * hidden) of a weight of bytes, or null; lengths (batch),
// or null.
struct RecurrentInputs {
  const float* x;
  int64_t x_strides[3];
  const float* h;
  int64_t h_strides[3];
  const float* c;
  int64_t c_strides[3];
  const float* bias;
  int64_t bias_strides[2];
  const float* scales;
  int64_t scale_strides[2];
  const float* zeros;
  int64_t zero_strides[2];
  const int64_t* lengths;
  int64_t length_stride;
};

// Floats of a weight (ways, gates * hidden, hidden), packed; and the packing, from any strides.
int64_t recurrent_size(Cell cell, int64_t ways, int64_t hidden);
void pack_recurrent(Cell cell, int64_t ways, int64_t hidden, const float* weight, const int64_t strides[3],
                    float* packed);

// The same of an LSTM's weight of bytes.
int64_t recurrent_size_of_bytes(int64_t ways, int64_t hidden);
void pack_recurrent_bytes(int64_t ways, int64_t hidden, const int8_t* weight, const int64_t strides[3], float* packed);

void recur_tiles(const Recurrence& shape, const RecurrentInputs& in, const float* packed, const Tile& tile);

// The same with a weight that is packed at each call.
void recur_tiles_unpacked(const Recurrence& shape, const RecurrentInputs& in, const float* weight,
                          const int64_t strides[3], const Tile& tile);
void recur_tiles_unpacked(const Recurrence& shape, const RecurrentInputs& in, const int8_t* weight,
                          const int64_t strides[3], const Tile& tile);

// e(0, row, 0, hidden, acc): row ((t * states + state) * ways + way) * batch + b of the result, t up to and with `time`.
template <class Epilogue>
KH_INLINE void recur(const Recurrence& shape, const RecurrentInputs& in, const float* packed, const Epilogue& e) {
  recur_tiles(shape, in, packed, {give_rows<Epilogue>, &e, 0, 0});
}
template <class Weight, class Epilogue>
KH_INLINE void recur_unpacked(const Recurrence& shape, const RecurrentInputs& in, const Weight* weight,
                              const int64_t (&strides)[3], const Epilogue& e) {
  recur_tiles_unpacked(shape, in, weight, strides, {give_rows<Epilogue>, &e, 0, 0});
}

}  // namespace kh
