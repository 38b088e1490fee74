"""The conditions of mapping files: what holds, what does not and how that reads, what is refused."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from kernels_hub.kernelization.condition import ConditionError, Conditions


class Subclass(nn.SiLU):
    pass


class Example(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 32, dtype=torch.bfloat16)
        self.bare = nn.Linear(4, 4, bias=False)
        self.conv = nn.Conv2d(3, 8, (1, 3))
        self.act = nn.SiLU()
        self.sub = Subclass()
        self.function = functools.partial(nn.functional.gelu, approximate="tanh")
        self.eps = 1e-6
        self.mode = "zeros"
        self.count = torch.nn.Buffer(torch.zeros(3, dtype=torch.int64))
        self.flag = True


HOLDS: list[dict[str, Any]] = [
    {},
    {"eps": 1e-6},
    {"linear.in_features": 64},
    {"linear.in_features": ">=64"},
    {"linear.in_features": ">63, <=64, !=65"},
    {"linear.weight.numel": 2048},
    {"linear.weight.shape.1": "==64"},
    {"linear.weight.dim": 2},
    {"linear.weight.is_contiguous": True},
    {"linear.weight.dtype": "bfloat16"},
    {"conv.kernel_size.1": 3},
    {"conv.kernel_size": {"equals": [1, 3]}},
    {"conv.kernel_size": [{"equals": [1, 1]}, {"equals": [1, 3]}]},
    {"bare.bias": "None"},
    {"linear.bias": {"not": "None"}},
    {"flag": True},
    {"mode": "zeros"},
    {"mode": ["reflect", "zeros"]},
    {"act": "torch.nn:SiLU"},
    {"act": "torch.nn.SiLU"},
    {"act": "torch.nn.modules.activation:SiLU"},
    {"act": ["no_such_package:SiLU", "torch.nn:SiLU"]},
    {"act": {"not": "torch.nn:GELU"}},
    {"function": "functools:partial", "function.func": "torch.nn.functional:gelu"},
    {"function.keywords.approximate": "tanh", "function.args": {"equals": []}},
    {"function.keywords": {"equals": {"approximate": "tanh"}}},
    {"linear": "torch.nn:Linear", "conv": "torch.nn:Conv2d"},
]

FAILS: list[tuple[dict[str, Any], str]] = [
    ({"eps": 1e-5}, "its eps is 1e-06, this applies to 1e-05"),
    ({"flag": 1}, "its flag is true, this applies to 1"),
    ({"linear.in_features": True}, "its linear.in_features is 64, this applies to true"),
    ({"linear.in_features": "<64"}, "its linear.in_features is 64, this applies to <64"),
    ({"linear.in_features": ">0, <64"}, "its linear.in_features is 64, this applies to >0, <64"),
    ({"mode": ">=3"}, "its mode is 'zeros', this applies to >=3"),
    (
        {"linear.weight.dtype": ["float32", "float16"]},
        "its linear.weight.dtype is bfloat16, this applies to float32 or float16",
    ),
    ({"linear.bias": "None"}, "its linear.bias is torch.nn.parameter:Parameter, this applies to None"),
    ({"bare.bias": {"not": "None"}}, "its bare.bias is None, this applies to anything but None"),
    ({"act": "torch.nn:GELU"}, "its act is torch.nn.modules.activation:SiLU, this applies to torch.nn:GELU"),
    (
        {"act": "no_such_package:SiLU"},
        "its act is torch.nn.modules.activation:SiLU, this applies to no_such_package:SiLU",
    ),
    ({"sub": "torch.nn:SiLU"}, f"its sub is {__name__}:Subclass, this applies to torch.nn:SiLU"),
    (
        {"function.func": "torch.nn.functional:silu"},
        "its function.func is the function gelu, this applies to torch.nn.functional:silu",
    ),
    ({"conv.kernel_size": {"equals": [1, 1]}}, "its conv.kernel_size is (1, 3), this applies to [1, 1]"),
    ({"conv.kernel_size.2": 1}, "it has no conv.kernel_size.2, this applies to 1"),
    ({"nothing": 1}, "it has no nothing, this applies to 1"),
    ({"act.weight.dtype": "float32"}, "it has no act.weight.dtype, this applies to float32"),
    ({"function.keywords.inplace": True}, "it has no function.keywords.inplace, this applies to true"),
    ({"eps": 1e-6, "flag": False}, "its flag is true, this applies to false"),
]

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"a b": 1}, "a b", "expected a path"),
    ({"0": 1}, "0", "expected a path"),
    ({"a..b": 1}, "a..b", "expected a path"),
    ({"x": ">="}, "x", "expected a comparison"),
    ({"x": ">=a"}, "x", "expected a comparison"),
    ({"x": ">=1 <3"}, "x", "expected a comparison"),
    ({"x": []}, "x", "at least one alternative"),
    ({"x": [1, ["=>2"]]}, "x[1][0]", "expected a comparison"),
    ({"x": {"not": 1, "equals": 2}}, "x", "got {'not': 1, 'equals': 2}"),
    ({"x": {"not": "<"}}, "x.not", "expected a comparison"),
    ({"x": {}}, "x", "expected a value"),
]


@pytest.mark.parametrize("where", HOLDS, ids=str)
def test_conditions_that_hold(where: dict[str, Any]) -> None:
    assert Conditions(where)(Example()) is None


@pytest.mark.parametrize(("where", "reason"), FAILS, ids=lambda value: str(value)[:60])
def test_conditions_that_do_not(where: dict[str, Any], reason: str) -> None:
    assert Conditions(where)(Example()) == reason


@pytest.mark.parametrize(("where", "key", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_conditions_that_are_refused(where: dict[str, Any], key: str, message: str) -> None:
    with pytest.raises(ConditionError) as caught:
        Conditions(where)
    assert caught.value.key == key
    assert message in str(caught.value)


def test_named_alternatives() -> None:
    named = {"cheap": ["torch.nn:ReLU", "torch.nn:SiLU"], "small": [1, "<4"]}
    assert Conditions({"act": {"one_of": "cheap"}}, named)(Example()) is None
    assert Conditions({"conv.kernel_size.1": {"one_of": "small"}}, named)(Example()) is None
    assert Conditions({"linear": {"one_of": "cheap"}}, named)(Example()) == (
        "its linear is torch.nn.modules.linear:Linear, this applies to one of cheap"
    )
    assert Conditions({"linear": {"not": {"one_of": "cheap"}}}, named)(Example()) is None
    with pytest.raises(ConditionError, match=r"a list in \[alternatives\] \(cheap, small\), got 'dear'"):
        Conditions({"act": {"one_of": "dear"}}, named)


def test_contracts_of_what_is_inside() -> None:
    contracts = {"linear": lambda value: type(value) is nn.Linear, "other": lambda value: False}
    assert Conditions({"linear": {"fulfils": "linear"}}, None, contracts)(Example()) is None
    assert Conditions({"linear": {"fulfils": ["other", "linear"]}}, None, contracts)(Example()) is None
    assert Conditions({"act": ["torch.nn:SiLU", {"fulfils": "other"}]}, None, contracts)(Example()) is None
    assert Conditions({"act": {"fulfils": ["other", "linear"]}}, None, contracts)(Example()) == (
        "its act is torch.nn.modules.activation:SiLU, this applies to a module of contract other or linear"
    )
    for wrong in ("lienar", [], 3, ["linear", "lienar"]):
        with pytest.raises(ConditionError, match="expected the name of a contract, or a list of them, got"):
            Conditions({"act": {"fulfils": wrong}}, None, contracts)


def test_dtype_is_that_of_the_first_tensor() -> None:
    wants = Conditions({"dtype": ["float32", "bfloat16"]})
    assert wants(nn.Linear(2, 2)) is None
    assert (
        wants(nn.Linear(2, 2, dtype=torch.float64))
        == "its dtype is float64, this applies to float32 or bfloat16"
    )
    assert wants(nn.Sequential(nn.SiLU(), nn.Linear(2, 2))) is None  # of a child
    assert Conditions({"dtype": "int64"})(Example()) is None  # its own buffer comes before children
    assert wants(nn.SiLU()) == "it has no dtype, this applies to float32 or bfloat16"


def test_a_class_that_is_imported_later_is_found_later(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    wants = Conditions({"act": "imported_later:Activation"})
    module = Example()
    assert wants(module) is not None
    later = types.ModuleType("imported_later")
    later.Activation = Subclass  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "imported_later", later)
    module.act = Subclass()
    assert wants(module) is None


def test_they_print_as_what_they_were_made_of() -> None:
    assert repr(Conditions({"eps": 1})) == "Conditions({'eps': 1})"
