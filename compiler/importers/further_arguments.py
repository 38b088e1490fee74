"""Arguments of a compiled graph beside those of its ATen graph, made before each run from the sizes of the call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.extrema import number

if TYPE_CHECKING:
    from torch.fx import Node


@dataclass(frozen=True)
class CallSize:
    """A size that a call tells."""

    dim: Dim

    def of(self, sizes: Mapping[str, int]) -> int:
        """The number. sizes: of all symbols."""
        return number(self.dim, sizes)


Size = int | CallSize


def told_at_calls(dim: Dim) -> Size:
    """A dim as a number, or as what a call tells."""
    return dim if isinstance(dim, int) else CallSize(dim)


def numbers(sizes: Sequence[Size], told: Mapping[str, int]) -> tuple[int, ...]:
    """Sizes of one call. told: of all symbols."""
    return tuple(one if isinstance(one, int) else one.of(told) for one in sizes)


@dataclass(frozen=True)
class _Like:
    """A tensor of which only this matters."""

    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    dtype: torch.dtype
    device: torch.device

    def of(self, sizes: Mapping[str, int]) -> torch.Tensor:
        shape, strides = numbers(self.shape, sizes), numbers(self.strides, sizes)
        return torch.empty_strided(shape, strides, dtype=self.dtype, device=self.device)


@dataclass(frozen=True)
class FurtherArgument:
    """The call of an operator that makes an argument: in terms of an ATen graph, or `in_dims` of its sizes.

    Of tensors, only shape, strides, dtype and device matter.
    """

    operator: Callable[..., torch.Tensor]
    args: tuple[object, ...]
    kwargs: Mapping[str, object] = field(default_factory=dict)

    def in_dims(self, dim: Callable[[object], Dim]) -> FurtherArgument:
        """With sizes that a call tells for nodes and their sizes. dim: gives the dim of one of PyTorch's sizes."""

        def size(one: int | torch.SymInt) -> Size:
            return told_at_calls(one if isinstance(one, int) else dim(one))

        def told(one: object) -> object:
            value = one.meta["val"] if isinstance(one, torch.fx.Node) else one
            if isinstance(value, torch.Tensor):
                shape, strides = (tuple(map(size, of)) for of in (value.shape, value.stride()))
                return _Like(shape, strides, value.dtype, value.device)
            return size(value) if isinstance(value, torch.SymInt) else value

        return self._with(told)

    @property
    def told(self) -> list[CallSize]:
        """The sizes that a call tells."""
        found: list[CallSize] = []

        def add(one: object) -> object:
            sizes = (*one.shape, *one.strides) if isinstance(one, _Like) else (one,)
            found.extend(size for size in sizes if isinstance(size, CallSize))
            return one

        self._with(add)
        return found

    def tensor(self, sizes: Mapping[str, int]) -> torch.Tensor:
        """The argument of one run. sizes: of all symbols."""
        made = self._with(lambda one: one.of(sizes) if isinstance(one, (CallSize, _Like)) else one)
        return made.operator(*made.args, **made.kwargs)

    def _with(self, told: Callable[[object], object]) -> FurtherArgument:
        """With other arguments, also in the place of those in lists."""

        def each(one: object) -> object:
            return [each(item) for item in one] if isinstance(one, (list, tuple)) else told(one)

        kwargs = {name: each(one) for name, one in self.kwargs.items()}
        return FurtherArgument(self.operator, tuple(map(each, self.args)), kwargs)


def untold(placeholders: Sequence[Node]) -> list[Node]:
    """Arguments that are numbers which no shape of a tensor among the others tells."""
    examples = {node: node.meta.get("val") for node in placeholders}
    tensors = [one for one in examples.values() if isinstance(one, torch.Tensor)]
    told = {symbol for one in tensors for size in one.shape for symbol in _symbols(size)}
    numbers = [node for node, one in examples.items() if isinstance(one, torch.SymInt)]
    return [node for node in numbers if told.isdisjoint(_symbols(examples[node]))]


def _symbols(size: int | torch.SymInt | None) -> list[str]:
    return [str(one) for one in size.node.expr.free_symbols] if isinstance(size, torch.SymInt) else []


def lengths(placeholders: Sequence[Node]) -> list[Node]:
    """Of the numbers that are `untold`, those that are 0 or more: an argument of that length tells them."""
    return [node for node in untold(placeholders) if statically_known_true(node.meta["val"] >= 0)]


def of_length(size: int) -> torch.Tensor:
    """An argument that is there for its length; it takes the memory of one element."""
    return torch.empty_strided((size,), (0,), dtype=torch.bool)


def sizes_of(placeholders: Sequence[Node]) -> Mapping[str, tuple[int, int | None]]:
    """Where symbols are told: the argument, and the axis of it; None where the argument is the size."""
    found: dict[str, tuple[int, int | None]] = {}
    for place, node in enumerate(placeholders):
        example = node.meta.get("val")
        if isinstance(example, torch.SymInt):
            found.setdefault(str(example.node.expr), (place, None))
        elif isinstance(example, torch.Tensor):
            for axis, size in enumerate(example.shape):
                if isinstance(size, torch.SymInt):
                    found.setdefault(str(size.node.expr), (place, axis))
    return found
