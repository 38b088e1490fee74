"""Results in memory that others have, too: made of an output, an argument or a weight by the view operations of eager.

A caller who writes into one sees it in the others, as in eager; strides and offsets are the same.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import Parameter

from .arguments import argument_at, dtype_of
from .binding import ShapeCache
from .errors import Misfit
from .parts import Argument, Kept, Shape, Table, Tensor, View
from .sizes import SymbolicDim
from .state import find_weight

Operation = tuple[Callable[..., object], tuple[object, ...]]
"""A view operation and its arguments after the tensor."""


class Views:
    """Those of a table. sizes: gives the sizes of symbols for shapes of inputs."""

    def __init__(self, table: Table, sizes: Callable[[Sequence[Shape]], Mapping[str, int]]) -> None:
        self._views, self._sizes = table.views, sizes
        self._operations = [[_operation(name) for name, _ in view.steps] for view in table.views]
        self._bound: ShapeCache[list[list[Operation]]] = ShapeCache(self._bind)

    def of(
        self,
        module: nn.Module,
        values: Mapping[str, object],
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
    ) -> list[torch.Tensor]:
        """The views. values: arguments by name; inputs: of the program. Raises Misfit for another weight."""
        made = []
        for view, operations in zip(self._views, self._bound.of(inputs), strict=True):
            tensor: Any = _root(view, module, values, outputs)
            for operation, arguments in operations:
                tensor = operation(tensor, *arguments)
            made.append(tensor)
        return made

    def _bind(self, shapes: tuple[Shape, ...]) -> list[list[Operation]]:
        sizes = self._sizes(shapes)
        return [
            [
                (operation, tuple(_argument(one, sizes) for one in arguments))
                for operation, (_, arguments) in zip(operations, view.steps, strict=True)
            ]
            for operations, view in zip(self._operations, self._views, strict=True)
        ]


def _root(
    view: View, module: nn.Module, values: Mapping[str, object], outputs: Sequence[torch.Tensor]
) -> object:
    of = view.of
    if isinstance(of, Tensor):
        return outputs[of.place]
    return argument_at(values, of.name) if isinstance(of, Argument) else _weight(module, of)


def _weight(module: nn.Module, kept: Kept) -> torch.Tensor:
    tensor: torch.Tensor = find_weight(module, kept.name).value
    if (
        type(tensor) not in (torch.Tensor, Parameter)
        or tensor.dtype is not dtype_of(kept.dtype)
        or tuple(tensor.shape) != kept.shape
    ):
        raise Misfit(
            "weights",
            f"its {kept.name}, which is a result, is not the {kept.dtype}{list(kept.shape)} that it was",
        )
    return tensor


def _operation(name: str) -> Callable[..., object]:
    if name == "getitem":
        return operator.getitem
    if name.startswith("no_grad "):
        return torch.no_grad()(_operation(name.removeprefix("no_grad ")))
    packet, _, overload = name.partition(".")
    found: Callable[..., object] = getattr(getattr(torch.ops.aten, packet), overload)
    return found


def _argument(value: object, sizes: Mapping[str, int]) -> object:
    if isinstance(value, SymbolicDim):
        size: int = value.of(sizes)
        return size
    if isinstance(value, tuple):
        return tuple(_argument(one, sizes) for one in value)
    return dtype_of(value.removeprefix("torch.")) if isinstance(value, str) else value
