"""What a module's result depends on: the attributes that its forward reads."""

from __future__ import annotations

from enum import Enum

import pytest
import torch
from torch import nn
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from kernels_hub.compiler.export.caches import caches_as_trees
from kernels_hub.compiler.export.recorded_attributes import recorded
from kernels_hub.compiler.export.source import Example
from kernels_hub.compiler.importers import brief_run
from tests.transformers_caches import CACHE


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


class Settings:
    def __init__(self) -> None:
        self.scale, self.unread = 2.0, 3


class Keeping(nn.Module):
    """It holds a plain object, and keeps what it computed."""

    def __init__(self, asks: bool) -> None:
        super().__init__()
        self.settings, self.asks, self.kept = Settings(), asks, None
        self.norm = Norm(Layout.LAST)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.asks and x.sum() > 0:
            return x
        y = self.kept = self.norm(x) * self.settings.scale
        return y


@pytest.mark.parametrize("asks", [False, True], ids=["shapes alone", "a forward that asks for a value"])
def test_what_takes_long_is_recorded_without_values(asks, monkeypatch):
    x = -torch.arange(6.0).reshape(2, 3)
    before = recorded(Example(Keeping(asks), (x,)))
    assert before[0].facts["settings.scale"] == 2.0 and "settings.unread" not in before[0].facts
    assert before[1].facts.keys() == {"layout"}
    module = Keeping(asks)
    monkeypatch.setattr(brief_run, "SECONDS", -1.0)
    assert recorded(Example(module, (x,))) == before
    assert type(module) is Keeping and type(module.settings) is Settings
    if not asks:
        assert module.kept is None and module.calls == 0


def test_a_llama_with_a_cache_is_recorded_without_values_as_with(monkeypatch):
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
    )
    model = LlamaForCausalLM(config).eval()
    with caches_as_trees():
        cache = DynamicCache(config=config)
        ids = torch.arange(5)[None]
        with torch.no_grad():
            model(input_ids=ids, **{CACHE: cache})
        example = Example(model, (), {"input_ids": ids, CACHE: cache})
        before = recorded(example)
        monkeypatch.setattr(brief_run, "SECONDS", -1.0)
        assert recorded(example) == before
        assert cache.get_seq_length() == 5
