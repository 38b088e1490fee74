// attention: generated from a schedule of 2 kernels.
#include "scalar.h"
#include "linked.h"

// model.plain
static void kernel_plain(const bool* in_mask, const float* in_q, const float* in_k, const float* in_v, float* out_y, const int64_t n_queries) {
  const int64_t q_strides[] = {n_queries * 64, n_queries * 16, 16, 1};
  const int64_t k_strides[] = {224, 112, 16, 1};
  const int64_t v_strides[] = {112, 56, 8, 1};
  const int64_t out_strides[] = {n_queries * 32, n_queries * 8, 8, 1};
  const kh::Row<kh::Reach> reaches(2);
  kh::find_reaches(2, 1, 1, 7, &reaches[0], [=](int64_t b, int64_t, int64_t) {
    return kh::reach_of(7, [=](int64_t j_) {
      const bool s2 = in_mask[b * 7 + j_];
      return s2;
    });
  });
  const kh::Attention shape{2, 4, 2, n_queries, 7, 16, 8, false, 0, true, {&reaches[0], {1, 0, 0}, true}};
  kh::attend(shape, in_q, q_strides, in_k, k_strides, in_v, v_strides, 0.25f,
  [=](int64_t b, int64_t, int64_t, int64_t j, int64_t count, float* scores) {
    #pragma omp simd
    for (int64_t l = 0; l < count; ++l) {
      const int64_t j_ = j + l;
      const float score = scores[l];
      const bool s2 = in_mask[b * 7 + j_];
      const float s4 = (s2 ? score : (-std::numeric_limits<float>::infinity()));
      scores[l] = s4;
    }
  },
             out_y, out_strides);
}

// model.doubled
static void kernel_doubled_rest_rows(const float* t_kernel_doubled_result, float* out_scaled, const int64_t n_queries, int64_t begin, int64_t end) {
  #pragma omp simd
  for (int64_t b_h_i_e = begin; b_h_i_e < end; ++b_h_i_e) {
    const float root = t_kernel_doubled_result[b_h_i_e];
    const float v1 = root + root;
    out_scaled[b_h_i_e] = v1;
  }
}

static void kernel_doubled_rest(const float* t_kernel_doubled_result, float* out_scaled, const int64_t n_queries) {
  kh::parallel(n_queries * 64, 21845, [=](int64_t begin, int64_t end) {
    kernel_doubled_rest_rows(t_kernel_doubled_result, out_scaled, n_queries, begin, end);
  });
}

static void kernel_doubled(const bool* in_mask, const float* in_q, const float* in_k, const float* in_v, float* out_scaled, const int64_t n_queries) {
  const kh::Row<float> t_kernel_doubled_result_space(n_queries * 64);
  float* const t_kernel_doubled_result = &t_kernel_doubled_result_space[0];
  const int64_t q_strides[] = {n_queries * 64, n_queries * 16, 16, 1};
  const int64_t k_strides[] = {224, 112, 16, 1};
  const int64_t v_strides[] = {112, 56, 8, 1};
  const int64_t out_strides[] = {n_queries * 32, n_queries * 8, 8, 1};
  const kh::Row<kh::Reach> reaches(2);
  kh::find_reaches(2, 1, 1, 7, &reaches[0], [=](int64_t b, int64_t, int64_t) {
    return kh::reach_of(7, [=](int64_t j_) {
      const bool s2 = in_mask[b * 7 + j_];
      return s2;
    });
  });
  const kh::Attention shape{2, 4, 2, n_queries, 7, 16, 8, false, 0, true, {&reaches[0], {1, 0, 0}, true}};
  kh::attend(shape, in_q, q_strides, in_k, k_strides, in_v, v_strides, 0.25f,
  [=](int64_t b, int64_t, int64_t, int64_t j, int64_t count, float* scores) {
    #pragma omp simd
    for (int64_t l = 0; l < count; ++l) {
      const int64_t j_ = j + l;
      const float score = scores[l];
      const bool s2 = in_mask[b * 7 + j_];
      const float s4 = (s2 ? score : (-std::numeric_limits<float>::infinity()));
      scores[l] = s4;
    }
  },
             t_kernel_doubled_result, out_strides);
  kernel_doubled_rest(t_kernel_doubled_result, out_scaled, n_queries);
}

extern "C" int kh_pack(int64_t which, void* const* buffers, const int64_t* sizes) {
  int failure = 0;
  return failure;
}

extern "C" int kh_prepare(void* const* buffers, const int64_t* sizes) {
  int failure = 0;
  return failure;
}

extern "C" int64_t kh_packed_bytes(int64_t which) {
  switch (which) {
  }
  return 0;
}

extern "C" void kh_configure(int use_pool, int flush_denormals) {
  kh::use_pool = use_pool != 0;
  kh::flush_denormals = flush_denormals != 0;
}

extern "C" int kh_run(void* const* buffers, const int64_t* sizes) {
  const kh::CallState state;
  const int64_t n_queries = sizes[0];
  const auto in_q = static_cast<const float*>(buffers[0]);  // float32[2, 4, queries, 16]
  const auto in_k = static_cast<const float*>(buffers[1]);  // float32[2, 2, 7, 16]
  const auto in_v = static_cast<const float*>(buffers[2]);  // float32[2, 2, 7, 8]
  const auto in_mask = static_cast<const bool*>(buffers[3]);  // bool[2, 7]
  const auto out_y = static_cast<float*>(buffers[4]);  // float32[2, 4, queries, 8]
  const auto out_scaled = static_cast<float*>(buffers[5]);  // float32[2, 4, queries, 8]
  int failure = 0;
  kernel_plain(in_mask, in_q, in_k, in_v, out_y, n_queries);  // model.plain
  kernel_doubled(in_mask, in_q, in_k, in_v, out_scaled, n_queries);  // model.doubled
  return failure;
}

extern "C" int kh_step(int64_t step, void* const* buffers, const int64_t* sizes) {
  const kh::CallState state;
  const int64_t n_queries = sizes[0];
  const auto in_q = static_cast<const float*>(buffers[0]);  // float32[2, 4, queries, 16]
  const auto in_k = static_cast<const float*>(buffers[1]);  // float32[2, 2, 7, 16]
  const auto in_v = static_cast<const float*>(buffers[2]);  // float32[2, 2, 7, 8]
  const auto in_mask = static_cast<const bool*>(buffers[3]);  // bool[2, 7]
  const auto out_y = static_cast<float*>(buffers[4]);  // float32[2, 4, queries, 8]
  const auto out_scaled = static_cast<float*>(buffers[5]);  // float32[2, 4, queries, 8]
  int failure = 0;
  switch (step) {
    case 0: kernel_plain(in_mask, in_q, in_k, in_v, out_y, n_queries); break;
    case 1: kernel_doubled(in_mask, in_q, in_k, in_v, out_scaled, n_queries); break;
  }
  return failure;
}
