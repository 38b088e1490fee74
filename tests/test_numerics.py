"""The measures of error: right where results are equal up to rounding, and never where they are not."""

from __future__ import annotations

import doctest
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from kernels_hub import numerics
from kernels_hub.numerics import EXACT, TOLERANCES, largest_error, norm_error, tolerance

KINDS = [np.asarray, torch.tensor]
MEASURES = [norm_error, largest_error]


@pytest.mark.parametrize("make", KINDS)
def test_errors_are_relative_to_what_is_expected(make: Callable[[Any], Any]) -> None:
    expected = make([3.0, -4.0, 0.0])
    assert norm_error(make([3.0, -4.0, 0.5]), expected) == pytest.approx(0.1)
    assert largest_error(make([3.0, -4.0, 0.5]), expected) == pytest.approx(0.125)
    assert norm_error(make([0.0, 0.5]), make([0.0, 0.0])) == pytest.approx(0.5)
    assert largest_error(make([0.0, 0.5]), make([0.0, 0.0])) == pytest.approx(0.5)


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("measure", MEASURES)
def test_special_numbers_must_be_where_they_are_expected(
    measure: Callable[[Any, Any], float], make: Callable[[Any], Any]
) -> None:
    nan, inf = math.nan, math.inf
    expected = make([1.0, nan, inf, -inf])
    assert measure(make([1.0, nan, inf, -inf]), expected) == 0.0
    for wrong in (
        [nan, nan, inf, -inf],
        [1.0, 0.0, inf, -inf],
        [1.0, nan, -inf, -inf],
        [1.0, nan, nan, -inf],
        [1.0, inf, inf, -inf],
        [inf, nan, inf, -inf],
    ):
        assert measure(make(wrong), expected) == inf


@pytest.mark.parametrize("measure", MEASURES)
def test_numbers_that_may_be_flushed_to_zero_are_no_errors(measure: Callable[[Any, Any], float]) -> None:
    """Of an untrained network whose results are below the smallest normal number, few bits are left."""
    tiny = torch.tensor([1.5e-39, -3e-40])
    assert measure(torch.zeros(2), tiny) < 1e-7
    assert measure(tiny.bfloat16() * 2, tiny.bfloat16()) < 1e-7
    assert measure(torch.tensor([1e-30]), tiny[:1]) > 1
    assert measure(torch.tensor([1.001e-30]), torch.tensor([1e-30])) == pytest.approx(1e-3, rel=1e-3)
    assert measure(tiny.double() * 2, tiny.double()) == pytest.approx(1.0)
    assert measure(np.float32([2e-39]), np.float32([1e-39])) < 1e-7


@pytest.mark.parametrize("measure", MEASURES)
def test_results_are_compared_in_double_precision(measure: Callable[[Any, Any], float]) -> None:
    half = torch.full((70_000,), 2.0, dtype=torch.float16)
    assert measure(half, half) == 0.0
    assert measure(half * 1.25, half) == pytest.approx(0.25)
    assert measure(torch.tensor([1 + 2j], dtype=torch.complex64), torch.tensor([1 + 1j])) > 0.4
    assert measure(np.array([1 + 2j]), np.array([1 + 1j])) > 0.4
    assert measure(torch.empty(0, 3), torch.empty(0, 3)) == measure(np.empty((0, 3)), np.empty((0, 3))) == 0
    assert measure(torch.tensor(1.5), torch.tensor(1.0)) == pytest.approx(0.5)
    assert measure(torch.ones(2, requires_grad=True), torch.ones(2)) == 0.0


def test_the_table_is_asked_by_a_dtype_or_its_name() -> None:
    for name, row in TOLERANCES.items():
        assert tolerance(name) is tolerance(getattr(torch, name)) is row
    assert tolerance(np.dtype(np.float32)) is TOLERANCES["float32"]
    assert tolerance(torch.int64) is tolerance("float8_e4m3fn") is EXACT
    assert doctest.testmod(numerics) == (0, 1)


def test_a_shorter_float_is_never_allowed_less() -> None:
    rows = [TOLERANCES[name] for name in ("float64", "float32", "float16", "bfloat16")]
    for longer, shorter in itertools.pairwise(rows):
        for field in ("kernel", "element", "program", "layer"):
            assert getattr(longer, field) < getattr(shorter, field)
