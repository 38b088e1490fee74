"""Sizes that a trace has fixed, or bounded, though calls may have others: of a loop over time, the length that the
example had; of windows, the lengths that make one of them, or those that make several.

And arguments whose very values a program is of, as the grid of patches that a vision tower is given.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from kernels_hub.kernelization.bind import Forward
from kernels_hub.kernelization.compiled_layer import Arguments, Keywords
from kernels_hub.kernelization.jit_compilations import Sized, program_of

if TYPE_CHECKING:
    from torch import nn

_LEAST = 2
"""Sizes of 0 and 1 are special to a trace, and part of every call's signature."""


class _Dim(Protocol):
    """`kernels_hub.compiler.runtime.sizes.SymbolicDim`."""

    @property
    def symbols(self) -> tuple[str, ...]: ...
    @property
    def value(self) -> Callable[[int], object]: ...


class _Bound(Protocol):
    """`kernels_hub.compiler.runtime.sizes.Bound`."""

    @property
    def smallest(self) -> int: ...
    @property
    def largest(self) -> int | None: ...


@dataclass(frozen=True)
class FixedSizes:
    """places: (position, name, axis) of arguments that are tensors. bounds: the least and the largest size that a
    program takes there, None for no largest; equal where a trace has fixed it.
    """

    places: tuple[tuple[int, str, int], ...]
    bounds: tuple[tuple[int, int | None], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """What `of` gives for calls that the program takes."""
        return tuple(low if low == high else 0 for low, high in self.bounds)

    def of(self, args: Arguments, kwargs: Keywords) -> tuple[int, ...] | None:
        """Those of a call that were fixed; of bounds, -1 below and 1 above. None of a call without such tensors."""
        shapes = [
            (_shape(_given(position, name, args, kwargs)), axis) for position, name, axis in self.places
        ]
        if any(axis >= len(shape) for shape, axis in shapes):
            return None
        return tuple(
            shape[axis] if low == high else _side(shape[axis], low, high)
            for (shape, axis), (low, high) in zip(shapes, self.bounds, strict=True)
        )


@dataclass(frozen=True)
class ValuedArguments:
    """Arguments whose values a program is of. places: (position, name) of each; values: what they hold there, after
    their shapes.
    """

    places: tuple[tuple[int, str], ...]
    values: tuple[tuple[int, ...], ...]

    def signed(
        self, module: nn.Module, signature: Hashable, args: Arguments = (), kwargs: Keywords | None = None
    ) -> Sized:
        """The signature of a call with what these arguments hold: in the call, or, without one, in the program."""
        values = self.values if kwargs is None else self._of(args, kwargs)
        if isinstance(signature, Sized):
            return replace(signature, values=values)
        return Sized(module.training, signature, (), values)

    def _of(self, args: Arguments, kwargs: Keywords) -> tuple[tuple[int, ...], ...]:
        import torch

        given = (_given(position, name, args, kwargs) for position, name in self.places)
        return tuple(
            (*_shape(one), *one.flatten().tolist()) if isinstance(one, torch.Tensor) else () for one in given
        )


def valued_arguments(compiled: Forward, forward: Callable[..., object]) -> ValuedArguments | None:
    """The arguments whose values a compiled layer is of; None where there are none.

    compiled, forward: of the layer, and of the module's class.
    """
    program = program_of(compiled)
    names = [*inspect.signature(forward).parameters][1:]
    found: dict[tuple[int, str], tuple[int, ...]] = {}
    for name, one in () if program is None else program.table.arguments.items():
        for key, value in one.items() if name == program.table.named else ((name, one),):
            if type(value).__name__ == "Values":  # of the runtime that the layer's repository has
                position = names.index(key) if key in names else len(names)
                found[position, key] = (*value.shape, *value.values)
    return ValuedArguments(tuple(found), tuple(found.values())) if found else None


def fixed_sizes(
    compiled: Forward, forward: Callable[..., object], args: Arguments, kwargs: Keywords
) -> FixedSizes | None:
    """The sizes of a call that a compiled layer does not take; None where there are none.

    compiled, forward: of the layer, and of the module's class.
    """
    program = program_of(compiled)
    names = [*inspect.signature(forward).parameters][1:]
    found: dict[tuple[int, str, int], tuple[int, int | None]] = {}
    for one in () if program is None else program.table.inputs:
        if one.name in names:
            position = names.index(one.name)
            shape = _shape(_given(position, one.name, args, kwargs))
            for axis, (dim, size) in enumerate(zip(one.shape, shape, strict=False)):
                bounds = _bounds(dim, program.table.bounds)
                if bounds is not None and size >= _LEAST and _side(size, *bounds):
                    found[position, one.name, axis] = bounds
    return FixedSizes(tuple(found), tuple(found.values())) if found else None


def _bounds(dim: int | _Dim, of_symbols: Mapping[str, _Bound]) -> tuple[int, int | None] | None:
    """The sizes that a dim of an input may have; None of a sum of several symbols."""
    if isinstance(dim, int):
        return None if dim < _LEAST else (dim, dim)
    (name, *more), value = dim.symbols, dim.value
    if more or value(_LEAST) != _LEAST:
        return None
    return of_symbols[name].smallest, of_symbols[name].largest


def _side(size: int, low: int, high: int | None) -> int:
    return -1 if size < low else int(high is not None and size > high)


def _given(position: int, name: str, args: Arguments, kwargs: Keywords) -> object:
    return args[position] if position < len(args) else kwargs.get(name)


def _shape(value: object) -> tuple[int, ...]:
    """Of a tensor; () of anything else."""
    return tuple(getattr(value, "shape", ()))
