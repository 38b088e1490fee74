"""What a state was made of, to be compared with what is there: every call asks whether it is the same still.

A module is what it was if the tables of it and its parts hold the very objects that they held, parts are of the same
classes and have no hooks, and weights lie where they lay and have the same version. Edits through `weight.data` count
as no version, so what copied weights hold is compared, too: see `weight_guard`.

The module's own table comes with every question. Through its forward it holds the module, which would never end if this
held the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter, is_
from typing import Any

import torch
from torch import nn

from .modules import Held
from .weight_guard import Content, Native, content_of, tell

_ADDRESS = torch.Tensor.data_ptr
_VERSION = attrgetter("_version")


class Watched:
    """See the module. Loops run in C and look at nothing twice: none of it is in the cache when a call begins.

    own: the module's `__dict__`. held: what tables hold. modules: the parts. placed: tensors that must stay where they
    are. counted: those of them whose versions matter. copied: weights of which copies are made, after this.
    """

    guard: Native | None = None
    """What compares what weights hold; None for PyTorch."""

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
        self.weights = list(copied)
        self._copied = [one.detach() for one in copied]
        """Their memory stays while it may be compared, also that of one that lies elsewhere now."""
        self.content: Content | None = content_of(self._copied, self.guard) if copied else None
        self._is_written = False
        self.begin()

    def begin(self) -> None:
        """Take down what `looks_the_same` compares with."""
        self._holders, self._names, self._values = (
            map(list, zip(*self.held, strict=True)) if self.held else ([], [], [])
        )
        self._own_names, self._own_values = [one.name for one in self.own], [one.value for one in self.own]

    def holds(self, own: dict[str, Any]) -> bool:
        """Whether all is as it was, as far as is compared now. own: the module's `__dict__`."""
        same = self.looks_the_same(own)
        if list(map(_ADDRESS, self.placed)) != self._addresses:
            return False
        if list(map(_VERSION, self._counted)) != self._versions:
            return False
        if self._is_written:
            tell(self.weights)
        return same

    def holds_all(self, own: dict[str, Any]) -> bool:
        """Whether all is as it was; all that weights hold is compared."""
        return self.holds(own) and (self.content is None or self.content.holds(whole=True))

    def took(self, elapsed: int) -> None:
        """A call took so many nanoseconds: what weights hold is compared for a share of them."""
        if self.content is not None:
            self.content.elapsed += elapsed

    def be_strict(self, on: bool) -> None:
        """Compare all that weights hold at every question, or no more."""
        if self.content is not None:
            self.content.strict = on

    def looks_the_same(self, own: dict[str, Any]) -> bool:
        """Whether tables, classes, hooks and what weights hold are as they were."""
        if not self._parts_look_the_same(own):
            return False
        self._is_written = self.content is not None and not self.content.holds()
        return not self._is_written

    def _parts_look_the_same(self, own: dict[str, Any]) -> bool:
        return (
            all(map(is_, map(dict.get, self._holders, self._names), self._values))
            and all(map(is_, map(own.get, self._own_names), self._own_values))
            and all(map(is_, map(type, self.modules), self.kinds))
            and not any(self.empty)
        )
