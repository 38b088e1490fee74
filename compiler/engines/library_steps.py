"""Small steps on one thread: what the body of a loop computes is often less than it costs to wait for other threads.

A cell of an LSTM is a product of a few rows, for which PyTorch starts a team of threads and waits for all of it: where
another process has pushed one off its core that takes milliseconds, at every step.
"""

from __future__ import annotations

import contextlib
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
    """Have this thread's calls of PyTorch's kernels on the CPU start no others."""
    threads = torch.get_num_threads()
    if not applies or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


__all__ = ["is_small", "one_thread"]
