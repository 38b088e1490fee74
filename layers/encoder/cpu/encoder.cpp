// A layer of an encoder for inference, float32: attention of a sequence to itself and a feed-forward block, each with a
// layer norm before it or behind its sum with what came in.
//
// A norm before a product is computed where the product copies its rows; biases, the activation, scales and sums where a
// product's result is still in registers. What is between the products of a feed-forward block is made for some rows at
// a time, so that it stays in a cache.
//
// The function takes one record of 8-byte fields, packed by Python's struct module.

#include <algorithm>
#include <cstdint>

#include "activations.h"
#include "attention.h"
#include "attention_mask.h"
#include "gemm.h"
#include "normalised_rows.h"

namespace {

constexpr int64_t kMostHidden = 1 << 19;  // floats between the products of a feed-forward block: 2 MiB
constexpr int64_t kLeastRows = 128;       // that go through it at once, if there are so many

struct Norm {
  const float *weight, *bias;  // (width) or null

  Normalise of(int64_t width, double eps) const { return {weight, bias, width, static_cast<float>(eps)}; }
};

struct Layer {
  const float *x;                                        // (batch, length, width)
  Norm first_norm, second_norm;
  const float *projections;                              // packed (width, 3 inner): queries, keys, values
  const float *query_bias, *key_bias, *value_bias;       // (inner) or null, as all that follow
  const float *joined, *joined_bias, *joined_scale;      // packed (inner, width); (width), (width)
  const float *first, *first_bias;                       // packed (width, wide); (wide)
  const float *second, *second_bias, *second_scale;      // packed (wide, width); (width), (width)
  const void* mask;
  float *made, *out;                                     // as much as encoder_scratch() says; as x
  int64_t batch, length;
  int64_t sequence_step, token_step;                     // rows from a sequence to the next, and from a token
  int64_t width, heads, head_width, wide, activation;
  int64_t norms_first;                                   // whether each norm is before its products
  int64_t causal, mask_kind, mask_stride[4];
  double first_eps, second_eps, scale;

  int64_t rows() const { return batch * length; }
  int64_t inner() const { return heads * head_width; }
  int64_t rows_at_once() const { return std::min(rows(), std::max(kLeastRows, kMostHidden / wide)); }
  // What is made: queries, keys and values, then what they attend to; then what is between the last two products.
  float* projected() const { return made; }
  float* attended() const { return made + 3 * rows() * inner(); }
  float* hidden() const { return made; }
  int64_t scratch() const { return std::max(4 * rows() * inner(), rows_at_once() * wide); }
};

// e(i, j, count, sums) for x (rows, width) @ packed (width, columns), of normalised rows where there is a norm before it.
template <class Epilogue>
void multiply(const float* x, int64_t rows, int64_t columns, const Normalise& normalise, bool norms, const float* packed,
              Epilogue&& e) {
  if (norms) {
    kh::product(rows, columns, normalise.width, Normalised{x, normalise}, e, packed);
  } else {
    kh::gemm(rows, columns, normalise.width, x, normalise.width, 1, packed, e);
  }
}

void normalise_rows(float* x, int64_t rows, const Normalise& normalise) {
  kh::parallel(rows, std::max<int64_t>(1, 16384 / normalise.width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      normalise(x + row * normalise.width, x + row * normalise.width, kh::kLine);
  });
}

// to = x + scale * (sums + bias)
KH_INLINE void add(const float* x, const float* sums, const float* bias, const float* scale, int64_t j, int64_t count,
                   float* to) {
#pragma omp simd
  for (int64_t l = 0; l < count; ++l) {
    const float made = sums[l] + or_zero(bias, j + l);
    to[l] = x[l] + (scale == nullptr ? made : scale[j + l] * made);
  }
}

// out = [norm] (x + scale * attention(norm? x))
void attend(const Layer& a) {
  const int64_t inner = a.inner(), wide = 3 * inner, rows = a.rows();
  const Normalise normalise = a.first_norm.of(a.width, a.first_eps);
  const float* const biases[] = {a.query_bias, a.key_bias, a.value_bias};
  multiply(a.x, rows, wide, normalise, a.norms_first != 0, a.projections,
           [&](int64_t i, int64_t j, int64_t count, const float* sums) {
             float* const to = a.projected() + i * wide + j;
             for (int64_t l = 0; l < count;) {
               const int64_t part = (j + l) / inner, end = std::min(count, (part + 1) * inner - j), from = part * inner - j;
               const float* const bias = biases[part];
               if (bias == nullptr) {
                 std::copy(sums + l, sums + end, to + l);
               } else {
#pragma omp simd
                 for (int64_t c = l; c < end; ++c) to[c] = sums[c] + bias[c - from];
               }
               l = end;
             }
           });
  kh::AttentionShape shape{a.batch, a.heads, a.heads, a.length, a.length, a.head_width, a.head_width,
                           a.causal != 0, 0, /*blank=*/true};
  // As (batch, heads, length, head_width).
  const int64_t strides[] = {a.sequence_step * wide, a.head_width, a.token_step * wide, 1};
  const int64_t out_strides[] = {a.sequence_step * inner, a.head_width, a.token_step * inner, 1};
  const float* const q = a.projected();
  const Mask mask{static_cast<MaskKind>(a.mask_kind), a.mask, a.mask_stride};
  const std::vector<kh::Reach> reaches = reaches_of(mask, shape, /*plain=*/true);
  kh::attention(shape, q, strides, q + inner, strides, q + 2 * inner, strides, static_cast<float>(a.scale), mask,
                a.attended(), out_strides);
  kh::gemm(rows, a.width, inner, a.attended(), inner, 1, a.joined,
           [&](int64_t i, int64_t j, int64_t count, const float* sums) {
             const int64_t place = i * a.width + j;
             add(a.x + place, sums, a.joined_bias, a.joined_scale, j, count, a.out + place);
           });
  if (a.norms_first == 0) normalise_rows(a.out, rows, normalise);
}

// out = [norm] (out + scale * (activation(norm? out first) second)), some rows of it
void feed_forward(const Layer& a, int64_t first, int64_t rows) {
  const Normalise normalise = a.second_norm.of(a.width, a.second_eps);
  float* const out = a.out + first * a.width;
  multiply(out, rows, a.wide, normalise, a.norms_first != 0, a.first,
           [&](int64_t i, int64_t j, int64_t count, const float* sums) {
             float* const to = a.hidden() + i * a.wide + j;
#pragma omp simd
             for (int64_t l = 0; l < count; ++l) to[l] = sums[l] + or_zero(a.first_bias, j + l);
             activate(to, count, a.activation);
           });
  kh::gemm(rows, a.width, a.wide, a.hidden(), a.wide, 1, a.second,
           [&](int64_t i, int64_t j, int64_t count, const float* sums) {
             const int64_t place = i * a.width + j;
             add(out + place, sums, a.second_bias, a.second_scale, j, count, out + place);
           });
  if (a.norms_first == 0) normalise_rows(out, rows, normalise);
}

}  // namespace

extern "C" {

// Floats of a packed weight (columns, depth).
__attribute__((visibility("default"))) int64_t encoder_packed_size(int64_t depth, int64_t columns) {
  return kh::packed_size(depth, columns);
}

// packed = weight (columns, depth), as a layer takes it.
__attribute__((visibility("default"))) void encoder_pack(const float* weight, int64_t depth, int64_t columns,
                                                         float* packed) {
  kh::pack(weight, depth, columns, 1, depth, packed);
}

// Floats that `made` needs, of a record without addresses.
__attribute__((visibility("default"))) int64_t encoder_scratch(const void* record) {
  return static_cast<const Layer*>(record)->scratch();
}

__attribute__((visibility("default"))) void encoder_layer(const void* record) {
  const Layer& a = *static_cast<const Layer*>(record);
  attend(a);
  const int64_t parts = kh::ceil_div(a.rows(), a.rows_at_once()), share = kh::ceil_div(a.rows(), parts);
  for (int64_t row = 0; row < a.rows(); row += share) feed_forward(a, row, std::min(share, a.rows() - row));
}

}  // extern "C"
