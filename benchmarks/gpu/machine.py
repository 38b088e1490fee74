"""Slice 1: what this machine is, and what it can do at most: the roofs that later slices are measured against."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial

import torch

from benchmarks.gpu.target import Case, Result, Target
from benchmarks.harness import machine


def cases(target: Target) -> Iterator[Case]:
    """Versions; the bandwidth of a copy; the most multiplications a second of a matrix product, by dtype."""
    yield Case("versions", lambda: versions(target))
    yield Case("copy", lambda: {"bytes_per_s": bandwidth(target)})
    for dtype in (torch.float32, *target.dtypes):
        yield Case(f"product {dtype}", partial(_peak, target, dtype))


def _peak(target: Target, dtype: torch.dtype) -> Result:
    return {"flops_per_s": peak(target, dtype)}


def versions(target: Target) -> Result:
    """The machine's own words."""
    found = machine()
    if target.device == "cuda":
        about = torch.cuda.get_device_properties(0)
        found |= {
            "capability": f"{about.major}.{about.minor}",
            "memory": about.total_memory,
            "processors": about.multi_processor_count,
            "cuda": torch.version.cuda,
            "hip": torch.version.hip,
        }
    return found


@cache
def bandwidth(target: Target) -> float:
    """Bytes a second, read and written, of a copy that is far larger than any cache."""
    source = torch.zeros(target.sized(1 << 30, 1 << 16), dtype=torch.uint8, device=target.device)
    result = torch.empty_like(source)
    return 2 * source.nbytes / target.seconds(lambda: result.copy_(source))


@cache
def peak(target: Target, dtype: torch.dtype) -> float:
    """Operations a second of PyTorch's own product, two for each multiplication and addition."""
    size = target.sized(8192, 32)
    a, b = (torch.randn(size, size, device=target.device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / target.seconds(lambda: a @ b)
