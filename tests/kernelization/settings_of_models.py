"""What models of `test_changes_around_calls` use as a module of Python: a number, a function, one that uses the number."""

from __future__ import annotations

from torch import Tensor

SCALE = 2.0


def tripled(x: Tensor) -> Tensor:
    return x * 3


def scaled(x: Tensor) -> Tensor:
    return x * SCALE
