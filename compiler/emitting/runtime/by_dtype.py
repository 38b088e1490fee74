"""Several programs of one layer, each for weights of another dtype: a call goes to the one that fits its module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from .errors import Misfit
from .layer import Layer
from .state import State, find_weight


class ByDtype:
    """As a `Layer`. layers: dtype -> its layer; the first says what a call is."""

    def __init__(self, layers: Mapping[str, Layer[Any, Any]]) -> None:
        self._layers = {getattr(torch, name): one for name, one in layers.items()}
        self._names = " and ".join(layers)
        self.layers = list(layers.values())
        self._first = self.layers[0]
        self.table = self._first.table
        self._told_by = _differing(layers)
        self.fallbacks: dict[str, str] = {}
        """Kind -> the first reason of that kind for which no program ran."""
        for one in layers.values():
            one.fallbacks = self.fallbacks

    def call(self, module: nn.Module, *values: Any) -> Any:
        """As `Layer.call`."""
        try:
            layer = self._of(module, values)
        except Misfit as reason:
            if torch.compiler.is_compiling():
                return self._first.call(module, *values)
            return self._first.instead(module, values, reason)
        return layer.call(module, *values)

    def state(self, module: nn.Module) -> State:
        """As `Layer.state`."""
        state: State = self._of(module, ()).state(module)
        return state

    def prepare(self, module: nn.Module) -> None:
        """As `Layer.prepare`."""
        self._of(module, ()).prepare(module)

    @property
    def has_backward(self) -> bool:
        """Whether gradients flow through all of the programs."""
        return all(one.has_backward for one in self.layers)

    def known(self, module: nn.Module) -> State | None:
        """As `Layer.known`."""
        return next(
            (found for one in self._layers.values() if (found := one.known(module)) is not None), None
        )

    def forget(self, module: nn.Module) -> None:
        """As `Layer.forget`."""
        for one in self._layers.values():
            one.forget(module)

    def refresh(self, module: nn.Module) -> None:
        """As `Layer.refresh`."""
        for one in self.layers:
            if one.known(module) is not None:
                one.refresh(module)

    def be_strict(self, module: nn.Module, on: bool) -> None:
        """As `Layer.be_strict`."""
        for one in self.layers:
            one.be_strict(module, on)

    def say(self, reason: Misfit) -> None:
        """As `Layer.say`."""
        self._first.say(reason)

    def _of(self, module: nn.Module, values: Iterable[Any]) -> Layer[Any, Any]:
        if self._told_by is not None:
            name, tensor = f"its {self._told_by}", find_weight(module, self._told_by)[2]
        else:
            leaf = _first_float(values)
            if leaf is None:
                return self._first
            name, tensor = "an argument", leaf
        found = self._layers.get(tensor.dtype)
        if found is None:
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise Misfit(f"dtype {dtype}", f"{name} is {dtype}, it was compiled for {self._names}")
        return found


def _differing(layers: Mapping[str, Layer[Any, Any]]) -> str | None:
    """A weight that has each program's dtype there; None where no weight tells them from each other."""
    held = [{one.name: one.dtype for one in layer.table.weights} for layer in layers.values()]
    for name in held[0]:
        if all(of.get(name) == dtype for dtype, of in zip(layers, held, strict=True)):
            return name
    return None


def _first_float(values: Iterable[Any]) -> torch.Tensor | None:
    for one in values:
        if isinstance(one, torch.Tensor):
            if one.is_floating_point():
                return one
        elif isinstance(one, (tuple, list, dict)):
            found = _first_float(one.values() if isinstance(one, dict) else one)
            if found is not None:
                return found
    return None
