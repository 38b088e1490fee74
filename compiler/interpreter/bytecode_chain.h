// Chains: operations of floats one after the other, each on the result of the one before, which stays in vector registers.
#pragma once

#include "bytecode.h"

KH_NAMESPACE {

namespace bytecode {

// In the order of codegen/bytecode/chains.py. Of two operands the chain's is a; `From` ones have it as b.
enum class Link : int32_t {
  kAdd, kMul, kSub, kSubFrom, kDiv, kDivFrom, kMax, kMaxOf, kMin, kMinOf,
  kNeg, kAbs, kExp, kTanh, kErf, kSigmoid, kSqrt, kRsqrt
};

inline constexpr int64_t kChained = 4;  // vectors at a time
inline constexpr int64_t kChainBlock = kChained * kLanes;
inline constexpr int kMostLinks = 16;

// An operand of a row: `step` is 1, or 0 of a number, which lies in all places of a block.
struct LinkOperand {
  const float* at;
  int64_t step;
};

template <class F>
KH_INLINE void of_each(vfloat* values, F&& f) {
  KH_UNROLL(4)
  for (int64_t k = 0; k < kChained; ++k) values[k] = f(values[k]);
}
template <class F>
KH_INLINE void with_each(vfloat* values, const float* operand, F&& f) {
  KH_UNROLL(4)
  for (int64_t k = 0; k < kChained; ++k) values[k] = f(values[k], load(operand + k * kLanes));
}
template <class F>
inline void by_element(vfloat* values, F&& f) {
  alignas(64) float all[kChainBlock];
  KH_UNROLL(4)
  for (int64_t k = 0; k < kChained; ++k) kh::store(all + k * kLanes, values[k]);
#pragma omp simd
  for (int64_t i = 0; i < kChainBlock; ++i) all[i] = f(all[i]);
  KH_UNROLL(4)
  for (int64_t k = 0; k < kChained; ++k) values[k] = kh::load(all + k * kLanes);
}

KH_INLINE vfloat greater_of(vfloat a, vfloat b) { return (a != a) | (a > b) ? a : b; }
KH_INLINE vfloat lesser_of(vfloat a, vfloat b) { return (a != a) | (a < b) ? a : b; }

KH_INLINE void link(Link what, vfloat* values, const float* operand) {
  switch (what) {
    case Link::kAdd: return with_each(values, operand, [](vfloat a, vfloat b) { return a + b; });
    case Link::kMul: return with_each(values, operand, [](vfloat a, vfloat b) { return a * b; });
    case Link::kSub: return with_each(values, operand, [](vfloat a, vfloat b) { return a - b; });
    case Link::kSubFrom: return with_each(values, operand, [](vfloat b, vfloat a) { return a - b; });
    case Link::kDiv: return with_each(values, operand, [](vfloat a, vfloat b) { return a / b; });
    case Link::kDivFrom: return with_each(values, operand, [](vfloat b, vfloat a) { return a / b; });
    case Link::kMax: return with_each(values, operand, [](vfloat a, vfloat b) { return greater_of(a, b); });
    case Link::kMaxOf: return with_each(values, operand, [](vfloat b, vfloat a) { return greater_of(a, b); });
    case Link::kMin: return with_each(values, operand, [](vfloat a, vfloat b) { return lesser_of(a, b); });
    case Link::kMinOf: return with_each(values, operand, [](vfloat b, vfloat a) { return lesser_of(a, b); });
    case Link::kNeg: return of_each(values, [](vfloat a) { return -a; });
    case Link::kAbs: return by_element(values, [](float a) { return std::fabs(a); });
    case Link::kExp: return by_element(values, [](float a) { return exp(a); });
    case Link::kTanh: return by_element(values, [](float a) { return tanh(a); });
    case Link::kErf: return by_element(values, [](float a) { return erf(a); });
    case Link::kSigmoid: return by_element(values, [](float a) { return sigmoid(a); });
    case Link::kSqrt: return by_element(values, [](float a) { return std::sqrt(a); });
    case Link::kRsqrt: return by_element(values, [](float a) { return rsqrt(a); });
  }
}

// A row: `count` columns of a, through all links.
inline void chain_row(const std::vector<Chained>& links, const float* a, const LinkOperand* operands, float* to,
                      int64_t count) {
  const size_t last = links.size();
  vfloat values[kChained];
  int64_t i = 0;
  for (; i + kChainBlock <= count; i += kChainBlock) {
    KH_UNROLL(4)
    for (int64_t k = 0; k < kChained; ++k) values[k] = kh::load(a + i + k * kLanes);
    for (size_t s = 0; s < last; ++s)
      link(static_cast<Link>(links[s].link), values, operands[s].at + i * operands[s].step);
    KH_UNROLL(4)
    for (int64_t k = 0; k < kChained; ++k) kh::store(to + i + k * kLanes, values[k]);
  }
  if (const int64_t left = count - i; left > 0) {
    alignas(64) float given[kMostLinks + 1][kChainBlock];
    std::memcpy(given[kMostLinks], a + i, left * 4);
    KH_UNROLL(4)
    for (int64_t k = 0; k < kChained; ++k) values[k] = kh::load(given[kMostLinks] + k * kLanes);
    for (size_t s = 0; s < last; ++s) {
      const float* operand = operands[s].at;
      if (operands[s].step != 0) std::memcpy(given[s], operand + i, left * 4), operand = given[s];
      link(static_cast<Link>(links[s].link), values, operand);
    }
    KH_UNROLL(4)
    for (int64_t k = 0; k < kChained; ++k) kh::store(given[kMostLinks] + k * kLanes, values[k]);
    std::memcpy(to + i, given[kMostLinks], left * 4);
  }
}

inline void chain(Frame& frame, const Instruction& one) {
  const Register &to = frame.registers[one.to], &a = frame.registers[one.a];
  int64_t rows = frame.rows_of(one.to), columns = frame.columns_of(one.to);
  LinkOperand operands[kMostLinks];
  alignas(64) float numbers[kMostLinks][kChainBlock];
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
      dense = dense && (rows == 1 || (given.step == 0 && given.pointers == nullptr));
      std::fill_n(numbers[s], kChainBlock, *given.row<float>(0));
    }
  }
  if (dense) columns *= rows, rows = 1;
  for (int64_t r = 0; r < rows; ++r) {
    for (size_t s = 0; s < count; ++s) {
      const int32_t other = one.links[s].other;
      if (other < 0) continue;
      const float* const at = frame.registers[other].row<float>(r);
      if (operands[s].step != 0) {
        operands[s].at = at;
      } else if (r > 0 && *at != numbers[s][0]) {
        std::fill_n(numbers[s], kChainBlock, *at);
      }
    }
    chain_row(one.links, a.row<float>(r), operands, to.row<float>(r), columns);
  }
}

}  // namespace bytecode

}  // namespace kh
