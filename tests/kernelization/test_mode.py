"""Modes: which sets exist, in which order they stand in for one another, how they are written."""

from __future__ import annotations

import itertools
import operator

import pytest

from kernels_hub import Mode, ModeError
from kernels_hub.kernelization.mode import FALLBACK_CHAIN, REGISTRABLE_MODES, check_kernelize_mode, parse_mode

I, T, C, F = Mode.INFERENCE, Mode.TRAINING, Mode.TORCH_COMPILE, Mode.FALLBACK


def legal(value: int) -> bool:
    return value < 16 and not (value & 6 == 6) and not (value & 1 and value != 1)


@pytest.mark.parametrize("value", range(1, 20))
def test_every_value_is_either_a_legal_set_or_a_mode_error(value: int) -> None:
    if legal(value):
        assert Mode(value).value == value
    else:
        with pytest.raises(ValueError):
            Mode(value)


@pytest.mark.parametrize("combine", [operator.or_, operator.xor])
@pytest.mark.parametrize(("a", "b"), [(I, T), (F, I), (F, T), (F, C), (T | C, I)])
def test_invalid_sets_raise_however_they_are_built(combine: object, a: Mode, b: Mode) -> None:
    with pytest.raises(ModeError):
        combine(a, b)  # type: ignore[operator]


def test_inversion_cannot_build_an_invalid_set() -> None:
    for mode in (I, T, C):
        with pytest.raises(ModeError):
            ~mode


def test_removing_a_flag() -> None:
    assert (I | C) ^ C is I
    assert (I | C) & C is C


@pytest.mark.parametrize(
    ("asked", "chain"),
    [
        (I, (I, I | C, T, T | C, F)),
        (I | C, (I | C, T | C, F)),
        (T, (T, T | C, F)),
        (T | C, (T | C, F)),
    ],
)
def test_fallback_chains(asked: Mode, chain: tuple[Mode, ...]) -> None:
    assert FALLBACK_CHAIN[asked] == chain


@pytest.mark.parametrize("mode", [F, C, Mode(0)])
def test_kernelize_refuses_modes_that_it_cannot_serve(mode: Mode) -> None:
    with pytest.raises(ModeError, match=r"Mode\.INFERENCE or Mode\.TRAINING"):
        check_kernelize_mode(mode)


def test_a_mode_of_another_type_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"Mode\.INFERENCE"):
        check_kernelize_mode("inference")


def test_text_round_trip() -> None:
    for mode in REGISTRABLE_MODES:
        assert parse_mode(str(mode)) is mode
    assert parse_mode("Training, torch_compile") == T | C


@pytest.mark.parametrize("text", ["", "infer", "inference|", "inference|training"])
def test_text_that_is_no_mode(text: str) -> None:
    with pytest.raises(ModeError):
        parse_mode(text)


def test_values_are_those_of_the_peer() -> None:
    kernels = pytest.importorskip("kernels", reason="needs the package kernels (extra: test)")
    for a, b in itertools.product(("INFERENCE", "TRAINING", "TORCH_COMPILE", "FALLBACK"), repeat=2):
        if a == b:
            assert Mode[a].value == kernels.Mode[a].value
