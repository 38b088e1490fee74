"""What a forward reads is known by all that it holds: others are told from it, and what changes inside of it is seen."""

from __future__ import annotations

import ast
import collections
import dataclasses
import functools
import sys
import threading
import weakref
from collections.abc import Callable
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend

from kernels_hub.compiler.export.table import _literal
from kernels_hub.compiler.importers.outer_data import outer_data
from kernels_hub.compiler.runtime.facts import at, contents, fact, looked_into, places
from kernels_hub.compiler.runtime.module_guard import ModuleGuard


class Slots:
    __slots__ = ("k",)

    def __init__(self, k: float) -> None:
        self.k = k


class Scale:
    def __init__(self, k: float) -> None:
        self.k = k

    def __call__(self, x: Any) -> Any:
        return x * self.k

    times = __call__


@dataclasses.dataclass(frozen=True)
class Frozen:
    k: float


class Tall(float):
    pass


Named = collections.namedtuple("Named", "k")  # noqa: PYI024


class Kind(Enum):
    TWO = 2.0
    THREE = 3.0


def _closure(k: float) -> Any:
    def scaled(x: Any) -> Any:
        return x * k

    return scaled


def _cell(k: float) -> Any:
    """A function whose cell can be written to."""
    value = k

    def scaled(x: Any, new: Any = None) -> Any:
        nonlocal value
        value = value if new is None else new
        return x * value

    return scaled


def _defaults(k: float) -> Any:
    def scaled(x: Any, k: float = k) -> Any:
        return x * k

    return scaled


def _hidden_layer(k: float) -> Any:
    layer = nn.Linear(2, 2, bias=False)
    nn.init.constant_(layer.weight, k)
    return [layer]


KINDS: dict[str, Callable[[float], Any]] = {
    "float": lambda k: k,
    "bool": lambda k: k > 2,
    "complex": lambda k: complex(k, 0),
    "range": lambda k: range(int(k)),
    "slice": lambda k: slice(int(k)),
    "number of a class of its own": Tall,
    "tuple": lambda k: (1, (k,)),
    "list": lambda k: [1, [k]],
    "dict": lambda k: {"a": {1: k}},
    "set": lambda k: {k},
    "deque": lambda k: collections.deque([k]),
    "ordered dict": lambda k: collections.OrderedDict(a=k),
    "namedtuple": Named,
    "enum": Kind,
    "enum of C++": lambda k: SDPBackend.MATH if k > 2 else SDPBackend.FLASH_ATTENTION,
    "dtype": lambda k: torch.float32 if k > 2 else torch.float64,
    "tensor": lambda k: torch.full((3,), k),
    "tensors in a list": lambda k: [torch.full((3,), k)],
    "array": lambda k: np.full(3, k),
    "array of objects": lambda k: np.array([k, None], object),
    "scalar of NumPy": np.float32,
    "object": lambda k: SimpleNamespace(a=SimpleNamespace(b=k)),
    "object of a class": Scale,
    "object with slots": Slots,
    "frozen dataclass": Frozen,
    "closure": _closure,
    "defaults": _defaults,
    "partial": lambda k: functools.partial(torch.mul, other=k),
    "bound method": lambda k: Scale(k).times,
    "method of a list": lambda k: [k].index,
    "cached function": lambda k: functools.lru_cache(_closure(k)),
    "weak reference": lambda k: _kept(Scale(k)),
    "a layer in a list": _hidden_layer,
}
_ALIVE: list[Any] = []


def _kept(value: Any) -> Any:
    _ALIVE.append(value)
    return weakref.ref(value)


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_equal_values_have_equal_facts_and_others_have_others(make):
    first = fact(make(2.0))
    assert first == fact(make(2.0)) and looked_into(make(2.0))[1] is None
    assert first != fact(make(3.0))
    assert ast.literal_eval(_literal(first)) == first  # a file holds it


def test_two_lambdas_of_one_place_differ_by_their_code():
    first, second = [lambda x: x * 2, lambda x: x * 3]
    assert fact(first) != fact(second)


def test_weights_inside_of_a_module_are_told_by_their_place():
    layers = [nn.Sequential(nn.Linear(2, 2)) for _ in range(2)]
    first, second = (fact([one[0], one[0].weight], places(one)) for one in layers)
    assert first == second == ("its 0", "its 0.weight")


def test_what_holds_itself_has_an_end():
    ring: list[Any] = [1]
    ring.append(ring)
    assert fact(ring) == (1, "what holds it, 1 around")


@pytest.mark.parametrize("value", [torch.Generator(), ValueError(1), iter([1])])
def test_what_cannot_be_looked_into_is_said(value):
    assert looked_into([value])[1] is not None


def test_locks_and_modules_of_python_decide_nothing():
    assert looked_into([threading.Lock(), ast])[1] is None


def _write(name: str, value: Any) -> None:
    """Change what a value holds from 2 to 3 while it stays the same object."""
    if name == "list":
        value[1][0] = 3.0
    elif name == "longer list":
        value.append(3.0)
    elif name == "dict":
        value["a"][1] = 3.0
    elif name == "longer dict":
        value["b"] = 3.0
    elif name == "set":
        value.clear()
        value.add(3.0)
    elif name == "deque":
        value[0] = 3.0
    elif name in ("tensor", "array"):
        value[:] = 3.0
    elif name == "tensors in a list":
        value[0].fill_(3.0)
    elif name == "object":
        value.a.b = 3.0
    elif name == "object with slots":
        value.k = 3.0
    elif name == "cell":
        value(1.0, 3.0)
    elif name == "bound method":
        value.__self__.k = 3.0
    elif name == "partial":
        value.keywords["other"] = 3.0
    elif name == "weak reference":
        value().k = 3.0
    else:
        value[0].weight.data.fill_(3.0)


CHANGED = {
    **{
        name: KINDS[name]
        for name in (
            "list", "dict", "set", "deque", "tensor", "array", "tensors in a list", "object", "object with slots",
            "bound method", "partial", "weak reference", "a layer in a list",
        )
    },
    "longer list": KINDS["list"],
    "longer dict": KINDS["dict"],
    "cell": _cell,
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGED)
def test_what_changes_inside_of_a_value_is_seen(name):
    value = CHANGED[name](2.0)
    read = contents(value)
    guard = ModuleGuard({}, read.held, (), read.tensors, read.tensors, read.tensors, None, read.same)
    assert guard.holds_all({}) and guard.holds_all({})
    _write(name, value)
    assert not guard.holds_all({})


SCALE = 2.0
TABLE = {"a": [1.0]}


def _helper(x: Any) -> Any:
    return x * TABLE["a"][0]


OF_STATIC, OF_CLASS = 5.5, 6.5


class Base(nn.Module):
    K = 3.0
    UNNAMED = 4.0

    @staticmethod
    def fixed(x: Any) -> Any:
        return x - OF_STATIC

    @classmethod
    def of_class(cls, x: Any) -> Any:
        return x - OF_CLASS

    def shifted(self, x: Any) -> Any:
        return self.of_class(self.fixed(_helper(x))) + self.K


class Uses(Base):
    def forward(self, x: Any) -> Any:
        return self.shifted(x) * SCALE


def test_data_outside_of_a_module_is_found_by_the_names_in_its_code():
    outside = outer_data(Uses)
    found = {path: at(Uses(), path) for path in outside.data}
    assert sorted(map(str, found.values())) == sorted(map(str, (TABLE, 3.0, SCALE, OF_STATIC, OF_CLASS)))
    assert all(path.startswith("__class__.__mro__.") for path in found)
    functions = [Uses.forward, Base.shifted, Base.of_class.__func__, Base.fixed, _helper]
    assert [at(Uses(), path) for path in outside.functions] == functions


count, step = 0, 4.0


def stride(x: Any) -> Any:
    return x * 3


class NamedAlike(nn.Module):
    """Attributes and methods with names of globals that it does not read, and the other way around."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 2.0

    def forward(self, x: Any) -> Any:
        return self.stride(x) * self.count * getattr(self, "step", 1.0) * shifted(x)

    def stride(self, x: Any) -> Any:
        return x

    def shifted(self, x: Any) -> Any:
        return x * SCALE


def shifted(x: Any) -> Any:
    return x + 1


def test_the_name_of_an_attribute_is_no_name_of_a_global():
    outside = outer_data(NamedAlike)
    assert outside.data == ()
    assert [at(NamedAlike(), path) for path in outside.functions] == [
        NamedAlike.forward,
        NamedAlike.stride,
        shifted,
    ]


class ByName(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * globals()["SCALE"] + getattr(sys.modules[__name__], "OF_CLASS") + x.step  # noqa: B009


def test_globals_that_code_looks_up_by_name_are_followed():
    assert {at(ByName(), path) for path in outer_data(ByName).data} == {SCALE, OF_CLASS}
