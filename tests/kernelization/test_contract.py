"""Contracts: a class is what it computes, and everything that could make it something else is seen."""

from __future__ import annotations

import functools
import importlib.util
import linecache
import math
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernels_hub.kernelization.contract import (
    Contract,
    class_difference,
    difference,
    form_of_function,
    function_difference,
    matches,
    original_function,
)

SCALE = "def forward(self, x): return self.weight * F.silu(x)"
SCALE_CONTRACT = Contract("scale", SCALE)


class Plain(nn.Module):
    """Fulfils the contract under other names."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Scale."""
        return self.weight * F.silu(hidden_states)


class Swapped(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(x) * self.weight


class Inherits(Plain):
    """No forward of its own: what runs is Plain's."""


class Decorated(nn.Module):
    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * F.silu(x)


def quietly_decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    def inner(self: Any, x: Any) -> Any:
        return function(self, x)

    return inner


class QuietlyDecorated(nn.Module):
    @quietly_decorated
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * F.silu(x)


class CallsSuper(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


class OwnCall(Plain):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x


class OwnGetattr(Plain):
    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name)


class WeightIsAProperty(Plain):
    @property
    def weight(self) -> torch.Tensor:
        return torch.ones(1)


class WeightIsAClassConstant(Plain):
    weight = torch.ones(1)


class NotAModule:
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * F.silu(x)  # type: ignore[attr-defined]


class PartialForward(nn.Module):
    forward = functools.partial(Plain.forward)


class StaticForward(nn.Module):
    @staticmethod
    def forward(self: Any, x: Any) -> Any:
        return self.weight * F.silu(x)


class LambdaForward(nn.Module):
    forward = lambda self, x: self.weight * F.silu(x)  # noqa: E731


FULFIL = [Plain, Inherits, WeightIsAClassConstant]
REASONS = {
    Swapped: r"statement 1 is `return F.silu\(x\) \* self.weight`, not `return self.weight \* F.silu\(x\)`",
    Decorated: "it is decorated",
    QuietlyDecorated: "it closes over function",
    CallsSuper: "it closes over __class__",
    OwnCall: "it has a __call__ of its own",
    OwnGetattr: "it has a __getattr__ of its own",
    WeightIsAProperty: "its class defines weight, which the contract takes for an attribute of the instance",
    NotAModule: "it is not a torch.nn.Module",
    PartialForward: "it is a partial, not a plain function",
    StaticForward: "it is a staticmethod, not a plain function",
    LambdaForward: "its source is not one function definition",
}


@pytest.mark.parametrize("cls", FULFIL, ids=lambda cls: cls.__name__)
def test_classes_that_fulfil_it(cls: type) -> None:
    assert class_difference(cls, [SCALE_CONTRACT]) is None


@pytest.mark.parametrize(("cls", "reason"), REASONS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_classes_that_do_not(cls: type, reason: str) -> None:
    found = class_difference(cls, [SCALE_CONTRACT])
    assert found is not None
    assert re.search(reason, found.reason), found.reason


def test_of_several_contracts_the_nearest_explains() -> None:
    far = Contract("far", "def forward(self): pass")
    found = class_difference(Swapped, [far, SCALE_CONTRACT])
    assert found is not None
    assert "statement 1" in found.reason
    assert class_difference(Plain, [far, SCALE_CONTRACT]) is None


def test_a_class_that_was_patched_is_another_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plain, "forward", Swapped.forward)
    assert class_difference(Plain, [SCALE_CONTRACT]) is not None
    monkeypatch.undo()
    assert class_difference(Plain, [SCALE_CONTRACT]) is None


def test_code_that_was_replaced_is_read_again() -> None:
    def function(x: Any) -> Any:
        return x + 1

    def other(x: Any) -> Any:
        return x + 2

    assert matches(function, "def f(x): return x + 1")
    function.__code__ = other.__code__
    assert matches(function, "def f(x): return x + 2")


# -- functions and the names that they use ------------------------------------------------------

ROTATE = Contract("rotate", "def rotate(x): return torch.cat((-x[1:], x[:1]))")
APPLY = Contract("apply", "def apply(q, cos): return q * cos + rotate(q)", names={"rotate": (ROTATE,)})

MODULE = """
import torch
import math

def rotate(x):
    return torch.cat((-x[1:], x[:1]))

def apply(q, cos):
    return q * cos + rotate(q)

def length(x):
    return len(x)

def root(x):
    return math.sqrt(x)
"""

ImportSource = Callable[[str], ModuleType]


@pytest.fixture
def import_source(tmp_path: Path) -> ImportSource:
    """import_source(text) -> a module made from a file of that text, as Python imports any other."""
    count = iter(range(100))

    def make(source: str) -> ModuleType:
        path = tmp_path / f"contract_source_{next(count)}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return make


def test_a_function_and_the_function_that_it_calls(import_source: ImportSource) -> None:
    assert difference(import_source(MODULE).apply, APPLY) is None


def test_another_function_of_the_same_name(import_source: ImportSource) -> None:
    module = import_source(MODULE.replace("(-x[1:], x[:1])", "(x[1:], -x[:1])"))  # as NanoChat has it
    reason = difference(module.apply, APPLY)
    assert reason is not None
    assert "the function `rotate` that it calls is another: statement 1 is" in reason


@pytest.mark.parametrize(
    ("name", "bound", "reason"),
    [
        ("torch", math, "the name `torch` is not torch in its module"),
        ("rotate", 3, "the function `rotate` that it calls is another: it is an int, not a plain function"),
    ],
)
def test_a_global_that_was_bound_to_something_else(
    import_source: ImportSource, name: str, bound: object, reason: str
) -> None:
    module = import_source(MODULE)
    assert matches(module.apply, APPLY)
    setattr(module, name, bound)
    assert difference(module.apply, APPLY) is not None
    assert reason in str(difference(module.apply, APPLY))


def test_a_missing_global(import_source: ImportSource) -> None:
    module = import_source(MODULE)
    del module.math
    assert (
        difference(module.root, "def root(x): return math.sqrt(x)")
        == "the name `math` is not math in its module"
    )


def test_a_hidden_builtin(import_source: ImportSource) -> None:
    module = import_source(MODULE)
    assert matches(module.length, "def f(x): return len(x)")
    module.len = max  # type: ignore[attr-defined]
    assert difference(module.length, "def f(x): return len(x)") == (
        "the builtin `len` is hidden by a global of its module"
    )


def test_names_that_a_contract_must_explain() -> None:
    contract = Contract("c", "def f(x): return len(F.silu(x)) + helper(x) + torch.ones(other)")
    assert contract.unexplained_names() == ["helper", "other"]


# -- methods ---------------------------------------------------------------------------------------


class CallsAMethod(nn.Module):
    def _norm(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._norm(x)


class CallsAStaticMethod(nn.Module):
    @staticmethod
    def _norm(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._norm(x)


CALLS = "def forward(self, x): return self._norm(x)"


def test_a_method_must_be_vouched_for() -> None:
    found = class_difference(CallsAMethod, [Contract("c", CALLS)])
    assert found is not None
    assert (
        found.reason == "its class defines _norm, which the contract takes for an attribute of the instance"
    )


def test_a_method_that_fulfils_its_contract() -> None:
    norm = Contract("norm", "def _norm(self, x): return x * self.eps")
    assert class_difference(CallsAMethod, [Contract("c", CALLS, methods={"_norm": (norm,)})]) is None
    static = Contract("norm", "def _norm(x): return x * 2")
    assert class_difference(CallsAStaticMethod, [Contract("c", CALLS, methods={"_norm": (static,)})]) is None


def test_a_method_that_does_not() -> None:
    norm = Contract("norm", "def _norm(self, x): return x / self.eps")
    found = class_difference(CallsAMethod, [Contract("c", CALLS, methods={"_norm": (norm,)})])
    assert found is not None
    assert found.reason.startswith("its method _norm is another: statement 1 is `return x * self.eps`")


def test_a_method_that_the_class_lacks() -> None:
    norm = Contract("norm", "def _norm(self, x): return x * self.eps")

    class OnlyAnAttribute(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self._norm(x)  # type: ignore[operator]

    found = class_difference(OnlyAnAttribute, [Contract("c", CALLS, methods={"_norm": (norm,)})])
    assert found is not None
    assert found.reason == "its class has no method _norm"


# -- sources -------------------------------------------------------------------------------------


def test_no_source() -> None:
    namespace: dict[str, Any] = {}
    exec(
        compile("def f(x): return x", "<nowhere>", "exec"), namespace
    )  # Python 3.13 knows "<string>": what -c gave it
    assert difference(namespace["f"], "def f(x): return x") == "its source is not available"


def test_a_file_that_was_edited_after_its_import(import_source: ImportSource) -> None:
    before, after = "def f(x):\n    return x + 1\n", "def f(x):\n    return x - 1\n"
    module = import_source(before)
    path = Path(str(module.__file__))
    path.write_text(after)
    linecache.checkcache(str(path))
    assert difference(module.f, after) == "its source file no longer holds what runs"


def test_builtins_and_instances_have_no_form() -> None:
    assert (
        difference(torch.relu, "def f(x): pass") == "it is a builtin_function_or_method, not a plain function"
    )
    assert difference(nn.ReLU(), "def f(x): pass") == "it is a ReLU, not a plain function"
    assert difference(None, "def f(x): pass") == "it is a NoneType, not a plain function"


def test_flags_of_code_that_no_future_import_sets() -> None:
    """Python 3.14 marks functions that have a docstring, or stand in a class, by flags that `compile` refuses."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    plain = form_of_function(function)
    function.__code__ = function.__code__.replace(co_flags=function.__code__.co_flags | 0x8000000)
    assert form_of_function(function) == plain


def test_forms_are_made_once_and_not_kept_alive() -> None:
    def function(x: Any) -> Any:
        return x

    assert form_of_function(function) is form_of_function(function)
    from kernels_hub.kernelization import contract

    count = len(contract._FORMS)
    del function
    assert len(contract._FORMS) == count - 1


# -- HF kernels ----------------------------------------------------------------------------------


def rotary(q: torch.Tensor, cos: torch.Tensor) -> torch.Tensor:
    return q * cos


def test_the_module_that_hf_kernels_puts_in_a_functions_place() -> None:
    kernels = pytest.importorskip("kernels", reason="needs the package kernels")
    wrapped = kernels.use_kernel_forward_from_hub("rotary")(rotary)
    assert isinstance(wrapped, nn.Module)
    assert original_function(wrapped) is rotary
    assert (
        function_difference(original_function(wrapped), [Contract("r", "def r(q, cos): return q * cos")])
        is None
    )


def test_other_modules_and_functions_stay_what_they_are() -> None:
    layer = QuietlyDecorated()
    assert original_function(rotary) is rotary
    assert original_function(layer) is layer
    assert original_function(len) is len


def test_a_name_of_a_package_that_is_not_here() -> None:
    contract = Contract("c", "def f(x): return thing(x)", names={"thing": "no_such_package:thing"})

    def f(x: Any) -> Any:
        return thing(x)  # type: ignore[name-defined]  # noqa: F821

    assert difference(f, contract) == "the name `thing` is not no_such_package:thing in its module"


# -- decorators ----------------------------------------------------------------------------------


def doubling(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(self: Any, *args: Any) -> Any:
        return 2 * function(self, *args)

    return wrapper


def also_doubling(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(self: Any, *args: Any) -> Any:
        return 2 * function(self, *args)

    return wrapper


class Doubled(nn.Module):
    @doubling
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * F.silu(x)


class DoubledTwice(nn.Module):
    @also_doubling
    @doubling
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * F.silu(x)


def decorated(*names: str) -> Contract:
    return Contract("scale", SCALE, decorators=tuple(f"{__name__}:{name}" for name in names))


def test_a_function_inside_the_named_decorators_fulfils_its_contract() -> None:
    assert class_difference(Doubled, [decorated("doubling")]) is None
    assert class_difference(DoubledTwice, [decorated("also_doubling", "doubling")]) is None


@pytest.mark.parametrize(
    ("cls", "decorators", "reason"),
    [
        (Doubled, (), "it is decorated"),
        (Plain, ("doubling",), f"it is not decorated by {__name__}:doubling"),
        (Doubled, ("also_doubling",), f"it is decorated by something else than {__name__}:also_doubling"),
        (DoubledTwice, ("also_doubling",), "it is decorated"),
        (DoubledTwice, ("doubling",), f"it is decorated by something else than {__name__}:doubling"),
        (Doubled, ("no_such",), f"it is not decorated by {__name__}:no_such"),
    ],
)
def test_other_decorators_are_seen(cls: type, decorators: tuple[str, ...], reason: str) -> None:
    found = class_difference(cls, [decorated(*decorators)])
    assert found is not None
    assert found.reason == f"its forward cannot be compared: {reason}"


def test_a_wrapper_that_calls_something_else_than_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Doubled.forward, "__wrapped__", Plain.forward)
    found = class_difference(Doubled, [decorated("doubling")])
    assert found is not None
    assert "is not what it calls" in found.reason


class WithProperty(nn.Module):
    @property
    def scale(self) -> float:
        return 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x


def test_a_property_is_data_only_where_the_contract_says_so() -> None:
    source = "def forward(self, x): return self.scale * x"
    found = class_difference(WithProperty, [Contract("scaled", source)])
    assert found is not None
    assert "its class defines scale" in found.reason
    named = Contract("scaled", source, properties=frozenset({"scale"}))
    assert class_difference(WithProperty, [named]) is None


def test_a_variant_is_another_spelling() -> None:
    class Renamed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.gain * F.silu(x)

    other = Contract("scale", SCALE, variants=({"weight": "gain"},))
    assert class_difference(Renamed, [other]) is None and class_difference(Plain, [other]) is None
    found = class_difference(Renamed, [Contract("scale", SCALE)])
    assert found is not None and "statement 1 is `return self.gain * F.silu(x)`" in found.reason
