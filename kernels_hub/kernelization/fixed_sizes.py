"""Sizes that a trace has fixed though calls may have others: of a loop over time, the length that the example had."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from kernels_hub.kernelization.bind import Forward
from kernels_hub.kernelization.compiled_layer import Arguments, Keywords
from kernels_hub.kernelization.jit_compilations import program_of

_LEAST = 2
"""Sizes of 0 and 1 are special to a trace, and part of every call's signature."""


@dataclass(frozen=True)
class FixedSizes:
    """places: (position, name, axis) of arguments that are tensors. sizes: what a program has there."""

    places: tuple[tuple[int, str, int], ...]
    sizes: tuple[int, ...]

    def of(self, args: Arguments, kwargs: Keywords) -> tuple[int, ...] | None:
        """Those of a call; None of one that has no such tensors."""
        shapes = [
            (_shape(_given(position, name, args, kwargs)), axis) for position, name, axis in self.places
        ]
        if any(axis >= len(shape) for shape, axis in shapes):
            return None
        return tuple(shape[axis] for shape, axis in shapes)


def fixed_sizes(
    compiled: Forward, forward: Callable[..., object], args: Arguments, kwargs: Keywords
) -> FixedSizes | None:
    """The sizes of a call that are others than a compiled layer has; None where there are none.

    compiled, forward: of the layer, and of the module's class.
    """
    program = program_of(compiled)
    names = [*inspect.signature(forward).parameters][1:]
    found: dict[tuple[int, str, int], int] = {}
    for one in () if program is None else program.table.inputs:
        if one.name in names:
            position = names.index(one.name)
            shape = _shape(_given(position, one.name, args, kwargs))
            found |= {
                (position, one.name, axis): dim
                for axis, (dim, size) in enumerate(zip(one.shape, shape, strict=False))
                if isinstance(dim, int) and dim != size and min(dim, size) >= _LEAST
            }
    return FixedSizes(tuple(found), tuple(found.values())) if found else None


def _given(position: int, name: str, args: Arguments, kwargs: Keywords) -> object:
    return args[position] if position < len(args) else kwargs.get(name)


def _shape(value: object) -> tuple[int, ...]:
    """Of a tensor; () of anything else."""
    return tuple(getattr(value, "shape", ()))
