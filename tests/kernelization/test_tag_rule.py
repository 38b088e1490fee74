"""Tag rules: which patterns fit, which of several entries decides, and that nothing is written on classes."""

from __future__ import annotations

import fnmatch
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from kernels_hub.kernelization.contract import Contract
from kernels_hub.kernelization.mapping_records import TagRule
from kernels_hub.kernelization.tag_rule import PatternIndex, TagEntry, TagRules, on_levels

DOUBLE = Contract("double", "def forward(self, x): return x * 2")
TRIPLE = Contract("triple", "def forward(self, x):\n    y = x * 3\n    return y")


class Double(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Triple(nn.Module):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        tripled = value * 3
        return tripled  # noqa: RET504 - as the contract has it


class NearlyTriple(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 3
        return y + 1


RULES = TagRules(
    (
        TagEntry("Double", classes=(f"{__name__}:*",), contracts=(DOUBLE,)),
        TagEntry("Triple", classes=(f"{__name__}:*Triple",), contracts=(TRIPLE,), positional=True),
        TagEntry("Anything", classes=("torch.nn:Identity",)),
    )
)


def test_it_is_a_tag_rule() -> None:
    rule: TagRule = RULES
    assert rule.decide_class(nn.ReLU) is None
    assert rule.decide_function(torch.relu) is None


def test_what_is_written_decides_where_the_entry_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = TagRules((TagEntry("Double", classes=(f"{__name__}:Double",), written=True),))
    decision = rules.decide_class(Double)
    assert decision is not None and decision.reason is None

    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return x * 5

    for other in (forward, NearlyTriple.forward, nn.Identity.forward, torch.relu):
        monkeypatch.setattr(Double, "forward", other)
        decision = rules.decide_class(Double)
        assert decision is not None
        assert decision.reason == "its forward is not the one that its module defines"
    monkeypatch.undo()
    monkeypatch.setattr(Double.forward, "__code__", NearlyTriple.forward.__code__)
    decision = rules.decide_class(Double)
    assert decision is not None and decision.reason is not None


@pytest.mark.parametrize(
    ("cls", "layer", "positional"), [(Double, "Double", False), (Triple, "Triple", True)]
)
def test_the_first_fulfilled_entry_tags(cls: type, layer: str, positional: bool) -> None:
    decision = RULES.decide_class(cls)
    assert decision is not None
    assert (decision.layer_name, decision.reason, decision.positional) == (layer, None, positional)
    assert "kernel_layer_name" not in vars(cls)


def test_the_nearest_entry_explains() -> None:
    decision = RULES.decide_class(NearlyTriple)
    assert decision is not None
    assert decision.layer_name == "Triple"
    assert decision.reason == (
        "its forward differs from the known formula: statement 2 is `return y + 1`, not `return y`"
    )


def test_without_a_contract_the_pattern_decides() -> None:
    decision = RULES.decide_class(nn.Identity)
    assert decision is not None
    assert (decision.layer_name, decision.reason) == ("Anything", None)


def _thing(module: str, name: str) -> Any:
    return type(name, (), {"__module__": module, "__qualname__": name})


MODULES = st.sampled_from(["a", "a.b", "a.b.modeling_c", "b", "b.modeling_c"])
NAMES = st.sampled_from(["Norm", "RMSNorm", "MLP", "Outer.MLP"])
PATTERNS = st.tuples(
    st.sampled_from(["*", "a", "a*", "a.b.*", "?", "*.modeling_*", "b.modeling_c"]),
    st.sampled_from(["*", "Norm", "*Norm", "RMS*", "MLP", "*.MLP", "[RM]*"]),
).map(":".join)


@given(MODULES, NAMES, st.lists(st.lists(PATTERNS, max_size=3), max_size=5))
def test_the_index_finds_what_asking_every_pattern_finds(
    module: str, name: str, patterns: list[list[str]]
) -> None:
    entries = [TagEntry(str(index), classes=tuple(texts)) for index, texts in enumerate(patterns)]
    index = PatternIndex((entry, entry.classes) for entry in entries)
    expected = [e for e in entries if any(fnmatch.fnmatchcase(f"{module}:{name}", p) for p in e.classes)]
    assert index.fitting(_thing(module, name)) == expected


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Sequential(nn.ReLU()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)  # type: ignore[no-any-return]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block()])
        self.again = self.blocks[0]
        self.leaf = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.leaf(self.blocks[0](x))  # type: ignore[no-any-return]


def test_levels_count_modules_with_a_forward_and_with_modules_inside() -> None:
    model = Model()
    levels = [model, model.blocks[0], model.again.inner, model.again.inner[0]]
    for count in range(4):
        assert on_levels(model, count) == {id(one) for one in levels[:count]}
    assert on_levels(model, 9) == {id(one) for one in levels}
    relu = nn.ReLU()
    assert on_levels(relu, 1) == on_levels(nn.ModuleList([relu]), 1) == {id(relu)}
