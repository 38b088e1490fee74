// Instructions that read and write memory: views, copies, guarded and gathered loads, stores.
#pragma once

#include "bytecode.h"

KH_NAMESPACE {

namespace bytecode {

KH_INLINE char* address(const Frame& frame, const Address& place, int64_t at, int64_t bytes) {
  return static_cast<char*>(frame.call.buffers[place.buffer]) + at * bytes;
}

// The register becomes a view of memory, whose columns lie beside each other (or are one). Rows where a guard does not
// hold, which says the same for all columns, are a row of the number `extra`.
inline void view(Frame& frame, const Instruction& one) {
  Register& to = frame.registers[one.to];
  const int64_t bytes = kElementBytes[static_cast<int>(one.element)];
  char* const first = address(frame, one.place, frame.start(one.place), bytes);
  if (one.place.is_same() && one.guards.empty()) {
    to = {first, 0, nullptr};
    return;
  }
  int64_t offsets[kMostRows];
  char** const rows = &frame.pointers[one.to * kMostRows];
  frame.row_offsets(one.place, offsets);
  for (int64_t r = 0; r < frame.rows; ++r) rows[r] = first + offsets[r] * bytes;
  for (const Guard& guard : one.guards) {
    const int64_t at = frame.start(guard.place), low = frame.number(guard.low), high = frame.number(guard.high);
    frame.row_offsets(guard.place, offsets);
    char* const blank = frame.blank(one.extra);
    for (int64_t r = 0; r < frame.rows; ++r) rows[r] = at + offsets[r] >= low && at + offsets[r] < high ? rows[r] : blank;
  }
  const int64_t step = frame.rows > 1 ? rows[1] - rows[0] : 0;
  bool is_even = true;
  for (int64_t r = 2; r < frame.rows; ++r) is_even &= rows[r] - rows[r - 1] == step;
  to = {rows[0], step, is_even ? nullptr : rows};
}

// The columns of a row where all guards hold: from first to last.
struct Range {
  int64_t first, last;
};
inline Range range_of(const Frame& frame, const std::vector<Guard>& guards, int64_t row) {
  Range found{0, frame.columns};
  for (const Guard& guard : guards) {
    const int64_t at = frame.start(guard.place) + frame.row_offset(guard.place, row);
    const int64_t step = frame.column_step(guard.place), low = frame.number(guard.low), high = frame.number(guard.high);
    if (step == 0) {
      if (at < low || at >= high) return {0, 0};
    } else if (step > 0) {
      found.first = std::max(found.first, -floor_div(at - low, step));
      found.last = std::min(found.last, -floor_div(at - high, step));
    } else {
      found.first = std::max(found.first, floor_div(at - high, -step) + 1);
      found.last = std::min(found.last, floor_div(at - low, -step) + 1);
    }
  }
  return found.first < found.last ? found : Range{0, 0};
}

template <class T, class H>
KH_INLINE void copy_row(const T* from, int64_t step, H* to, int64_t count) {
  if (step == 1) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<H>(from[i]);
  } else if (step == 0) {
    if (count > 0) std::fill_n(to, count, static_cast<H>(*from));
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<H>(from[i * step]);
  }
}

// Whether rows of a place lie one element apart: then a tile of it is read, or written, turned round.
inline bool is_turned(const Frame& frame, const int64_t* offsets, int64_t rows) {
  if (rows < kLanes || frame.columns < kLanes) return false;
  for (int64_t r = 1; r < rows; ++r)
    if (offsets[r] - offsets[r - 1] != 1) return false;
  return true;
}

template <class T>
void load_as(Frame& frame, const Instruction& one) {
  using H = typename Held<T>::Type;
  const Register& to = frame.registers[one.to];
  const int64_t rows = frame.rows_of(one.to), columns = frame.columns_of(one.to), step = frame.column_step(one.place);
  const T* const first = reinterpret_cast<T*>(address(frame, one.place, frame.start(one.place), sizeof(T)));
  const H blank = static_cast<H>(std::bit_cast<float>(one.extra));
  int64_t offsets[kMostRows];
  frame.row_offsets(one.place, offsets);
  if constexpr (std::is_same_v<T, float>) {
    if (one.guards.empty() && step > 1 && columns > 1 && is_turned(frame, offsets, rows)) {
      transpose(first + offsets[0], step, to.row<float>(0), columns, columns, rows);
      return;
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    H* const into = to.row<H>(r);
    const T* const from = first + offsets[r];
    if (one.guards.empty()) {
      copy_row(from, step, into, columns);
      continue;
    }
    const Range range = range_of(frame, one.guards, r);
    const int64_t last = std::min(range.last, columns);
    std::fill_n(into, range.first, blank);
    copy_row(from + range.first * step, step, into + range.first, last - range.first);
    std::fill_n(into + last, columns - last, blank);
  }
}
inline void load(Frame& frame, const Instruction& one) {
  with_element(one.element, [&](auto element) { load_as<decltype(element)>(frame, one); });
}

// The same row of float for all rows of a tile; it stays there for the tiles after this one.
inline void repeat(Frame& frame, const Instruction& one) {
  Repeated& known = frame.repeated[one.to];
  if (known.column == frame.column && known.columns == frame.columns && known.rows >= frame.rows) return;
  known = {frame.column, frame.columns, frame.rows};
  const float* const from = reinterpret_cast<float*>(address(frame, one.place, frame.start(one.place), 4));
  const Register& to = frame.registers[one.to];
  for (int64_t r = 0; r < frame.rows; ++r) copy_row(from, frame.column_step(one.place), to.row<float>(r), frame.columns);
}

template <class T>
KH_INLINE T stored(typename Held<T>::Type value) {
  return static_cast<T>(value);
}

template <class T>
void store_as(Frame& frame, const Instruction& one) {
  using H = typename Held<T>::Type;
  const Register& from = frame.registers[one.a];
  const int64_t rows = one.place.is_same() ? 1 : frame.rows, step = frame.column_step(one.place);
  const int64_t columns = step == 0 ? 1 : frame.columns;
  const bool is_wide = frame.is_wide(one.a);
  T* const first = reinterpret_cast<T*>(address(frame, one.place, frame.start(one.place), sizeof(T)));
  int64_t offsets[kMostRows];
  frame.row_offsets(one.place, offsets);
  if constexpr (std::is_same_v<T, float>) {
    if (is_wide && step > 1 && from.pointers == nullptr && from.step % 4 == 0 && is_turned(frame, offsets, rows)) {
      transpose(from.row<float>(0), from.step / 4, first + offsets[0], step, rows, columns);
      return;
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    const H* const row = from.row<H>(r);
    T* const into = first + offsets[r];
    if (!is_wide) {
      const T value = stored<T>(*row);
      for (int64_t i = 0; i < columns; ++i) into[i * step] = value;
    } else if (step == 1) {
#pragma omp simd
      for (int64_t i = 0; i < columns; ++i) into[i] = stored<T>(row[i]);
    } else {
      for (int64_t i = 0; i < columns; ++i) into[i * step] = stored<T>(row[i]);
    }
  }
}
inline void store(Frame& frame, const Instruction& one) {
  with_element(one.element, [&](auto element) { store_as<decltype(element)>(frame, one); });
}

// to = memory at the places of register a, 0 where register b (if there is one) is false.
template <class T>
void gather_as(Frame& frame, const Instruction& one) {
  using H = typename Held<T>::Type;
  const Register &to = frame.registers[one.to], &places = frame.registers[one.a];
  const int64_t rows = frame.rows_of(one.to), columns = frame.columns_of(one.to);
  const T* const from = static_cast<const T*>(frame.call.buffers[one.place.buffer]);
  const bool wide_place = frame.is_wide(one.a), wide_test = one.b >= 0 && frame.is_wide(one.b);
  for (int64_t r = 0; r < rows; ++r) {
    H* const into = to.row<H>(r);
    const int64_t* const at = places.row<int64_t>(r);
    const bool* const test = one.b < 0 ? nullptr : frame.registers[one.b].row<bool>(r);
    for (int64_t i = 0; i < columns; ++i) {
      const bool holds = test == nullptr || test[wide_test ? i : 0];
      into[i] = holds ? static_cast<H>(from[at[wide_place ? i : 0]]) : H{};
    }
  }
}
inline void gather(Frame& frame, const Instruction& one) {
  with_element(one.element, [&](auto element) { gather_as<decltype(element)>(frame, one); });
}

// memory at the places of register b = register a
template <class T>
void scatter_as(Frame& frame, const Instruction& one) {
  using H = typename Held<T>::Type;
  const Register &from = frame.registers[one.a], &places = frame.registers[one.b];
  const int64_t rows = std::max(frame.rows_of(one.a), frame.rows_of(one.b));
  const int64_t columns = std::max(frame.columns_of(one.a), frame.columns_of(one.b));
  T* const into = static_cast<T*>(frame.call.buffers[one.place.buffer]);
  const bool wide = frame.is_wide(one.a), wide_place = frame.is_wide(one.b);
  for (int64_t r = 0; r < rows; ++r) {
    const H* const row = from.row<H>(r);
    const int64_t* const at = places.row<int64_t>(r);
    for (int64_t i = 0; i < columns; ++i) into[at[wide_place ? i : 0]] = stored<T>(row[wide ? i : 0]);
  }
}
inline void scatter(Frame& frame, const Instruction& one) {
  with_element(one.element, [&](auto element) { scatter_as<decltype(element)>(frame, one); });
}

// A place as a number.
template <class H>
void position_as(Frame& frame, const Instruction& one) {
  const Register& to = frame.registers[one.to];
  const int64_t rows = frame.rows_of(one.to), columns = frame.columns_of(one.to), step = frame.column_step(one.place);
  const int64_t start = frame.start(one.place);
  for (int64_t r = 0; r < rows; ++r) {
    H* const into = to.row<H>(r);
    const int64_t at = start + frame.row_offset(one.place, r);
#pragma omp simd
    for (int64_t i = 0; i < columns; ++i) into[i] = static_cast<H>(at + i * step);
  }
}
inline void position(Frame& frame, const Instruction& one) {
  switch (frame.code->registers[one.to].kind) {
    case RegisterKind::kFloat: return position_as<float>(frame, one);
    case RegisterKind::kDouble: return position_as<double>(frame, one);
    default: return position_as<int64_t>(frame, one);
  }
}

// Whether all guards hold.
inline void inside(Frame& frame, const Instruction& one) {
  const Register& to = frame.registers[one.to];
  const int64_t rows = frame.rows_of(one.to), columns = frame.columns_of(one.to);
  for (int64_t r = 0; r < rows; ++r) {
    bool* const into = to.row<bool>(r);
    const Range range = range_of(frame, one.guards, r);
    for (int64_t i = 0; i < columns; ++i) into[i] = i >= range.first && i < range.last;
  }
}

}  // namespace bytecode

}  // namespace kh
