"""Arenas: memory for the scratch buffers of calls, which a thread keeps from one call to the next.

A thread is in one call of a program at a time, so an arena for each thread is enough; on a GPU, one for each stream,
since what is queued on one stream may still write while another reads.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from .intervals import ALIGNMENT

_MOST_VIEWS = 256
"""Layouts for which an arena keeps views of itself."""
_CPU = torch.device("cpu")
_NUMBERS = itertools.count()

V = TypeVar("V")


class Arena:
    """A block of memory. number: no other block's, before or after."""

    __slots__ = ("_device", "_views", "memory", "number")

    def __init__(self, device: torch.device = _CPU) -> None:
        self._device = device
        self.grow(0)

    def grow(self, size: int) -> None:
        """Have a new block of at least so many bytes, aligned to `ALIGNMENT`; views of the former one are dropped."""
        self.memory = torch.empty(max(size, ALIGNMENT), dtype=torch.uint8, device=self._device)
        self.number = next(_NUMBERS)
        self._views: dict[int, tuple[object, Any]] = {}

    def fit(self, size: int) -> None:
        """Grow where the block is smaller than so many bytes."""
        if self.memory.numel() < size:
            self.grow(size)

    def views(self, layout: object, size: int, make: Callable[[torch.Tensor], V]) -> V:
        """`make(memory)`, kept for this very layout until the arena grows. size: bytes that the layout takes."""
        entry = self._views.get(id(layout))
        if entry is not None:
            views: V = entry[1]
            return views
        self.fit(size)
        if len(self._views) >= _MOST_VIEWS:
            self._views.clear()
        views_of_layout = make(self.memory)
        self._views[id(layout)] = layout, views_of_layout  # held: no other layout gets its id meanwhile
        return views_of_layout


class Arenas(threading.local):
    """A thread's arenas. cpu: the one on the CPU."""

    def __init__(self) -> None:
        self.cpu = Arena()
        self._of_streams: dict[tuple[torch.device, int], Arena] = {}

    def of(self, device: torch.device, stream: int | None = None) -> Arena:
        """The arena on a stream of a device, the current one by default; a new one while a CUDA graph is captured."""
        if device.type == "cpu":
            return self.cpu
        if is_captured(device):
            return Arena(device)
        if stream is None:
            stream = torch.cuda.current_stream(device).cuda_stream
        arena = self._of_streams.get((device, stream))
        if arena is None:
            arena = self._of_streams[device, stream] = Arena(device)
        return arena

    def shrink(self, most: int) -> None:
        """Give this thread's blocks back that are larger than so many bytes."""
        for arena in (self.cpu, *self._of_streams.values()):
            if arena.memory.numel() > max(most, ALIGNMENT):
                arena.grow(most)


def is_captured(device: torch.device) -> bool:
    """Whether what is launched is being captured as a CUDA graph, whose memory is its own."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
