"""What a state was made of, to be compared with what is there: every call asks whether it is the same still.

A module is what it was if the tables of it and its parts hold the very objects that they held, parts are of the same
classes and have no hooks, and weights lie where they lay and have the same version. Edits through `weight.data` count
as no version, so up to 64 elements of each copied weight are compared, too. They are compared as bits: NaN equals
nothing. Eight neighbours each: a line of the cache is read for them, where it takes most of the time.

The module's own table comes with every question. Through its forward it holds the module, which would never end if this
held the table.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from operator import attrgetter, is_
from typing import Any

import torch
from torch import nn

from .modules import Held

_GUARD = os.environ.get("KERNELS_HUB_PACKED_GUARD", "1") != "0"
"""KERNELS_HUB_PACKED_GUARD=0 leaves the elements out, in programs that never write through `.data`."""
_SAMPLES = 64
_NEIGHBOURS = 8
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ADDRESS = torch.Tensor.data_ptr
_VERSION = attrgetter("_version")


class Watched:
    """See the module. Loops run in C and look at nothing twice: none of it is in the cache when a call begins.

    own: the module's `__dict__`. held: what tables hold. modules: the parts. placed: tensors that must stay where they
    are. counted: those of them whose versions matter. copied: weights whose elements do.
    """

    def __init__(
        self,
        own: dict[str, Any],
        held: Sequence[Held],
        modules: Sequence[nn.Module],
        placed: Sequence[torch.Tensor],
        counted: Sequence[torch.Tensor],
        copied: Sequence[torch.Tensor],
    ) -> None:
        hooks = [
            Held(one.__dict__, name, one.__dict__[name])
            for one in modules
            for name in ("_forward_hooks", "_forward_pre_hooks")
        ]
        rows = {(id(one.holder), one.name): one for one in (*held, *hooks)}.values()
        self.held = [one for one in rows if one.holder is not own]
        self.own = [
            one._replace(holder={one.name: one.value} if one.name in own else {})
            for one in rows
            if one.holder is own
        ]
        self.empty = [one.value for one in hooks]
        self.modules, self.kinds = list(modules), list(map(type, modules))
        self.placed, self._addresses = list(placed), list(map(_ADDRESS, placed))
        self._counted, self._versions = list(counted), list(map(_VERSION, counted))
        self.windows = windows_of(copied) if _GUARD else []
        self.begin()

    def begin(self) -> None:
        """Take down what `looks_the_same` compares with."""
        self._holders, self._names, self._values = (
            map(list, zip(*self.held, strict=True)) if self.held else ([], [], [])
        )
        self._own_names, self._own_values = [one.name for one in self.own], [one.value for one in self.own]
        alike: dict[tuple[torch.dtype, int, torch.device], list[torch.Tensor]] = {}
        for one in self.windows:
            alike.setdefault((one.dtype, one.shape[1], one.device), []).append(one)
        self._alike = [(one, torch.cat(one)) for one in alike.values()]

    def holds(self, own: dict[str, Any]) -> bool:
        """Whether all is as it was. own: the module's `__dict__`."""
        return (
            self.looks_the_same(own)
            and list(map(_ADDRESS, self.placed)) == self._addresses
            and list(map(_VERSION, self._counted)) == self._versions
        )

    def looks_the_same(self, own: dict[str, Any]) -> bool:
        """Whether tables, classes, hooks and elements are as they were; elements are taken for granted in a CUDA
        graph's capture."""
        return (
            all(map(is_, map(dict.get, self._holders, self._names), self._values))
            and all(map(is_, map(own.get, self._own_names), self._own_values))
            and all(map(is_, map(type, self.modules), self.kinds))
            and not any(self.empty)
            and (self._is_captured() or all(torch.equal(torch.cat(now), kept) for now, kept in self._alike))
        )

    def _is_captured(self) -> bool:
        return bool(self.windows) and self.windows[0].is_cuda and torch.cuda.is_current_stream_capturing()


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
