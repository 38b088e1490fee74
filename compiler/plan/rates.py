"""Measured rates of a device (roofline): bandwidth and FLOPs, once a process.

Bandwidth is that of a large copy. Operations a second are those of fused multiply-adds in registers on a CPU (where no
compiler is there: of a large product, which is less), and of a large product on a GPU.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from kernels_hub.compiler.engines.devices import synchronize
from kernels_hub.compiler.runtime import toolchain
from kernels_hub.compiler.runtime.errors import BuildError

COPIED_BYTES = 1 << 28
SIDE = {"cpu": 1024, "cuda": 8192}
ROUNDS = 1 << 18
REPEATS = 20

_MULTIPLY_ADDS = """\
#include "simd.h"
#include <omp.h>

// As many multiply-adds as all threads do in `rounds` rounds of twelve chains; returns the operations.
extern "C" double kh_multiply_adds(int64_t rounds, float* seed) {
  constexpr int chains = 12;
  int team = 1;
#pragma omp parallel
  {
    kh::vfloat sums[chains];
    const kh::vfloat factor = kh::splat(seed[0]), term = kh::splat(seed[1]);
    for (int one = 0; one < chains; ++one) sums[one] = kh::splat(static_cast<float>(one));
    for (int64_t round = 0; round < rounds; ++round)
#pragma GCC unroll 12
      for (int one = 0; one < chains; ++one) sums[one] = sums[one] * factor + term;
    kh::vfloat total = sums[0];
    for (int one = 1; one < chains; ++one) total += sums[one];
#pragma omp critical
    {
      team = omp_get_num_threads();
      kh::store(seed + 2, total);
    }
  }
  return 2.0 * chains * kh::kLanes * team * static_cast<double>(rounds);
}
"""


@dataclass(frozen=True)
class Rates:
    """What a device can do: bytes a second read and written, float32 operations a second."""

    bandwidth: float
    flops: float


@cache
def measured_rates(device: torch.device) -> Rates:
    """Of a device, with as many threads as PyTorch uses."""
    source = torch.ones(COPIED_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    bandwidth = 2 * COPIED_BYTES / median_seconds(lambda: target.copy_(source), device, 5)
    return Rates(bandwidth, (_multiply_adds() if device.type == "cpu" else None) or _product(device))


def median_seconds(call: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """The median of as many calls, each waited for."""
    times = []
    for _ in range(max(1, repeats)):
        synchronize(device)
        start = time.perf_counter()
        call()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _multiply_adds() -> float | None:
    """Operations a second in registers; None without a compiler."""
    try:
        library = toolchain.load(toolchain.build(_MULTIPLY_ADDS, "multiply_adds"))
    except BuildError:
        return None
    count = library.kh_multiply_adds
    count.argtypes, count.restype = (ctypes.c_int64, ctypes.c_void_p), ctypes.c_double
    seed = torch.full((64,), 0.5, dtype=torch.float32)
    multiply_adds = []
    for _ in range(REPEATS):  # the best of them: it is a roof
        start = time.perf_counter()
        done = float(count(ROUNDS, seed.data_ptr()))
        multiply_adds.append(done / (time.perf_counter() - start))
    return max(multiply_adds)


def _product(device: torch.device) -> float:
    side = SIDE["cpu" if device.type == "cpu" else "cuda"]
    a = torch.ones(side, side, dtype=torch.float32, device=device)
    torch.mm(a, a)
    return 2 * side**3 / median_seconds(lambda: torch.mm(a, a), device, 5)
