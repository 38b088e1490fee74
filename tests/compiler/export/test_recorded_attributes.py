"""What a module's result depends on: the attributes that its forward reads."""

from __future__ import annotations

from enum import Enum

import torch
from torch import nn

from kernels_hub.compiler.export.recorded_attributes import recorded
from kernels_hub.compiler.export.source import Example


class Layout(Enum):
    FIRST = "first"
    LAST = "last"


class Norm(nn.Module):
    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.layout, self.unread = layout, 3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(1 if self.layout is Layout.FIRST else -1, keepdim=True)


def test_members_of_enumerations_are_told_apart():
    facts = [recorded(Example(Norm(one), (torch.ones(2, 3, 4),)))[0].facts for one in Layout]
    assert [one["layout"].rpartition(".")[2] for one in facts] == ["FIRST", "LAST"]
    assert all("unread" not in one for one in facts)
