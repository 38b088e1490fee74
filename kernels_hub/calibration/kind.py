"""What a kind of layers that is measured consists of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor, nn

ELEMENTS = tuple(1 << exponent for exponent in range(8, 23, 2))
"""The classes of rows of what has one element a row."""
Layer: TypeAlias = Any
"""A module: its attributes are those of its kind."""
Arguments: TypeAlias = "tuple[tuple[Tensor, ...], dict[str, Any]]"
Read = Callable[[Layer], tuple[str, int, int, int]]
"""A module -> what tells its form from others of its kind, depth, columns, elements a row."""
Build = Callable[[str, int, int], "nn.Module"]
"""A form, depth and columns -> a module as PyTorch or transformers has it. ImportError where it cannot be had."""
Example = Callable[[str, int, int, int], list[Arguments]]
"""A form, depth, columns and rows -> the arguments of calls; of several, the one that gains least counts."""


MOST_WORK = 1.5e9
"""Multiplications of a call above which a class of rows is not measured: what holds for fewer rows holds for it."""


@dataclass(frozen=True)
class Kind:
    """A kind of layers. sizes: the (form, depth, columns) that `kernels-hub calibrate` measures."""

    read: Read
    build: Build
    example: Example
    rows: Sequence[int]
    sizes: Sequence[tuple[str, int, int]]
    work: Callable[[str, int, int, int], float]
    """Multiplications of (form, depth, columns, rows)."""
    most_work: float = MOST_WORK
    """Above so many a class of rows is not measured."""


def product(factor: int) -> Callable[[str, int, int, int], float]:
    """What multiplies depth, columns and rows so many times."""
    return lambda _, depth, columns, rows: float(factor * depth * columns * rows)
