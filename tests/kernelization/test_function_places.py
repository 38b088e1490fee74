"""Tagged functions wherever a module may have them: swapped, or reported with the reason; never passed over."""

from __future__ import annotations

import functools
import pickle
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from kernels_hub import (
    LocalLayerRepository,
    Mode,
    explain,
    kernelize,
    report,
    restore,
    use_kernel_forward_from_hub,
    use_kernel_mapping,
    use_kernelized_func,
)

Make = Callable[..., Path]
X = torch.arange(4.0)
SHIFT = "class shift(nn.Module):\n    can_torch_compile = True\n    def forward(self, x, by=1.0):\n        return x + 100 * by\n"


@use_kernel_forward_from_hub("shift")
def shift(x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
    return x + by


SHIFTS = [shift]
TABLE = {"shift": shift}
PLACE = types.ModuleType("place")
PLACE.moved = shift  # type: ignore[attr-defined]
named_lambda = use_kernel_forward_from_hub("shift")(lambda x, by=1.0: x + by)


def offset_by(number: float) -> Any:
    @use_kernel_forward_from_hub("shift")
    def shifted(x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
        return x + by + number

    return shifted


def logged(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@use_kernel_forward_from_hub("shift")
@logged
def decorated(x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
    return x + by


def local_class() -> type[nn.Module]:
    """A forward that gets at the function through a closure."""

    @use_kernel_forward_from_hub("shift")
    def local(x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
        return x + by

    class Local(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return local(x)

    return Local


class Holds(nn.Module):
    """Calls what an attribute holds."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.fn = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fn(x)


class HoldsFirst(Holds):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return next(iter(self.fn.values() if isinstance(self.fn, dict) else self.fn))(x)


class CallsList(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return SHIFTS[0](x)


class CallsTable(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return TABLE["shift"](x)


class CallsModule(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return PLACE.moved(x)  # type: ignore[no-any-return]


class CallsLambda(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return named_lambda(x)


class CallsMethod(nn.Module):
    @use_kernel_forward_from_hub("shift")
    def helper(self, x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
        return x + by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.helper(x)


class CallsStatic(nn.Module):
    @staticmethod
    @use_kernel_forward_from_hub("shift")
    def helper(x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
        return x + by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.helper(x)


class Decorated(nn.Module):
    @logged
    @logged
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return shift(x)


def from_a_table(function: Any) -> Any:
    table = {"function": function}

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return table["function"](*args, **kwargs)

    return wrapper


class DecoratedFromATable(nn.Module):
    @from_a_table
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return shift(x)


@use_kernelized_func(shift)
class Elsewhere(nn.Module):
    """Another method calls it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return shift(x)


class Owner:
    def __init__(self, number: float) -> None:
        self.number = number

    @use_kernel_forward_from_hub("shift")
    def method(self, x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
        return x + by + self.number


SWAPPED = {
    "attribute": (lambda: Holds(shift), 1.0, 100.0),
    "partial": (lambda: Holds(functools.partial(shift, by=3.0)), 3.0, 300.0),
    "lambda": (lambda: Holds(named_lambda), 1.0, 100.0),
    "lambda called by name": (CallsLambda, 1.0, 100.0),
    "decorated function": (lambda: Holds(decorated), 1.0, 100.0),
    "closure of the forward": (lambda: local_class()(), 1.0, 100.0),
    "decorated forward": (Decorated, 1.0, 100.0),
}

KEPT = {
    "closure": (lambda: Holds(offset_by(5.0)), "it is a closure over number"),
    "partial of a closure": (
        lambda: Holds(functools.partial(offset_by(5.0), by=2.0)),
        "it is a closure over number",
    ),
    "bound method": (
        lambda: Holds(Owner(2.0).method),
        "it is a method, and a kernel would not see its Owner",
    ),
    "list": (lambda: HoldsFirst([shift]), "the module gets it from a list"),
    "tuple": (lambda: HoldsFirst((shift,)), "the module gets it from a tuple"),
    "dict": (lambda: HoldsFirst({"a": shift}), "the module gets it from a dict"),
    "partial in a list": (
        lambda: HoldsFirst([functools.partial(shift, by=2.0)]),
        "the module gets it from a list",
    ),
    "global list": (CallsList, "its forward gets it from a list"),
    "global dict": (CallsTable, "its forward gets it from a dict"),
    "function of a module": (CallsModule, "through the module PLACE"),
    "method of the class": (CallsMethod, "it is a method of the module's class"),
    "static method": (CallsStatic, "it is a method of the module's class"),
    "decorated forward": (DecoratedFromATable, "its forward is decorated"),
    "called by another method": (Elsewhere, "use_kernelized_func names it"),
}


@pytest.fixture
def mapped(make_repository: Make) -> Iterator[None]:
    source = LocalLayerRepository(make_repository("shift", SHIFT), layer_name="shift")
    with use_kernel_mapping({"shift": {"cpu": source}}, inherit_mapping=False):
        yield


def rows(model: nn.Module) -> list[Any]:
    return [row for row in report(model) if row.layer_name == "shift"]


@pytest.mark.parametrize(("make", "plain", "kernel"), SWAPPED.values(), ids=SWAPPED)
def test_swapped(mapped: None, make: Any, plain: float, kernel: float) -> None:
    model, other = nn.Sequential(make()), nn.Sequential(make())
    (told,) = (row for row in explain(model, mode=Mode.INFERENCE, device="cpu") if row.layer_name)
    assert told.swapped
    kernelize(model, mode=Mode.INFERENCE, device="cpu")
    (row,) = rows(model)
    assert row.swapped and row.path.startswith("0:")
    assert torch.equal(model(X), X + kernel) and torch.equal(other(X), X + plain)
    restore(model)
    assert torch.equal(model(X), X + plain) and not rows(model)


@pytest.mark.parametrize(("make", "reason"), KEPT.values(), ids=KEPT)
def test_kept_with_the_reason(mapped: None, make: Any, reason: str) -> None:
    model = nn.Sequential(make())
    before, state = model(X), dict(vars(model[0]))
    (told,) = (row for row in explain(model, mode=Mode.INFERENCE, device="cpu") if row.layer_name)
    kernelize(model, mode=Mode.INFERENCE, device="cpu")
    (row,) = rows(model)
    assert not row.swapped and reason in row.reason and reason in told.reason
    assert torch.equal(model(X), before)
    restore(model)
    assert vars(model[0]).keys() == state.keys() and all(
        vars(model[0])[name] is one for name, one in state.items()
    )


def test_what_is_not_tagged_is_not_reported(mapped: None) -> None:
    model = nn.Sequential(
        Holds(torch.relu), HoldsFirst([torch.relu]), Holds(functools.partial(torch.add, other=1))
    )
    kernelize(model, mode=Mode.INFERENCE, device="cpu")
    assert not rows(model)


def test_a_partial_pickles(mapped: None) -> None:
    model = nn.Sequential(Holds(functools.partial(shift, by=3.0)))
    kernelize(model, mode=Mode.INFERENCE, device="cpu")
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again(X), X + 300.0) and rows(again)[0].swapped


def moved(x: torch.Tensor, by: float) -> torch.Tensor:
    return x + by


@use_kernel_forward_from_hub("shift")
def shift_by_another(x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
    return moved(x, by)


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {})) * (2 if func is torch.Tensor.add else 1)


class DoublingSums(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {})) * (2 if func is torch.ops.aten.add.Tensor else 1)


@pytest.mark.parametrize(
    "function", [shift_by_another, functools.partial(shift_by_another, by=1.0)], ids=["function", "partial"]
)
def test_a_function_that_is_held_sees_what_changes_around_it(
    mapped: None, monkeypatch: pytest.MonkeyPatch, function: Any
) -> None:
    model = nn.Sequential(Holds(function))
    kernelize(model, mode=Mode.INFERENCE, device="cpu")
    assert torch.equal(model(X), X + 100.0)
    for mode in (Doubling(), DoublingSums()):
        with mode:
            found = model(X)
        assert torch.equal(found, (X + 1.0) * 2)
    masked = X.as_subclass(type("Marked", (torch.Tensor,), {}))
    assert type(model(masked)).__name__ == "Marked" and torch.equal(model(masked), masked + 1.0)
    monkeypatch.setitem(globals(), "moved", lambda x, by: x - by)
    assert torch.equal(model(X), X - 1.0)
    monkeypatch.undo()
    assert torch.equal(model(X), X + 100.0)
    assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(X), X + 100.0)
