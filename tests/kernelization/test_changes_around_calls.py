"""What changes around the calls of a compiled model, call by call against the same model in eager mode.

Attributes, what code names outside of the module, modes of PyTorch, and what callers write into results.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import logging
import os
import shutil
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from kernels_hub import Mode, kernelize, report
from tests.combinations import all_but, first
from tests.kernelization import settings_of_models

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.usefixtures("mapping_compiled"),
]

Change = Callable[[Any], object]


class Limits:
    TOP = 2.0

    class Inner:
        LOW = 1.0


class Settings:
    k = 2.0

    @property
    def doubled(self) -> float:
        return self.k * FACTORS["own"]

    def applied(self, x: Tensor) -> Tensor:
        return x * 2


FACTORS = {"own": 2.0}
ACTIVATION: Any = torch.relu
FIXED = Settings()


def clipped(x: Tensor) -> Tensor:
    return x.clamp(max=Limits.TOP) - Limits.Inner.LOW


class Model(nn.Module):
    """Of a forward that is given; `value` is what it reads."""

    def __init__(self, value: object = None) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.other = nn.Linear(8, 8, bias=False)
        self.value: Any = value


def of(forward: Callable[..., object], value: Callable[[], object] = lambda: None) -> Callable[[], Model]:
    """Makes models of a class of their own."""

    def make() -> Model:
        kind = type(f"Of{forward.__name__.strip('<>')}", (Model,), {"forward": forward})
        return kind(value()).eval()  # type: ignore[no-any-return]

    return make


def ordered(self: Any, x: Tensor) -> Tensor:
    for number in self.value.values():
        x = torch.tanh(x * number) + number
    return x


def with_parameters(self: Any, x: Tensor) -> Any:
    return sum((one.sum() for one in self.parameters()), torch.tanh(x))


def with_children(self: Any, x: Tensor) -> Any:
    for one in self.children():
        x = torch.tanh(one(x))
    return x


def _set(name: str, value: object) -> Change:
    return lambda model: setattr(model, name, value)


# Forward, value of the model, changes: what is different after each is compared, and what is compiled before the first.
ATTRIBUTES: dict[str, tuple[Callable[..., object], Callable[[], object], list[Change]]] = {
    "number in a list, of another type": (
        lambda self, x: (x * 3).long() * self.value[0],
        lambda: [1],
        [lambda m: m.value.__setitem__(0, 1.0), lambda m: m.value.__setitem__(0, True)],
    ),
    "negative zero": (lambda self, x: x.abs() / self.value, lambda: 0.0, [_set("value", -0.0)]),
    "order of a dict": (
        ordered,
        lambda: {"a": 1.0, "b": 3.0},
        [lambda m: m.value.update(a=m.value.pop("a"))],
    ),
    "another order": (ordered, lambda: {"a": 1.0, "b": 3.0}, [_set("value", {"b": 3.0, "a": 1.0})]),
    "order of an OrderedDict": (
        ordered,
        lambda: collections.OrderedDict(a=1.0, b=3.0),
        [lambda m: m.value.move_to_end("a")],
    ),
    "no attribute, then one": (
        lambda self, x: torch.tanh(x) * getattr(self, "extra", 1.0),
        lambda: None,
        [
            _set("extra", 3.0),
            lambda m: delattr(m, "extra"),
            lambda m: m.register_buffer("extra", torch.full((8,), 4.0)),
        ],
    ),
    "no attribute of an object, then one": (
        lambda self, x: torch.tanh(x) * getattr(self.value, "extra", 1.0),
        types.SimpleNamespace,
        [lambda m: setattr(m.value, "extra", 3.0)],
    ),
    "no bias, then one": (
        lambda self, x: self.other(x),
        lambda: None,
        [lambda m: setattr(m.other, "bias", nn.Parameter(torch.ones(8)))],
    ),
    "another parameter": (
        with_parameters,
        lambda: None,
        [lambda m: m.register_parameter("extra", nn.Parameter(torch.ones(3)))],
    ),
    "another module": (with_children, lambda: None, [lambda m: m.add_module("extra", nn.Tanh())]),
    "order of modules": (
        with_children,
        lambda: None,
        [lambda m: m._modules.update(layer=m._modules.pop("layer"))],
    ),
    "attribute of an object's class": (
        lambda self, x: torch.tanh(x) * self.value.k,
        Settings,
        [lambda m: setattr(m.value, "k", 5.0), lambda m: setattr(m, "value", types.SimpleNamespace(k=7.0))],
    ),
}

# Forward, value, (holder, name, another value).
OUTSIDE: dict[str, tuple[Callable[..., object], Callable[[], object], tuple[Any, str, object]]] = {
    "number of a module": (
        lambda self, x: x * settings_of_models.SCALE,
        lambda: None,
        (settings_of_models, "SCALE", 5.0),
    ),
    "function of a module": (
        lambda self, x: settings_of_models.tripled(x),
        lambda: None,
        (settings_of_models, "tripled", torch.tanh),
    ),
    "number that it uses": (
        lambda self, x: settings_of_models.scaled(x),
        lambda: None,
        (settings_of_models, "SCALE", 5.0),
    ),
    "number of a class": (lambda self, x: clipped(x * 9), lambda: None, (Limits, "TOP", 5.0)),
    "number of a class within": (lambda self, x: clipped(x), lambda: None, (Limits.Inner, "LOW", 5.0)),
    "class that is held": (lambda self, x: x * self.value.TOP, lambda: Limits, (Limits, "TOP", 5.0)),
    "number of an object's class": (lambda self, x: x * self.value.k, Settings, (Settings, "k", 5.0)),
    "method of an object": (
        lambda self, x: self.value.applied(x),
        Settings,
        (Settings, "applied", lambda self, x: -x),
    ),
    "property of an object": (
        lambda self, x: x * self.value.doubled,
        Settings,
        (Settings, "doubled", property(lambda self: 9.0)),
    ),
    "what a property uses": (
        lambda self, x: x * self.value.doubled,
        Settings,
        (settings_of_models, "", None),
    ),
    "class of a global object": (lambda self, x: x * FIXED.k, lambda: None, (Settings, "k", 5.0)),
    "global built-in function": (
        lambda self, x: ACTIVATION(x),
        lambda: None,
        (None, "ACTIVATION", torch.tanh),
    ),
}


def both(make: Callable[[], Any]) -> tuple[Any, Any]:
    """A model in eager mode, and the same compiled."""
    torch.manual_seed(0)
    reference, model = make(), make()
    model.load_state_dict(reference.state_dict())
    return reference, kernelize(model, mode=Mode.INFERENCE)


def images(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def compare(reference: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    """Call both, and compare: values, dtypes, whether a gradient is asked for. Returns what eager gives."""
    expected, found = reference(*args, **kwargs), model(*args, **kwargs)
    assert pytree.tree_structure(expected) == pytree.tree_structure(found)
    for one, other in zip(pytree.tree_leaves(expected), pytree.tree_leaves(found), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5, equal_nan=True)
    return expected


def is_compiled(model: nn.Module) -> bool:
    return report(model).rows[0].swapped


def differs(one: Any, other: Any) -> bool:
    leaves = zip(pytree.tree_leaves(one), pytree.tree_leaves(other), strict=True)
    return any(a.dtype != b.dtype or not torch.equal(a, b) for a, b in leaves)


@pytest.mark.parametrize(
    "case", all_but(ATTRIBUTES, "another parameter", "no attribute of an object, then one")
)
def test_attributes_that_change_are_followed(case: str) -> None:
    forward, value, changes = ATTRIBUTES[case]
    reference, model = both(of(forward, value))
    x = images(4, 8)
    before = compare(reference, model, x)
    assert is_compiled(model)
    for change in changes:
        change(reference), change(model)
        after = compare(reference, model, x)
        assert differs(before, after)
        before = after


@pytest.mark.parametrize("case", all_but(OUTSIDE, "number of a class within", "class of a global object"))
def test_what_code_names_outside_is_followed(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, value, (holder, name, replaced) = OUTSIDE[case]
    reference, model = both(of(forward, value))
    x = images(4, 8)
    before = compare(reference, model, x)
    assert is_compiled(model)
    with monkeypatch.context() as patched:
        if holder is None:
            patched.setattr(f"{__name__}.{name}", replaced)
        elif name:
            patched.setattr(holder, name, replaced)
        else:
            patched.setitem(FACTORS, "own", 7.0)
        assert differs(before, compare(reference, model, x))
    compare(reference, model, x)


def test_defaults_that_are_replaced_are_followed() -> None:
    def forward(self: Any, x: Tensor, scale: float = 2.0) -> Tensor:
        return torch.tanh(x) * scale

    reference, model = both(of(forward))
    x = images(4, 8)
    before = compare(reference, model, x)
    assert is_compiled(model)
    forward.__defaults__ = (5.0,)
    assert differs(before, compare(reference, model, x))
    forward.__defaults__ = (2.0,)
    assert not differs(before, compare(reference, model, x))


def test_code_of_a_function_that_is_replaced_is_followed() -> None:
    """As reloading in a notebook does it."""

    def inner(x: Tensor) -> Tensor:
        return torch.tanh(x)

    reference, model = both(of(lambda self, x: inner(x) + 1))
    x = images(4, 8)
    before = compare(reference, model, x)
    assert is_compiled(model)
    inner.__code__ = (lambda x: torch.sigmoid(x)).__code__
    assert differs(before, compare(reference, model, x))


def weighted(self: Any, **tensors: Tensor) -> Any:
    result: Any = 0
    for one in tensors.values():
        result = result * 2 + torch.tanh(one)
    return result, dict(tensors.items())


def test_the_order_of_keywords_and_signs_of_zeros_count() -> None:
    reference, model = both(of(weighted))
    a, b = images(4, 8), images(4, 8) + 1
    first, _ = compare(reference, model, a=a, b=b)
    assert is_compiled(model)
    second, given = compare(reference, model, b=b, a=a)
    assert differs(first, second) and list(given) == ["b", "a"]
    reference, model = both(of(lambda self, x, zero=0.0: x.abs() / zero))
    for zero in (0.0, -0.0, 1, 1.0, True):
        compare(reference, model, a, zero)


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is nn.functional.linear else result


@contextlib.contextmanager
def default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def hook_of_all_modules() -> Iterator[None]:
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, args, result: result * 2 if isinstance(module, nn.Linear) else None
    )
    try:
        yield
    finally:
        hook.remove()


@contextlib.contextmanager
def variable() -> Iterator[None]:
    os.environ["SCALE_OF_A_TEST"] = "3"
    try:
        yield
    finally:
        del os.environ["SCALE_OF_A_TEST"]


MODES: dict[str, tuple[Callable[..., object], Callable[[], Any]]] = {
    "mode of torch.overrides": (lambda self, x: torch.tanh(self.layer(x)), Doubling),
    "default dtype": (lambda self, x: (x.long() * 1.5, torch.tanh(x)), default_dtype),
    "hook of all modules": (lambda self, x: torch.tanh(self.layer(x)), hook_of_all_modules),
    "gradients": (lambda self, x: torch.tanh(x) * (2 if torch.is_grad_enabled() else 3), torch.enable_grad),
    "inference": (
        lambda self, x: torch.tanh(x) * (2 if torch.is_inference_mode_enabled() else 3),
        torch.inference_mode,
    ),
    "variable": (lambda self, x: torch.tanh(x) * float(os.environ.get("SCALE_OF_A_TEST", "1")), variable),
    "variable by os": (lambda self, x: torch.tanh(x) * float(os.getenv("SCALE_OF_A_TEST", "1")), variable),
}


@pytest.mark.parametrize("case", MODES)
def test_modes_that_forwards_see_are_followed(case: str) -> None:
    forward, mode = MODES[case]
    reference, model = both(of(forward))
    x = images(4, 8)
    before = compare(reference, model, x)
    assert is_compiled(model)
    with mode():
        assert differs(before, compare(reference, model, x))
    compare(reference, model, x)


def test_the_default_device_of_the_program_changes_nothing() -> None:
    reference, model = both(of(lambda self, x: torch.tanh(self.layer(x)) + torch.ones(8)))
    x = images(4, 8)
    compare(reference, model, x)
    assert is_compiled(model)
    with torch.device("cpu"):
        compare(reference, model, x)
    with torch.device("meta"), pytest.raises(RuntimeError, match="device"):
        model(x)


LAYOUTS: dict[str, Callable[..., object]] = {
    "contiguous": lambda self, x: torch.tanh(x) * (2 if x.is_contiguous() else 3),
    "strides": lambda self, x: torch.tanh(x) * x.stride(0),
    "offset": lambda self, x: torch.tanh(x) * (1 + x.storage_offset()),
    "gradient": lambda self, x: torch.tanh(x) * (2 if x.requires_grad else 3),
    "parameter": lambda self, x: torch.tanh(x) * (2 if isinstance(x, nn.Parameter) else 3),
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_what_forwards_ask_tensors_is_answered(case: str) -> None:
    reference, model = both(of(LAYOUTS[case]))
    compare(reference, model, images(4, 8))
    assert is_compiled(model)
    for x in (images(8, 4).t(), images(6, 8)[2:], images(4, 8).requires_grad_(), nn.Parameter(images(4, 8))):
        compare(reference, model, x)


ALIASES: dict[str, Callable[..., Any]] = {
    "argument": lambda self, x: (x, torch.tanh(x)),
    "argument in a dict": lambda self, x: {"given": [x], "made": torch.tanh(x)},
    "view of an argument": lambda self, x: (x[:2], torch.tanh(x)),
    "transposed argument": lambda self, x: (torch.tanh(x), x.t()),
    "one result twice": lambda self, x: (torch.tanh(x),) * 2,
    "view of a result": lambda self, x: (y := torch.tanh(x), y[:2]),
    "detached": lambda self, x: ((y := torch.tanh(x)).detach(), y),
    "weight": lambda self, x: (self.layer.weight.detach(), torch.tanh(self.layer(x))),
}


@pytest.mark.parametrize("case", all_but(ALIASES, "transposed argument", "view of a result"))
def test_what_a_caller_writes_into_a_result_is_seen_where_eager_has_it(case: str) -> None:
    reference, model = both(of(ALIASES[case]))
    for _ in range(2):
        seen = []
        for one in (reference, model):
            x = images(4, 8)
            leaves = pytree.tree_leaves(one(x))
            leaves[0].add_(1)
            seen.append([x, *leaves, one.layer.weight.detach().clone()])
        torch.testing.assert_close(seen[1], seen[0])


def test_results_that_are_arguments_are_the_very_objects() -> None:
    _, model = both(of(lambda self, x, pair: (x, pair["b"], torch.tanh(x))))
    for _ in range(2):
        x, pair = images(4, 8), {"a": images(4, 8), "b": images(4, 8)}
        first, second, _ = model(x, pair)
        assert first is x and second is pair["b"]
    assert is_compiled(model)


def test_negative_indices_of_an_embedding_are_refused_as_in_eager() -> None:
    reference, model = both(lambda: nn.Sequential(nn.Embedding(10, 8), nn.Tanh()).eval())
    compare(reference, model, torch.tensor([[1, 2], [3, 9]]))
    for bad in (-1, 10):
        for one in (reference, model):
            with pytest.raises(IndexError):
                one(torch.tensor([[bad, 2], [3, 4]]))
    reference, model = both(of(lambda self, x, at: torch.tanh(x)[at] + x.index_select(0, at.abs())))
    compare(reference, model, images(4, 8), torch.tensor([-1, 2]))
    with pytest.raises(IndexError):
        both(of(lambda self, x, at: torch.tanh(x).index_select(0, at)))[1](
            images(4, 8), torch.tensor([-1, 2])
        )


def test_parametrizations_that_are_cached_are_followed() -> None:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).eval()
        parametrizations.weight_norm(model[0])
        return model

    reference, model = both(make)
    x = images(4, 8)
    before = compare(reference, model, x)
    results = []
    for one in (reference, model):
        with parametrize.cached():
            one(x)
            one[0].parametrizations.weight.original0.mul_(2)
            results.append(one(x))
        results.append(one(x))
    torch.testing.assert_close(results[2:], results[:2])
    assert not differs(before, results[0]) and differs(before, results[1])


@dataclasses.dataclass
class Scale:
    factor: float = 2.0

    def __call__(self, x: Tensor) -> Tensor:
        return torch.tanh(x) * self.factor * FACTORS["own"]


@pytest.mark.parametrize(
    "held", [Scale, lambda: functools.partial(Scale(), torch.tensor(1.0))], ids=["object", "partial"]
)
def test_what_an_object_runs_when_it_is_called_is_followed(
    held: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, model = both(
        of(lambda self, x: self.value(x) if isinstance(self.value, Scale) else x * self.value(), held)
    )
    x = images(4, 8)
    before = compare(reference, model, x)
    monkeypatch.setitem(FACTORS, "own", 7.0)
    assert differs(before, compare(reference, model, x))


def the_same(self: Any, x: Tensor, y: Tensor) -> Tensor:
    return torch.tanh(x) * 3 if x is y else torch.tanh(x) + y


def seeded(self: Any, x: Tensor) -> Tensor:
    return torch.tanh(x) * (torch.initial_seed() % 7 + 1)


def test_the_same_tensor_given_twice_and_the_seed_are_followed() -> None:
    reference, model = both(of(the_same))
    x, y = images(4, 8), images(4, 8) + 1
    compare(reference, model, x, y)
    assert is_compiled(model)
    compare(reference, model, x, x)
    reference, model = both(of(lambda self, x: torch.tanh(x) + (1 if x is self.layer.weight else 2)))
    compare(reference, model, images(8, 8))
    assert is_compiled(model)
    torch.testing.assert_close(model(model.layer.weight), reference(reference.layer.weight))
    reference, model = both(of(seeded))
    torch.manual_seed(3)
    before = compare(reference, model, x)
    assert is_compiled(model)
    torch.manual_seed(4)
    assert differs(before, compare(reference, model, x))


def by_name(self: Any, x: Tensor) -> Tensor:
    return torch.tanh(x) * globals().get("FIRST_DEFINED_LATER", 2.0)


def of_module(self: Any, x: Tensor) -> Tensor:
    if hasattr(settings_of_models, "FIRST_DEFINED_LATER"):
        return torch.tanh(x) * settings_of_models.FIRST_DEFINED_LATER  # type: ignore[no-any-return]
    return torch.tanh(x)


def with_default(self: Any, x: Tensor) -> Tensor:
    return torch.tanh(x) * getattr(settings_of_models, "FIRST_DEFINED_LATER", 2.0)  # type: ignore[no-any-return]


def in_a_try(self: Any, x: Tensor) -> Tensor:
    try:
        return torch.tanh(x) * FIRST_DEFINED_LATER  # type: ignore[name-defined,no-any-return]
    except NameError:
        return torch.tanh(x)


@pytest.mark.parametrize(("forward",), first(2, [(by_name,), (of_module,), (with_default,), (in_a_try,)]))
def test_a_global_that_is_first_defined_later_is_followed(
    forward: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, model = both(of(forward))
    x = images(4, 8)
    before = compare(reference, model, x)
    assert is_compiled(model)
    with monkeypatch.context() as patched:
        for holder in (__name__, settings_of_models.__name__):
            patched.setattr(f"{holder}.FIRST_DEFINED_LATER", 5.0, raising=False)
        assert differs(before, compare(reference, model, x))
    assert not differs(before, compare(reference, model, x))


LOGGER = logging.getLogger("models of a user")


@functools.cache
def told_once(text: str) -> None:
    LOGGER.warning(text)


@pytest.mark.parametrize(
    ("verb", "speak"),
    [
        ("prints", lambda: print("a call")),
        ("warns", lambda: warnings.warn("a call", stacklevel=1)),
        ("logs", lambda: LOGGER.warning("a call")),
        ("", lambda: told_once("a call")),
    ],
    ids=["print", "warnings", "logging", "once"],
)
@pytest.mark.filterwarnings("ignore:a call")
def test_what_a_forward_says_is_said_at_each_call(
    verb: str,
    speak: Callable[[], object],
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    reference, model = both(of(lambda self, x: (speak(), torch.tanh(x))[1]))
    for _ in range(2):
        compare(reference, model, images(4, 8))
    capsys.readouterr(), caplog.clear()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        model(images(4, 8))
    said = capsys.readouterr().out + "".join(record.message for record in caplog.records)
    assert (said + "".join(str(one.message) for one in warned)).count("a call") == bool(verb)
    assert is_compiled(model) is not bool(verb)
    assert verb in (report(model).rows[0].reason or "")
