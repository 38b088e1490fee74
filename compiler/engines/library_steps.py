"""Small steps on one thread: what the body of a loop computes is often less than it costs to wait for other threads.

A cell of an LSTM is a product of a few rows, for which PyTorch starts a team of threads and waits for all of it: where
another process has pushed one off its core that takes milliseconds, at every step.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator, Mapping

import torch

from kernels_hub.compiler.ir.cost import Costs
from kernels_hub.compiler.ir.graph import Graph

_SMALL = 1 << 24
"""Operations of a step that one thread does in less than a millisecond."""


def is_small(body: Graph, sizes: Mapping[str, int]) -> bool:
    """Whether a step is that little work; not where only the data tell."""
    flops = Costs(sizes).total(body).flops
    return flops is not None and flops < _SMALL


@contextlib.contextmanager
def one_thread(*, applies: bool) -> Iterator[None]:
    """Have this thread's calls of PyTorch's kernels on the CPU start no others.

    The counts of OpenMP and MKL are set, which are of the calling thread. PyTorch's own would be kept for good by
    threads that begin meanwhile. Where PyTorch has another OpenMP, all threads run.
    """
    threads = torch.get_num_threads()  # sets OpenMP's in a thread that has not called PyTorch yet
    openmp = _library("libgomp.so.1") if applies and threads > 1 else None
    if openmp is None:
        yield
        return
    set_for_mkl = getattr(_library("libtorch_cpu.so"), "MKL_Set_Num_Threads_Local", None)
    openmp.omp_set_num_threads(1)
    before = None if set_for_mkl is None else set_for_mkl(1)
    try:
        yield
    finally:
        openmp.omp_set_num_threads(threads)
        if set_for_mkl is not None:
            set_for_mkl(before)


@functools.cache
def _library(name: str) -> ctypes.CDLL | None:
    """A library that PyTorch has loaded; None where it has not."""
    try:
        return ctypes.CDLL(name, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except (OSError, AttributeError):  # AttributeError: no such mode on other systems
        return None


__all__ = ["is_small", "one_thread"]
