"""What tells calls apart: their signatures, and their forms, which tell less and cost less."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels_hub.compiler.jit.signature import call_form, call_signature

Call = tuple[tuple[Any, ...], dict[str, Any]]


def call(*args: Any, **kwargs: Any) -> Call:
    return args, kwargs


def of(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(sizes, dtype=dtype)


def cache(*lengths: int) -> Any:
    """A cache of so many layers, each of which holds so many tokens; 0: nothing yet."""
    utilities = pytest.importorskip("transformers.cache_utils", reason="needs the package transformers")
    made = utilities.DynamicCache()
    for length in lengths:
        made.layers.append(utilities.DynamicLayer())
        if length:
            made.layers[-1].update(of(2, 1, length, 4), of(2, 1, length, 4))
    return made


ALIKE: list[tuple[Call, Call]] = [
    (call(of(2, 3)), call(of(5, 7))),
    (call(of(1, 3)), call(of(1, 9))),
    (call(of(2, 3), use=True), call(of(4, 4), use=True)),
    (call([of(2, 3), of(3)]), call([of(4, 4), of(2)])),
    (call({"a": of(2, 3)}), call({"a": of(3, 2)})),
    (call(of(2, 3, 16, 16)), call(of(4, 3, 16, 16))),
    (call(None, of(2)), call(None, of(3))),
]
"""Calls of one signature."""

APART: list[tuple[Call, Call]] = [
    (call(of(2, 3)), call(of(2, 3, dtype=torch.float64))),
    (call(of(2, 3)), call(of(2, 3, 4))),
    (call(of(1, 7)), call(of(1, 1))),
    (call(of(2, 3)), call(x=of(2, 3))),
    (call(of(2, 3), use=True), call(of(2, 3), use=False)),
    (call(of(2, 3), 1), call(of(2, 3), 2)),
    (call(of(2, 3), 1), call(of(2, 3), True)),
    (call(of(2, 3), 1), call(of(2, 3), 1.0)),
    (call(of(2, 3)), call(of(2, 3), of(2, 3))),
    (call([of(2, 3)]), call([of(2, 3), of(2, 3)])),
    (call([of(2, 3)]), call((of(2, 3),))),
    (call({"a": of(2, 3)}), call({"b": of(2, 3)})),
    (call(of(2, 3, 16, 16)), call(of(2, 3, 32, 32))),
    (call(None), call(of(2, 3))),
]
"""Calls of two forms."""


@pytest.mark.parametrize("kind", [call_signature, call_form])
@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_calls_alike(kind: Callable[..., Any], one: Call, other: Call) -> None:
    assert kind(True, *one) == kind(True, *other) is not None


@pytest.mark.parametrize("kind", [call_signature, call_form])
@pytest.mark.parametrize(("one", "other"), APART)
def test_calls_apart(kind: Callable[..., Any], one: Call, other: Call) -> None:
    assert len({kind(True, *one), kind(True, *other)}) == 2


def test_calls_of_one_signature_are_of_one_form() -> None:
    calls = [one for pair in [*ALIKE, *APART] for one in pair]
    for one, other in itertools.combinations(calls, 2):
        if call_signature(True, *one) == call_signature(True, *other):
            assert call_form(True, *one) == call_form(True, *other)


@pytest.mark.parametrize("kind", [call_signature, call_form])
def test_without_dynamic_sizes_each_is_told_apart(kind: Callable[..., Any]) -> None:
    assert kind(False, *call(of(2, 3))) != kind(False, *call(of(2, 4)))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("kind", [call_signature, call_form])
def test_a_nested_tensor_has_neither(kind: Callable[..., Any]) -> None:
    nested = torch.nested.nested_tensor([of(2), of(3)])
    assert kind(True, *call(nested)) is None


@pytest.mark.parametrize(
    ("one", "other", "signatures", "forms"),
    [
        ((), (5, 5), 2, 2),
        ((0, 0), (5, 5), 2, 2),
        ((5, 5), (9, 9), 1, 1),
        ((5, 5), (5, 0), 2, 2),
        ((0, 5), (5, 5), 2, 2),
        ((5,), (5, 5), 2, 2),
        ((5, 5), (1, 1), 2, 1),
    ],
)
def test_caches(one: tuple[int, ...], other: tuple[int, ...], signatures: int, forms: int) -> None:
    """One token in a cache is a size of 1, which a program is not of: no signature, though the form is that of more."""
    calls = [call(of(2, 1), cache=cache(*lengths)) for lengths in (one, other)]
    assert len({call_signature(True, *each) for each in calls}) == signatures
    assert len({call_form(True, *each) for each in calls}) == forms
    assert (call_signature(True, *calls[1]) is None) == (1 in other)


def test_states_of_caches() -> None:
    utilities = pytest.importorskip("transformers.cache_utils", reason="needs the package transformers")
    kinds = ["empty", "convolution", "both"]
    found = []
    for kind in kinds:
        made = utilities.DynamicCache()
        made.layers.append(utilities.LinearAttentionLayer(number_of_states=1))
        if kind != "empty":
            made.layers[0].update_conv_state(of(2, 8, 4))
        if kind == "both":
            made.layers[0].update_recurrent_state(of(2, 8, 4))
        found.append(call(of(2, 1), cache=made))
    assert len({call_signature(True, *each) for each in found}) == 3
    assert len({call_form(True, *each) for each in found}) == 2, "whether it holds anything"
