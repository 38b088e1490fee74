// float32 matrix products with a packed right operand and a fused epilogue. Operands in memory may be narrower
// floats: they are widened where they are copied.
//
//   a (m, k), any strides      copied once, a tile of rows at a time, into lines of 16 k (L2)
//   b (k, n), packed by pack() panels of kPanel columns, k-major: read in order, reused over the tile's rows
//   c                          never stored here: each finished piece of a row goes to the epilogue from L1
//
// A register-blocked kernel holds Rows x Vectors accumulators (14 x 32 floats with AVX-512) over a piece of k
// whose part of b stays near. Rows and panels form tasks that threads draw.
// Sources: Goto & van de Geijn, Anatomy of High-Performance Matrix Multiplication (2008); BLIS (2015).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#if __has_include(<unistd.h>)
#include <unistd.h>
#endif

#include "parallel.h"
#include "simd.h"

KH_NAMESPACE {

// -- sizes ------------------------------------------------------------------------------------------------

inline constexpr int64_t kPanel = 2 * kLanes;  // columns of a panel of b; the last may have half of that
#if defined(__AVX512F__)
inline constexpr int64_t kRows = 14;      // 28 of 32 registers accumulate
inline constexpr int64_t kFewBlocks = 6;  // of so many rows has a tile at least, however large k is
#elif defined(__aarch64__)
inline constexpr int64_t kRows = 12;
inline constexpr int64_t kFewBlocks = 7;
#else
inline constexpr int64_t kRows = 6;  // 12 of 16
inline constexpr int64_t kFewBlocks = 10;
#endif
inline constexpr int64_t kGroup = 4 * kPanel;  // columns that go to the epilogue at once, at most
inline constexpr int64_t kLine = 16;           // a is kept in lines of so many k
inline constexpr int64_t kDepth = 768;         // k of a pass: the part of a panel that is reused
inline constexpr int64_t kChain = 256;         // products that are added to each other before their sum is to a tile
inline constexpr int64_t kAlone = 64 * 1024;  // multiplications that do not repay waking the threads

// -- the kernel -------------------------------------------------------------------------------------------

// What a kernel does with an element of a and a vector of b, and how b lies there. Halved: whether it has half the size
// of floats. Block: rows that a kernel multiplies at once, at most.
struct Floats {
  static constexpr bool kHalved = false;
  static constexpr int64_t kBlock = kRows;
  KH_INLINE static vfloat right(const float* b, int64_t at) { return load(b + at); }
  KH_INLINE static void add(vfloat& sum, const float& a, vfloat b) { sum += a * b; }
};

// tile = [tile +] a (Rows, depth) @ b (depth, Vectors * kLanes); the tile's rows are `stride` floats apart. Sums of kChain
// products are added up, not products one by one: the rounding errors of a sum grow with the root of how many it adds.
template <class Elements, int Rows, int Vectors>
[[gnu::noinline]] void kernel(int64_t depth, const float* a, const float* b, float* tile, int64_t stride,
                              bool accumulate) {
  constexpr int64_t width = Vectors * kLanes;
  do {
    vfloat c[Rows][Vectors] = {};
    const auto step = [&](const float* a_k, int64_t b_k) __attribute__((always_inline)) {
      vfloat right[Vectors];
      KH_UNROLL(2)
      for (int v = 0; v < Vectors; ++v) right[v] = Elements::right(b, b_k + v * kLanes);
      KH_UNROLL(16)
      for (int r = 0; r < Rows; ++r) {
        KH_UNROLL(2)
        for (int v = 0; v < Vectors; ++v) Elements::add(c[r][v], a_k[r * kLine], right[v]);
      }
    };
    int64_t run = std::min(depth, kChain);
    depth -= run;
    for (; run >= kLine; run -= kLine) {
      KH_UNROLL(1)
      for (int k = 0; k < kLine / 4; ++k, a += 4, b += 4 * width / (Elements::kHalved ? 2 : 1)) {
        step(a, 0);
        step(a + 1, width);
        step(a + 2, 2 * width);
        step(a + 3, 3 * width);
      }
      a += (Rows - 1) * kLine;
    }
    for (int64_t k = 0; k < run; ++k) step(a + k, k * width);
    KH_UNROLL(16)
    for (int r = 0; r < Rows; ++r) {
      KH_UNROLL(2)
      for (int v = 0; v < Vectors; ++v) {
        float* const to = tile + r * stride + v * kLanes;
        store(to, accumulate ? load(to) + c[r][v] : c[r][v]);
      }
    }
    accumulate = true;
  } while (depth > 0);
}

using Kernel = void (*)(int64_t, const float*, const float*, float*, int64_t, bool);

template <class Elements, int Vectors, int... Rows>
constexpr std::array<Kernel, sizeof...(Rows)> kernels(std::integer_sequence<int, Rows...>) {
  return {&kernel<Elements, Rows + 1, Vectors>...};
}
// kKernelsOf<Elements>[vectors - 1][rows - 1]
template <class Elements>
inline constexpr std::array<Kernel, kRows> kKernelsOf[2] = {
    kernels<Elements, 1>(std::make_integer_sequence<int, kRows>{}),
    kernels<Elements, 2>(std::make_integer_sequence<int, kRows>{}),
};
inline constexpr auto& kKernels = kKernelsOf<Floats>;

// What multiplies blocks, one a thread and product: tile = [tile +] a (rows, depth) @ b (depth, width).
template <class Elements>
struct Multiplier {
  KH_INLINE void multiply(int64_t rows, int64_t width, int64_t depth, const float* a, const float* b, float* tile,
                          int64_t stride, bool accumulate) const {
    kKernelsOf<Elements>[width / kLanes - 1][rows - 1](depth, a, b, tile, stride, accumulate);
  }
};

// -- packing ----------------------------------------------------------------------------------------------

// Floats that pack() writes.
inline int64_t packed_size(int64_t k, int64_t n) { return k * round_up(n, kLanes); }

// Columns that the panel from column j on has in memory.
inline int64_t panel_width(int64_t n, int64_t j) { return std::min(kPanel, round_up(n - j, kLanes)); }

// to[0..count) = from[0..count), as floats.
template <class T>
KH_INLINE void widen(const T* from, int64_t count, float* to) {
  if constexpr (std::is_same_v<T, float>) {
    std::memcpy(to, from, count * sizeof(float));
  } else {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]);
  }
}

template <class T>
void pack_panel(const T* b, int64_t k, int64_t columns, int64_t width, int64_t stride_k, int64_t stride_n,
                float* packed) {
  if (columns < width) std::memset(packed, 0, k * width * sizeof(float));
  if (stride_n == 1) {
    for (int64_t i = 0; i < k; ++i) widen(b + i * stride_k, columns, packed + i * width);
  } else {
    int64_t whole_k = stride_k == 1 ? k / kLanes * kLanes : 0;
    const int64_t whole_n = columns / kLanes * kLanes;
    if constexpr (std::is_same_v<T, float>) {
      for (int64_t i = 0; i < whole_k; i += kLanes) {
        for (int64_t j = 0; j < whole_n; j += kLanes)
          transpose(b + i + j * stride_n, stride_n, packed + i * width + j, width);
      }
    } else {
      whole_k = 0;
    }
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t j = i < whole_k ? whole_n : 0; j < columns; ++j)
        packed[i * width + j] = static_cast<float>(b[i * stride_k + j * stride_n]);
    }
  }
}

// b (k, n) with any strides -> packed: panels of kPanel columns, each k-major, the last padded with zeros.
template <class T>
void pack(const T* b, int64_t k, int64_t n, int64_t stride_k, int64_t stride_n, float* packed) {
  if (k == 0) return;
  parallel(ceil_div(n, kPanel), std::max<int64_t>(1, 32768 / (k * kPanel + 1)), [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t j = panel * kPanel;
      pack_panel(b + j * stride_n, k, std::min(kPanel, n - j), panel_width(n, j), stride_k, stride_n,
                 packed + j * k);
    }
  });
}

// -- rows of a --------------------------------------------------------------------------------------------

// How the rows of a tile are split: blocks of nearly equal height, at most `most`.
struct Blocks {
  int64_t count, height;
  Blocks(int64_t rows, int64_t most) : count(ceil_div(rows, most)), height(ceil_div(rows, count)) {}
};

// Copies `count` floats of one row, from k on, to the row's place in lines of kLine (rows apart).
template <class T>
KH_INLINE void copy_lines(const T* from, int64_t count, int64_t rows, float* to) {
  for (; count >= kLine; count -= kLine, from += kLine, to += rows * kLine) widen(from, kLine, to);
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]);
}

// The left operand as a matrix in memory. fill() is what product() needs of any left operand.
template <class T>
struct Matrix {
  using Elements = Floats;
  const T* data;
  int64_t stride_m, stride_k;
  int64_t height = 0;  // rows in all; 0 where that is not known

  // Rows first..first + rows of all k, in lines: to[(k / kLine) * rows * kLine + row * kLine + k % kLine].
  void fill(int64_t first, int64_t rows, int64_t k, float* to) const {
    int64_t done = 0;
    if constexpr (std::is_same_v<T, float>) {
      if (stride_m == 1 && stride_k >= height && height > 0) done = fill_turned(first, rows, k, to);
      if (done == k) return;
    }
    for (int64_t row = 0; row < rows; ++row) {
      const T* from = data + (first + row) * stride_m;
      float* line = to + row * kLine;
      if (stride_k == 1) {
        copy_lines(from, k, rows, line);
      } else {
        for (int64_t i = done; i < k; ++i) line[i / kLine * rows * kLine + i % kLine] = static_cast<float>(from[i * stride_k]);
      }
    }
  }

  // The same for rows that lie beside each other, by squares that are turned round; how many k it did. Squares reach
  // beyond the rows, into the next k: the last one of all memory would reach out of it.
  int64_t fill_turned(int64_t first, int64_t rows, int64_t k, float* to) const {
    const int64_t reached = first + round_up(rows, kLanes);
    const int64_t whole = (reached <= height ? k : std::min(k, k - ceil_div(reached - height, stride_k))) / kLanes * kLanes;
    for (int64_t i = 0; i < whole; i += kLanes) {
      float* const line = to + i / kLine * rows * kLine + i % kLine;
      for (int64_t row = 0; row < rows; row += kLanes)
        transpose(data + first + row + i * stride_k, stride_k, line + row * kLine, kLine, std::min(kLanes, rows - row));
    }
    return std::max<int64_t>(whole, 0);
  }
};

// -- the product ------------------------------------------------------------------------------------------

// Gives each row of a finished tile to the epilogue. The caller's stride is a constant, so that the epilogue's
// loop over a whole row of the tile has a constant count.
template <class Epilogue, class... Tile>
KH_INLINE void finish(int64_t i, int64_t rows, int64_t j, int64_t count, int64_t stride, Epilogue& epilogue,
                      Tile... tile) {
  if (count == stride) {
    for (int64_t row = 0; row < rows; ++row) epilogue(i + row, j, stride, tile + row * stride...);
  } else {
    for (int64_t row = 0; row < rows; ++row) epilogue(i + row, j, count, tile + row * stride...);
  }
}

// Floats of a that stay in L2 beside a panel of b: four fifths of it, of 512 KiB where its size is not known.
inline int64_t near_floats() {
  static const int64_t found = [] {
    long bytes = 0;
#ifdef _SC_LEVEL2_CACHE_SIZE
    bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    return std::clamp<int64_t>(bytes > 0 ? bytes : 512 * 1024, 256 * 1024, 2048 * 1024) / 5;
  }();
  return found;
}

// How a product is cut: tiles of rows (each stays in L2, whatever k), chunks of panels (a task is one of each), and
// passes over k so short that the columns of a group stay near. Of the ways to cut it, that in which the thread with
// most to do has least: it multiplies, reads each panel once a tile, and copies each tile that it comes to.
struct Cut {
  int64_t m, n, panels, tiles, chunks = 1, height, depth;

  // block: rows that are multiplied at once, at most.
  Cut(int64_t m, int64_t n, int64_t k, int64_t team, int64_t block) : m(m), n(n), panels(ceil_div(n, kPanel)) {
    const int64_t deep = round_up(std::max<int64_t>(k, 1), kLine);
    const int64_t fewest = ceil_div(m, std::clamp<int64_t>(near_floats() / deep, kFewBlocks * kRows, 32 * kRows));
    tiles = fewest;
    if (team > 1) {
      int64_t least = -1;
      const auto consider = [&](int64_t t, int64_t c) {
        const int64_t cost = work(t, c, ceil_div(t * c, team));
        if (least < 0 || cost < least) least = cost, tiles = t, chunks = c;
      };
      const int64_t most = std::max(fewest, std::min(fewest + team, m / kRows));
      for (int64_t t = fewest; t <= std::min(most, fewest + 7); ++t) {
        consider(t, 1);
        const int64_t even = team / std::gcd(t, team);  // chunks with which all threads have equally many tasks
        for (int64_t c = even; c <= std::min(panels, 4 * even); c += even) consider(t, c);
      }
      if (const int64_t t = round_up(fewest, team); t <= most) consider(t, 1);  // of many threads, without asking all
    }
    height = ceil_div(m, tiles);
    const int64_t passes = m <= block ? 1 : std::max<int64_t>(1, ceil_div(k, kDepth));
    depth = passes == 1 ? k : round_up(ceil_div(k, passes), kLine);
  }
  // Of a thread that does so many tasks, of t tiles times c chunks: four times the rows times panels that it takes as
  // long as to multiply.
  int64_t work(int64_t t, int64_t c, int64_t tasks) const {
    const int64_t rows = ceil_div(m, t);
    return 4 * tasks * (rows + 4) * ceil_div(panels, c) + std::min(tasks, t) * rows;
  }
  // The first row of a tile, the first column of a chunk.
  int64_t row(int64_t tile) const { return m * tile / tiles; }
  int64_t column(int64_t chunk) const { return std::min(n, panels * chunk / chunks * kPanel); }
};

// Rows of a left operand that are zero from one k to another need no products there: spans(first, rows, to) adds those
// that are needed, in order, at least one, of whole lines.
struct DepthSpan {
  int64_t begin, end;
};
template <class Left>
inline constexpr bool kHasSpans = requires(const Left& left, std::vector<DepthSpan>& to) {
  left.spans(int64_t{}, int64_t{}, to);
};

template <class Left, class Epilogue, class... Packed>
void product(int64_t m, int64_t n, int64_t k, const Left& left, Epilogue& epilogue, const Packed*... packed) {
  using Elements = typename Left::Elements;
  if (m <= 0 || n <= 0) return;
  constexpr int kProducts = sizeof...(Packed);
  const float* const rights[] = {packed...};
  const int64_t team = m * n < kAlone / (kProducts * k + 1) ? 1 : threads();
  const Cut cut(m, n, k, team, Elements::kBlock);
  const int64_t deep = round_up(std::max<int64_t>(k, 1), kLine);
  const bool once = cut.depth >= k;  // sums of one block of rows are enough
  const int64_t sums_floats = (once ? Elements::kBlock : cut.height) * kGroup;
  parallel_tasks(cut.tiles * cut.chunks, team, [&](Tickets& tickets) {
    float* const lines = workspace<Use::kLeft>().floats(cut.height * deep + kProducts * sums_floats);
    float* const all_sums = lines + cut.height * deep;
    int64_t filled = -1;
    Multiplier<Elements> multiplier;
    std::vector<DepthSpan> spans;  // of the blocks of a tile, one after the other
    std::vector<size_t> ends;      // behind the last span of each
    for (int64_t task; (task = tickets.next()) >= 0;) {
      const int64_t tile = task / cut.chunks, chunk = task % cut.chunks;
      const int64_t first = cut.row(tile), rows = cut.row(tile + 1) - first;
      const Blocks split(rows, Elements::kBlock);
      if (filled != tile) {
        spans.clear(), ends.clear();
        for (int64_t row = 0; row < rows; row += split.height) {
          const int64_t high = std::min(split.height, rows - row);
          left.fill(first + row, high, k, lines + row * deep);
          if constexpr (kHasSpans<Left>) left.spans(first + row, high, spans), ends.push_back(spans.size());
        }
        filled = tile;
      }
      const int64_t end = cut.column(chunk + 1);
      for (int64_t j = cut.column(chunk); j < end; j += kGroup) {
        const int64_t columns = std::min(kGroup, end - j);
        int64_t from = 0;
        do {
          const int64_t count = std::min(cut.depth, k - from);
          for (int64_t row = 0; row < rows; row += split.height) {
            const int64_t high = std::min(split.height, rows - row);
            float* const sums = all_sums + (once ? 0 : row * kGroup);
            for (int p = 0; p < kProducts; ++p) {
              for (int64_t x = 0; x < columns; x += kPanel) {
                const int64_t width = panel_width(n, j + x);
                const auto multiply = [&](int64_t begin, int64_t end_k, bool accumulate) {
                  const int64_t at = (j + x) * k + begin * width;
                  multiplier.multiply(high, width, end_k - begin, lines + row * deep + begin * high,
                                      rights[p] + (Elements::kHalved ? at / 2 : at), sums + p * sums_floats + x, kGroup,
                                      accumulate);
                };
                if constexpr (kHasSpans<Left>) {
                  const size_t block = row / split.height, start = block > 0 ? ends[block - 1] : 0;
                  for (size_t s = start; s < ends[block]; ++s) {
                    const int64_t begin = std::max(from, spans[s].begin);
                    const int64_t stop = std::min(from + count, spans[s].end);
                    if (begin < stop || k == 0) multiply(begin, stop, s > start || begin > spans[s].begin);
                  }
                } else {
                  multiply(from, from + count, from > 0);
                }
              }
            }
            if (from + count == k) {
              [&]<size_t... P>(std::index_sequence<P...>) {
                finish(first + row, high, j, columns, kGroup, epilogue,
                       static_cast<const float*>(sums + P * sums_floats)...);
              }(std::make_index_sequence<kProducts>{});
            }
          }
          from += count;
        } while (from < k);
      }
    }
  });
}

// e(i, j, count, acc): acc[0..count) are c[i, j..j + count), complete; called once for every piece of a row,
// from any thread. packed is what pack() made of b (k, n).
template <class T, class Epilogue>
void gemm(int64_t m, int64_t n, int64_t k, const T* a, int64_t stride_m, int64_t stride_k, const float* packed,
          Epilogue&& e) {
  product(m, n, k, Matrix<T>{a, stride_m, stride_k, m}, e, packed);
}

// Two products of the same a: e(i, j, count, gate, up).
template <class Epilogue>
void gemm_gated(int64_t m, int64_t n, int64_t k, const float* a, int64_t stride_m, int64_t stride_k,
                const float* packed_gate, const float* packed_up, Epilogue&& e) {
  product(m, n, k, Matrix<float>{a, stride_m, stride_k, m}, e, packed_gate, packed_up);
}

// `batch` products of activations: e(b, i, j, count, acc). a_of(b) and b_of(b) are their first elements; each b
// is packed when its turn comes.
template <class LeftOf, class RightOf, class Epilogue>
void gemm_batched(int64_t batch, int64_t m, int64_t n, int64_t k, LeftOf&& a_of, int64_t stride_m,
                  int64_t stride_k, RightOf&& b_of, int64_t b_stride_k, int64_t b_stride_n, Epilogue&& e) {
  const auto one = [&](int64_t b) {
    float* const packed = workspace<Use::kRight>().floats(packed_size(k, n));
    pack(b_of(b), k, n, b_stride_k, b_stride_n, packed);
    gemm(m, n, k, a_of(b), stride_m, stride_k, packed,
         [&](int64_t i, int64_t j, int64_t count, const float* acc) { e(b, i, j, count, acc); });
  };
  if (batch < threads()) {  // then the threads share each product
    for (int64_t b = 0; b < batch; ++b) one(b);
  } else {
    const bool alone = batch * m * n < kAlone / (k + 1);
    parallel_tasks(batch, alone ? 1 : threads(), [&](Tickets& tickets) {
      for (int64_t b; (b = tickets.next()) >= 0;) one(b);
    });
  }
}

}  // namespace kh
