// Bytecode of fused kernels: what a program is, and a tile while it is computed.
//
// An instruction computes a tile of `rows` times `columns` elements, as many as lie in the first cache, so that to find
// out what is to be done costs little beside doing it. The columns run along one loop of a nest, the rows along the
// others (counted row-major), or along the rows of a product. Registers hold a tile, a column of it (an element a row),
// or one number; what is read as it lies in memory is no copy: such a register is a view.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "scalar.h"

KH_NAMESPACE {

namespace bytecode {

// What words mean, and what records the functions of module_guard.h take: exported layers bring both along. Another number
// where either changes; as in runtime/bytecode.py.
inline constexpr int64_t kFormat = 1;
// The same and Fourier transforms, which interpreters of before do not know.
inline constexpr int64_t kTransforms = 2;

inline constexpr int64_t kMostRows = 128, kMostElements = 2048;

// What a register holds: integers of any width are int64, floats narrower than float are float.
enum class RegisterKind : int32_t { kFloat, kDouble, kInteger, kTruth };
// What memory holds; in the order of codegen/bytecode/code.py.
enum class Element : int32_t { kF32, kF64, kF16, kBF16, kI8, kI16, kI32, kI64, kU8, kU16, kU32, kBool };

inline constexpr int64_t kElementBytes[] = {4, 8, 2, 2, 1, 2, 4, 8, 1, 2, 4, 1};
inline constexpr int64_t kKindBytes[] = {4, 8, 8, 1};

// How a register is made: slot: its memory among those of its kind, -1 of a view.
struct RegisterShape {
  RegisterKind kind;
  bool rows, columns;
  int64_t slot;
};

// Where a register lies now. pointers: of each row, null where all lie `step` bytes apart.
struct Register {
  char* first;
  int64_t step;
  char** pointers;

  template <class T>
  KH_INLINE T* row(int64_t i) const {
    return reinterpret_cast<T*>(pointers != nullptr ? pointers[i] : first + i * step);
  }
};

// variable times number; numbers are known when a call begins.
struct Term {
  int32_t variable, number;
};

// number[base] + the terms + column * number[column_step], in elements; column_step -1: the same for all columns.
// offset: a register of integers that is added, -1 for none; the same for all columns.
struct Address {
  int32_t buffer = -1, base = -1, column_step = -1, offset = -1;
  std::vector<Term> rows, scalars;

  bool is_same() const { return rows.empty() && offset < 0; }
};

// number[low] <= place < number[high].
struct Guard {
  Address place;
  int32_t low, high;
};

// f(T{}) with the C++ type of an element.
template <class F>
KH_INLINE void with_element(Element element, F&& f) {
  switch (element) {
    case Element::kF32: return f(float{});
    case Element::kF64: return f(double{});
    case Element::kF16: return f(f16{});
    case Element::kBF16: return f(bf16{});
    case Element::kI8: return f(int8_t{});
    case Element::kI16: return f(int16_t{});
    case Element::kI32: return f(int32_t{});
    case Element::kI64: return f(int64_t{});
    case Element::kU8: return f(uint8_t{});
    case Element::kU16: return f(uint16_t{});
    case Element::kU32: return f(uint32_t{});
    case Element::kBool: return f(bool{});
  }
}

// The C++ type of a register for elements of T.
template <class T>
struct Held {
  using Type = int64_t;
};
template <>
struct Held<float> {
  using Type = float;
};
template <>
struct Held<double> {
  using Type = double;
};
template <>
struct Held<f16> {
  using Type = float;
};
template <>
struct Held<bf16> {
  using Type = float;
};
template <>
struct Held<bool> {
  using Type = bool;
};

// An operation of a chain (bytecode_chain.h); other: the register of its second operand, -1 of one alone.
struct Chained {
  int32_t link, other;
};

struct Frame;

struct Instruction {
  void (*run)(Frame& frame, const Instruction& one) = nullptr;
  int32_t to = -1, a = -1, b = -1, c = -1;
  Element element{};
  int32_t number = -1, extra = 0;
  Address place;
  std::vector<Guard> guards;
  std::vector<Chained> links;
};

struct Constant {
  int32_t to;
  int64_t bits;  // of the register's kind
};

// Instructions over some registers. lists: what runs when is the nest's business.
struct Code {
  int64_t most_elements = kMostElements;
  int32_t row_variables = 0, scalar_variables = 0;
  std::vector<RegisterShape> registers;
  std::vector<Constant> constants;
  std::vector<int64_t> slot_bytes;
  std::vector<std::vector<Instruction>> lists;
};

// A tile of rows that are all the same, which stays while the columns do.
struct Repeated {
  int64_t column = -1, columns = -1, rows = 0;
};

// What a call is given.
struct Call {
  void* const* buffers;
  const int64_t* numbers;
  int* failure;
  uint64_t nest;  // no two runs of nests have the same
};

// A tile of one thread.
struct Frame {
  const Code* code = nullptr;
  Call call{};
  int64_t rows = 1, columns = 1, column = 0;  // column: the first, in its loop
  std::vector<Register> registers;
  std::vector<int64_t> row_values;  // [variable][row]
  std::vector<int64_t> scalars;
  std::vector<char*> pointers;  // [register][row], of views
  std::vector<Repeated> repeated;
  std::vector<char> memory;
  uint64_t nest = 0;
  int64_t shaped_columns = -1;
  std::vector<float> blanks;  // a row of one number
  int32_t blank_bits = 0;

  KH_INLINE int64_t rows_of(int32_t which) const { return code->registers[which].rows ? rows : 1; }
  KH_INLINE int64_t columns_of(int32_t which) const { return code->registers[which].columns ? columns : 1; }
  KH_INLINE bool is_wide(int32_t which) const { return code->registers[which].columns; }
  KH_INLINE int64_t number(int32_t which) const { return call.numbers[which]; }

  // A frame for a nest: registers without a shape yet, constants in place.
  void begin(const Code& own, const Call& from);
  // The tile has this shape from here on.
  void shape(int64_t tile_rows, int64_t tile_columns);
  KH_INLINE void run(int32_t list) {
    for (const Instruction& one : code->lists[list]) one.run(*this, one);
  }
  // A row of one float, given by its bits.
  char* blank(int32_t bits) {
    if (blanks.empty() || blank_bits != bits) blanks.assign(kMostElements, std::bit_cast<float>(bits)), blank_bits = bits;
    return reinterpret_cast<char*>(blanks.data());
  }
  // Where a place is, without what the rows and columns add.
  KH_INLINE int64_t start(const Address& place) const {
    int64_t at = call.numbers[place.base];
    for (const Term& term : place.scalars) at += scalars[term.variable] * call.numbers[term.number];
    return at + (place.column_step < 0 ? 0 : column * call.numbers[place.column_step]);
  }
  KH_INLINE int64_t row_offset(const Address& place, int64_t row) const {
    int64_t at = 0;
    for (const Term& term : place.rows) at += row_values[term.variable * kMostRows + row] * call.numbers[term.number];
    return at + (place.offset < 0 ? 0 : *registers[place.offset].row<int64_t>(row));
  }
  // The same of all rows.
  KH_INLINE void row_offsets(const Address& place, int64_t* to) const {
    std::fill_n(to, rows, 0);
    for (const Term& term : place.rows) {
      const int64_t* const values = &row_values[term.variable * kMostRows];
      const int64_t factor = call.numbers[term.number];
#pragma omp simd
      for (int64_t r = 0; r < rows; ++r) to[r] += values[r] * factor;
    }
    if (place.offset < 0) return;
    for (int64_t r = 0; r < rows; ++r) to[r] += *registers[place.offset].row<int64_t>(r);
  }
  KH_INLINE int64_t column_step(const Address& place) const {
    return place.column_step < 0 ? 0 : call.numbers[place.column_step];
  }
};

inline void Frame::begin(const Code& own, const Call& from) {
  code = &own, call = from, nest = from.nest;
  registers.resize(own.registers.size());
  row_values.assign(own.row_variables * kMostRows, 0);
  scalars.assign(own.scalar_variables, 0);
  pointers.resize(own.registers.size() * kMostRows);
  repeated.assign(own.registers.size(), {});
  int64_t bytes = 64;
  for (const int64_t one : own.slot_bytes) bytes += round_up(one, 64);
  if (static_cast<int64_t>(memory.size()) < bytes) memory.resize(bytes);
  std::vector<char*> slots;
  char* at = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  for (const int64_t one : own.slot_bytes) slots.push_back(at), at += round_up(one, 64);
  for (size_t i = 0; i < registers.size(); ++i)
    registers[i] = {own.registers[i].slot < 0 ? nullptr : slots[own.registers[i].slot], 0, nullptr};
  for (const Constant& one : own.constants) std::memcpy(registers[one.to].first, &one.bits, 8);
  shaped_columns = -1;
}

inline void Frame::shape(int64_t tile_rows, int64_t tile_columns) {
  rows = tile_rows, columns = tile_columns;
  if (columns == shaped_columns) return;
  shaped_columns = columns;
  for (size_t i = 0; i < registers.size(); ++i) {
    const RegisterShape& shape = code->registers[i];
    if (shape.slot >= 0)
      registers[i].step = shape.rows ? kKindBytes[static_cast<int>(shape.kind)] * (shape.columns ? columns : 1) : 0;
  }
}

// Whether rows lie one behind the other.
template <class T>
KH_INLINE bool is_dense(const Register& one, int64_t rows, int64_t columns) {
  return one.pointers == nullptr && (rows == 1 || one.step == columns * static_cast<int64_t>(sizeof(T)));
}

}  // namespace bytecode

}  // namespace kh
