"""Results of layers: records are made anew, of the classes that they were."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from kernels_hub import (
    LocalLayerRepository,
    Mode,
    kernelize,
    replace_kernel_forward_from_hub,
    use_kernel_mapping,
)
from kernels_hub.compiler.errors import ImportFailure
from kernels_hub.compiler.export.emit_layer import emit_layer
from kernels_hub.compiler.export.results import result_tree
from kernels_hub.compiler.runtime.arguments import result_of
from kernels_hub.compiler.runtime.errors import Misfit
from kernels_hub.compiler.runtime.parts import Record, Tensor


class Pair(NamedTuple):
    first: Any
    second: Any = None


@dataclass
class Found:
    hidden: Any
    pair: Any = None
    name: str = "found"
    made: int = field(default=0, init=False)


@dataclass
class Changing:
    value: Any

    def __post_init__(self) -> None:
        self.value = [self.value]


pytree.register_dataclass(Found, field_names=["hidden", "pair"], drop_field_names=["name", "made"])
Nowhere = namedtuple("Elsewhere", "value")  # noqa: PYI024  # a name that its module does not have


class Records(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Found:
        y = self.linear(x)
        return Found(torch.relu(y), Pair(y + 1, None))


def test_a_record_as_text_and_back():
    tree = {"all": [Found(Tensor(1), Pair(Tensor(0), 3)), (None, 2.5)]}
    stated = result_tree(tree)
    kind = f"{__name__}:Found"
    assert stated["all"][0] == Record(
        kind,
        {
            "hidden": Tensor(1),
            "pair": Record(f"{__name__}:Pair", {"first": Tensor(0), "second": 3}),
            "name": "found",
        },
    )
    outputs = [torch.zeros(2), torch.ones(3)]
    made = result_of(eval(repr(stated), {"Record": Record, "Tensor": Tensor}), outputs)
    assert type(made["all"][0]) is Found and type(made["all"][0].pair) is Pair
    assert made["all"][0].hidden is outputs[1] and made["all"][0].pair == (outputs[0], 3)
    assert made["all"][1] == (None, 2.5)


@pytest.mark.parametrize("value", [object(), {1, 2}, Changing(3), Nowhere(3), Found(object())])
def test_what_cannot_be_stated(value: Any):
    with pytest.raises(ImportFailure, match="the module returns a .*; a layer returns tensors, literals"):
        result_tree([value])


@pytest.mark.parametrize("kind", ["no_such_module:Found", f"{__name__}:NoSuchClass"])
def test_a_class_that_is_not_here(kind: str):
    with pytest.raises(Misfit, match=f"its result was a {kind}, which is not here"):
        result_of(Record(kind, {}), [])


def test_a_layer_that_returns_records(tmp_path: Path):
    out = tmp_path / "records"
    emit_layer((Records().eval(), (torch.randn(4, 8),)), layer_name="Records", out=out)
    module, x = Records().eval(), torch.randn(4, 8)
    replace_kernel_forward_from_hub(Records, "Records")
    repository = LocalLayerRepository(out, layer_name="Records")
    with use_kernel_mapping({"Records": {"cpu": repository}}, inherit_mapping=False), torch.no_grad():
        kernelize(module, mode=Mode.INFERENCE, use_fallback=False)
        ours, theirs = module(x), Records.forward(module, x)
    assert type(ours) is Found and type(ours.pair) is Pair and ours.pair.second is None
    torch.testing.assert_close(ours.hidden, theirs.hidden)
    torch.testing.assert_close(ours.pair.first, theirs.pair.first)
