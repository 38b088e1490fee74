"""Up to 64 elements of each weight, to be compared: what an edit through `weight.data` changes without counting it.

They are compared as bits: NaN equals nothing. Eight neighbours each: a line of the cache is read for them, where it
takes most of the time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch

_SAMPLES = 64
_NEIGHBOURS = 8
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Sampled(Protocol):
    """What windows on weights held."""

    def hold(self) -> bool:
        """Whether they hold it still."""
        ...


class Samples:
    """The same, of weights on any device."""

    def __init__(self, windows: Sequence[torch.Tensor]) -> None:
        alike: dict[tuple[torch.dtype, int, torch.device], list[torch.Tensor]] = {}
        for one in windows:
            alike.setdefault((one.dtype, one.shape[1], one.device), []).append(one)
        self._windows = list(alike.values())
        self._kept = [torch.cat(one) for one in self._windows]

    def hold(self) -> bool:
        """Whether the windows hold it still; taken for granted in a CUDA graph's capture."""
        if self._kept[0].is_cuda and torch.cuda.is_current_stream_capturing():
            return True
        return all(
            torch.equal(torch.cat(now), kept) for now, kept in zip(self._windows, self._kept, strict=True)
        )


def windows_of(weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """A (places, neighbours) window on each contiguous weight that has elements, as integers."""
    return [_window(one.detach()) for one in weights if one.is_contiguous() and one.numel()]


def _window(weight: torch.Tensor) -> torch.Tensor:
    flat = weight.view(_WORDS[weight.element_size()])
    count, columns = flat.numel(), flat.shape[-1] if flat.dim() else 1
    wide = _NEIGHBOURS if count >= _SAMPLES else 1
    places = min(_SAMPLES, count) // wide
    step = max(1, (count - wide) // places)
    while step > 1 and math.gcd(step, columns) > 1:
        step -= 1  # so that they lie in many columns
    return flat.as_strided((places, wide), (step, 1))
