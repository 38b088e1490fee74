// Whether the processor, and the system, run the code of this object: asked before any of it is called.
//
// KH_RUNS_HERE: an expression of what the object needs. (Zig's runtime does not fill in what __builtin_cpu_supports
// reads.)
#if defined(__x86_64__)
#include <cpuid.h>

namespace {

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers leaf(unsigned number, unsigned part) {
  Registers found;
  __get_cpuid_count(number, part, &found.a, &found.b, &found.c, &found.d);
  return found;
}

// Which registers the system keeps for a process.
unsigned kept() {
  if ((leaf(1, 0).c >> 27 & 1) == 0) return 0;
  unsigned low, high;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

constexpr bool all(unsigned bits, unsigned of) { return (bits & of) == of; }

constexpr unsigned kF16cFmaMovbe = 1u << 29 | 1u << 12 | 1u << 22;
constexpr unsigned kAvx2Bmi = 1u << 5 | 1u << 3 | 1u << 8;
constexpr unsigned kAvx512 = 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31;  // F, DQ, CD, BW, VL
constexpr unsigned kVnni = 1u << 11, kBf16 = 1u << 5;

bool has_avx2() { return all(leaf(1, 0).c, kF16cFmaMovbe) && all(leaf(7, 0).b, kAvx2Bmi) && all(kept(), 0x6); }
bool has_avx512() { return has_avx2() && all(leaf(7, 0).b, kAvx512) && all(kept(), 0xe6); }
bool has_avx512_bf16() { return has_avx512() && all(leaf(7, 0).c, kVnni) && all(leaf(7, 1).a, kBf16); }

}  // namespace
#elif defined(__aarch64__)
#include <sys/auxv.h>

namespace {

constexpr unsigned long kBf16 = 1ul << 14;  // of AT_HWCAP2: HWCAP2_BF16, which the headers of old systems lack

bool has_bf16() { return (getauxval(AT_HWCAP2) & kBf16) != 0; }

}  // namespace
#endif

extern "C" int kh_runs_here() { return (KH_RUNS_HERE) ? 1 : 0; }
