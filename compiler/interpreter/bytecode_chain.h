// Chains: operations of floats one after the other, each on the result of the one before, which stays in vector registers.
#pragma once

#include "bytecode_vectors.h"

KH_NAMESPACE {

namespace bytecode {

// In the order of codegen/bytecode/chains.py. Of two operands the chain's is a; `From` ones have it as b.
enum class Link : int32_t {
  kAdd, kMul, kSub, kSubFrom, kDiv, kDivFrom, kMax, kMaxOf, kMin, kMinOf,
  kNeg, kAbs, kExp, kTanh, kErf, kSigmoid, kSqrt, kRsqrt
};

inline constexpr int64_t kChained = 4;  // vectors at a time
inline constexpr int64_t kChainBlock = kChained * kLanes;
inline constexpr int64_t kSpread = 4 * kChainBlock;  // elements of short rows that are one long row
inline constexpr int kMostLinks = 16;

// An operand of a row: `step` is 1, or 0 of a number, which lies in all places of a block.
struct LinkOperand {
  const float* at;
  int64_t step;
};

template <int64_t kVectors, class F>
KH_INLINE void of_each(vfloat* values, F&& f) {
  KH_UNROLL(4)
  for (int64_t k = 0; k < kVectors; ++k) values[k] = f(values[k]);
}
template <int64_t kVectors, class F>
KH_INLINE void with_each(vfloat* values, const float* operand, F&& f) {
  KH_UNROLL(4)
  for (int64_t k = 0; k < kVectors; ++k) values[k] = f(values[k], load(operand + k * kLanes));
}
template <int64_t kVectors, class F>
inline void by_element(vfloat* values, F&& f) {
  alignas(64) float all[kVectors * kLanes];
  KH_UNROLL(4)
  for (int64_t k = 0; k < kVectors; ++k) kh::store(all + k * kLanes, values[k]);
#pragma omp simd
  for (int64_t i = 0; i < kVectors * kLanes; ++i) all[i] = f(all[i]);
  KH_UNROLL(4)
  for (int64_t k = 0; k < kVectors; ++k) values[k] = kh::load(all + k * kLanes);
}

template <int64_t kVectors>
KH_INLINE void link(Link what, vfloat* values, const float* operand) {
  const auto with = [&](auto&& f) { with_each<kVectors>(values, operand, f); };
  const auto each = [&](auto&& f) { by_element<kVectors>(values, f); };
  switch (what) {
    case Link::kAdd: return with([](vfloat a, vfloat b) { return a + b; });
    case Link::kMul: return with([](vfloat a, vfloat b) { return a * b; });
    case Link::kSub: return with([](vfloat a, vfloat b) { return a - b; });
    case Link::kSubFrom: return with([](vfloat b, vfloat a) { return a - b; });
    case Link::kDiv: return with([](vfloat a, vfloat b) { return a / b; });
    case Link::kDivFrom: return with([](vfloat b, vfloat a) { return a / b; });
    case Link::kMax: return with([](vfloat a, vfloat b) { return greater_of(a, b); });
    case Link::kMaxOf: return with([](vfloat b, vfloat a) { return greater_of(a, b); });
    case Link::kMin: return with([](vfloat a, vfloat b) { return lesser_of(a, b); });
    case Link::kMinOf: return with([](vfloat b, vfloat a) { return lesser_of(a, b); });
    case Link::kNeg: return of_each<kVectors>(values, [](vfloat a) { return -a; });
    case Link::kAbs: return each([](float a) { return std::fabs(a); });
    case Link::kExp: return each([](float a) { return exp(a); });
    case Link::kTanh: return each([](float a) { return tanh(a); });
    case Link::kErf: return each([](float a) { return erf(a); });
    case Link::kSigmoid: return each([](float a) { return sigmoid(a); });
    case Link::kSqrt: return each([](float a) { return std::sqrt(a); });
    case Link::kRsqrt: return each([](float a) { return rsqrt(a); });
  }
}

// So many whole vectors of a row, from column i on, through all links.
template <int64_t kVectors>
KH_INLINE void chain_vectors(const std::vector<Chained>& links, const float* a, const LinkOperand* operands, float* to,
                             int64_t i) {
  vfloat values[kVectors];
  KH_UNROLL(4)
  for (int64_t k = 0; k < kVectors; ++k) values[k] = kh::load(a + i + k * kLanes);
  for (size_t s = 0; s < links.size(); ++s)
    link<kVectors>(static_cast<Link>(links[s].link), values, operands[s].at + i * operands[s].step);
  KH_UNROLL(4)
  for (int64_t k = 0; k < kVectors; ++k) kh::store(to + i + k * kLanes, values[k]);
}

// A row: `count` columns of a, through all links.
inline void chain_row(const std::vector<Chained>& links, const float* a, const LinkOperand* operands, float* to,
                      int64_t count) {
  int64_t i = 0;
  for (; i + kChainBlock <= count; i += kChainBlock) chain_vectors<kChained>(links, a, operands, to, i);
  for (; i + kLanes <= count; i += kLanes) chain_vectors<1>(links, a, operands, to, i);
  if (const int64_t left = count - i; left > 0) {
    alignas(64) float given[kMostLinks + 1][kLanes];
    LinkOperand copied[kMostLinks];
    std::memcpy(given[kMostLinks], a + i, left * 4);
    for (size_t s = 0; s < links.size(); ++s) {
      copied[s] = {operands[s].at, 0};
      if (operands[s].step != 0) std::memcpy(given[s], operands[s].at + i, left * 4), copied[s].at = given[s];
    }
    chain_vectors<1>(links, given[kMostLinks], copied, given[kMostLinks], 0);
    std::memcpy(to + i, given[kMostLinks], left * 4);
  }
}

// A number in all columns of a row, and of the rows behind it, which come after.
KH_INLINE void spread(float number, float* to, int64_t columns) {
  const vfloat all = splat(number);
  for (int64_t i = 0; i < columns; i += kLanes) kh::store(to + i, all);
}

inline void chain(Frame& frame, const Instruction& one) {
  const Register &to = frame.registers[one.to], &a = frame.registers[one.a];
  int64_t rows = frame.rows_of(one.to), columns = frame.columns_of(one.to);
  LinkOperand operands[kMostLinks];
  alignas(64) float numbers[kMostLinks][kSpread + kLanes];
  bool varies[kMostLinks] = {}, any_varies = false;  // from row to row
  const size_t count = one.links.size();
  bool dense = is_dense<float>(to, rows, columns) && is_dense<float>(a, rows, columns);
  for (size_t s = 0; s < count; ++s) {
    const int32_t other = one.links[s].other;
    operands[s] = {numbers[s], 0};
    if (other < 0) continue;
    const Register& given = frame.registers[other];
    if (frame.is_wide(other)) {
      operands[s].step = 1;
      dense = dense && is_dense<float>(given, rows, columns);
    } else {
      varies[s] = rows > 1 && (given.step != 0 || given.pointers != nullptr);
      any_varies |= varies[s];
      spread(*given.row<float>(0), numbers[s], kChainBlock);
    }
  }
  if (dense && !any_varies) columns *= rows, rows = 1;
  // Short rows that lie one behind the other are long ones, of which a number a row is spread over its columns.
  const int64_t taken = dense && any_varies && columns < kChainBlock ? std::min(rows, kSpread / columns) : 1;
  for (int64_t r = 0; r < rows; r += taken) {
    const int64_t here = std::min(taken, rows - r);
    for (size_t s = 0; s < count; ++s) {
      const int32_t other = one.links[s].other;
      if (other < 0) continue;
      const Register& given = frame.registers[other];
      if (operands[s].step != 0 && !varies[s]) {
        operands[s].at = given.row<float>(r);
      } else if (varies[s] && taken > 1) {
        operands[s].step = 1;
        for (int64_t k = 0; k < here; ++k) spread(*given.row<float>(r + k), numbers[s] + k * columns, columns);
      } else if (const float* const number = given.row<float>(r); std::memcmp(number, numbers[s], 4) != 0) {
        spread(*number, numbers[s], kChainBlock);
      }
    }
    chain_row(one.links, a.row<float>(r), operands, to.row<float>(r), here * columns);
  }
}

}  // namespace bytecode

}  // namespace kh
