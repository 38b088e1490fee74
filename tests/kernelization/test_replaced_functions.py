"""Functions and methods that a compiled module's forward comes to, replaced after it was compiled: what runs is new."""

from __future__ import annotations

import functools
import shutil
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernels_hub import Mode, kernelize, report
from kernels_hub.compiler.runtime.errors import Misfit
from kernels_hub.compiler.runtime.modules import check_module
from kernels_hub.compiler.runtime.parts import Module

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.usefixtures("mapping_compiled"),
]


def outer(x: Tensor) -> Tensor:
    return inner(x) + 1


def inner(x: Tensor) -> Tensor:
    return x * 2


def wrapping(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Tensor:
        return function(*args)

    return wrapper


class Base(nn.Module):
    def inherited(self, x: Tensor) -> Tensor:
        return x - 3

    @staticmethod
    def fixed(x: Tensor) -> Tensor:
        return x * 5

    @property
    def shift(self) -> float:
        return 0.5


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x))


class Whole(Base):
    def __init__(self) -> None:
        super().__init__()
        self.part = Part()

    @wrapping
    def own(self, x: Tensor) -> Tensor:
        return torch.relu(x)

    def forward(self, x: Tensor) -> Tensor:
        return outer(self.own(self.inherited(self.fixed(self.part(x)))) + self.shift)


def negated(x: Tensor) -> Tensor:
    return -x


def of_self(self: nn.Module, x: Tensor) -> Tensor:
    return -x


REPLACED: dict[str, tuple[object, str, object]] = {
    "global function": (None, "outer", negated),
    "function that a function calls": (None, "inner", negated),
    "method": (Whole, "own", of_self),
    "inherited method": (Base, "inherited", of_self),
    "static method": (Base, "fixed", staticmethod(negated)),
    "property": (Base, "shift", property(lambda self: 7.5)),
    "forward of a part's class": (Part, "forward", of_self),
    "forward of the class": (Whole, "forward", of_self),
}


@pytest.mark.parametrize("case", REPLACED)
def test_what_was_replaced_runs(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    reference, model = Whole().eval(), Whole().eval()
    model.load_state_dict(reference.state_dict())
    kernelize(model, mode=Mode.INFERENCE)
    x = torch.randn(4, 8)
    first = reference(x)
    torch.testing.assert_close(model(x), first)
    assert report(model).rows[0].swapped
    holder, name, value = REPLACED[case]
    with monkeypatch.context() as patched:
        if holder is None:
            patched.setattr(f"{__name__}.{name}", value)
        else:
            patched.setattr(holder, name, value)
        second = reference(x)
        assert not torch.allclose(first, second)
        torch.testing.assert_close(model(x), second)
        torch.testing.assert_close(model(x), second)
    torch.testing.assert_close(model(x), first)


def test_classes_of_one_program_have_forwards_of_their_own() -> None:
    """A program serves all modules whose forward has the same text, which is a function of each class."""
    table = (Module("", "one", "", {}, ("__class__.__mro__.0.forward",)),)
    for name in ("One", "Other"):
        kind: Any = type(name, (Part,), {"forward": lambda self, x: self.layer(x)})
        for _ in range(2):
            check_module(kind(), table)
        kind.forward = of_self
        with pytest.raises(
            Misfit, match="runs another forward than it was compiled with: it was replaced since"
        ):
            check_module(kind(), table)


def test_a_function_that_is_defined_again_as_it_was_is_the_same() -> None:
    """As a cell of a notebook that is run again."""
    table = (Module("", "one", "", {}, ("__class__.__mro__.0.forward",)),)
    kind: Any = type("One", (Part,), {"forward": lambda self, x: self.layer(x)})
    check_module(kind(), table)
    kind.forward = _defined_again(kind.forward)
    check_module(kind(), table)
    kind.forward = _defined_again(kind.forward, (1,))
    with pytest.raises(Misfit, match="runs another forward than it was compiled with"):
        check_module(kind(), table)


def _defined_again(function: types.FunctionType, defaults: tuple[Any, ...] = ()) -> types.FunctionType:
    return types.FunctionType(function.__code__, function.__globals__, function.__name__, defaults)
